package imports

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// network is a network of the input that becomes a topology.
type network struct {
	from *source
	// namespace and name are those of the NetworkAttachmentDefinition by which pods know it; without a namespace it is
	// known by another name.
	namespace, name string
	definitionName  string // if name is another one
	// namespaces are those in which pods may use it.
	namespaces  []string
	constraints []v1alpha1.ClaimConstraint
	steps       []*step
	// inside are the interfaces of other networks of the pod that the first step builds on.
	inside []string
	// resource is the extended resource that pods request beside the network, of its first step.
	resource, resourceAt string
	topology             string     // its name; set when all networks are known
	own                  *podValues // what pods name of it for themselves; nil if none does
}

// step is a step of a topology.
type step struct {
	name, typ, selector string
	dependOn            []string
	config              map[string]any
	at                  string            // path of the config in the source
	places              map[string]string // paths of keys of the config that are elsewhere in the source
	pool                *pool             // set as ipam.pool when it has a name
	plugin              string            // the extended resource of a device plugin that pods request for the device
	resource            string            // that of the step, if it leads to this topology alone
}

// pool becomes an AddressPool.
type pool struct {
	name  string // "" is that of the first network that has it
	key   string // pools with equal keys are one
	spec  v1alpha1.AddressPoolSpec
	froms []*source
}

// add appends a step which builds on those before it.
func (n *network) add(typ, at string, config map[string]any) *step {
	s := &step{typ: typ, config: config, at: at}
	switch last := len(n.steps) - 1; {
	case last < 0:
		s.name = "net1"
	default:
		s.name, s.dependOn = typ, []string{n.steps[last].name}
	}
	for i := 2; slices.ContainsFunc(n.steps, func(o *step) bool { return o.name == s.name }); i++ {
		s.name = fmt.Sprintf("%s-%d", typ, i)
	}
	n.steps = append(n.steps, s)
	return s
}

// from says where in the source a key of the config comes from.
func (s *step) from(key, place string) {
	if s.places == nil {
		s.places = map[string]string{}
	}
	s.places[key] = place
}

// addressed is the last step that makes an interface, which has the addresses; nil if there is none.
func (n *network) addressed() *step {
	for _, s := range slices.Backward(n.steps) {
		if s.typ != "tuning" && s.typ != "vrf" {
			return s
		}
	}
	return nil
}

// definition names the NetworkAttachmentDefinition of the network, "" if it has none.
func (n *network) definition() string {
	if n.namespace == "" {
		return ""
	}
	return n.namespace + "/" + cmp.Or(n.definitionName, n.name)
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// label makes a DNS label of a name.
func label(name string) string {
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-")
}

// nameNetworks gives each network a name of its own: that which it has, and its namespace before it where two have the same.
func nameNetworks(all []*network) {
	count := map[string]int{}
	for _, n := range all {
		count[label(n.name)]++
	}
	for _, n := range all {
		n.topology = label(n.name)
		if count[n.topology] > 1 && n.from.namespace != "" {
			n.topology = label(n.from.namespace + "-" + n.name)
		}
		switch n.topology {
		case n.name:
		case label(n.name):
			n.from.note("metadata.name", "the NetworkTopology is named %q: %q is not a DNS label", n.topology, n.name)
		default:
			n.from.note("metadata.name",
				"the NetworkTopology is named %q: another network has the name %q, and a NetworkTopology has no namespace", n.topology,
				label(n.name))
		}
	}
}

// selectedBy are the expressions joined by &&.
func selectedBy(exprs ...string) string {
	return joined("&&", "||", slices.DeleteFunc(exprs, func(e string) bool { return e == "" }))
}

// joined joins expressions by an operator, with brackets around those that have the other one.
func joined(operator, other string, exprs []string) string {
	if len(exprs) > 1 {
		for i, e := range exprs {
			if strings.Contains(e, other) {
				exprs[i] = "(" + e + ")"
			}
		}
	}
	return strings.Join(exprs, " "+operator+" ")
}
