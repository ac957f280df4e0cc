package ovnk8scnioverlay

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

type config struct {
	ops.DeviceConfig
	ops.AddressConfig
	ops.RDMAConfig
	topology.OVN
	Role               string  `json:"role,omitempty"`
	Name               string  `json:"ifName,omitempty"`
	MTU                *uint32 `json:"mtu,omitempty"`
	MAC                *string `json:"mac,omitempty"`
	AllowPersistentIPs bool    `json:"allowPersistentIPs,omitempty"`
	LogLevel           string  `json:"logLevel,omitempty"`
	LogFile            string  `json:"logFile,omitempty"`
}

const (
	layer2   = topology.OVNLayer2
	localnet = topology.OVNLocalnet
)

// defaultMTU of a layer2 network: a packet with Ethernet header and the headers of Geneve fits
// into 1500 bytes, over IPv4 (58 bytes) and IPv6 (78 bytes).
const defaultMTU = 1400

const ethernetMTU = 1500

// largestMTU is that of the end on the host (ETH_MAX_MTU): the end in the sandbox decides, and a
// smaller one here would drop what that sends.
const largestMTU = 65535

// refused are the keys of ovn-kubernetes that are not supported, and why.
var refused = []struct{ key, why string }{
	{"transport", "is for networks without an overlay, whose routes ovn-kubernetes exchanges: remove it"},
	{"evpn", "is for networks whose routes ovn-kubernetes exchanges by BGP: remove it"},
	{"outboundSNAT", "needs a router, and the switch of a secondary network has none: remove it"},
	{"joinSubnet", "is for primary networks, whose routers ovn-kubernetes makes: remove it"},
	{"transitSubnet", "is for networks that ovn-kubernetes connects: remove it"},
	{"defaultGatewayIPs", "is for primary networks: set the gateway of addresses instead"},
	{"reservedSubnets", "is for addresses that ovn-kubernetes allocates: exclude them in an AddressPool instead"},
	{"infrastructureSubnets", "is for addresses that ovn-kubernetes allocates: exclude them in an AddressPool instead"},
	{"uplink", "is for bridges that ovn-kubernetes makes: map physicalNetworkName to a bridge in ovn-bridge-mappings instead"},
}

func text(name, description string) contract.Param {
	return contract.Param{Name: name, Type: contract.String, Description: description}
}

func refusedParams() []contract.Param {
	var out []contract.Param
	for _, r := range refused {
		out = append(out, contract.Param{Name: r.key, Type: contract.Any, Description: "refused: it " + r.why})
	}
	return out
}

