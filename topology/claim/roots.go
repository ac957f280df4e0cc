package claim

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// MaxRequests is how many devices one ResourceClaim can request. All roots of a
// topology are requested by one claim.
const MaxRequests = resourceapi.DeviceRequestsMaxSize

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
