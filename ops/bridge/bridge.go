package bridge

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.AddressConfig
	ops.MasqueradeConfig
	ops.PortMappingConfig
	ops.GuardConfig
	Bridge              string  `json:"bridge,omitempty"`
	Name                string  `json:"ifName,omitempty"`
	HostIfName          string  `json:"hostIfName,omitempty"`
	MTU                 *uint32 `json:"mtu,omitempty"`
	MAC                 *string `json:"mac,omitempty"`
	IsGateway           bool    `json:"isGateway,omitempty"`
	IsDefaultGateway    bool    `json:"isDefaultGateway,omitempty"`
	ForceAddress        bool    `json:"forceAddress,omitempty"`
	HairpinMode         bool    `json:"hairpinMode,omitempty"`
	PromiscMode         bool    `json:"promiscMode,omitempty"`
	PortIsolation       bool    `json:"portIsolation,omitempty"`
	DisableInterface    bool    `json:"disableContainerInterface,omitempty"`
	EnableDAD           bool    `json:"enabledad,omitempty"`
	VLAN                uint16  `json:"vlan,omitempty"`
	VLANTrunk           []trunk `json:"vlanTrunk,omitempty"`
	PreserveDefaultVLAN bool    `json:"preserveDefaultVlan,omitempty"`
}

type trunk struct {
	ID    *uint16 `json:"id,omitempty"`
	MinID *uint16 `json:"minID,omitempty"`
	MaxID *uint16 `json:"maxID,omitempty"`
}

func vid(name, description string, low int64) contract.Param {
	return contract.Param{
		Name: name, Type: contract.Integer, Minimum: contract.Int(low),
		Maximum: contract.Int(4094), Description: description,
	}
}

func boolean(name, description string) contract.Param {
	return contract.Param{Name: name, Type: contract.Boolean, Description: description}
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "bridge",
	Summary: "Join a bridge on the host, or create one in the sandbox.",
	Description: `A root step creates a veth pair: one end in the pod, the other a port of a bridge on the host. A missing bridge is
created, and deleted with its last port; an existing one is refused if its VLAN filtering or MTU contradicts the config. In a cluster the
step uses a [share of a bridge](../policies.md#shared-devices). A derived step creates a bridge in the pod over the last interface of each
dependency.

ipMasq, of a root step, needs nftables in the kernel and waits until the host forwards, as ` + "`ptp`" + ` does.

macspoofchk and raGuard [check what pods send](../security.md#pods-of-one-bridge), and need nft_meta_bridge in the kernel; frames with two
VLAN tags are dropped. Set macspoofchk to false for a pod that sends with other MACs, such as those of virtual machines, and raGuard for a
router.`,
	Example: `- name: net1
  type: bridge
  config:
    bridge: br0
    vlan: 100
    addresses: ["192.0.2.10/24"]
`,
	Params: slices.Concat([]contract.Param{
		{
			Name: "bridge", Aliases: []string{"name"}, Type: contract.String, Format: contract.InterfaceName,
			Description: "bridge; default: cni0 on the host, the step's name in the pod",
		},
		{Name: "ifName", Type: contract.String, Format: contract.InterfaceName, Description: "default: " + ops.RootName},
		{
			Name: "hostIfName", Type: contract.String, Format: contract.InterfaceName,
			Description: "port on the host; default: derived from sandbox and step",
		},
		ops.MTUParam("1500"),
		ops.MACParam("of the interface, or of the bridge in the pod"),
		boolean("isGateway", "give the host's bridge the gateway of each address; excludes a vlan other than the bridge's"),
		boolean("isDefaultGateway", "isGateway, and a default route to it"),
		{
			Name: "forceAddress", Type: contract.Boolean, Description: "accepted, without effect",
			Ignored: "plumbline never removes an address of the bridge that it did not add; remove the key",
		},
		boolean("hairpinMode", "frames may leave by the port they came from; excludes promiscMode"),
		boolean("promiscMode", "make the bridge promiscuous; excludes hairpinMode"),
		boolean("portIsolation", "block traffic to other isolated ports"),
		boolean("disableContainerInterface", "leave the interface down; excludes addresses, and a link or bond on it"),
		boolean("enabledad", "accepted; it is the kernel's default"),
		vid("vlan", "VLAN of untagged traffic; 0 is none", 0),
		{
			Name: "vlanTrunk", Type: contract.List, Description: "VLANs carried tagged",
			Items: &contract.Param{Type: contract.Object, Properties: []contract.Param{
				vid("id", "one VLAN", 1), vid("minID", "first of a range", 1), vid("maxID", "last of a range", 1),
			}},
		},
		boolean("preserveDefaultVlan",
			"with vlan or vlanTrunk: the port is also in the bridge's default VLAN (vlan_default_pvid, usually 1), untagged"),
	}, ops.GuardParams(), ops.MasqueradeParams(), ops.PortMappingParams(), ops.AddressParams()),
	Input:  contract.Input{Shares: true, NamedBy: "bridge", DeviceTypes: []string{"virtual"}},
	Output: ops.Appends(),
	Check:  check,
}, plan)

