package tuning

import (
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// groups maps the short names of ethtool(8), and its long old ones, to the
// kernel's features (net/ethtool/common.c, netdev_features_strings).
var groups = map[string][]string{
	"rx":            {"rx-checksum"},
	"tx":            {"tx-checksum-ipv4", "tx-checksum-ip-generic", "tx-checksum-ipv6", "tx-checksum-fcoe-crc", "tx-checksum-sctp"},
	"sg":            {"tx-scatter-gather", "tx-scatter-gather-fraglist"},
	"tso":           {"tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"},
	"gso":           {"tx-generic-segmentation"},
	"gro":           {"rx-gro"},
	"lro":           {"rx-lro"},
	"rxvlan":        {"rx-vlan-hw-parse"},
	"txvlan":        {"tx-vlan-hw-insert"},
	"ntuple":        {"rx-ntuple-filter"},
	"rxhash":        {"rx-hashing"},
	"ufo":           {"tx-udp-fragmentation"},
	"rx-gro-hw":     {"rx-gro-hw"},
	"rx-fcs":        {"rx-fcs"},
	"rx-all":        {"rx-all"},
	"highdma":       {"highdma"},
	"loopback":      {"loopback"},
	"hw-tc-offload": {"hw-tc-offload"},
}

var longNames = map[string]string{
	"rx-checksumming":              "rx",
	"tx-checksumming":              "tx",
	"scatter-gather":               "sg",
	"tcp-segmentation-offload":     "tso",
	"generic-segmentation-offload": "gso",
	"generic-receive-offload":      "gro",
	"large-receive-offload":        "lro",
	"rx-vlan-offload":              "rxvlan",
	"tx-vlan-offload":              "txvlan",
	"ntuple-filters":               "ntuple",
	"receive-hashing":              "rxhash",
	"udp-fragmentation-offload":    "ufo",
}

// expand returns the kernel features of a name.
func expand(name string) []string {
	if short, ok := longNames[name]; ok {
		name = short
	}
	if g, ok := groups[name]; ok {
		return g
	}
	return []string{name}
}

// feature wants one named feature or group. A group means the members that can change; if
// none can, they must have the value already.
func feature(p *ops.Planner, dev, name string, on bool) error {
	value := onOff(on)
	members := expand(name)
	var free, held []netstate.Ethtool
	for _, kernel := range members {
		e, ok, err := p.Ethtool(dev, netstate.EthtoolFeature, kernel)
		switch {
		case err != nil && len(members) > 1 && fault.Of(err) == fault.Unsupported:
			continue // this kernel does not have the member
		case err != nil:
			return fmt.Errorf("ethtool.features[%s]: %w", name, err)
		case !ok:
			return nil // known once the link exists
		case e.Fixed:
			held = append(held, e)
		default:
			free = append(free, e)
		}
	}
	for _, e := range free {
		if err := p.Want(netstate.Ethtool{Link: dev, Class: netstate.EthtoolFeature, Name: e.Name, Value: &value}); err != nil {
			return err
		}
	}
	if len(free) > 0 || slices.ContainsFunc(held, func(e netstate.Ethtool) bool { return *e.Value == value }) {
		return nil
	}
	if l, err := p.Link(dev); err == nil && l.Parent != nil {
		p.Note("ethtool feature %q of %q is fixed: a %s link inherits it from the links below", name, dev, l.LinkKind)
		return nil
	}
	return fault.New(fault.Unsupported,
		fmt.Errorf("ethtool.features[%s]: %q cannot be turned %s on %q: its driver holds it", name, name, value, dev))
}
