package vrf

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	Name       string   `json:"vrfname"`
	Table      uint32   `json:"table,omitempty"`
	Interfaces []string `json:"interfaces,omitempty"`
	Leak       bool     `json:"leak,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "vrf",
	Summary: "Put interfaces into a VRF.",
	Description: `Creates the VRF, and removes it with its last member. Several steps may name one VRF, and one of them its table; another
table for a VRF of that name, or another VRF with the table, is an error. A table chosen by plumbline is one that no VRF, route, rule or
step has, and is kept. Addresses and routes of members follow into the table, also those of earlier steps.

Packets without a route in the VRF are [refused](../concepts.md#what-plumbline-does-by-itself), unless ` + "`leak`" + ` is true.`,
	Example: `- name: blue
  type: vrf
  dependOn: [net1]
  config:
    vrfname: blue
    table: 1001
`,
	Params: []contract.Param{
		{
			Name: "vrfname", Aliases: []string{"vrfName", "name"}, Type: contract.String, Format: contract.InterfaceName, Required: true,
			Description: "name of the VRF",
		},
		{
			Name: "table", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1<<32 - 1),
			Description: "routing table; 0 or none: the lowest free",
		},
		{
			Name: "leak", Type: contract.Boolean,
			Description: "packets without a route in the VRF use the main table; default: false, they are refused",
		},
		{
			Name: "interfaces", Type: contract.List, MinItems: 1, Description: "members; default: the dependencies' last",
			Items: &contract.Param{Type: contract.String, Format: contract.LinkName},
		},
	},
	Input: contract.Input{Required: true, MinInterfaces: 1},
	Output: contract.Output{
		Interfaces: contract.Flow{Passthrough: true, Modifies: true},
		IPs:        contract.Flow{Passthrough: true},
		Routes:     contract.Flow{Passthrough: true, Modifies: true},
	},
}, plan)

// reserved are the kernel's own tables: a VRF with one of them would separate nothing.
var reserved = map[uint32]string{253: "default", 254: "main", 255: "local"}

func plan(p *ops.Planner, c config) error {
	if name, ok := reserved[c.Table]; ok && !p.Kept() {
		return ops.Invalid("table", "%d is the kernel's table %q: use another, or none for the lowest that is free", c.Table, name)
	}
	members := c.Interfaces
	if len(members) == 0 {
		last, err := p.LastInput()
		if err != nil {
			return err
		}
		members = []string{last}
	}
	table, err := tableOf(p, c)
	if err != nil {
		return err
	}
	named := p.Wanted(netstate.LinkKey(c.Name)) // by an earlier step
	if other := holder(p, c.Name, table); other != "" && !p.Kept() {
		return ops.Conflict("table: VRF %q has table %d, and two VRFs cannot share one: use another table, or the name of that VRF",
			other, table)
	}
	err = p.Adopt(netstate.Link{Name: c.Name, LinkKind: "vrf", VRF: &netstate.VRF{Table: &table}, Up: new(true)})
	if err != nil {
		return err
	}
	if err := refuse(p, c, table, named); err != nil {
		return err
	}
	for i, name := range members {
		key := fmt.Sprintf("interfaces[%d]", i)
		if name == c.Name {
			return ops.Invalid(key, "%q is the VRF itself", name)
		}
		own, err := ops.Interface(p, key, name, false)
		if err != nil {
			return err
		}
		if err := p.Want(netstate.Link{Name: own, Master: &c.Name}); err != nil {
			return fmt.Errorf("interfaces: %w", err)
		}
	}
	return nil
}

// unreachableMetric is that of Documentation/networking/vrf.rst: above that of any other route.
const unreachableMetric = 4278198272

// refuse wants the routes that end the lookup in the VRF's table. A VRF of an earlier version, which
// had none, gets them with the first check.
func refuse(p *ops.Planner, c config, table uint32, named bool) error {
	routes := []netstate.Unreachable{{Dst: "0.0.0.0/0", Table: table, Metric: unreachableMetric}}
	if ipv6, err := p.IPv6(); err != nil {
		return err
	} else if ipv6 {
		routes = append(routes, netstate.Unreachable{Dst: "::/0", Table: table, Metric: unreachableMetric})
	}
	if named && p.Wanted(routes[0].Key()) == c.Leak {
		return ops.Invalid("leak", "is %t, and another step of VRF %q says otherwise: write the same in both", c.Leak, c.Name)
	}
	if c.Leak {
		return nil
	}
	for _, r := range routes {
		if err := p.Want(r); err != nil {
			return err
		}
	}
	return nil
}

