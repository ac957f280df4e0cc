package topology

import (
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// paramDefinition names the NetworkAttachmentDefinition of the network that a step joins, NAMESPACE/NAME, in the contract of a type
// that makes logical ports.
const paramDefinition = "netAttachDefName"

// Definitions returns, by step, the NetworkAttachmentDefinition of the network that the step's interface is on, as NAMESPACE/NAME: one
// that the step's config names, or that of the only interface which it sends through unchanged, such as of an ipvlan. What a
// VLAN or a tunnel sends is on a network of its own, and so are the ports of a bond or a bridge. A reference to another step names none.
func Definitions(t *Topology, contracts contract.Set) map[string]string {
	out := map[string]string{}
	for again := true; again; { // steps are in any order; each pass that goes on adds one
		again = false
		for i := range t.Steps {
			s := &t.Steps[i]
			if _, is := out[s.Name]; is {
				continue
			}
			c, _ := contracts.Contract(s.Type)
			name := ""
			switch {
			case c.Output.LogicalPorts:
				name, _ = s.Config[paramDefinition].(string)
			case c.Output.Relays && len(s.DependOn) == 1:
				name = out[s.DependOn[0]]
			}
			if name != "" && !strings.Contains(name, "{{") {
				out[s.Name], again = name, true
			}
		}
	}
	return out
}

// DefinitionsOf is Definitions of an object. Only one with steps that may be on such networks is decoded; one that cannot be has none.
func DefinitionsOf(o *v1alpha1.NetworkTopology, contracts contract.Set) map[string]string {
	if !slices.ContainsFunc(o.Spec.Steps, func(s v1alpha1.Step) bool {
		c, _ := contracts.Contract(s.Type)
		return c.Output.LogicalPorts
	}) {
		return nil
	}
	t, err := FromObject(o)
	if err != nil {
		return nil
	}
	return Definitions(t, contracts)
}
