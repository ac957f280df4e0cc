package ops

import (
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// Node kinds of the key deviceNodes, each with the paths that a node has where it is imagined, and with the advice where there is none.
var nodeKinds = map[string]struct{ imagined, advice string }{
	netstate.NodeUMAD: {"/dev/infiniband/umad0", "load the kernel module ib_umad on the node"},
	netstate.NodeISSM: {
		"/dev/infiniband/issm0",
		"only ports of InfiniBand have one, and only with the kernel module ib_umad: load it on the node",
	},
	netstate.NodePTP:   {"/dev/ptp0", "choose a device whose driver has a PTP clock, as ethtool -T shows"},
	netstate.NodeVhost: {"/dev/vhost-net", "load the kernel module vhost_net on the node"},
	netstate.NodeTun:   {"/dev/net/tun", "load the kernel module tun on the node"},
}

// NodesParam is the key deviceNodes of a step that takes a device.
func NodesParam() contract.Param {
	return contract.Param{
		Name: "deviceNodes", Type: contract.List, AtCreation: true,
		Description: "more device nodes for the containers, readable and writable: " +
			"`/dev/infiniband/umadN`, `issmN` (a program can be the subnet's manager), " +
			"`/dev/ptpN` (a program can set the device's clock), `/dev/vhost-net`, `/dev/net/tun`. Claims cannot set them",
		Items: &contract.Param{
			Name: "deviceNode", Type: contract.String, Description: "kind of device node",
			Enum: []string{netstate.NodeUMAD, netstate.NodeISSM, netstate.NodePTP, netstate.NodeVhost, netstate.NodeTun},
		},
	}
}

// DeviceNodes adds the device nodes of these kinds to the step's result, beside those that it gives already.
func (p *Planner) DeviceNodes(id string, kinds []string) error {
	if len(kinds) == 0 {
		return nil
	}
	d, ok, err := Lookup(p, netstate.Device{ID: id})
	if err != nil || !ok {
		return err
	}
	out := topology.Devices{}
	switch {
	case p.current.devices != nil:
		out = *p.current.devices
	case d.HasPCIAddress():
		out.PCIAddress = d.ID
	}
	awaited := out.RDMADevice == "" && p.current.later != "" // the RDMA device, and not a node that another kind is without
	for _, kind := range kinds {
		known := nodeKinds[kind]
		nodes := d.Nodes[kind]
		of := fmt.Sprintf("device %q", id)
		switch kind {
		case netstate.NodeVhost, netstate.NodeTun:
			of = "the node"
		case netstate.NodeUMAD, netstate.NodeISSM:
			if awaited {
				continue
			}
			if out.RDMADevice == "" {
				if err := p.without("the device node "+kind, noRDMAFor(d, kind)); err != nil {
					return err
				}
				continue
			}
			of, nodes = fmt.Sprintf("RDMA device %q", out.RDMADevice), d.ManagementNodes(out.RDMADevice, kind)
		}
		if p.req.imagined != nil {
			nodes = []string{known.imagined}
		}
		if len(nodes) == 0 {
			why := fault.New(fault.Unsupported,
				fmt.Errorf("deviceNodes: %s has no device node %s: %s, or remove it from the key", of, kind, known.advice))
			if err := p.without("the device node "+kind, why); err != nil {
				return err
			}
		}
		for _, n := range nodes {
			if !slices.Contains(out.DeviceNodes, n) {
				out.DeviceNodes = append(slices.Clone(out.DeviceNodes), n)
			}
		}
	}
	p.ProduceDevices(out)
	return nil
}

// noRDMAFor says why a step has no RDMA device of which there could be a node of that kind.
func noRDMAFor(d netstate.Device, kind string) error {
	d.RDMA = hardwareRDMA(d)
	if _, why := usableRDMA(d, "remove "+kind+" from the key"); why != nil {
		return fault.New(fault.Of(why), fmt.Errorf("deviceNodes: %w", why))
	}
	return nodeWithoutRDMA(kind)
}

func nodeWithoutRDMA(kind string) error {
	return Invalid("deviceNodes",
		"%s belongs to an RDMA device, and the step gives the pod none: set rdma: true, or remove it from deviceNodes", kind)
}

// without has a step that was applied before wait for what its device does not have any more, beside what else is repaired, and
// refuses any other.
func (p *Planner) without(needs string, why error) error {
	if !p.Kept() {
		return why
	}
	if other := p.current.withheld; other != nil {
		needs, why = p.current.later+" and "+needs, fmt.Errorf("%w; %w", other, why)
	}
	p.current.await(needs, fault.New(fault.NotReady, why))
	return nil
}

// UserspaceNodes is DeviceNodes for a function that is bound to a driver for programs, with which it has neither clock nor RDMA device.
func (p *Planner) UserspaceNodes(id string, kinds []string) error {
	var has []string
	for _, kind := range kinds {
		if kind != netstate.NodeVhost && kind != netstate.NodeTun {
			why := Invalid("deviceNodes",
				"a function that is bound to a driver for programs has no %s: remove it, or bind the function to the driver of its card",
				kind)
			if err := p.without("the device node "+kind, why); err != nil {
				return err
			}
			continue
		}
		has = append(has, kind)
	}
	return p.DeviceNodes(id, has)
}
