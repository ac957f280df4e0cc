package tuning

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

type config struct {
	ops.AddressConfig
	Dev      string            `json:"dev,omitempty"`
	MTU      *uint32           `json:"mtu,omitempty"`
	MAC      *string           `json:"mac,omitempty"`
	Promisc  *bool             `json:"promisc,omitempty"`
	AllMulti *bool             `json:"allmulti,omitempty"`
	TxQLen   *uint32           `json:"txQLen,omitempty"`
	Sysctl   map[string]string `json:"sysctl,omitempty"`
	Ethtool  ethtool           `json:"ethtool"`
	DataDir  string            `json:"dataDir,omitempty"`
}

type ethtool struct {
	Features     map[string]bool   `json:"features,omitempty"`
	Rings        map[string]uint32 `json:"rings,omitempty"`
	Channels     map[string]uint32 `json:"channels,omitempty"`
	Coalesce     map[string]uint32 `json:"coalesce,omitempty"`
	PrivateFlags map[string]bool   `json:"privateFlags,omitempty"`
}

func counts(name, description string) contract.Param {
	return contract.Param{Name: name, Type: contract.Map, Description: description, Items: &contract.Param{
		Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1<<32 - 1),
	}}
}

func switches(name, description string) contract.Param {
	return contract.Param{Name: name, Type: contract.Map, Description: description, Items: &contract.Param{Type: contract.Boolean}}
}

// Op is the step type.
var Op = ops.New(contract.Contract{
	Type:    "tuning",
	Summary: "Tune an interface: MTU, MAC, flags, sysctls, ethtool settings, addresses, routes.",
	Description: `Release restores the earlier values.

Sysctls are below net., with dots or slashes. IFNAME stands for dev; write a dotted interface name with it, or with slashes. The keys in
` + "`stable_secret`" + ` and ` + "`tcp_fastopen_key`" + ` are refused: a topology is no place for secrets.

Features have the kernel's names (ethtool -k --json) or short ones of ethtool (tso, gro, rx, …), which stand for those that the driver can
change. A feature that the driver fixes at another value is refused, except where a VLAN or bond inherits it: that is left to the links
below, with a note.`,
	Example: `- name: tune-vlan100
  type: tuning
  dependOn: [vlan100]
  config:
    dev: "{{ vlan100.interfaceName }}"
    mtu: 9000
    addresses: ["10.100.0.5/24"]
    routes:
      - destination: 10.100.0.0/16
        gateway: 10.100.0.1
    sysctl:
      net.ipv4.conf.IFNAME.rp_filter: "2"
    ethtool:
      features:
        tcp-segmentation-offload: true
`,
	Params: slices.Concat([]contract.Param{
		{Name: "dev", Type: contract.String, Format: contract.LinkName, Description: "interface; default: the dependencies' last"},
		ops.MTUParam("unchanged"),
		ops.MACParam("MAC address"),
		{Name: "promisc", Type: contract.Boolean, Description: "promiscuous mode"},
		{Name: "allmulti", Type: contract.Boolean, Description: "all-multicast mode"},
		{
			Name: "txQLen", Aliases: []string{"txqlen"}, Type: contract.Integer, Minimum: contract.Int(0), Maximum: contract.Int(1<<32 - 1),
			Description: "transmit queue length in packets",
		},
		{
			Name: "sysctl", Type: contract.Map, Description: "sysctls below net., name to value",
			Items: &contract.Param{Type: contract.String, Scalar: true},
		},
		{Name: "ethtool", Type: contract.Object, Description: "ethtool settings", Properties: []contract.Param{
			switches("features", "offload features, name to on or off"),
			counts("rings", "ring sizes: rx, rx-mini, rx-jumbo, tx"),
			counts("channels", "queue counts: rx, tx, other, combined"),
			counts("coalesce", "interrupt coalescing, e.g. rx-usecs, tx-usecs, rx-frames"),
			switches("privateFlags", "driver flags"),
		}},
		{
			Name: "dataDir", Type: contract.String, Description: "accepted, without effect: the journal keeps what was before",
			Ignored: "the journal keeps what was before; remove it",
		},
	}, ops.AddressParams()),
	Input: contract.Input{Required: true, MinInterfaces: 1},
	Output: contract.Output{
		Interfaces: contract.Flow{Passthrough: true, Modifies: true},
		IPs:        contract.Flow{Appends: -1, Passthrough: true},
		Routes:     contract.Flow{Appends: -1, Passthrough: true},
	},
}, plan)

