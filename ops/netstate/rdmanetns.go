package netstate

import (
	"fmt"

	"github.com/plumbline/plumbline/topology/fault"
)

// Network namespaces that an RDMA device can belong to, seen from a sandbox.
const (
	RDMAOfHost    = "host"
	RDMAOfSandbox = "sandbox"
	RDMAOfOther   = "other"
)

// RDMANetns is the network namespace that the RDMA device of a function belongs to, on a node in exclusive mode. A function
// has one RDMA device there: which of several a step has moved could not be told. Sources: rdma-system(8), rdma-dev(8);
// rdma_dev_change_netns in drivers/infiniband/core/device.c.
type RDMANetns struct {
	ID    string  `json:"id" plan:"key"` // of the device, see Device
	Netns *string `json:"netns,omitempty" plan:"live"`
	// Name is that of the RDMA device, which the owner of its namespace can change.
	Name *string `json:"name,omitempty" plan:"live"`
}

// Key is the device's identity.
func (r RDMANetns) Key() Key { return Key{KindRDMANetns, r.ID} }

// LivesOn is none: an RDMA device moves by itself.
func (RDMANetns) LivesOn() Key { return Key{} }

// After the links, so that it follows its interface to the sandbox, and an undo returns it before. Held, so that a record has its name,
// which a move does not change and a pod can.
var rdmaNetnsTraits = Traits{
	Host: true, Setting: true, Held: true, Phase: PhaseAddresses, Cost: 8,
	absent: func(o Object) error {
		return fault.New(fault.Gone, fmt.Errorf("device %q has no RDMA device", o.(RDMANetns).ID))
	},
	mayFail: func(c Change) bool { // the name alone: the device has returned
		after, ok := c.After.(RDMANetns)
		return ok && after.Netns == nil
	},
	imagined: func(o Object, _ Imagined) Object {
		return RDMANetns{ID: o.(RDMANetns).ID, Netns: new(RDMAOfHost), Name: new("rdma0")}
	},
}

// Traits are those of namespaces of RDMA devices.
func (RDMANetns) Traits() *Traits { return &rdmaNetnsTraits }
