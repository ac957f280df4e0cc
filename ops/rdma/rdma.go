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
	Summary: "Give the RDMA device of a function to the containers, without its network interface.",
	Description: `Gives the containers of the claim ` + "`/dev/infiniband/uverbsN`" + ` and ` + "`/dev/infiniband/rdma_cm`" + ` of the
device, and of no other. Its network interface stays where it is. RoCE needs the interface and its addresses in the pod: use
` + "`sriov`" + ` or ` + "`host-device`" + `, which give the RDMA device, too.

Its DeviceClass leaves out nodes in [exclusive mode](../devices.md#rdma), where the step is refused:
use ` + "`sriov`" + ` or ` + "`host-device`" + `.`,
	Example: `- name: ib0
  type: rdma
  selector:
    cel: device.attributes["dra.networking"].rdma
`,
	Params: slices.Concat(ops.DeviceParams(), []contract.Param{
		{
			Name: "rdmaDevice", Type: contract.String, AtCreation: true,
			Description: "name of the RDMA device, for a device with several; default: the first by name that has device nodes",
		},
		ops.RDMARequireParam(), ops.NodesParam(),
	}, ops.LogParams()),
	Input: contract.Input{Device: true, RDMA: func(map[string]any) (needed, stays bool) { return true, true }},
	Output: contract.Output{Devices: append([]contract.Param{
		{Name: "pciAddress", Type: contract.String, Description: "PCI address of the device"},
	}, ops.RDMAFields()...)},
	Explain: "An RDMA device is not a network interface: take the function with type sriov or host-device where the pod needs both.",
}, plan)

func plan(p *ops.Planner, c config) error {
	id, err := c.Assigned(p)
	if err != nil {
		return err
	}
	if err := p.RDMADevice(id, c.RDMADevice, c.Require); err != nil {
		return err
	}
	return p.DeviceNodes(id, c.Nodes)
}