func plan(p *ops.Planner, c config) error {
	dev, err := ops.Interface(p, "dev", c.Dev, false)
	if err != nil {
		return err
	}
	if c.MAC != nil {
		if err := ops.MAC("mac", *c.MAC); err != nil {
			return err
		}
	}
	link := netstate.Link{Name: dev, MTU: c.MTU, MAC: c.MAC, Promisc: c.Promisc, AllMulti: c.AllMulti, TxQueueLen: c.TxQLen}
	if len(netstate.Fields(link)) > 0 {
		if err := p.Want(link); err != nil {
			return err
		}
	}
	if err := sysctls(p, dev, c.Sysctl); err != nil {
		return err
	}
	if err := ethtools(p, dev, c.Ethtool); err != nil {
		return err
	}
	return p.Address(dev, c.AddressConfig)
}

// sysctls wants each sysctl, in order of name.
func sysctls(p *ops.Planner, dev string, values map[string]string) error {
	from := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		field := "sysctl[" + key + "]"
		path, err := sysctlPath(key, dev)
		if err != nil {
			return ops.Invalid(field, "%v", err)
		}
		if other, dup := from[path]; dup {
			return ops.Invalid(field, "is the same sysctl as %q: remove one", other)
		}
		from[path] = key
		value := strings.Join(strings.Fields(values[key]), " ")
		if value == "" {
			return ops.Invalid(field, "has no value")
		}
		want := netstate.Sysctl{Path: path, Value: &value}
		if want.Secret() && !p.Kept() {
			return ops.Invalid(field,
				"is a key, and topologies, plans, events and records are no place for secrets: remove it, and set it in the pod")
		}
		if err := p.Want(want); err != nil {
			return err
		}
	}
	return nil
}

// sysctlPath turns a sysctl's name into its path below /proc/sys. A name with a
// slash is a path already; IFNAME becomes the interface last, so that dots in
// its name stay.
func sysctlPath(key, dev string) (string, error) {
	path, err := contract.SysctlPath.Canonical(key)
	if err != nil {
		return "", err
	}
	parts := strings.Split(path, "/")
	if len(parts) < 3 {
		return "", fmt.Errorf("only sysctls below net. belong to a network namespace, not %q", key)
	}
	for i, part := range parts {
		if part == "IFNAME" {
			parts[i] = dev
		}
	}
	if path = strings.Join(parts, "/"); path == "net/ipv4/conf/all/forwarding" {
		path = "net/ipv4/ip_forward" // one variable of the kernel (ctl_forward_entry in net/ipv4/devinet.c)
	}
	return path, nil
}

// ethtools wants each ethtool setting, features first, in order of name.
func ethtools(p *ops.Planner, dev string, e ethtool) error {
	for _, name := range slices.Sorted(maps.Keys(e.Features)) {
		if err := feature(p, dev, name, e.Features[name]); err != nil {
			return err
		}
	}
	for _, class := range []struct {
		name   string
		values map[string]uint32
	}{{netstate.EthtoolRing, e.Rings}, {netstate.EthtoolChannel, e.Channels}, {netstate.EthtoolCoalesce, e.Coalesce}} {
		for _, name := range slices.Sorted(maps.Keys(class.values)) {
			value := strconv.FormatUint(uint64(class.values[name]), 10)
			if err := setting(p, dev, class.name, name, value); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.PrivateFlags)) {
		if err := setting(p, dev, netstate.EthtoolPrivateFlag, name, onOff(e.PrivateFlags[name])); err != nil {
			return err
		}
	}
	return nil
}

func setting(p *ops.Planner, dev, class, name, value string) error {
	_, ok, err := p.Ethtool(dev, class, name)
	if err != nil || !ok {
		return err
	}
	return p.Want(netstate.Ethtool{Link: dev, Class: class, Name: name, Value: &value})
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
