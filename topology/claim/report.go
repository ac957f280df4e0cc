package claim

import (
	"encoding/json"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Report is what a node says of one topology in a claim, at the head of the data
// of each of its devices.
type Report struct {
	Topology string `json:"topology,omitempty"`
	// Generation of the topology that the pod has, or is to be given when it
	// starts; 0 when nothing of the claim is in a pod.
	Generation int64 `json:"generation,omitempty"`
	// Update is why a later generation is not in the pod although the node was to
	// bring it there.
	Update *Update `json:"update,omitempty"`
}

// Update is a change in place that a pod did not get.
type Update struct {
	Generation int64  `json:"generation"`
	State      State  `json:"state"`
	Step       string `json:"step,omitempty"` // the failing one
	// Kind is the fault.Kind of what failed.
	Kind    string `json:"kind,omitempty"`
	Message string `json:"message"`
	// Attempts is how often a change that is Retrying has been tried.
	Attempts int `json:"attempts,omitempty"`
}

// State is why a pod did not get a change.
type State string

// The states.
const (
	UpdateFailed   State = "Failed"   // it was tried and undone, and is not tried again
	UpdateRetrying State = "Retrying" // something of the pod or the node is in its way: it is tried again
	UpdateHeldBack State = "HeldBack" // it takes a new pod
)

// Reported is a Report and the node it comes from.
type Reported struct {
	Report
	Node string
}

// Reports returns what was reported of the topologies that an allocated claim is
// for, one of each. A topology nobody has reported on has the node alone. What
// cannot be read counts as not reported: the status is open to the writers of
// claims, and no more hangs on it than which node may update when.
func Reports(c *resourceapi.ResourceClaim) []Reported {
	assignments, err := Allocated(c)
	if err != nil {
		return nil // told by whoever prepares the claim
	}
	var out []Reported
	for _, a := range assignments {
		d := a.Devices[0]
		r := Reported{Node: d.Pool} // a node's devices are in the pool of its name
		i := slices.IndexFunc(c.Status.Devices, func(s resourceapi.AllocatedDeviceStatus) bool {
			return s.Driver == Driver && s.Pool == d.Pool && s.Device == d.Name && sameShare(s.ShareID, d.ShareID)
		})
		if i >= 0 && c.Status.Devices[i].Data != nil {
			var report Report
			if json.Unmarshal(c.Status.Devices[i].Data.Raw, &report) == nil && report.Topology == a.Topology.Name {
				r.Report = report
			}
		}
		r.Topology = a.Topology.Name
		out = append(out, r)
	}
	return out
}

func sameShare(a *string, b *types.UID) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == string(*b)
}
