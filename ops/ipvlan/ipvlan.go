package ipvlan

import (
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.StackedConfig
	Flag string `json:"flag"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "ipvlan",
	Summary: "Create an ipvlan link.",
	Description: `The link has its master's MAC. A root step's master stays on the host; in a cluster a policy has to [share
it](../policies.md#shared-devices).

All ipvlan links of a master have one mode and flag, so another one is refused. A master has ipvlan or macvlan links, not both.`,
	Example: `- name: net1
  type: ipvlan
  config:
    master: enp5s0f0
    mode: l3
    addresses: ["192.0.2.10/24"]
`,
	Params: slices.Concat([]contract.Param{
		{
			Name: "mode", Type: contract.String, Enum: []string{"l2", "l3", "l3s"}, FoldCase: true, Default: "l2",
			Description: "layer at which traffic is switched",
		},
		{
			Name: "flag", Type: contract.String, Enum: []string{"bridge", "private", "vepa"}, Default: "bridge",
			Description: "who of one master may talk to whom",
		},
	}, ops.StackedParams("the master's")),
	Input:  contract.Input{Shares: true, NamedBy: "master", RDMA: ops.NeedsSharedRDMA},
	Output: ops.StackedOutput(ops.Relays()),
	// drivers/net/ipvlan/ipvlan_main.c
	Stacks: func(c map[string]any) string {
		return fmt.Sprintf("ipvlan links of mode %v and flag %v", c["mode"], c["flag"])
	},
}, plan)

func plan(p *ops.Planner, c config) error {
	name, parent, err := c.Links(p)
	if err != nil {
		return err
	}
	if err := ops.CheckStack(p, parent, name, "ipvlan"); err != nil {
		return err
	}
	for _, l := range p.Links() {
		if l.LinkKind != "ipvlan" || l.Name == name || l.Parent == nil || *l.Parent != parent || l.IPVLAN == nil || p.Leaves(l.Key()) {
			continue
		}
		if m := l.IPVLAN.Mode; m != nil && *m != c.Mode {
			return ops.Invalid("mode", "%q would switch %q on the same master from %q: use one mode per master", c.Mode, l.Name, *m)
		}
		if f := l.IPVLAN.Flag; f != nil && *f != c.Flag {
			return ops.Invalid("flag", "%q would switch %q on the same master from %q: use one flag per master", c.Flag, l.Name, *f)
		}
	}
	err = p.Want(netstate.Link{
		Name: name, LinkKind: "ipvlan", Parent: &parent, MTU: c.MTU, Up: new(true),
		IPVLAN: &netstate.IPVLAN{Mode: &c.Mode, Flag: &c.Flag},
	})
	if err != nil {
		return err
	}
	return c.Complete(p, name, parent)
}
