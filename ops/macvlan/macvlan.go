package macvlan

import (
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.StackedConfig
	MAC        *string `json:"mac,omitempty"`
	BCQueueLen *uint32 `json:"bcqueuelen,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "macvlan",
	Summary: "Create a macvlan link.",
	Description: `The link has a MAC of its own. A root step's master stays on the host; in a cluster a policy has to [share
it](../policies.md#shared-devices).

bridge, private and vepa are switched live; passthru uses the master exclusively and cannot be switched. The kernel refuses a MAC that
another macvlan of the master has.`,
	Example: `- name: net1
  type: macvlan
  config:
    master: enp5s0f0
    mode: bridge
    mac: 02:00:00:00:00:01
`,
	Params: slices.Concat([]contract.Param{
		{
			Name: "mode", Type: contract.String, Enum: []string{"bridge", "private", "vepa", "passthru"}, Default: "bridge",
			Description: "who of one master may talk to whom",
		},
		ops.MACParam("default: one that the link keeps; of mode passthru the master's"),
		{
			Name: "bcqueuelen", Aliases: []string{"bcQueueLen"}, Type: contract.Integer, Minimum: contract.Int(0),
			Maximum: contract.Int(1<<32 - 1), Description: "broadcast queue length in packets",
		},
	}, ops.StackedParams("the master's")),
	Input:  contract.Input{Shares: true, NamedBy: "master", RDMA: ops.NeedsSharedRDMA},
	Output: ops.StackedOutput(ops.Relays()),
	// drivers/net/macvlan.c
	Stacks: func(c map[string]any) string {
		if c["mode"] == "passthru" {
			return "a macvlan link of mode passthru, which uses the device exclusively"
		}
		return "macvlan links"
	},
}, plan)

func plan(p *ops.Planner, c config) error {
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	name, parent, err := c.Links(p)
	if err != nil {
		return err
	}
	if err := checkMTU(p, parent, c.MTU); err != nil {
		return err
	}
	if err := ops.CheckStack(p, parent, name, "macvlan"); err != nil {
		return err
	}
	if err := checkMAC(p, parent, name, c); err != nil {
		return err
	}
	if c.Mode == "passthru" {
		if err := checkUplink(p, parent, name); err != nil {
			return err
		}
	}
	for _, l := range p.Links() {
		if l.LinkKind != "macvlan" || l.Name == name || l.Parent == nil || *l.Parent != parent ||
			l.MACVLAN == nil || l.MACVLAN.Mode == nil || p.Leaves(l.Key()) {
			continue
		}
		if (*l.MACVLAN.Mode == "passthru") != (c.Mode == "passthru") || c.Mode == "passthru" {
			return ops.Invalid("mode", "passthru uses the master exclusively, and %q is on it too", l.Name)
		}
	}
	err = p.Want(netstate.Link{
		Name: name, LinkKind: "macvlan", Parent: &parent, MTU: c.MTU, MAC: c.MAC, Up: new(true),
		MACVLAN: &netstate.MACVLAN{Mode: &c.Mode, BroadcastQueue: c.BCQueueLen},
	})
	if err != nil {
		return err
	}
	return c.Complete(p, name, parent)
}

// checkUplink refuses to take the node's uplink: a link of mode passthru receives every packet of its master, and the
// host none (macvlan_handle_frame, drivers/net/macvlan.c). One that is there already stays.
func checkUplink(p *ops.Planner, parent, name string) error {
	if _, there, err := ops.Lookup(p, netstate.Link{Name: name}); err != nil || there {
		return err
	}
	uplink, err := ops.IsUplink(p, parent)
	if uplink {
		return ops.Invalid("mode", "passthru would take all packets of %q from the node, which has its default route there: "+
			"use bridge, private or vepa, or another master", netstate.BaseName(parent))
	}
	return err
}

// checkMAC refuses a MAC that the master or another link on it has (macvlan_addr_busy, drivers/net/macvlan.c). Those of other pods
// are unknown here.
func checkMAC(p *ops.Planner, parent, name string, c config) error {
	if c.MAC == nil || c.Mode == "passthru" { // which gives its master the MAC
		return nil
	}
	below, err := p.Link(parent)
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	if below.MAC != nil && *below.MAC == *c.MAC {
		return ops.Invalid("mac", "the master has %q itself, and the kernel refuses that: choose another", *c.MAC)
	}
	for _, l := range p.Links() {
		beside := l.LinkKind == "macvlan" && l.Name != name && l.Parent != nil && *l.Parent == parent
		if beside && l.MAC != nil && *l.MAC == *c.MAC && !p.Leaves(l.Key()) {
			return ops.Invalid("mac", "%q on the same master has %q too, and the kernel refuses that: choose another", l.Name, *c.MAC)
		}
	}
	return nil
}

// checkMTU refuses an MTU above that of a master on the host, which a step must not raise.
func checkMTU(p *ops.Planner, parent string, mtu *uint32) error {
	if mtu == nil || !netstate.OnHost(parent) {
		return nil
	}
	l, err := p.Link(parent)
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	if l.MTU != nil && *mtu > *l.MTU {
		return ops.Invalid("mtu",
			"%d must be [0, master MTU(%d)]: raise the MTU of %q on the host first", *mtu, *l.MTU, netstate.BaseName(parent))
	}
	return nil
}
