package claim

import (
	"encoding/json"
	"reflect"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/topology"
)

// The conditions of a device in the status of its claim.
const (
	// Ready is true once the topology was verified in the pod, after it was last
	// applied. The reason of a Ready that is not true is a fault.Kind.
	Ready = "Ready"
	// InSync is true while no drift was found since.
	InSync = "InSync"
	// LinkUp is true while the device's port in the pod is up. Its reason is a ports.Reason.
	LinkUp = "LinkUp"
)

// DeviceReport is a node's report on one device, stored in its data in the status of the claim.
type DeviceReport struct {
	Report
	// Step is the root step the device is for.
	Step string `json:"step,omitempty"`
	// Steps are the steps built on the device, in the order they were applied.
	Steps []topology.StepResult `json:"steps,omitempty"`
	// MTU of the device's interface in the pod, in bytes.
	MTU int `json:"mtu,omitempty"`
	// PCIAddress of the device's function.
	PCIAddress string   `json:"pciAddress,omitempty"`
	Failure    *Failure `json:"failure,omitempty"`
	Note       string   `json:"note,omitempty"`
}

// Failure is why a topology could not be applied.
type Failure struct {
	Step    string `json:"step,omitempty"` // the failing one
	Kind    string `json:"kind"`           // a fault.Kind
	Message string `json:"message"`
}

// Report is a node's report on one topology in a claim, stored in the data of each of its
// devices.
type Report struct {
	Topology string `json:"topology,omitempty"`
	// Generation of the topology that the pod has, or gets when it starts; 0 when nothing
	// of the claim is in a pod.
	Generation int64 `json:"generation,omitempty"`
	// Update is why a later generation is not in the pod although the node was to apply it.
	Update *Update `json:"update,omitempty"`
}

// Update is a change in place that a pod did not get.
type Update struct {
	Generation int64  `json:"generation"`
	State      State  `json:"state"`
	Step       string `json:"step,omitempty"` // the failing one
	// Kind is the fault.Kind of the failure.
	Kind    string `json:"kind,omitempty"`
	Message string `json:"message"`
	// Attempts is how often a change in state Retrying was attempted.
	Attempts int `json:"attempts,omitempty"`
}

// State is why a pod did not get a change.
type State string

// The states.
const (
	UpdateFailed   State = "Failed"   // it was rolled back, and is not retried
	UpdateRetrying State = "Retrying" // it failed for a reason of the pod or the node, and is retried
	UpdateHeldBack State = "HeldBack" // it needs a new pod
)

// Reported is a Report and the node it comes from.
type Reported struct {
	Report
	Node string
}

// Reports returns what was reported of the topologies that an allocated claim is for, one
// of each. A topology without a report has only the node. What cannot be read counts as not
// reported: users can write the status of claims, so only the order in which nodes update
// depends on it.
func Reports(c *resourceapi.ResourceClaim) []Reported {
	assignments, err := Allocated(c)
	if err != nil {
		return nil // reported when the claim is prepared
	}
	var out []Reported
	for _, a := range assignments {
		d := a.Devices[0]
		r := Reported{Node: d.Pool} // the pool of a node's devices has the node's name
		if of := StatusOf(c, d); of != nil && of.Data != nil {
			var report Report
			if json.Unmarshal(of.Data.Raw, &report) == nil && report.Topology == a.Topology.Name {
				r.Report = report
			}
		}
		r.Topology = a.Topology.Name
		out = append(out, r)
	}
	return out
}

// StatusOf returns the status of a device of a claim, nil if there is none.
func StatusOf(c *resourceapi.ResourceClaim, d Device) *resourceapi.AllocatedDeviceStatus {
	for i := range c.Status.Devices {
		s := &c.Status.Devices[i]
		if s.Driver == Driver && s.Pool == d.Pool && s.Device == d.Name && reflect.DeepEqual(s.ShareID, (*string)(d.ShareID)) {
			return s
		}
	}
	return nil
}
