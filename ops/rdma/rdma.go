package rdma

import (
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.DeviceConfig
	RDMADevice string               `json:"rdmaDevice,omitempty"`
	Nodes      []string             `json:"deviceNodes,omitempty"`
	Require    *ops.RDMARequirement `json:"require,omitempty"`
	LogLevel   string               `json:"logLevel,omitempty"`
	LogFile    string               `json:"logFile,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "rdma",
	Summary: "Give the RDMA device of a function to the containers.",
	Description: `Gives the containers of the claim ` + "`/dev/infiniband/uverbsN`" + ` and ` + "`/dev/infiniband/rdma_cm`" + ` of the
device, and of no other.

A root step takes a function, and its network interface stays where it is. RoCE needs the interface and its addresses in the pod: use a
derived step, or ` + "`sriov`" + ` or ` + "`host-device`" + ` alone, which give the RDMA device, too. The DeviceClass of a root step
leaves out nodes in [exclusive mode](../devices.md#rdma), where it is refused.

A derived step depends on one step of type ` + "`sriov`" + ` or ` + "`host-device`" + `, and gives the RDMA device of its function
under a name of its own, in either mode. A function without one is refused. Its result has the interface of the function, without addresses.
Exports and metrics name the RDMA device once. What it requires holds beside what the other step requires, with a GID index of its own;
with ` + "`rdma: false`" + ` there, containers get the RDMA device by the derived step alone. An edit that adds or removes it waits for a
new pod.`,
	Example: `- name: ib0
  type: rdma
  selector:
    cel: device.attributes["dra.networking"].rdma
- name: vf0
  type: sriov
  config: {addresses: ["192.0.2.1/24"]}
- name: verbs
  type: rdma
  dependOn: [vf0]
  config:
    require: {gid: {type: RoCEv2, family: IPv4}}
`,
	Params: slices.Concat(ops.DeviceParams(), []contract.Param{
		{
			Name: "rdmaDevice", Type: contract.String, AtCreation: true,
			Description: "name of the RDMA device, for a device with several; default: the first by name that has device nodes",
		},
		ops.RDMARequireParam(), ops.NodesParam(),
	}, ops.LogParams()),
	Input: contract.Input{
		Device: true, DerivedFrom: taking, RDMA: func(map[string]any) (needed, stays bool) { return true, true },
	},
	Output: contract.Output{Interfaces: contract.Flow{Conditional: true}, Devices: append([]contract.Param{
		{Name: "pciAddress", Type: contract.String, Description: "PCI address of the device"},
	}, ops.RDMAFields()...)},
	Explain: "An RDMA device is not a network interface: take the function with type sriov or host-device where the pod needs both.",
}, plan)

// taking are the types of steps that take a function with its RDMA device.
var taking = []string{"sriov", "host-device"}

func plan(p *ops.Planner, c config) error {
	if !p.Root() {
		return c.derived(p)
	}
	id, err := c.Assigned(p)
	if err != nil {
		return err
	}
	if err := p.RDMADevice(id, c.RDMADevice, c.Require); err != nil {
		return err
	}
	return p.DeviceNodes(id, c.Nodes)
}

func (c config) derived(p *ops.Planner) error {
	if c.DeviceID != "" || c.RuntimeConfig.DeviceID != "" {
		return ops.Invalid("deviceID", "is for a root step, and this one has the device of the step in dependOn: remove the key")
	}
	id, link, err := p.DerivedRDMA(taking, c.RDMADevice)
	if err != nil {
		return err
	}
	if err := p.DeviceNodes(id, c.Nodes); err != nil {
		return err
	}
	return p.RequireRDMA(link, c.Require)
}
