package claim

import (
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// Roots returns the root steps that are given a device, and so have a
// DeviceClass, in order of declaration: those that bear a selector or whose type
// consumes a device. A root step that makes its interface out of nothing, such
// as a dummy, has no class and needs no request.
func Roots(t *topology.Topology, set contract.Set) []*topology.Step {
	var out []*topology.Step
	for _, s := range t.Roots() {
		c, known := set.Contract(s.Type)
		if s.Selector != "" || known && c.Input.Device {
			out = append(out, s)
		}
	}
	return out
}

func rootNames(t *topology.Topology, set contract.Set) []string {
	var out []string
	for _, s := range Roots(t, set) {
		out = append(out, s.Name)
	}
	return out
}
