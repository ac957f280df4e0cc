package bond

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.AddressConfig
	Name             string   `json:"name"`
	Mode             string   `json:"mode"`
	Links            []port   `json:"links,omitempty"`
	LinksInContainer bool     `json:"linksInContainer"`
	MTU              *uint32  `json:"mtu,omitempty"`
	MAC              *string  `json:"mac,omitempty"`
	MIIMon           *uint32  `json:"miimon,omitempty"`
	UpDelay          *uint32  `json:"updelay,omitempty"`
	DownDelay        *uint32  `json:"downdelay,omitempty"`
	ARPInterval      *uint32  `json:"arpInterval,omitempty"`
	ARPIPTargets     []string `json:"arpIpTargets,omitempty"`
	XmitHashPolicy   *string  `json:"xmitHashPolicy,omitempty"`
	LACPRate         *string  `json:"lacpRate,omitempty"`
	ADSelect         *string  `json:"adSelect,omitempty"`
	MinLinks         *uint32  `json:"minLinks,omitempty"`
	FailOverMAC      *string  `json:"failOverMac,omitempty"`
	AllSlavesActive  *int     `json:"allSlavesActive,omitempty"`
	TLBDynamicLB     *int     `json:"tlbDynamicLb,omitempty"`
	Primary          *string  `json:"primary,omitempty"`
}

type port struct {
	Name string `json:"name"`
}

var modes = []string{"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"}

func millis(name, description string) contract.Param {
	return contract.Param{
		Name: name, Type: contract.Integer, NumericString: true,
		Minimum: contract.Int(0), Maximum: contract.Int(1<<31 - 1), Description: description,
	}
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "bond",
	Summary: "Bond interfaces of the sandbox.",
	Description: `Creates a bond over its links, which takes the MAC of the first and sets its MTU on all. Changes of mode and failOverMac
release and enslave the ports, those of lacpRate and adSelect take the bond down for a moment, others are live.

A bond without miimon and arpInterval has miimon 100; ` + "`miimon: 0`" + ` means no monitoring, with a note. An option that the kernel
does not use in the mode is refused, or noted where existing configs have it. balance-tlb and balance-alb need ports with different MACs.
Ports of InfiniBand need mode active-backup, have failOverMac active, and exclude mac.`,
	Example: `- name: bond0
  type: bond
  dependOn: [vf0, vf1]
  config:
    name: bond0
    mode: 802.3ad
    xmitHashPolicy: layer3+4
    miimon: 100
    lacpRate: fast
    links:
      - name: "{{ vf0.interfaceName }}"
      - name: "{{ vf1.interfaceName }}"
`,
	Params: slices.Concat([]contract.Param{
		{Name: "mode", Type: contract.String, Required: true, Enum: modes, Description: "bonding mode"},
		{
			Name: "links", Type: contract.List, MinItems: 2,
			Description: "ports in order; default: the last interface of each dependency", Items: &contract.Param{
				Type: contract.Object, Shorthand: "name", Properties: []contract.Param{
					{Name: "name", Type: contract.String, Format: contract.LinkName, Required: true, Description: "interface name"},
				},
			},
		},
		{
			Name: "name", Aliases: []string{"ifName"}, Type: contract.String, Format: contract.InterfaceName, Default: "bond0",
			Description: "name of the bond",
		},
		{
			Name: "linksInContainer", Type: contract.Boolean, Default: true, Enum: nil,
			Description: "from CNI: the links are in the pod, as always here",
		},
		ops.MTUParam("the kernel's 1500, or the MTU wanted above the bond"),
		ops.MACParam("default: the first port's"),
		millis("miimon", "link monitoring interval in ms; 0 is none; excludes arpInterval, and without both it is 100"),
		millis("updelay", "ms before a link that came up is used; a multiple of miimon"),
		millis("downdelay", "ms before a link that went down is dropped; a multiple of miimon"),
		millis("arpInterval", "ARP monitoring interval in ms; excludes miimon; not in modes 802.3ad, balance-tlb, balance-alb"),
		{
			Name: "arpIpTargets", Type: contract.List, MaxItems: 16, Description: "IPv4 targets of ARP monitoring",
			Items: &contract.Param{Type: contract.String, Format: contract.IP},
		},
		{Name: "xmitHashPolicy", Type: contract.String, Enum: []string{
			"layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4",
			"vlan+srcmac",
		}, Description: "choice of the port for a flow"},
		{
			Name: "lacpRate", Type: contract.String, Enum: []string{"slow", "fast"},
			Description: "LACPDU rate requested from the partner; mode 802.3ad",
		},
		{
			Name: "adSelect", Type: contract.String, Enum: []string{"stable", "bandwidth", "count"},
			Description: "aggregator selection; mode 802.3ad",
		},
		{
			Name: "minLinks", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1<<31 - 1),
			Description: "ports that must be up for carrier; mode 802.3ad",
		},
		{
			Name: "failOverMac", Type: contract.String, Enum: []string{"none", "active", "follow", "0", "1", "2"}, NumericString: true,
			Description: "MAC of the ports in active-backup; 0, 1, 2: none, active, follow",
		},
		{
			Name: "allSlavesActive", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1),
			Description: "1: deliver duplicate frames of inactive ports",
		},
		{
			Name: "tlbDynamicLb", Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1),
			Description: "0: no shuffling by load; modes balance-tlb, balance-alb",
		},
		{
			Name: "primary", Type: contract.String, Format: contract.LinkName,
			Description: "preferred port; modes active-backup, balance-tlb, balance-alb",
		},
	}, ops.AddressParams()),
	Input:  contract.Input{Required: true, MinInterfaces: 2},
	Output: ops.Appends(),
	Check:  check,
}, plan)