func check(c map[string]any, _ map[string]bool) []contract.FieldError {
	var out []contract.FieldError
	is := func(key string) bool { b, _ := c[key].(bool); return b }
	say := func(field, message string) { out = append(out, contract.FieldError{Field: field, Message: message}) }
	if is("hairpinMode") && is("promiscMode") {
		say("promiscMode", "hairpin mode and promiscuous mode exclude each other: remove one")
	}
	_, addresses := c["addresses"]
	_, ipam := c["ipam"]
	if is("disableContainerInterface") && (addresses || ipam) {
		say("disableContainerInterface", "leaves the interface down, which excludes addresses: remove addresses and ipam, or this key")
	}
	if is("ipMasq") && !addresses && !ipam {
		say("ipMasq", "needs addresses to masquerade: add addresses or ipam, or remove ipMasq")
	}
	if _, ports := c["portMappings"]; ports && !is("isGateway") && !is("isDefaultGateway") {
		say("portMappings", "needs isGateway: true, so that the host is on the network of the bridge")
	}
	for _, key := range []string{"isGateway", "isDefaultGateway"} {
		if is(key) && !addresses && !ipam {
			say(key, "needs addresses, in whose network the gateway is: add addresses or ipam")
			break
		}
	}
	return out
}

func plan(p *ops.Planner, c config) error {
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	if !p.Root() {
		return inSandbox(p, c)
	}
	return onHost(p, c)
}

// inSandbox creates a bridge over the dependencies' interfaces.
func inSandbox(p *ops.Planner, c config) error {
	if c.IPMasq {
		return ops.Invalid("ipMasq", "is for a bridge of the host: remove it, or dependOn")
	}
	for name, on := range map[string]*bool{"macspoofchk": c.MACSpoofChk, "raGuard": c.RAGuard} {
		if on != nil && *on {
			return ops.Invalid(name, "is for a bridge of the host: remove it, or dependOn")
		}
	}
	if len(c.PortMappings) > 0 {
		return ops.Invalid("portMappings", "is for a bridge of the host: remove it, or dependOn")
	}
	name := cmp.Or(c.Bridge, c.Name)
	name, err := p.DefaultName(name)
	if err != nil {
		return err
	}
	vids, err := vlans(c)
	if err != nil {
		return err
	}
	br := netstate.Link{Name: name, LinkKind: "bridge", MTU: c.MTU, MAC: c.MAC, Up: new(true)}
	if len(vids) > 0 {
		br.Bridge = &netstate.Bridge{VLANFiltering: new(true)}
	}
	if c.PromiscMode {
		br.Promisc = new(true)
	}
	if err := p.Want(br); err != nil {
		return err
	}
	ports := p.LastInputs()
	if len(ports) == 0 {
		return ops.Invalid("", "no dependency provides an interface to be a port")
	}
	for _, port := range ports {
		if err := wantPort(p, port, name, c, vids); err != nil {
			return err
		}
	}
	p.Produce(name)
	return p.Address(name, c.AddressConfig)
}

// onHost creates a veth pair between the sandbox and a bridge of the host.
func onHost(p *ops.Planner, c config) error {
	shared, err := ops.SharedLink(p, c.Bridge, "bridge")
	switch {
	case err != nil:
		return err
	case shared != "":
		c.Bridge = netstate.BaseName(shared)
	case c.Bridge == "":
		c.Bridge = "cni0"
	}
	br := p.OwnName(netstate.HostName(c.Bridge))
	vids, err := vlans(c)
	if err != nil {
		return err
	}
	if err := wantHostBridge(p, br, c, len(vids) > 0); err != nil {
		return err
	}
	name, err := p.DefaultName(c.Name)
	if err != nil {
		return err
	}
	peer, err := p.VethToHost(netstate.Link{Name: name, MTU: c.MTU, MAC: c.MAC, Up: new(!c.DisableInterface)}, c.HostIfName)
	if err != nil {
		return err
	}
	if err := wantPort(p, peer, br, c, vids); err != nil {
		return err
	}
	gateways, err := gateway(p, br, name, &c)
	if err != nil {
		return err
	}
	if err := p.GuardPort(peer, br, name, c.GuardConfig, gateways); err != nil {
		return err
	}
	if err := p.Masquerade(name, c.MasqueradeConfig, c.AddressConfig); err != nil {
		return err
	}
	if err := p.MapPorts(name, br, c.PortMappingConfig, c.AddressConfig); err != nil {
		return err
	}
	p.Produce(br)
	p.Produce(peer)
	p.Produce(name)
	return p.Address(name, c.AddressConfig)
}