// output is an interface whose packets OVN receives.
func output() contract.Output {
	out := ops.Appends()
	out.Devices = ops.RDMAFields()
	out.LogicalPorts, out.Attachment = true,
		[]string{"netAttachDefName", "name", "topology", "physicalNetworkName", "vlanID", "mac", "addresses", "ipam"}
	return out
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    topology.TypeOVN,
	Summary: "Join a network of OVN.",
	Description: `Creates a logical switch port and a veth pair: one end in the pod, the other on the integration bridge
([OVN](../ovn.md)). Ports of all nodes with the same topology, network, physical network and VLAN are on one logical switch. On a node of
ovn-kubernetes the step uses [its port](../beside-ovn-kubernetes.md#a-port-of-ovn-kubernetes).

layer2 is a network between nodes, through Geneve tunnels: its mtu must be 58 bytes below the MTU between the nodes, 78 over IPv6, or less.
localnet leads to a physical network: ovn-bridge-mappings of the node's Open vSwitch has to name a bridge for physicalNetworkName.

The port may send from its own MAC only and, if it has addresses, from these only. With subnets, and neither addresses nor ipam, each
pod gets [an address of them](../ovn.md#addresses). Otherwise those of addresses and ipam have to be in them.

An allocated [virtual function](../ovn.md#virtual-functions) is moved into the pod instead; any other device stays on the host, and is the
uplink of the physical network. The containers get the RDMA device of the function.`,
	Example: `- name: net1
  type: ovn-k8s-cni-overlay
  config:
    topology: localnet
    role: secondary
    netAttachDefName: default/localnet-blue
    physicalNetworkName: localnet1
    vlanID: 200
    subnets: "192.0.2.0/24"
    addresses: ["192.0.2.10/24"]
`,
	Params: slices.Concat([]contract.Param{
		{
			Name: "topology", Type: contract.String, Required: true, Enum: []string{layer2, localnet},
			Refused:     map[string]string{"layer3": "its routers are made by ovn-kubernetes; use layer2 or localnet"},
			Description: "layer2: a network between nodes; localnet: a physical network",
		},
		{
			Name: "role", Type: contract.String, Enum: []string{"secondary"},
			Refused: map[string]string{"primary": "the pod's own network is not one of OVN: " +
				"use secondary; for the pod network use a topology with spec.role primary and a step of type ptp or bridge"},
			Description: "default: secondary",
		},
		text("netAttachDefName", "NAMESPACE/NAME of the network's NetworkAttachmentDefinition; without ovn-kubernetes only a name"),
		text("name", "name of the network; default: netAttachDefName"),
		text("subnets", "networks of the addresses, with commas; each pod gets one of each family, unless addresses or ipam is set"),
		text("excludeSubnets", "parts of subnets without addresses, with commas"),
		text("physicalNetworkName", "localnet: physical network, as in ovn-bridge-mappings; default: name, if given"),
		{
			Name: "vlanID", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(4094),
			Description: "localnet: VLAN on the physical network; 0: none",
		},
		{Name: "ifName", Type: contract.String, Format: contract.InterfaceName, Description: "default: " + ops.RootName},
		ops.MTUParam("1400 of layer2, 1500 of localnet"),
		ops.MACParam("default: derived from sandbox and step"),
		{Name: "allowPersistentIPs", Type: contract.Boolean, Description: "must be false; an AddressPool can keep addresses"},
	}, ops.RDMAParams(" of a virtual function that the step takes"+ops.OfTaken), refusedParams(), ops.DeviceParams(), ops.AddressParams(),
		ops.LogParams()),
	Input: contract.Input{
		Shares: true, Functions: true, RDMA: ops.NeedsRDMA,
		Uplink: func(config map[string]any) bool { return config["topology"] == localnet },
	},
	Output: output(),
	Check:  check,
}, plan)

