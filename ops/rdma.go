package ops

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// RDMAParam is the key rdma of a step that takes a device.
func RDMAParam() contract.Param {
	return contract.Param{
		Name: "rdma", Type: contract.Boolean, AtCreation: true,
		Description: "give the containers the device nodes of the RDMA device: `/dev/infiniband/uverbsN` and `rdma_cm`. Default: if the device has one. With true a device without one is refused",
	}
}

// RDMAFields are what a step with RDMAParam adds to its result.
func RDMAFields() []contract.Param {
	return []contract.Param{
		{Name: "rdmaDevice", Type: contract.String, Description: "name of the RDMA device, such as mlx5_2, if there is one"},
		{Name: "deviceNodes", Type: contract.List, Items: &contract.Param{Name: "deviceNode", Type: contract.String, Description: "path"}, Description: "paths of its character devices, such as /dev/infiniband/uverbs2"},
	}
}

// RDMA adds the RDMA device of a device to the step's result, so that the containers get its device nodes. Wanted is the
// key rdma, nil where it is not given.
func (p *Planner) RDMA(id string, wanted *bool) error {
	if wanted != nil && !*wanted {
		return nil
	}
	d, ok, err := Lookup(p, netstate.Device{ID: id})
	if err != nil || !ok {
		return err
	}
	d.RDMA = slices.DeleteFunc(slices.Clone(d.RDMA), func(r netstate.RDMADevice) bool { return r.Software }) // these end with the move
	why := cannotGiveRDMA(d, "set rdma: false")
	switch {
	case why == nil:
		p.ProduceDevices(rdmaOf(d, d.RDMA[0].Name))
	case wanted != nil:
		return why
	case len(d.RDMA) > 0:
		p.Note("the containers get no RDMA device: %v", why)
	}
	return nil
}

// RDMADevice is RDMA for a step that is there for nothing else. Name chooses one of several RDMA devices of the device.
func (p *Planner) RDMADevice(id, name string) error {
	d, ok, err := Lookup(p, netstate.Device{ID: id})
	switch {
	case err != nil:
		return err
	case !ok:
		return fault.New(fault.Gone, fmt.Errorf("device %q does not exist", id))
	}
	if err := cannotGiveRDMA(d, "remove the step"); err != nil {
		return err
	}
	if name == "" {
		name = d.RDMA[0].Name
	}
	if p.req.imagined == nil && !slices.ContainsFunc(d.RDMA, func(r netstate.RDMADevice) bool { return r.Name == name }) {
		var have []string
		for _, r := range d.RDMA {
			have = append(have, r.Name)
		}
		return Invalid("rdmaDevice", "%q is no RDMA device of device %q, which has %s: name one of them, or remove the key", name, id, strings.Join(have, ", "))
	}
	p.ProduceDevices(rdmaOf(d, name))
	return nil
}

// cannotGiveRDMA returns why containers cannot use the RDMA device of a device, nil if they can. Without is what to do to go
// without one.
func cannotGiveRDMA(d netstate.Device, without string) error {
	switch {
	case len(d.RDMA) == 0:
		return fault.New(fault.Unsupported, fmt.Errorf("device %q has no RDMA device: load the RDMA driver of the card on the node (such as mlx5_ib or irdma), choose a device with the attribute rdma, or %s", d.ID, without))
	case d.RDMAExclusive:
		return fault.New(fault.Unsupported, fmt.Errorf("RDMA devices of the node belong to one network namespace each (\"rdma system show\" says exclusive), and plumbline does not move them: run \"rdma system set netns shared\" before the first network namespace is made, or %s", without))
	case !slices.ContainsFunc(d.RDMA, func(r netstate.RDMADevice) bool { return len(r.Nodes) > 0 }):
		return fault.New(fault.Unsupported, fmt.Errorf("RDMA device %q of device %q has no device nodes: load the kernel modules ib_uverbs and rdma_ucm on the node, or %s", d.RDMA[0].Name, d.ID, without))
	}
	return nil
}

// rdmaOf returns an RDMA device of a device as a result.
func rdmaOf(d netstate.Device, name string) topology.Devices {
	out := topology.Devices{RDMADevice: name}
	if d.HasPCIAddress() {
		out.PCIAddress = d.ID
	}
	for _, r := range d.RDMA {
		if r.Name == name {
			out.DeviceNodes = slices.Clone(r.Nodes)
		}
	}
	return out
}
