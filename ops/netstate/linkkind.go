package netstate

import (
	"maps"
	"reflect"
	"slices"
)

// LinkTraits are what planning knows of the links of one kind (IFLA_INFO_KIND)
// beyond their options. A kind without a row, such as "device", has none of them.
type LinkTraits struct {
	// Options reports whether a link holds options of this kind.
	Options func(Link) bool
	// DefaultMTU is what the kernel gives a link without a parent, in bytes.
	DefaultMTU uint32
	// Stacked links have a parent. Their MTU is at most its.
	Stacked bool
	// Overhead is how many bytes a tunnel adds to a packet. A tunnel may have a
	// parent. Its MTU is then at most the parent's less these at birth and when it is
	// set, and does not follow the parent's.
	Overhead func(Link) uint32
	// OwnMAC: a link has a MAC of its own, which the kernel chooses where none is given.
	OwnMAC bool
	// ParentMAC: a link has its parent's MAC at birth, and follows its changes.
	ParentMAC bool
	// FixedMAC: a link cannot have another MAC than its parent.
	FixedMAC bool
	// ParentMTU: a link has its parent's MTU, and no other.
	ParentMTU bool
	// ParentState: a link goes down with its parent, and comes up only on one that is up.
	ParentState bool
	// ForcesPorts: the link takes only ports that are down, brings them up, and
	// gives them its MTU and MAC. A port that is released is down.
	ForcesPorts bool
	// Bounces: a link that joins or leaves goes down and up again.
	Bounces bool
	// Shared: others may have members in it, for whom it stays.
	Shared bool
	// Inert: nothing can be sent or received through such a link.
	Inert bool
}

// Sources: drivers/net/bonding/bond_main.c (bond_enslave), drivers/net/vrf.c
// (cycle_netdev), net/8021q/vlan.c (vlan_device_event), drivers/net/ipvlan/ipvlan_main.c
// (ipvlan_device_event, ipvlan_adjust_mtu), drivers/net/macvlan.c (macvlan_device_event),
// drivers/net/vxlan/vxlan_core.c (vxlan_config_apply).
var linkKinds = map[string]LinkTraits{
	"bond":    {Options: func(l Link) bool { return l.Bond != nil }, DefaultMTU: 1500, ForcesPorts: true},
	"bridge":  {Options: func(l Link) bool { return l.Bridge != nil }, DefaultMTU: 1500, OwnMAC: true, Shared: true},
	"dummy":   {DefaultMTU: 1500, OwnMAC: true, Inert: true},
	"ipvlan":  {Options: func(l Link) bool { return l.IPVLAN != nil }, Stacked: true, ParentMAC: true, FixedMAC: true, ParentMTU: true},
	"macvlan": {Options: func(l Link) bool { return l.MACVLAN != nil }, OwnMAC: true, Stacked: true},
	"veth":    {Options: func(l Link) bool { return l.Veth != nil }, DefaultMTU: 1500, OwnMAC: true},
	"vlan":    {Options: func(l Link) bool { return l.VLAN != nil }, Stacked: true, ParentMAC: true, ParentState: true},
	"vrf":     {Options: func(l Link) bool { return l.VRF != nil }, Bounces: true, Shared: true},
	"vxlan":   {Options: func(l Link) bool { return l.VXLAN != nil }, DefaultMTU: 1500, OwnMAC: true, Overhead: vxlanOverhead},
}

// vxlanOverhead is the outer headers and the inner Ethernet header (vxlan_headroom in
// include/net/vxlan.h).
func vxlanOverhead(l Link) uint32 {
	if l.VXLAN != nil && l.VXLAN.Family != nil && *l.VXLAN.Family == "ipv6" {
		return 70
	}
	return 50
}

// TunnelMTU is the largest MTU of a tunnel over a link of the given one, 0 where the
// link is no tunnel.
func (l Link) TunnelMTU(parent uint32) uint32 {
	overhead := l.KindTraits().Overhead
	if overhead == nil {
		return 0
	}
	return max(parent, overhead(l)+minMTU) - overhead(l)
}

const minMTU = 68 // ETH_MIN_MTU

// LinkKinds lists the kinds of link that can be created, sorted.
func LinkKinds() []string { return slices.Sorted(maps.Keys(linkKinds)) }

// LinkTraitsOf returns the traits of a kind of link.
func LinkTraitsOf(kind string) LinkTraits { return linkKinds[kind] }

// KindTraits are the traits of the link's kind.
func (l Link) KindTraits() LinkTraits { return linkKinds[l.LinkKind] }

// PortsKeepMAC reports whether the link is a bond that gives its ports no MAC and ignores
// one that is set for itself: it has failOverMac active or follow, which mean something in
// mode active-backup only (bond_set_mac_address in drivers/net/bonding/bond_main.c).
func (l Link) PortsKeepMAC() bool {
	b := l.Bond
	return b != nil && b.Mode != nil && *b.Mode == "active-backup" && b.FailOverMAC != nil && *b.FailOverMAC != "none"
}

// OptionsKind is the kind whose options the link holds, "" when it holds none. An
// update does not name its kind where that does not differ.
func (l Link) OptionsKind() string {
	for kind, t := range linkKinds {
		if t.Options != nil && t.Options(l) {
			return kind
		}
	}
	return ""
}

// Identity returns the link with only those of its options that tell it from
// another of its name and kind.
func (l Link) Identity() Link {
	return edit(l, func(dst reflect.Value) {
		for _, p := range planOf(dst.Type()) {
			if !p.identity {
				p.clear(dst)
			}
		}
		pruneNested(dst)
	})
}
