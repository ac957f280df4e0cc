package netstate

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
)

// LinkTraits describe the links of one kind (IFLA_INFO_KIND) to planning
// beyond their options. A kind without a row, such as "device", has none of them.
type LinkTraits struct {
	// Phrase names a link of the kind in messages, see KindPhrase.
	Phrase string
	// Options reports whether a link holds options of this kind.
	Options func(Link) bool

	// Stacked links have a parent. Their MTU is at most its, less Overhead.
	Stacked bool
	// Tunnel: a link sends IP packets by any link. It may have a parent. Its MTU is bounded
	// by the parent's at birth and when it is set, and does not follow the parent's.
	Tunnel bool
	// Encapsulates: what the parent sends is not the packet of the link, but has a header or tag more.
	Encapsulates bool
	// Overhead is how many bytes a link adds to a packet, as far as they count for the MTU of the
	// parent; nil is none.
	Overhead func(Link) uint32

	// RxHandler: a link takes all packets of a link below it, which has one receive handler
	// (netdev_rx_handler_register), and only links of one kind share it.
	RxHandler bool
	// L3Master: members of the link keep their addresses and receive handlers, and use its routing table.
	L3Master bool
	// Masters are the kinds of master that a link can be in; nil is all.
	Masters []string
	// Bare: no stacked link can have such a parent.
	Bare bool
	// SkipsOwn: the kernel puts a link on the parent's parent where the parent is of the same kind.
	SkipsOwn bool

	// OnEthernet: a link stands on a link of Ethernet only, or takes only such ports.
	OnEthernet bool

	// OfDevice: links of the kind without a parent are those of devices, and a link with one stands on such a link only.
	OfDevice bool

	// OwnMTU: the MTU of a link is not bounded by its parent's, and is set after the link was created.
	OwnMTU bool
	// DefaultMTU is the kernel's MTU for a link without a parent, in bytes.
	DefaultMTU uint32
	// ParentMTU: a link gets its parent's MTU whenever that changes.
	ParentMTU bool
	// PortsMTU: a link has the smallest MTU of its ports, unless it is set.
	PortsMTU bool
	// OwnMAC: a link has a MAC of its own, which the kernel chooses where none is given.
	OwnMAC bool
	// ParentMAC: a link has its parent's MAC at birth, and follows its changes.
	ParentMAC bool
	// FixedMAC: a link cannot have another MAC than its parent.
	FixedMAC bool
	// ParentState: a link goes down with its parent, and comes up only on one that is up.
	ParentState bool
	// ForcesPorts: the link takes only ports that are down, brings them up, and
	// gives them its MTU and MAC. A port that is released is down.
	ForcesPorts bool
	// PortVLANs: the link and its ports are in VLANs.
	PortVLANs bool
	// Bounces: a link that joins or leaves goes down and up again.
	Bounces bool
	// Shared: others may have members in it, for whom it stays.
	Shared bool
	// Inert: nothing can be sent or received through such a link.
	Inert bool
}

// TakesPorts reports whether links are ports of such a link.
func (t LinkTraits) TakesPorts() bool { return t.RxHandler && !t.Stacked }

