package vxlan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.AddressConfig
	ID       uint32   `json:"id"`
	Master   string   `json:"master,omitempty"`
	Routed   bool     `json:"routed"`
	Local    string   `json:"local,omitempty"`
	Remote   string   `json:"remote,omitempty"`
	Remotes  []string `json:"remotes,omitempty"`
	Group    string   `json:"group,omitempty"`
	Port     uint16   `json:"port"`
	TTL      uint8    `json:"ttl"`
	Learning bool     `json:"learning"`
	Name     string   `json:"name,omitempty"`
	MTU      *uint32  `json:"mtu,omitempty"`
	MAC      *string  `json:"mac,omitempty"`
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "vxlan",
	Summary: "Create a VXLAN tunnel.",
	Description: `Creates an Ethernet link whose frames are sent in UDP packets, from the master or as ` + "`routed`" + `. Frames for
unknown MACs and for all stations go to ` + "`remote`" + `, each of ` + "`remotes`" + `, or the multicast ` + "`group`" + `; without
any, only forwarding entries of others count. Addresses of a tunnel are of one family, and may have a prefix length. ` + "`remotes`" + `
are entries of the MAC 00:00:00:00:00:00 in ` + "`bridge fdb`" + `; entries of others stay.

Both ends need the same port; the kernel's own default is 8472. A network namespace has one tunnel per id, port and family, and no other
socket on the port; a tunnel through a VRF needs another port than one through none. Put the master into its VRF in an earlier step.

The headers take 50 bytes, over IPv6 70: a larger mtu raises the master's, down to the devices. Another id, port, family or master creates
the link again, another group takes it down for a moment, other changes are live.`,
	Example: `- name: tunnel
  type: vxlan
  dependOn: [bond0]
  config:
    id: 4100
    local: 192.0.2.5
    remote: 192.0.2.6
    addresses: ["198.51.100.5/24"]
`,
	Params: slices.Concat([]contract.Param{
		{
			Name: "id", Aliases: []string{"vni"}, Type: contract.Integer, Required: true, Minimum: contract.Int(0),
			Maximum: contract.Int(1<<24 - 1), Description: "VNI",
		},
		{
			Name: "master", Aliases: []string{"dev"}, Type: contract.String, Format: contract.LinkName,
			Description: "interface that packets leave by; default: the dependencies' last",
		},
		{
			Name: "routed", Type: contract.Boolean, Default: false,
			Description: "no master: routes of the pod decide, as in a root step without master",
		},
		{Name: "local", Type: contract.String, Description: "source address, such as `{{ step.ips[0].address }}`; default: the route's"},
		{Name: "remote", Type: contract.String, Description: "address of the other end"},
		{
			Name: "remotes", Type: contract.List, MaxItems: 256, Items: &contract.Param{Type: contract.String},
			Description: "addresses of several other ends; excludes remote and group",
		},
		{Name: "group", Type: contract.String, Format: contract.IP, Description: "multicast group of the other ends; needs a master"},
		{
			Name: "port", Aliases: []string{"dstport", "dstPort"}, Type: contract.Integer, Minimum: contract.Int(1),
			Maximum: contract.Int(65535), Default: 4789, Description: "UDP port of both ends",
		},
		{
			Name: "ttl", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(255), Default: 0,
			Description: "TTL or hop limit; 0: the pod's default, 1 to a group",
		},
		{Name: "learning", Type: contract.Boolean, Default: true, Description: "learn the other ends of MACs from received frames"},
		ops.NameParam("vxlan and the id"),
		ops.MTUParam("50 below the master's, over IPv6 70; without a master 1450 and 1430"),
		ops.MACParam("default: one that the link keeps"),
	}, ops.AddressParams()),
	Output: ops.Appends(),
}, plan)

func plan(p *ops.Planner, c config) error {
	master, err := lower(p, c)
	if err != nil {
		return err
	}
	tunnel, remotes, err := ends(c, master)
	if err != nil {
		return err
	}
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	if c.Name == "" {
		c.Name = fmt.Sprintf("vxlan%d", c.ID)
	}
	for _, l := range p.Links() {
		if p.Leaves(l.Key()) || l.Name == c.Name || netstate.OnHost(l.Name) {
			continue // an edit may give the tunnel another name
		}
		if l.LinkKind == "vxlan" && sameTunnel(l.VXLAN, tunnel) {
			return ops.ConflictWith(l.Name,
				"VXLAN %d on UDP port %d exists already as %q: the kernel allows one per sandbox; use another id or port", c.ID,
				c.Port, l.Name)
		}
	}
	link := netstate.Link{
		Name: c.Name, LinkKind: "vxlan", Parent: &master, VXLAN: tunnel, MTU: c.MTU, MAC: c.MAC, Up: new(true),
	}
	if master == "" && c.MTU == nil {
		// The kernel would give it 1500, which does not fit into an Ethernet MTU of 1500.
		link.MTU = new(1500 - link.Headers())
	}
	if err := p.Want(link); err != nil {
		return err
	}
	for _, r := range remotes {
		if err := p.Want(netstate.FDB{Link: c.Name, Remote: r.String(), Via: master}); err != nil {
			return err
		}
	}
	p.Produce(c.Name)
	return p.Address(c.Name, c.AddressConfig)
}

// lower is the interface that packets leave through, "" where routes decide.
func lower(p *ops.Planner, c config) (string, error) {
	switch {
	case c.Routed && c.Master != "":
		return "", ops.Invalid("routed", "with routed: true the routes decide, and not the master %q: remove one of them", c.Master)
	case c.Routed, c.Master == "" && p.Root():
		return "", nil
	}
	return ops.Master(p, c.Master, false)
}