// holder returns the name of another VRF that has a table, "" if none has.
func holder(p *ops.Planner, name string, table uint32) string {
	for _, l := range p.Links() {
		if l.Name != name && l.VRF != nil && l.VRF.Table != nil && *l.VRF.Table == table && !p.Leaves(l.Key()) {
			return l.Name
		}
	}
	return ""
}

// tableOf returns the configured table, that of another step of the VRF, or the one that was chosen for
// the VRF.
func tableOf(p *ops.Planner, c config) (uint32, error) {
	if c.Table == 0 {
		c.Table = tableElsewhere(p, c.Name)
	}
	if c.Table != 0 || p.Wanted(netstate.LinkKey(c.Name)) {
		return tableFor(p, c)
	}
	choose := func() (string, error) {
		table, err := tableFor(p, c)
		return strconv.FormatUint(uint64(table), 10), err
	}
	key := netstate.LinkKey(c.Name)
	chosen, err := p.Choose(key, "vrf.table", choose)
	if err != nil {
		return 0, err
	}
	table, err := strconv.ParseUint(chosen, 10, 32)
	// While the VRF was not there, another topology may have chosen the table.
	made := slices.ContainsFunc(p.Links(), func(l netstate.Link) bool { return l.Name == c.Name })
	if err == nil && !made && holder(p, c.Name, uint32(table)) != "" {
		if chosen, err = p.ChooseAgain(key, "vrf.table", choose); err != nil {
			return 0, err
		}
		table, err = strconv.ParseUint(chosen, 10, 32)
	}
	if field := p.NamedTables()[chosen]; err == nil && field != "" && !p.Foreign(key) && !p.Kept() {
		return 0, ops.Invalid("table",
			"%d was chosen for VRF %q, and %s names it: use another table there, or write table: %d here if the VRF is to share it", table,
			c.Name, field, table)
	}
	return uint32(table), err
}

// tableElsewhere is the table that a step gives a VRF, 0 if none does.
func tableElsewhere(p *ops.Planner, name string) uint32 {
	for _, config := range p.SameType() {
		for _, key := range []string{"vrfname", "vrfName", "name"} {
			if config[key] != name {
				continue
			}
			if table, err := strconv.ParseUint(fmt.Sprint(config["table"]), 10, 32); err == nil && table != 0 {
				return uint32(table)
			}
		}
	}
	return 0
}

// tableFor returns the VRF's table: the one it has, the configured one, or the lowest that
// is free.
func tableFor(p *ops.Planner, c config) (uint32, error) {
	used := map[uint32]bool{0: true, 253: true, 254: true, 255: true}
	for _, l := range p.Links() {
		if l.VRF == nil || l.VRF.Table == nil {
			// A link of ours that became another kind is recreated.
			if l.Name == c.Name && !p.Owned(l.Key()) {
				return 0, ops.ConflictWith(l.Name, "%q is not a VRF but a %s link", l.Name, l.LinkKind)
			}
			continue
		}
		if l.Name == c.Name {
			if c.Table != 0 && c.Table != *l.VRF.Table && !p.Owned(l.Key()) && !p.Wanted(l.Key()) {
				return 0, ops.ConflictWith(l.Name,
					"VRF %q exists with table %d, wanted %d: use that table, or another name", l.Name, *l.VRF.Table, c.Table)
			}
			if c.Table == 0 {
				return *l.VRF.Table, nil
			}
		}
		used[*l.VRF.Table] = true
	}
	if c.Table != 0 {
		return c.Table, nil
	}
	for _, r := range p.Routes() {
		used[r.Table] = true
	}
	for _, r := range p.Rules() {
		used[r.Table] = true
	}
	named := p.NamedTables()
	t := uint32(1)
	for used[t] || named[strconv.FormatUint(uint64(t), 10)] != "" {
		t++
	}
	return t, nil
}
