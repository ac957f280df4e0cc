package vfiopci

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

type config struct {
	ops.DeviceConfig
	ops.VFConfig
	Driver              string   `json:"driver"`
	AllowUnprotectedDMA bool     `json:"allowUnprotectedDMA,omitempty"`
	Nodes               []string `json:"deviceNodes,omitempty"`
	LogLevel            string   `json:"logLevel,omitempty"`
	LogFile             string   `json:"logFile,omitempty"`
}

// vfio is the driver that confines the function by the IOMMU.
const vfio = "vfio-pci"

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "vfio-pci",
	Summary: "Give an SR-IOV virtual function to a process in the container, as for DPDK.",
	Description: `Binds the VF to ` + "`vfio-pci`" + ` and gives the containers of the claim ` + "`/dev/vfio/GROUP`" + ` and
` + "`/dev/vfio/vfio`" + `. No step can build on it. Release waits while a process has the VF open, then binds its driver again and
restores its interface. The settings on the PF cannot be changed by the process.

The driver must be loaded on the node, the IOMMU on, and the VF alone in its IOMMU group, but for bridges and devices of the same
topology. ` + "`uio_pci_generic`" + `, ` + "`igb_uio`" + ` and VFIO's no-IOMMU mode use no IOMMU, and need
` + "`allowUnprotectedDMA`" + `.

A device of type ` + "`rdma`" + ` is not taken, as it may be no VF. Another driver is drift, repaired unless the host uses the resulting
interface.`,
	Example: `- name: dpdk0
  type: vfio-pci
  selector:
    cel: device.attributes["dra.networking"].pfName == "enp3s0f0"
  config:
    vlan: 100
    mac: "02:00:00:00:00:0a"
`,
	Params: slices.Concat(ops.DeviceParams(), []contract.Param{
		{
			Name: "driver", Type: contract.String, Enum: []string{vfio, "igb_uio", "uio_pci_generic"}, Default: vfio, AtCreation: true,
			Description: "kernel driver to bind; a running pod keeps its own",
		},
		{
			Name: "allowUnprotectedDMA", Type: contract.Boolean,
			Description: "permit a device without an IOMMU: the container can then read and write all memory of the node",
		},
		ops.NodesParam(),
	}, ops.VFParams("MAC address, set on the PF"), ops.LogParams()),
	Input: contract.Input{Device: true, DeviceTypes: []string{"vf"}},
	Output: contract.Output{Devices: []contract.Param{
		{Name: "pciAddress", Type: contract.String, Description: "PCI address of the device"},
		{Name: "iommuGroup", Type: contract.String, Description: "number of its IOMMU group"},
		{
			Name: "deviceNodes", Type: contract.List,
			Items:       &contract.Param{Name: "deviceNode", Type: contract.String, Description: "path"},
			Description: "paths of the character devices, such as /dev/vfio/42",
		},
	}},
	Check:     check,
	Explain:   "VFIO devices have no network interface — they are userspace-managed.",
	ExplainTo: map[string]string{"bond": "VFIO devices cannot be bonded — they are userspace-managed."},
}, plan)

func check(c map[string]any, unresolved map[string]bool) []contract.FieldError {
	out := ops.CheckVF(c, unresolved)
	driver, _ := c["driver"].(string)
	if allowed, _ := c["allowUnprotectedDMA"].(bool); driver == "" || driver == vfio || allowed || unresolved["allowUnprotectedDMA"] {
		return out
	}
	return append(out, contract.FieldError{Field: "driver", Message: fmt.Sprintf(
		"%q knows no IOMMU, so that the container can read and write all memory of the node: use %q, or set allowUnprotectedDMA to true",
		driver, vfio)})
}

func plan(p *ops.Planner, c config) error {
	id, err := c.Assigned(p)
	if err != nil {
		return err
	}
	if err := p.Free(id); err != nil {
		return err
	}
	have, ok, err := ops.Lookup(p, netstate.Binding{ID: id})
	switch {
	case err != nil:
		return err
	case !ok:
		return netstate.Absent(netstate.Binding{ID: id})
	case have.PF == "":
		return ops.Invalid("", "device %q is not a virtual function: "+
			"only those are given to user space, as a process that drives another function drives the whole card", id)
	}
	if err := confined(p, have, c); err != nil {
		return err
	}
	if err := c.WantVF(p, id); err != nil {
		return err
	}
	// Its interface disappears and has to be restored: the device is part of the record.
	if err := p.Want(netstate.Device{ID: id}); err != nil {
		return err
	}
	if err := p.Want(netstate.Binding{ID: id, Driver: &c.Driver, Override: &c.Driver}); err != nil {
		return err
	}
	produce(p, have, c.Driver)
	return p.UserspaceNodes(id, c.Nodes)
}

// confined refuses a function that the IOMMU does not confine.
func confined(p *ops.Planner, b netstate.Binding, c config) error {
	if c.Driver == vfio && (b.Group == "" || b.NoIOMMU) && !c.AllowUnprotectedDMA {
		return fault.New(fault.Unsupported, fmt.Errorf(
			"device %q has no IOMMU group, so that nothing confines its access to memory: "+
				"turn the IOMMU on, in the firmware and on the kernel's command line (intel_iommu=on or amd_iommu=on)", b.ID))
	}
	if c.Driver != vfio || b.NoIOMMU {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(b.Shared), p.Assigned)
	if len(others) == 0 {
		return nil
	}
	return fault.New(fault.Unsupported, fmt.Errorf(
		"device %q shares IOMMU group %s with %s, whose memory a process with that group can reach: "+
			"choose a device that is alone in its group, or give the others to this topology too",
		b.ID, b.Group, strings.Join(others, ", ")))
}

// produce returns the device nodes of the function. That of VFIO follows from the group;
// others are known once the driver is bound.
func produce(p *ops.Planner, b netstate.Binding, driver string) {
	out := topology.Devices{PCIAddress: b.ID, IOMMUGroup: b.Group}
	switch {
	case driver == vfio && b.Group != "" && !b.NoIOMMU:
		out.DeviceNodes = []string{"/dev/vfio/" + b.Group, "/dev/vfio/vfio"}
	case b.Driver != nil && *b.Driver == driver && len(b.Nodes) > 0:
		out.DeviceNodes = b.Nodes
	default:
		p.Later("device node of " + b.ID)
	}
	p.ProduceDevices(out)
}
