package ops

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// MaxFilters bounds the filters of a sandbox on all its interfaces together: each is an
// object of the record, and one question to the kernel at each check. Objects of tenants
// decide how many are wanted.
const MaxFilters = 16384

// ErrTooManyFilters means that a sandbox would get more than MaxFilters.
var ErrTooManyFilters = errors.New("too many filters")

// rules are those that the sandbox is given, and the ports of OVN that links are bound to.
type rules struct {
	p     *Planner
	ports map[string]netstate.LogicalPort
}

func (s *rules) of(link string) Rules { return s.p.req.Rules.Of(s.p.makers[link]) }

// want wants the rules that the sandbox is given, on each link that sends for the pod:
// as rows if what it sends is received by a port of OVN, else as filters, so that no packet is
// limited twice. They belong to the step that makes the link. Links of the host have none: what
// other pods send passes them too.
func (s *rules) want() error {
	if s.p.req.Rules.Empty() {
		return nil
	}
	var links, bound []string
	for _, link := range slices.Sorted(maps.Keys(s.p.makers)) {
		if st := s.p.steps[s.p.makers[link]]; st != nil && st.pending == "" && !st.prepared && s.sendsForPod(link) {
			under, ok := s.portUnder(link)
			switch {
			case !ok || len(s.of(under).LogicalRules) == 0: // or the sandbox has only filters, of an earlier version
				links = append(links, link)
			case !slices.Contains(bound, under):
				bound = append(bound, under)
			}
		}
	}
	if err := s.wantLogical(bound); err != nil {
		return err
	}
	n := 0
	for _, link := range links {
		n += len(s.of(link).Filters)
	}
	if n > MaxFilters {
		return fault.New(fault.Invalid, fmt.Errorf("%w: %d on %d interfaces together, and a pod's network may have %d: "+
			"use NetworkQoS objects with fewer exceptions, ports or destination pods", ErrTooManyFilters, n, len(links), MaxFilters))
	}
	for _, link := range links {
		filters := s.of(link).Filters
		if len(filters) == 0 {
			continue
		}
		s.p.current = s.p.steps[s.p.makers[link]]
		err := s.p.Want(netstate.Clsact{Link: link})
		for _, f := range filters {
			if err != nil {
				break
			}
			f.Link = link
			err = s.p.Want(s.p.current.rule.onPF(f))
		}
		if err != nil {
			return s.p.req.stepError(s.p.current.step.Name, err)
		}
	}
	return nil
}

// isReplaced reports whether a change deletes a filter of a link that has others from now on.
func (q *sequencer) isReplaced(c netstate.Change) bool {
	f, ok := c.Before.(netstate.Filter)
	_, stays := q.p.claims[netstate.ClsactKey(f.Link)]
	return ok && c.After == nil && stays
}

// replaced deletes filters once those are there that decide instead, and first those that the kernel evaluates last: so no
// packet is decided at any moment by another rule than before or after (tc.Filters).
func (q *sequencer) replaced() {
	slices.SortStableFunc(q.stale, func(a, b netstate.Change) int {
		f, g := a.Before.(netstate.Filter), b.Before.(netstate.Filter)
		return cmp.Or(cmp.Compare(f.Link, g.Link), cmp.Compare(f.Chain, g.Chain),
			cmp.Compare(g.Pref, f.Pref), cmp.Compare(g.Handle, f.Handle))
	})
	for _, c := range q.stale {
		if _, there := q.now.Get(c.Key()); there && !q.waits(c.Before.(netstate.Filter).Link) {
			q.do(c)
		}
	}
}

// sendsForPod reports whether the pod sends packets with its own addresses over a link of
// the sandbox: not over a port of a bond or bridge, nor over a link that only carries
// others. A VRF sends over its members.
func (s *rules) sendsForPod(link string) bool {
	l, ok := s.p.view.Link(link)
	if !ok || netstate.OnHost(link) || l.KindTraits().L3Master {
		return false
	}
	if l.Master != nil && *l.Master != "" {
		if m, ok := s.p.view.Link(*l.Master); !ok || !m.KindTraits().L3Master {
			return false
		}
	}
	carries := slices.ContainsFunc(s.p.Links(), func(other netstate.Link) bool {
		return other.Parent != nil && *other.Parent == link && !s.p.Leaves(other.Key())
	})
	return !carries || slices.ContainsFunc(s.p.Addrs(link), func(a netstate.Addr) bool {
		return !netstate.KernelMade(a) && !s.p.Leaves(a.Key())
	})
}
