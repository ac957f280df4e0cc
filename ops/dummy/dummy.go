package dummy

import (
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.AddressConfig
	Name string  `json:"name,omitempty"`
	MTU  *uint32 `json:"mtu,omitempty"`
	MAC  *string `json:"mac,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:        "dummy",
	Summary:     "Create a dummy link.",
	Description: `The link drops all packets.`,
	Example: `- name: loop
  type: dummy
  config:
    addresses: ["192.0.2.1/32"]
`,
	Params: slices.Concat([]contract.Param{
		ops.NameParam(ops.RootName + "; of a derived step its name"),
		ops.MTUParam("the kernel's 1500"),
		ops.MACParam("default: one that the link keeps"),
	}, ops.AddressParams()),
	Output: ops.Appends(),
}, plan)

func plan(p *ops.Planner, c config) error {
	name, err := p.DefaultName(c.Name)
	if err != nil {
		return err
	}
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	if err := p.Want(netstate.Link{Name: name, LinkKind: "dummy", MTU: c.MTU, MAC: c.MAC, Up: new(true)}); err != nil {
		return err
	}
	p.Produce(name)
	return p.Address(name, c.AddressConfig)
}