// ends reads the addresses of both ends, and refuses what vxlan_config_validate does. The
// remotes are the entries of the list.
func ends(c config, master string) (*netstate.VXLAN, []netip.Addr, error) {
	var local, remote, group netip.Addr
	for _, a := range []struct {
		field, text string
		to          *netip.Addr
		multicast   bool
	}{{"local", c.Local, &local, false}, {"remote", c.Remote, &remote, false}, {"group", c.Group, &group, true}} {
		if a.text == "" {
			continue
		}
		addr, err := end(a.field, a.text, a.multicast)
		if err != nil {
			return nil, nil, err
		}
		*a.to = addr
	}
	to, field := remote, "remote"
	if group.IsValid() {
		to, field = group, "group"
	}
	switch {
	case remote.IsValid() && group.IsValid():
		return nil, nil, ops.Invalid("group", "%q and the remote %q exclude one another: remove one of them", group, remote)
	case to.IsValid() && len(c.Remotes) > 0:
		return nil, nil, ops.Invalid("remotes",
			"the %s %q excludes them: remove it, or add it to the list if it is one other end", field, to)
	case group.IsValid() && master == "":
		return nil, nil, ops.Invalid("group", "%q needs a master, through which the group is joined: name one", group)
	}
	if err := fits(local, to, field, master); err != nil {
		return nil, nil, err
	}
	remotes, err := several(c.Remotes, local, master)
	if err != nil {
		return nil, nil, err
	}
	none, family := netip.IPv4Unspecified(), "ipv4"
	if local.Is6() || to.Is6() {
		none, family = netip.IPv6Unspecified(), "ipv6"
	}
	said := func(a netip.Addr) *string {
		if !a.IsValid() {
			a = none
		}
		return new(a.String())
	}
	return &netstate.VXLAN{
		ID: &c.ID, Port: &c.Port, Family: &family,
		Local: said(local), Remote: said(remote), Group: said(group), TTL: &c.TTL, Learning: &c.Learning,
	}, remotes, nil
}

// end reads the address of one end.
func end(field, text string, multicast bool) (netip.Addr, error) {
	addr, err := address(text)
	switch {
	case err != nil:
		return addr, ops.Invalid(field, "%q is not an IP address", text)
	case addr.IsUnspecified():
		return addr, ops.Invalid(field, "%q is the unspecified address: remove it", text)
	case multicast && !addr.IsMulticast():
		return addr, ops.Invalid(field, "%q is not a multicast address: write remote for a single other end", text)
	case !multicast && addr.IsMulticast():
		return addr, ops.Invalid(field, "%q is a multicast address: write it as group", text)
	}
	return addr, nil
}

// several reads the list of other ends. The kernel takes only those of the tunnel's family,
// which is IPv4 unless the link has an IPv6 address of its own.
func several(texts []string, local netip.Addr, master string) ([]netip.Addr, error) {
	var out []netip.Addr
	for i, text := range texts {
		field := fmt.Sprintf("remotes[%d]", i)
		addr, err := end(field, text, false)
		switch {
		case err != nil:
			return nil, err
		case slices.Contains(out, addr):
			return nil, ops.Invalid(field, "%q is in the list already: remove it", addr)
		case addr.Is6() && !local.IsValid():
			return nil, ops.Invalid(field, "%q is IPv6, and a tunnel without an IPv6 address as local is of IPv4: set local", addr)
		}
		if err := fits(local, addr, field, master); err != nil {
			return nil, err
		}
		out = append(out, addr)
	}
	return out, nil
}

// fits refuses two ends of different families or scopes.
func fits(local, to netip.Addr, field, master string) error {
	if local.IsValid() && to.IsValid() && local.Is4() != to.Is4() {
		return ops.Invalid(field, "%q and the local %q are of different families: use addresses of one family", to, local)
	}
	return scopes(local, to, field, master)
}

// scopes refuses a link-local address at one end only.
func scopes(local, to netip.Addr, field, master string) error {
	linkLocal := func(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }
	switch {
	case linkLocal(local) && to.IsValid() && !linkLocal(to) && !to.IsLinkLocalMulticast():
		return ops.Invalid(field, "%q is not link-local, and the local %q is: use addresses of one scope", to, local)
	case linkLocal(to) && !linkLocal(local):
		return ops.Invalid(field, "%q is link-local: give a link-local address as local too", to)
	case linkLocal(local) && master == "":
		return ops.Invalid("local", "%q is link-local, and needs a master: name one", local)
	}
	return nil
}

// address reads an address, with or without a prefix length.
func address(text string) (netip.Addr, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.Addr().Unmap(), nil
	}
	addr, err := netip.ParseAddr(text)
	if err == nil && addr.Zone() != "" {
		return addr, fmt.Errorf("zone %q", addr.Zone())
	}
	return addr.Unmap(), err
}

// sameTunnel reports whether the kernel refuses one beside the other
// (vxlan_vni_in_use). Link-local addresses are compared together with the master, which is
// left to the kernel.
func sameTunnel(have, want *netstate.VXLAN) bool {
	return have != nil && have.ID != nil && have.Port != nil && have.Family != nil &&
		*have.ID == *want.ID && *have.Port == *want.Port && *have.Family == *want.Family && !linkLocalEnd(want)
}

func linkLocalEnd(v *netstate.VXLAN) bool {
	a, err := netip.ParseAddr(*v.Local)
	return err == nil && a.Is6() && a.IsLinkLocalUnicast()
}