func check(c map[string]any, unresolved map[string]bool) []contract.FieldError {
	var out []contract.FieldError
	say := func(field, format string, args ...any) {
		out = append(out, contract.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	mode, known := c["mode"].(string)
	if !known {
		return nil
	}
	only := func(field string, in ...string) {
		if _, given := c[field]; given && !slices.Contains(in, mode) {
			say(field, "has no meaning in mode %q, only in %v: remove it", mode, in)
		}
	}
	only("lacpRate", "802.3ad")
	only("adSelect", "802.3ad")
	only("tlbDynamicLb", "balance-tlb", "balance-alb")
	out = append(out, checkMonitor(c, unresolved)...)
	only("primary", "active-backup", "balance-tlb", "balance-alb")
	if policy, _ := c["failOverMac"].(string); mode == "active-backup" && (policy == "active" || policy == "1") {
		if _, given := c["mac"]; given {
			say("mac", "has no effect with failOverMac %q, by which the bond has the MAC of its active port: remove one of them", policy)
		}
	}
	if _, arp := c["arpInterval"]; arp {
		if _, mii := c["miimon"]; mii {
			say("arpInterval", "and miimon exclude each other: remove one")
		}
		if _, targets := c["arpIpTargets"]; !targets && !unresolved["arpIpTargets"] {
			say("arpInterval", "needs arpIpTargets")
		}
		if slices.Contains(miiModes, mode) {
			say("arpInterval", "does not work in mode %q: use miimon", mode)
		}
	}
	return out
}

// checkMonitor refuses the options of link monitoring that the kernel would refuse or round
// (drivers/net/bonding/bond_options.c).
func checkMonitor(c map[string]any, unresolved map[string]bool) []contract.FieldError {
	var out []contract.FieldError
	say := func(field, format string, args ...any) {
		out = append(out, contract.FieldError{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	miimon, given := c["miimon"].(int64)
	if _, arp := c["arpInterval"]; !given && !unresolved["miimon"] && !arp && !unresolved["arpInterval"] {
		miimon, given = defaultMIIMon, true
	}
	for _, field := range []string{"updelay", "downdelay"} {
		delay, ok := c[field].(int64)
		switch {
		case !ok || unresolved["miimon"]:
		case !given || miimon == 0:
			say(field, "needs miimon, whose multiple it is: add miimon: 100")
		case delay%miimon != 0:
			say(field, "%d is not a multiple of miimon, %d, and the kernel rounds it down: write %d or %d", delay, miimon,
				delay-delay%miimon, delay-delay%miimon+miimon)
		}
	}
	targets, _ := c["arpIpTargets"].([]any)
	for i, target := range targets {
		if text, ok := target.(string); ok && strings.Contains(text, ":") {
			say(fmt.Sprintf("arpIpTargets[%d]", i), "%q is IPv6, and ARP resolves only IPv4 addresses", text)
		}
	}
	return out
}

// miiModes are the modes in which ARP monitoring does not work.
var miiModes = []string{"802.3ad", "balance-tlb", "balance-alb"}

// defaultMIIMon is the kernel's BOND_DEFAULT_MIIMON, in milliseconds. For links that are created by netlink the
// kernel takes it in miiModes only, although bonding.rst says "The default value is 100 if arp_interval is not
// set".
const defaultMIIMon = 100

// usedIn are options that the kernel accepts in every mode and uses in a few (bonding.rst; of minLinks
// bond_set_carrier, of allSlavesActive bond_set_slave_inactive_flags in drivers/net/bonding). Configs have them for
// no reason, so they are not refused.
var usedIn = []struct {
	option string
	given  func(c config) bool
	modes  []string
}{
	{"xmitHashPolicy", func(c config) bool { return c.XmitHashPolicy != nil }, []string{"balance-xor", "802.3ad", "balance-tlb"}},
	{"minLinks", func(c config) bool { return c.MinLinks != nil && *c.MinLinks > 0 }, []string{"802.3ad"}},
	{"failOverMac", func(c config) bool {
		return c.FailOverMAC != nil &&
			*failOverMAC(c.FailOverMAC) != "none"
	}, []string{"active-backup"}},
	{"allSlavesActive", func(c config) bool {
		return c.AllSlavesActive != nil &&
			*c.AllSlavesActive == 1
	}, []string{"active-backup", "802.3ad", "balance-tlb", "balance-alb"}},
}

// note says which options the kernel does not use.
func note(p *ops.Planner, c config) {
	for _, o := range usedIn {
		if o.given(c) && !slices.Contains(o.modes, c.Mode) {
			p.Note("%s has no effect in mode %q, only in %v: remove it", o.option, c.Mode, o.modes)
		}
	}
	if len(c.ARPIPTargets) > 0 && c.ARPInterval == nil {
		p.Note("arpIpTargets has no effect without arpInterval: add arpInterval, or remove it")
	}
	if c.MIIMon != nil && *c.MIIMon == 0 && (c.ARPInterval == nil || *c.ARPInterval == 0) ||
		c.MIIMon == nil && c.ARPInterval != nil && *c.ARPInterval == 0 {
		p.Note("link monitoring is off: the bond keeps using a port whose link is down; set miimon: %d", defaultMIIMon)
	}
}

func plan(p *ops.Planner, c config) error {
	if !c.LinksInContainer {
		return ops.Invalid("linksInContainer",
			"must not be false: make the links root steps of the topology, which moves them into the sandbox")
	}
	ports, err := portNames(p, c)
	if err != nil {
		return err
	}
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	if err := distinctMACs(p, c.Mode, ports); err != nil {
		return err
	}
	if err := infiniBand(p, c, ports); err != nil {
		return err
	}
	if err := stackedPorts(p, ports); err != nil {
		return err
	}
	// Only the carrier of a bond of mode 802.3ad depends on it (bond_set_carrier in
	// drivers/net/bonding/bond_main.c).
	if c.Mode == "802.3ad" && c.MinLinks != nil && int(*c.MinLinks) > len(ports) && !p.Kept() {
		return ops.Invalid("minLinks", "%d is more than the %d links, so the bond would never have carrier", *c.MinLinks, len(ports))
	}
	if c.Primary != nil {
		own := p.OwnName(*c.Primary)
		if !slices.Contains(ports, own) {
			return ops.Invalid("primary", "%q is not one of the links %v", *c.Primary, ports)
		}
		c.Primary = &own
	}
	note(p, c)
	if c.MIIMon == nil && c.ARPInterval == nil {
		c.MIIMon = new(uint32(defaultMIIMon))
	}
	err = p.Want(netstate.Link{
		Name: c.Name, LinkKind: "bond", MTU: c.MTU, MAC: c.MAC, Up: new(true),
		Bond: &netstate.Bond{
			Mode: &c.Mode, MIIMonMillis: c.MIIMon, UpDelayMillis: c.UpDelay, DownDelayMillis: c.DownDelay,
			ARPIntervalMs: c.ARPInterval, ARPIPTargets: c.ARPIPTargets, XmitHashPolicy: c.XmitHashPolicy,
			LACPRate: c.LACPRate, ADSelect: c.ADSelect, MinLinks: c.MinLinks, FailOverMAC: failOverMAC(c.FailOverMAC),
			AllPortsActive: flag(c.AllSlavesActive), TLBDynamicLB: flag(c.TLBDynamicLB),
		},
	})
	if err != nil {
		return err
	}
	for _, name := range ports {
		if err := p.Want(netstate.Link{Name: name, Master: &c.Name}); err != nil {
			return fmt.Errorf("links: %w", err)
		}
	}
	if c.Primary != nil {
		if err := p.Want(netstate.Link{Name: c.Name, Bond: &netstate.Bond{Primary: c.Primary}}); err != nil {
			return err
		}
	}
	p.Produce(c.Name)
	return p.Address(c.Name, c.AddressConfig)
}

func flag(n *int) *bool {
	if n == nil {
		return nil
	}
	return new(*n == 1)
}

func failOverMAC(s *string) *string {
	if s == nil {
		return nil
	}
	if name, ok := map[string]string{"0": "none", "1": "active", "2": "follow"}[*s]; ok {
		return &name
	}
	return s
}

func portNames(p *ops.Planner, c config) ([]string, error) {
	var names []string
	for i, l := range c.Links {
		key := fmt.Sprintf("links[%d].name", i)
		if l.Name == c.Name {
			return nil, ops.Invalid(key, "%q is the bond itself", l.Name)
		}
		own, err := ops.Interface(p, key, l.Name, false)
		if err != nil {
			return nil, err
		}
		if slices.Contains(names, own) {
			return nil, ops.Invalid(key, "%q is listed twice", l.Name)
		}
		names = append(names, own)
	}
	if len(names) == 0 {
		names = p.LastInputs()
	}
	if len(names) < 2 {
		return nil, ops.Invalid("links", "a bond needs at least 2 ports, got %v", names)
	}
	return names, nil
}

// distinctMACs refuses duplicate port MACs where the kernel would (EFAULT).
func distinctMACs(p *ops.Planner, mode string, ports []string) error {
	if mode != "balance-tlb" && mode != "balance-alb" {
		return nil
	}
	seen := map[string]string{}
	for _, name := range ports {
		l, err := p.Link(name)
		if err != nil {
			return fmt.Errorf("links: %w", err)
		}
		if l.MAC == nil || l.Master != nil && *l.Master != "" {
			continue // unknown, or enslaved already
		}
		if other, dup := seen[*l.MAC]; dup {
			return ops.Invalid("links",
				"%q and %q both have MAC %s, and mode %q needs different ones: set mac on one of the steps", other, name, *l.MAC, mode)
		}
		seen[*l.MAC] = name
	}
	return nil
}

// stackedPorts refuses a port and a VLAN of it: a bond sets a port up, by which the kernel sets its VLANs up (vlan_device_event in
// net/8021q/vlan.c), and takes only ports that are down.
func stackedPorts(p *ops.Planner, ports []string) error {
	for _, name := range ports {
		l, err := p.Link(name)
		if err != nil {
			return fmt.Errorf("links: %w", err)
		}
		if l.Parent != nil && slices.Contains(ports, *l.Parent) && !p.Kept() {
			return ops.Invalid("links",
				"%q is a VLAN of %q, and both would be ports of one bond, which the kernel refuses: leave one of them out", name, *l.Parent)
		}
	}
	return nil
}

// infiniBand refuses what the kernel does not do with ports of InfiniBand, whose hardware address cannot be set: it bonds them in
// mode active-backup only, and turns to failOverMac active when the first one joins (bond_enslave in
// drivers/net/bonding/bond_main.c).
func infiniBand(p *ops.Planner, c config, ports []string) error {
	for _, name := range ports {
		l, err := p.Link(name)
		switch policy := failOverMAC(c.FailOverMAC); {
		case err != nil:
			return fmt.Errorf("links: %w", err)
		case l.LinkKind != netstate.InfiniBandKind || p.Kept():
		case c.Mode != "active-backup":
			return ops.Invalid("mode",
				"%q is an interface of InfiniBand, which the kernel does not bond in mode %q: write active-backup", name, c.Mode)
		case policy != nil && *policy != "active":
			return ops.Invalid("failOverMac",
				"%q is an interface of InfiniBand, which the kernel bonds with failOverMac active, not %s: write that, or remove the key",
				name, *policy)
		case c.MAC != nil:
			return ops.Invalid("mac",
				"%q is an interface of InfiniBand, and the bond has the hardware address of its active port: remove the key", name)
		}
	}
	return nil
}