// Sources: drivers/net/bonding/bond_main.c (bond_enslave), net/bridge/br_if.c (br_add_if: ELOOP for a bridge,
// EOPNOTSUPP for IFF_DONT_BRIDGE), drivers/net/vrf.c (cycle_netdev; vrf_setup: IFF_NO_RX_HANDLER,
// NETIF_F_VLAN_CHALLENGED), net/8021q/vlan.c (vlan_device_event), drivers/net/ipvlan/ipvlan_main.c
// (ipvlan_device_event, ipvlan_adjust_mtu, ipvlan_link_new; it has no ndo_set_mac_address), drivers/net/macvlan.c
// (macvlan_device_event, macvlan_common_newlink, macvlan_port_create: ARPHRD_ETHER, as in ipvlan_link_new and br_add_if),
// drivers/net/vxlan/vxlan_core.c (vxlan_config_apply),
// drivers/infiniband/ulp/ipoib (ipoib_new_child_link, ipoib_ndo_init, ipoib_stop; ipoib_setup: NETIF_F_VLAN_CHALLENGED).
var linkKinds = map[string]LinkTraits{
	"bond": {Phrase: "a bond", Options: func(l Link) bool { return l.Bond != nil }, RxHandler: true, DefaultMTU: 1500, ForcesPorts: true},
	"bridge": {
		Phrase: "a bridge", Options: func(l Link) bool { return l.Bridge != nil },
		OnEthernet: true, RxHandler: true, Masters: []string{"bond", "vrf"},
		DefaultMTU: 1500, PortsMTU: true, OwnMAC: true, PortVLANs: true, Shared: true,
	},
	"dummy": {DefaultMTU: 1500, OwnMAC: true, Inert: true},
	InfiniBandKind: {
		Phrase: "an InfiniBand interface", Options: func(l Link) bool { return l.IPoIB != nil },
		Stacked: true, Encapsulates: true, Masters: []string{"bond", "vrf"},
		OfDevice: true, OwnMTU: true, FixedMAC: true, ParentState: true,
	},
	"ipvlan": {
		Phrase: "an ipvlan link", Options: func(l Link) bool { return l.IPVLAN != nil },
		Stacked: true, OnEthernet: true, RxHandler: true, Masters: []string{"vrf"}, Bare: true,
		SkipsOwn: true, ParentMTU: true, ParentMAC: true, FixedMAC: true,
	},
	"macvlan": {
		Options: func(l Link) bool { return l.MACVLAN != nil },
		Stacked: true, OnEthernet: true, RxHandler: true, SkipsOwn: true, OwnMAC: true,
	},
	"veth": {Options: func(l Link) bool { return l.Veth != nil }, DefaultMTU: 1500, OwnMAC: true},
	"vlan": {
		Options: func(l Link) bool { return l.VLAN != nil },
		Stacked: true, OnEthernet: true, Encapsulates: true, ParentMAC: true, ParentState: true,
	},
	"vrf": {
		Phrase: "a VRF", Options: func(l Link) bool { return l.VRF != nil },
		L3Master: true, Masters: []string{}, Bare: true, Bounces: true, Shared: true,
	},
	"vxlan": {
		Options: func(l Link) bool { return l.VXLAN != nil },
		Tunnel:  true, Encapsulates: true, Overhead: vxlanOverhead, DefaultMTU: 1500, OwnMAC: true,
	},
}

// vxlanOverhead is the outer headers and the inner Ethernet header (vxlan_headroom in
// include/net/vxlan.h).
func vxlanOverhead(l Link) uint32 {
	if l.VXLAN != nil && l.VXLAN.Family != nil && *l.VXLAN.Family == "ipv6" {
		return 70
	}
	return 50
}

// Headers is how many bytes the link adds to a packet, see LinkTraits.Overhead.
func (l Link) Headers() uint32 {
	if overhead := l.KindTraits().Overhead; overhead != nil {
		return overhead(l)
	}
	return 0
}

// MTUOver is the largest MTU of the link over one of the given MTU.
func (l Link) MTUOver(parent uint32) uint32 {
	headers := l.Headers()
	if headers == 0 {
		return parent
	}
	return max(parent, headers+minMTU) - headers
}

const minMTU = 68 // ETH_MIN_MTU

// KindPhrase names a link of a kind in messages: "a bridge", "a macvlan link".
func KindPhrase(kind string) string {
	return cmp.Or(linkKinds[kind].Phrase, "a "+kind+" link")
}

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

// GivesMAC reports whether the link is a bond that sets the MAC of each port when it joins, to the one of the first port if it has
// none by itself. Ports for balancing get back their own (bond_alb_init_slave in drivers/net/bonding/bond_alb.c).
func (l Link) GivesMAC() bool {
	b := l.Bond
	return b != nil && b.Mode != nil && *b.Mode != "balance-tlb" && *b.Mode != "balance-alb" && !l.PortsKeepMAC()
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