func wantHostBridge(p *ops.Planner, br string, c config, filtering bool) error {
	have, exists, err := ops.Lookup(p, netstate.Link{Name: br})
	if err != nil {
		return err
	}
	if exists && have.LinkKind != "bridge" {
		return ops.ConflictWith(br, "%q already exists but is not a bridge: it is a %s link", c.Bridge, have.LinkKind)
	}
	if exists && p.Foreign(have.Key()) {
		on := have.Bridge != nil && have.Bridge.VLANFiltering != nil && *have.Bridge.VLANFiltering
		if filtering && !on {
			return ops.ConflictWith(br,
				"bridge %q does not filter VLANs, so tags would have no effect: turn vlan_filtering on, or use another bridge", c.Bridge)
		}
		adopted := netstate.Link{Name: br, LinkKind: "bridge", Up: new(true)}
		if p.OwnBridge(br) {
			adopted.Bridge = &netstate.Bridge{NoLinkLocalLearn: new(true)}
		}
		return p.Adopt(adopted)
	}
	want := netstate.Link{Name: br, LinkKind: "bridge", MTU: c.MTU, Up: new(true), Bridge: &netstate.Bridge{NoLinkLocalLearn: new(true)}}
	if filtering {
		want.Bridge.VLANFiltering = new(true)
	}
	if c.PromiscMode {
		want.Promisc = new(true)
	}
	return p.Adopt(want)
}

func wantPort(p *ops.Planner, port, br string, c config, vids []netstate.BridgeVLAN) error {
	link := netstate.Link{Name: port, Master: &br, Up: new(true)}
	if c.HairpinMode || c.PortIsolation {
		link.Port = &netstate.Port{}
		if c.HairpinMode {
			link.Port.Hairpin = new(true)
		}
		if c.PortIsolation {
			link.Port.Isolated = new(true)
		}
	}
	if err := p.Want(link); err != nil {
		return err
	}
	for _, v := range vids {
		v.Link = port
		if err := p.Want(v); err != nil {
			return err
		}
	}
	if len(vids) == 0 {
		return nil
	}
	return defaultVLAN(p, port, br, c, vids)
}

// defaultVLAN keeps the port in the VLAN that the bridge gives each new port, or takes it out. One that the config
// names is as the config says.
func defaultVLAN(p *ops.Planner, port, br string, c config, vids []netstate.BridgeVLAN) error {
	l, err := p.Link(br)
	if err != nil {
		return err
	}
	vid := l.DefaultVLAN()
	switch {
	case vid == 0 || slices.ContainsFunc(vids, func(v netstate.BridgeVLAN) bool { return v.VID == vid }):
		return nil
	case c.PreserveDefaultVLAN:
		return p.Want(netstate.BridgeVLAN{Link: port, VID: vid, PVID: new(c.VLAN == 0), Untagged: new(true)})
	default:
		return p.WantNone(netstate.BridgeVLAN{Link: port, VID: vid})
	}
}

// vlans lists the VLANs of the port.
func vlans(c config) ([]netstate.BridgeVLAN, error) {
	var out []netstate.BridgeVLAN
	if c.VLAN != 0 {
		out = append(out, netstate.BridgeVLAN{VID: c.VLAN, PVID: new(true), Untagged: new(true)})
	}
	for i, t := range c.VLANTrunk {
		field := fmt.Sprintf("vlanTrunk[%d]", i)
		low, high := t.MinID, t.MaxID
		switch {
		case t.ID != nil && (low != nil || high != nil):
			return nil, ops.Invalid(field, "is either an id or a range, not both")
		case t.ID != nil:
			low, high = t.ID, t.ID
		case low == nil || high == nil:
			return nil, ops.Invalid(field, "needs id, or both minID and maxID")
		case *low > *high:
			return nil, ops.Invalid(field, "minID %d is above maxID %d", *low, *high)
		}
		for v := *low; v <= *high; v++ {
			if v != c.VLAN {
				out = append(out, netstate.BridgeVLAN{VID: v, PVID: new(false), Untagged: new(false)})
			}
		}
	}
	return out, nil
}

// gateway gives the bridge an address on each subnet, and the sandbox a default route to it
// if isDefaultGateway is set. It returns these addresses.
func gateway(p *ops.Planner, br, link string, c *config) (gateways []netip.Addr, err error) {
	if !c.IsGateway && !c.IsDefaultGateway {
		return nil, nil
	}
	// A port without vlan is in the VLAN of the bridge itself, which is in no other one.
	if c.VLAN != 0 && !p.Kept() {
		l, err := p.Link(br)
		if err != nil {
			return nil, err
		}
		if l.DefaultVLAN() != c.VLAN {
			return nil, ops.Invalid("isGateway",
				"the gateway is the bridge, which is not in VLAN %d: remove it and add routes to a router of that VLAN, or remove vlan",
				c.VLAN)
		}
	}
	all, err := p.Gateways(link, "isGateway", c.AddressConfig)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if err := p.Want(netstate.Addr{Link: br, Address: netip.PrefixFrom(a.Gateway, a.Address.Bits()).String()}); err != nil {
			return nil, err
		}
		gateways = append(gateways, a.Gateway)
		if c.IsDefaultGateway {
			c.Routes = append(slices.Clip(c.Routes), ops.Route{Destination: ops.DefaultRoute(a.Gateway), Gateway: a.Gateway.String()})
		}
	}
	return gateways, nil
}
