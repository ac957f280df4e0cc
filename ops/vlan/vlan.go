package vlan

import (
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.AddressConfig
	ID              uint16  `json:"id"`
	Master          string  `json:"master,omitempty"`
	Name            string  `json:"name,omitempty"`
	Protocol        string  `json:"protocol,omitempty"`
	MTU             *uint32 `json:"mtu,omitempty"`
	MAC             *string `json:"mac,omitempty"`
	LinkInContainer bool    `json:"linkInContainer"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "vlan",
	Summary: "Create a VLAN link on an interface.",
	Description: `The kernel allows one link per master, protocol and id, in all namespaces together. A change of the id creates the link
again.

An mtu above the master's raises the master's, down to the devices; if another step sets a lower one, the error names both.`,
	Example: `- name: vlan100
  type: vlan
  dependOn: [bond0]
  config:
    id: 100
    master: "{{ bond0.interfaceName }}"
    name: data0
`,
	Params: slices.Concat([]contract.Param{
		{
			Name: "id", Aliases: []string{"vlanId"}, Type: contract.Integer, Required: true, Minimum: contract.Int(1),
			Maximum: contract.Int(4094), Description: "VLAN ID",
		},
		{Name: "master", Type: contract.String, Format: contract.LinkName, Description: "interface below; default: the dependencies' last"},
		ops.NameParam("the master's name, a dot and the id"),
		{
			Name: "protocol", Aliases: []string{"vlanProto"}, Type: contract.String, Enum: []string{"802.1q", "802.1ad"}, FoldCase: true,
			Default: "802.1q", Description: "tag protocol",
		},
		ops.MTUParam("the master's"),
		ops.MACParam("default: the master's"),
		{Name: "linkInContainer", Type: contract.Boolean, Default: true, Description: "the master is in the pod; false: on the host"},
	}, ops.AddressParams()),
	Input:  contract.Input{Required: true, MinInterfaces: 1},
	Output: ops.Appends(),
}, plan)

func plan(p *ops.Planner, c config) error {
	master, err := ops.Master(p, c.Master, !c.LinkInContainer)
	if err != nil {
		return err
	}
	if c.Name == "" {
		c.Name = fmt.Sprintf("%s.%d", netstate.BaseName(master), c.ID)
		if len(c.Name) > 15 {
			return ops.Invalid("name", "is needed: %q is longer than the 15 bytes an interface name can have", c.Name)
		}
	}
	for _, l := range p.Links() {
		if p.Leaves(l.Key()) {
			continue // an edit may give the VLAN another name
		}
		if l.LinkKind == "vlan" && l.Name != c.Name && l.Parent != nil && *l.Parent == master && sameTag(l.VLAN, c) {
			return ops.ConflictWith(l.Name,
				"VLAN %d on %q exists already as %q: the kernel allows one per interface", c.ID, netstate.BaseName(master), l.Name)
		}
	}
	err = p.Want(netstate.Link{
		Name: c.Name, LinkKind: "vlan", Parent: &master,
		VLAN: &netstate.VLAN{ID: &c.ID, Protocol: &c.Protocol},
		MTU:  c.MTU, MAC: c.MAC, Up: new(true),
	})
	if err != nil {
		return err
	}
	p.Produce(c.Name)
	return p.Address(c.Name, c.AddressConfig)
}

func sameTag(v *netstate.VLAN, c config) bool {
	return v != nil && v.ID != nil && *v.ID == c.ID && (v.Protocol == nil || *v.Protocol == c.Protocol)
}
