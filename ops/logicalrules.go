package ops

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// MaxLogicalRules bounds the rows of a sandbox in a database of OVN, for all its ports together.
const MaxLogicalRules = 4096

// Rules are the NetworkQoS rules for a pod's egress traffic, as each backend enforces them. An
// interface has those of one backend. They have no link and no port yet: the planner puts them on interfaces.
type Rules struct {
	// Filters are set on links, see rules.want.
	Filters []netstate.Filter `json:"filters,omitempty"`
	// LogicalRules are written for ports of OVN.
	LogicalRules []netstate.LogicalRule `json:"logicalRules,omitempty"`
	// Steps has the steps whose interfaces are on networks that other objects cover, with their rules instead.
	Steps map[string]Rules `json:"stepRules,omitempty"`
}

// Of returns the rules of what a step makes.
func (r Rules) Of(step string) Rules {
	if own, ok := r.Steps[step]; ok {
		return own
	}
	return Rules{Filters: r.Filters, LogicalRules: r.LogicalRules}
}

// Empty reports whether there are no rules.
func (r Rules) Empty() bool {
	for _, own := range r.Steps {
		if !own.Empty() {
			return false
		}
	}
	return len(r.Filters)+len(r.LogicalRules) == 0
}

// All returns the rules of all steps, those that several have once.
func (r Rules) All() (filters []netstate.Filter, logical []netstate.LogicalRule) {
	filters, logical = slices.Clone(r.Filters), slices.Clone(r.LogicalRules)
	for _, step := range slices.Sorted(maps.Keys(r.Steps)) {
		filters, logical = append(filters, r.Steps[step].Filters...), append(logical, r.Steps[step].LogicalRules...)
	}
	return filters, logical
}

// Equal reports whether two sandboxes with these rules send the same. It does not tell an empty list from none, which a record
// does not keep.
func (r Rules) Equal(o Rules) bool {
	filters := func(a, b netstate.Filter) bool { return reflect.DeepEqual(a, b) }
	logical := func(a, b netstate.LogicalRule) bool { return reflect.DeepEqual(a, b) }
	return slices.EqualFunc(r.Filters, o.Filters, filters) &&
		slices.EqualFunc(r.LogicalRules, o.LogicalRules, logical) && maps.EqualFunc(r.Steps, o.Steps, Rules.Equal)
}

// Ruled reports whether a history has objects that rules have made.
func Ruled(history []netstate.Change) bool {
	return slices.ContainsFunc(history, func(c netstate.Change) bool {
		kind := c.Key().Kind
		return kind == netstate.KindFilter || kind == netstate.KindLogicalRule
	})
}

// Backends says which backends may enforce rules in the sandbox of a topology, so that rules are
// compiled for these alone. It is tc unless all steps are known to send through ports of OVN that
// they make: the rows of ovn-kubernetes for its own are not changed.
func Backends(t *topology.Topology, given Givens, contracts contract.Set) (tc, ovn bool) {
	for i := range t.Steps {
		s := &t.Steps[i]
		c, known := contracts.Contract(s.Type)
		switch out := c.Output; {
		case out.LogicalPorts && given[s.Name].Port != nil:
			tc = true
		case out.LogicalPorts:
			ovn = true
		// A derived step that makes no interface, or one that sends through another, see rules.portUnder.
		case known && !s.Root() && (out.Interfaces.Appends == 0 || out.Relays):
		default:
			tc = true
		}
	}
	return tc || !ovn, ovn
}

// BindLogicalPort says that what a link sends is received by a port of OVN.
func (p *Planner) BindLogicalPort(link string, port netstate.LogicalPort) {
	p.rules.ports[link] = port
}

// portUnder returns the link that is bound to a port of OVN and sends what a link sends, as it is:
// itself, or one below it. OVN does not see what a VLAN or a tunnel encapsulates. A bond has one limit
// for all of its ports.
func (s *rules) portUnder(link string) (string, bool) {
	for range maxNesting {
		if _, ok := s.ports[link]; ok {
			return link, true
		}
		l, ok := s.p.view.Link(link)
		if kind := l.KindTraits(); !ok || l.Parent == nil || !kind.Stacked || kind.Encapsulates {
			return "", false
		}
		link = *l.Parent
	}
	return "", false
}

// wantLogical wants the rules of the sandbox for its ports of OVN. They belong to the step
// that makes the port.
func (s *rules) wantLogical(links []string) error {
	n := 0
	for _, link := range links {
		n += len(s.of(link).LogicalRules)
	}
	if n > MaxLogicalRules {
		return fault.New(fault.Invalid,
			fmt.Errorf("%w: %d rows on %d ports of OVN together, and a pod's network may have %d: use fewer NetworkQoS objects",
				ErrTooManyFilters, n, len(links), MaxLogicalRules))
	}
	for _, link := range links {
		s.p.current = s.p.steps[s.p.makers[link]]
		for _, r := range s.of(link).LogicalRules {
			if err := s.p.Want(r.Of(s.ports[link], link)); err != nil {
				return s.p.req.stepError(s.p.current.step.Name, err)
			}
		}
	}
	return nil
}
