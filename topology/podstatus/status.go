package podstatus

import (
	"time"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Status is the network of a pod according to the objects of a cluster.
type Status struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node,omitempty"` // "" until the pod is scheduled
	Phase     string `json:"phase"`          // of the pod
	Deleting  bool   `json:"deleting,omitempty"`

	Claims []Claim `json:"claims"`
	// Topologies are those of the claims, by name, in order.
	Topologies []Topology `json:"topologies"`
	// Events are the latest ones of the pod about its network, the oldest first, at most maxEvents.
	Events []Event `json:"events"`
	// Unread says what could not be read, and what to do, one line each.
	Unread []string `json:"unread,omitempty"`
}

// maxEvents bounds Status.Events.
const maxEvents = 10

// Claim is a ResourceClaim of the pod.
type Claim struct {
	// As is the name that the pod has for it in spec.resourceClaims; "" of one that the scheduler made for extended
	// resources.
	As       string `json:"as,omitempty"`
	Name     string `json:"name,omitempty"`     // "" until it was created
	Template string `json:"template,omitempty"` // the ResourceClaimTemplate that it is created from
	State    State  `json:"state"`
	// Classes are the DeviceClasses that it requests.
	Classes []string `json:"classes,omitempty"`
	// Uses are the claim's topologies; without devices while it is not allocated.
	Uses []Use `json:"uses,omitempty"`
	// Invalid is why the allocation cannot be used.
	Invalid string `json:"invalid,omitempty"`

	modes []modeChoice // of its requests, while it is not allocated
}

// State is how far a claim is.
type State string

// The states.
const (
	NotCreated   State = "NotCreated"
	Missing      State = "Missing" // the pod names a claim that does not exist
	Unreadable   State = "Unreadable"
	NotAllocated State = "NotAllocated"
	OfOthers     State = "OfOthers" // it has devices of other drivers only
	Allocated    State = "Allocated"
)

// Use holds the devices of a claim for one topology.
type Use struct {
	Topology string `json:"topology"`
	// Generation that the pod has, or gets when it starts; 0 while no node has reported it.
	Generation int64         `json:"generation,omitempty"`
	Node       string        `json:"node,omitempty"`
	Devices    []Device      `json:"devices,omitempty"`
	Update     *claim.Update `json:"update,omitempty"`
	// Steps are those built on the devices, in order.
	Steps []topology.StepResult `json:"steps,omitempty"`
}

// Device is one device of a claim.
type Device struct {
	Step       string         `json:"step"` // the root step that it is for
	Name       string         `json:"name"`
	Interface  string         `json:"interface,omitempty"` // in the pod
	MAC        string         `json:"mac,omitempty"`
	Addresses  []string       `json:"addresses,omitempty"` // with prefix length
	Conditions []Condition    `json:"conditions,omitempty"`
	Failure    *claim.Failure `json:"failure,omitempty"`
	Note       string         `json:"note,omitempty"`
}

// Condition is a condition of a device or of a topology.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"` // True, False, Unknown
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Topology is a topology of a claim as it is now.
type Topology struct {
	Name         string                `json:"name"`
	Generation   int64                 `json:"generation,omitempty"` // 0 if it could not be read
	Missing      bool                  `json:"missing,omitempty"`    // it does not exist
	Deleting     bool                  `json:"deleting,omitempty"`
	UpdatePolicy v1alpha1.UpdatePolicy `json:"updatePolicy,omitempty"`
	Conditions   []Condition           `json:"conditions,omitempty"`

	// Object is the topology, nil if it could not be read.
	Object *v1alpha1.NetworkTopology `json:"-"`
}

// Event is an Event of the pod.
type Event struct {
	Type    string    `json:"type"` // Normal, Warning
	Reason  string    `json:"reason"`
	From    string    `json:"from"`
	Message string    `json:"message"`
	Count   int32     `json:"count"`
	Last    time.Time `json:"last"`
}

// topology returns a topology of the status by name.
func (s *Status) topology(name string) *Topology {
	for i := range s.Topologies {
		if s.Topologies[i].Name == name {
			return &s.Topologies[i]
		}
	}
	return nil
}
