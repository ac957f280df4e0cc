package sriov

import (
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.MovedConfig
	ops.VFConfig
	LogLevel string `json:"logLevel,omitempty"`
	LogFile  string `json:"logFile,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "sriov",
	Summary: "Move an SR-IOV virtual function into the sandbox.",
	Description: `Renames the VF's interface, and sets MAC, VLAN, rates, spoof checking, trust and link state on the PF, where the config
has them; release restores them. Of a VF bound to a userspace driver (vfio-pci, igb_uio, uio_pci_generic) only the settings on the PF are
applied.

With ` + "`linkState: follow`" + ` a bond in the pod [uses its other port](../health.md) while LACP does not use the PF. Some drivers
refuse a key, and the error names it: Intel's 82576 (igb) has no minTxRate, linkState or 802.1ad.

The driver of a VF of InfiniBand reads its GUIDs when it is bound. A VF whose driver has read others is bound to it again, before
its interface moves to the pod and after release; the agent needs ` + "`agent.driverBinding`" + ` for that.`,
	Example: `- name: vf0
  type: sriov
  selector:
    cel: device.attributes["dra.networking"].pfName == "enp3s0f0"
  config:
    vlan: 0
    spoofchk: "off"
    trust: "on"
`,
	Params: slices.Concat(ops.DeviceParams(), []contract.Param{
		ops.NameParam(ops.RootName),
		ops.MTUParam("unchanged"),
	}, ops.RDMAParams(ops.OfTaken), ops.VFParams("MAC address, set on the PF and on the interface"), ops.AddressParams(), ops.LogParams()),
	Input: contract.Input{Device: true, DeviceTypes: []string{"vf"}, RDMA: ops.NeedsRDMA},
	Output: contract.Output{
		Interfaces: contract.Flow{Appends: 1}, IPs: contract.Flow{Appends: -1},
		Routes: contract.Flow{Appends: -1}, Devices: ops.RDMAFields(),
	},
	Check: ops.CheckVF,
}, plan)

func plan(p *ops.Planner, c config) error {
	id, err := c.Assigned(p)
	if err != nil {
		return err
	}
	if err := c.WantVF(p, id); err != nil {
		return err
	}
	userspace, err := userspaceDriver(p, id)
	if err != nil {
		return err
	}
	if userspace && !p.Kept() {
		switch {
		case c.Require != nil:
			return ops.Invalid("require", "the function is bound to a driver for programs, with which it has no RDMA device: "+
				"bind it to the driver of its card, or remove the key")
		case c.RDMA != nil && *c.RDMA:
			return ops.Invalid("rdma", "the function is bound to a driver for programs, with which it has no RDMA device: "+
				"bind it to the driver of its card, or remove the key")
		}
	}
	if userspace {
		p.ProduceDevices(topology.Devices{PCIAddress: id})
		return p.UserspaceNodes(id, c.Nodes)
	}
	if err := c.ReadGUIDs(p, id); err != nil {
		return err
	}
	return c.Move(p, id, c.MAC)
}

// userspaceDriver reports whether the device has no interface because a
// userspace driver holds it.
func userspaceDriver(p *ops.Planner, id string) (bool, error) {
	d, ok, err := ops.Lookup(p, netstate.Device{ID: id})
	if err != nil || !ok {
		return false, err
	}
	return d.At == nil && netstate.UserspaceDriver(d.Driver), nil
}