// networkName matches valid names of networks, so that names of switches have one meaning, and
// no way out of a quoted string of OVN.
var (
	networkName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,252})?$`)
	physicalName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
)

func check(c map[string]any, unresolved map[string]bool) []contract.FieldError {
	var out []contract.FieldError
	say := func(field, format string, args ...any) {
		out = append(out, contract.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	word := func(key string) string { s, _ := c[key].(string); return s }
	for _, r := range refused {
		if _, ok := c[r.key]; ok {
			say(r.key, "%s", r.why)
		}
	}
	if keep, _ := c["allowPersistentIPs"].(bool); keep {
		say("allowPersistentIPs", "is not supported: use ipam of type pool, and reclaimAfter of the AddressPool")
	}
	switch name, attachment := word("name"), word("netAttachDefName"); {
	case name == "" && attachment == "" && !unresolved["name"] && !unresolved["netAttachDefName"]:
		say("netAttachDefName", "is missing, and name too: one of them names the network")
	case name != "" && !networkName.MatchString(name):
		say("name", "%q is not a network name: use letters, digits, \"-\", \"_\" and \".\", with one \"/\" at most", name)
	case attachment != "" && (!networkName.MatchString(attachment) || !strings.Contains(attachment, "/")):
		say("netAttachDefName", "%q is not NAMESPACE/NAME: write it as in \"default/blue\"", attachment)
	}
	physical := word("physicalNetworkName")
	switch topology := word("topology"); {
	case topology == layer2 && physical != "":
		say("physicalNetworkName", "is for topology localnet: remove it")
	case topology == localnet && physical == "" && !unresolved["physicalNetworkName"] && !physicalName.MatchString(word("name")):
		say("physicalNetworkName", "is missing: name the physical network, as in ovn-bridge-mappings")
	case physical != "" && !physicalName.MatchString(physical):
		say("physicalNetworkName", "%q is not a name of a physical network: use letters, digits, \"-\", \"_\" and \".\"", physical)
	}
	if _, tagged := c["vlanID"]; tagged && word("topology") == layer2 {
		say("vlanID", "is for topology localnet: remove it")
	}
	for _, key := range []string{"subnets", "excludeSubnets"} {
		if _, err := topology.Prefixes(word(key)); err != nil {
			say(key, "%v", err)
		}
	}
	return out
}

func plan(p *ops.Planner, c config) error {
	if !p.Root() {
		return ops.Invalid("", "joins a network of its own: remove dependOn")
	}
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	representor, err := c.representor(p)
	if err != nil {
		return err
	}
	given := p.GivenPort()
	chassis, err := c.chassis(p, given != nil)
	if err != nil {
		return err
	}
	name, err := p.DefaultName(c.Name)
	if err != nil {
		return err
	}
	switch {
	case given != nil:
		if err := c.agree(given); err != nil {
			return err
		}
		c.MAC = &given.MAC
	case c.MAC == nil:
		c.MAC = new(p.StableMAC(*chassis.Name))
	}
	switch {
	case c.MTU != nil:
	case c.Topology == layer2:
		c.MTU = new(uint32(defaultMTU))
	case representor != "":
		c.MTU = new(uint32(ethernetMTU)) // the function has that of its last use, a new pair this one
	}
	p.FromSubnets(&c.AddressConfig)
	addresses, err := c.addresses(p, name)
	if err != nil {
		return err
	}
	if given != nil && !given.Addressed && len(addresses) > 0 {
		p.Note("OVN lets interface %q use any IP address: "+
			"NetworkAttachmentDefinition %q has no subnets, so ovn-kubernetes has given the port none", name, given.Attachment)
	}
	bound := netstate.OVSPort{Bridge: chassis.Int, MAC: c.MAC, Addresses: addresses}
	if given != nil {
		bound.LogicalPort, bound.Holder = &given.Name, &given.Holder
	} else {
		port := c.logicalPort(p, *chassis.Name)
		port.Addresses = []string{strings.Join(slices.Concat([]string{*c.MAC}, withoutLengths(addresses)), " ")}
		port.PortSecurity = port.Addresses
		if err := p.Want(port); err != nil {
			return err
		}
		bound.LogicalPort, bound.Holder = &port.Name, port.Holder
		p.BindLogicalPort(name, port)
	}
	if representor != "" {
		return c.planFunction(p, representor, bound)
	}
	host, err := p.VethToHost(netstate.Link{Name: name, MTU: c.MTU, MAC: c.MAC, Up: new(true)}, "")
	if err != nil {
		return err
	}
	if err := p.Want(netstate.Link{Name: host, MTU: new(uint32(largestMTU)), Up: new(true)}); err != nil {
		return err
	}
	bound.Link = host
	if err := p.WantInstalled(bound); err != nil {
		return err
	}
	p.Produce(host)
	p.Produce(name)
	if err := p.Address(name, c.AddressConfig); err != nil {
		return err
	}
	return c.WithoutFunction(p, name, "a veth pair")
}

// planFunction wants the virtual function in the sandbox, and its representor as the port.
func (c *config) planFunction(p *ops.Planner, representor string, bound netstate.OVSPort) error {
	id, _ := p.AssignedDevice()
	d, err := p.Device(id)
	if err != nil {
		return err
	}
	if err := p.WantVFBehindRepresentor(id, *c.MAC); err != nil {
		return err
	}
	if err := p.Want(netstate.Link{Name: representor, MTU: c.MTU, Up: new(true)}); err != nil {
		return err
	}
	bound.Link = representor
	if was := p.NameOnHost(d); was != "" {
		bound.Function = &was
	}
	if err := p.WantInstalled(bound); err != nil {
		return err
	}
	p.Produce(representor)
	return ops.MovedConfig{
		DeviceConfig: c.DeviceConfig, AddressConfig: c.AddressConfig, RDMAConfig: c.RDMAConfig, Name: c.Name, MTU: c.MTU,
	}.Move(p, id, c.MAC)
}

// representor returns the representor of the virtual function that is allocated to the step, ""
// if none is. Another device has to be an uplink, which stays on the host.
func (c *config) representor(p *ops.Planner) (string, error) {
	id, ok := p.AssignedDevice()
	if named := c.DeviceID + c.RuntimeConfig.DeviceID; !ok && named != "" {
		return "", ops.Invalid("deviceID",
			"names device %q, but no device is allocated to the step: remove the key, and have a selector of the step choose the device",
			named)
	}
	if !ok || p.Imagined() {
		return "", nil
	}
	if _, err := c.Assigned(p); err != nil {
		return "", err
	}
	if link, isVF, err := p.Representor(id); err != nil || isVF {
		return link, err
	}
	_, err := ops.SharedLink(p, "", "")
	return "", err
}

// agree refuses a config that contradicts the port that ovn-kubernetes has made: its network is
// what the NetworkAttachmentDefinition says.
func (c *config) agree(with *ops.Port) error {
	differs := func(field, is, theirs string) error {
		return ops.Invalid(field,
			"is %s, and NetworkAttachmentDefinition %q has made the pod's port with %s: write the same into both, and create the pod again",
			is, with.Attachment, theirs)
	}
	switch {
	case c.NetAttachDefName != with.Attachment:
		return ops.Invalid("netAttachDefName", "is %q, and ovn-kubernetes has made a port of the pod for %q: "+
			"a pod keeps the network that it was created with; create it again", c.NetAttachDefName, with.Attachment)
	case c.Topology != with.Topology:
		return differs("topology", c.Topology, fmt.Sprintf("%q", with.Topology))
	case c.OVN.Name != "" && c.OVN.Name != with.Network:
		return differs("name", fmt.Sprintf("%q", c.OVN.Name), fmt.Sprintf("%q", with.Network))
	case c.Physical() != "" && c.Physical() != with.PhysicalNetwork:
		return differs("physicalNetworkName", fmt.Sprintf("%q", c.Physical()), fmt.Sprintf("%q", with.PhysicalNetwork))
	case c.Topology == localnet && c.VLANID != with.VLAN:
		return differs("vlanID", fmt.Sprint(c.VLANID), fmt.Sprint(with.VLAN))
	case c.MAC != nil && *c.MAC != with.MAC:
		return ops.Invalid("mac", "is %q, and ovn-kubernetes has given the pod %q: remove it", *c.MAC, with.MAC)
	case c.IPAM != nil && with.Addressed:
		return ops.Invalid("ipam", "is of no use: ovn-kubernetes gives the pod the addresses of NetworkAttachmentDefinition %q; "+
			"remove it, or remove the subnets of that", with.Attachment)
	case len(c.Addresses) > 0 && with.Addressed:
		return ops.Invalid("addresses", "are of no use: ovn-kubernetes gives the pod the addresses of NetworkAttachmentDefinition %q, "+
			"and OVN drops packets from others; remove them, or remove the subnets of that", with.Attachment)
	}
	return nil
}

// chassis returns the node's Open vSwitch, if the network can be joined there. plugged says that
// ovn-kubernetes has made the port.
func (c *config) chassis(p *ops.Planner, plugged bool) (netstate.Chassis, error) {
	out, ok, err := ops.Lookup(p, netstate.ThisChassis)
	switch {
	case err != nil:
		return out, err
	case !ok:
		return out, netstate.Absent(netstate.ThisChassis)
	case out.OVNKubernetes && !plugged && !p.Kept():
		return out, fault.New(fault.Unsupported, errors.New("ovn-kubernetes has attached this node to OVN, and makes the ports there: "+
			"the agent looks for that of a pod which has a claim and, when it was created, "+
			"the annotation k8s.v1.cni.cncf.io/networks with netAttachDefName (docs/ovn.md). "+
			"A claim that was prepared without one keeps none: then delete the pod and create it again"))
	case *out.Name == "":
		return out, fault.New(fault.NotReady,
			errors.New("the Open vSwitch of this node is not an OVN chassis: it has no external_ids:system-id; see docs/ovn.md"))
	case *out.Int == "":
		return out, fault.New(fault.NotReady,
			errors.New("the Open vSwitch of this node has no integration bridge, which ovn-controller creates: is it running?"))
	}
	if physical := c.Physical(); physical != "" && out.Networks != nil && !slices.Contains(out.Networks, physical) {
		if !p.Kept() {
			return out, fault.New(fault.NotReady, fmt.Errorf("physicalNetworkName: no bridge of this node leads to %q: "+
				"add \"%s:BRIDGE\" to external_ids:ovn-bridge-mappings of Open_vSwitch, which has %s",
				physical, physical, quoted(out.Networks)))
		}
		p.Note("no bridge of this node is mapped to physical network %q: packets of the interface are lost; restore ovn-bridge-mappings",
			physical)
	}
	return out, nil
}

func quoted(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return fmt.Sprintf("%q", list)
}

// logicalPort is the port and its switch.
func (c *config) logicalPort(p *ops.Planner, chassis string) netstate.LogicalPort {
	return netstate.LogicalPort{
		Name: strings.Join([]string{"plumbline", chassis, p.HostLinkName()}, ":"), Switch: new(c.Switch()),
		PhysicalNetwork: new(c.Physical()), VLAN: &c.VLANID, Holder: new(p.Holder()), Chassis: &chassis,
	}
}

// addresses returns the addresses of the interface, which have to be in subnets.
func (c *config) addresses(p *ops.Planner, name string) ([]string, error) {
	all, err := p.AddressesOf(name, c.AddressConfig)
	if err != nil {
		return nil, err
	}
	within, _ := topology.Prefixes(c.Subnets) // checked
	without, _ := topology.Prefixes(c.ExcludeSubnets)
	for _, w := range without {
		if len(within) > 0 && !slices.ContainsFunc(within, w.Overlaps) {
			p.Note("excludeSubnets: %q is in none of %q, and excludes nothing: change one of them", w, c.Subnets)
		}
	}
	var out []string
	for _, a := range all {
		prefix, err := a.Prefix()
		if err != nil {
			return nil, err
		}
		contains := func(s netip.Prefix) bool { return s.Contains(prefix.Addr()) }
		switch {
		case p.Imagined() && c.IPAM != nil: // its addresses are those of an imagined pool
		case len(within) > 0 && !slices.ContainsFunc(within, contains):
			return nil, ops.Invalid("subnets", "address %q is in none of %q: change one of them", a.Address, c.Subnets)
		case slices.ContainsFunc(without, contains):
			return nil, ops.Invalid("excludeSubnets", "address %q is in %q: change one of them", a.Address, c.ExcludeSubnets)
		}
		out = append(out, a.Address)
	}
	if len(out) == 0 && c.Subnets != "" {
		p.Note("interface %q has no address of subnets, and may send from any IP address: create the pod again, or add addresses", name)
	}
	return out, nil
}

func withoutLengths(addresses []string) []string {
	var out []string
	for _, a := range addresses {
		address, _, _ := strings.Cut(a, "/")
		out = append(out, address)
	}
	return out
}
