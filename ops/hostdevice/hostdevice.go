package hostdevice

import (
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.MovedConfig
	Device     string  `json:"device,omitempty"`
	HWAddr     string  `json:"hwaddr,omitempty"`
	KernelPath string  `json:"kernelpath,omitempty"`
	MAC        *string `json:"mac,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "host-device",
	Summary: "Move a whole network device of the host into the sandbox.",
	Description: `Renames the device and brings it up. On release it is found by its PCI address, under any name and in any namespace, and
returns with its name, MAC, MTU and state; if its name is taken, it gets a free one, with a note. A device that the host needs (default
route, port of a bridge or bond) is refused.

device, hwaddr and kernelpath name a device if none is allocated, as on the command line.`,
	Example: `- name: nic0
  type: host-device
  config:
    device: enp5s0f1
    addresses: ["192.0.2.10/24"]
`,
	Params: slices.Concat(ops.DeviceParams(), []contract.Param{
		ops.NameParam(ops.RootName),
		{Name: "device", Type: contract.String, Format: contract.LinkName, Description: "interface on the host"},
		{Name: "hwaddr", Type: contract.String, Format: contract.MAC, Description: "MAC address of that interface"},
		{Name: "kernelpath", Type: contract.String, Description: "path of the device below /sys/devices/"},
		ops.MACParam("default: unchanged"),
		ops.MTUParam("unchanged"),
	}, ops.RDMAParams(ops.OfTaken), ops.AddressParams()),
	Input: contract.Input{Device: true, DeviceTypes: []string{"nic", "pf"}, RDMA: ops.NeedsRDMA},
	Output: contract.Output{
		Interfaces: contract.Flow{Appends: 1}, IPs: contract.Flow{Appends: -1},
		Routes: contract.Flow{Appends: -1}, Devices: ops.RDMAFields(),
	},
}, plan)

func plan(p *ops.Planner, c config) error {
	id, err := c.Assigned(p)
	if err != nil {
		return err
	}
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	return c.Move(p, id, c.MAC)
}
