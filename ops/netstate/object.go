package netstate

import (
	"fmt"
	"path"
	"strings"

	"github.com/plumbline/plumbline/topology/fault"
)

// HostPrefix marks the name of a link that lives in the host's namespace.
const HostPrefix = "host:"

// OnHost reports whether a link name is one of the host's namespace.
func OnHost(name string) bool { return strings.HasPrefix(name, HostPrefix) }

// BaseName is the name the kernel knows, without the place.
func BaseName(name string) string { return strings.TrimPrefix(name, HostPrefix) }

// HostName gives a kernel interface name its place on the host.
func HostName(base string) string { return HostPrefix + base }

// Key identifies an object within one sandbox.
type Key struct {
	Kind Kind   `json:"kind"`
	ID   string `json:"id"`
}

// String writes the key as plans and messages show it.
func (k Key) String() string { return string(k.Kind) + " " + printable(k.ID) }

// Link is a network interface.
// Source: Linux rtnetlink(7), IFLA_* attributes.
type Link struct {
	Name string `json:"name" plan:"key"`
	// Called is set only in the change that gives back its name to a link of ours
	// which somebody has renamed: before, how it is called now.
	Called *string `json:"called,omitempty" plan:"live,name=name"`
	// LinkKind is IFLA_INFO_KIND ("bond", "vlan", ...), "device" for a link
	// without link ops, "" when the kind is not ours to say.
	LinkKind   string   `json:"kind,omitempty" plan:"replace,name=kind"`
	Parent     *string  `json:"parent,omitempty" plan:"replace"` // lower link of vlan, ipvlan, macvlan, vxlan, ipoib; "" is: none
	VLAN       *VLAN    `json:"vlan,omitempty" plan:"nested"`
	Bond       *Bond    `json:"bond,omitempty" plan:"nested"`
	VRF        *VRF     `json:"vrf,omitempty" plan:"nested"`
	IPVLAN     *IPVLAN  `json:"ipvlan,omitempty" plan:"nested"`
	MACVLAN    *MACVLAN `json:"macvlan,omitempty" plan:"nested"`
	Bridge     *Bridge  `json:"bridge,omitempty" plan:"nested"`
	Veth       *Veth    `json:"veth,omitempty" plan:"nested"`
	VXLAN      *VXLAN   `json:"vxlan,omitempty" plan:"nested"`
	IPoIB      *IPoIB   `json:"ipoib,omitempty" plan:"nested"`
	Port       *Port    `json:"port,omitempty" plan:"nested"` // attributes it has as a bridge port
	MTU        *uint32  `json:"mtu,omitempty" plan:"live"`    // bytes
	MAC        *string  `json:"mac,omitempty" plan:"live"`
	TxQueueLen *uint32  `json:"txQueueLen,omitempty" plan:"live"` // packets
	Promisc    *bool    `json:"promisc,omitempty" plan:"live"`
	AllMulti   *bool    `json:"allMulti,omitempty" plan:"live"`
	Alias      *string  `json:"alias,omitempty" plan:"live"`
	Master     *string  `json:"master,omitempty" plan:"live"` // "" is: no master
	Up         *bool    `json:"up,omitempty" plan:"live"`     // administratively up

	// Observed only.
	Index    int      `json:"index,omitempty" plan:"-"`
	DeviceID string   `json:"device,omitempty" plan:"-"` // PCI address behind it
	Carrier  bool     `json:"carrier,omitempty" plan:"-"`
	AltNames []string `json:"altNames,omitempty" plan:"-"`
	// Outdated is set only in records: the link of the index is to be made again.
	Outdated bool     `json:"outdated,omitempty" plan:"-"`
	Ports    []string `json:"ports,omitempty" plan:"-"` // of a bridge on the host, which is never dumped
}

// VLAN is the identity of a VLAN link; the kernel ignores a change of it.
type VLAN struct {
	ID       *uint16 `json:"id,omitempty" plan:"replace,identity"`
	Protocol *string `json:"protocol,omitempty" plan:"replace,identity"` // "802.1q" or "802.1ad"
}

// Bond holds the options of a bond. Mode and fail_over_mac change only without
// ports and down, lacp_rate and ad_select only down.
// Source: Documentation/networking/bonding.rst, bond_options.c.
type Bond struct {
	Mode            *string  `json:"mode,omitempty" plan:"noports"`
	FailOverMAC     *string  `json:"failOverMac,omitempty" plan:"noports"` // none, active, follow
	MIIMonMillis    *uint32  `json:"miimon,omitempty" plan:"live,name=miimon"`
	UpDelayMillis   *uint32  `json:"updelay,omitempty" plan:"live,name=updelay"`
	DownDelayMillis *uint32  `json:"downdelay,omitempty" plan:"live,name=downdelay"`
	ARPIntervalMs   *uint32  `json:"arpInterval,omitempty" plan:"live,name=arpInterval"`
	ARPIPTargets    []string `json:"arpIpTargets,omitempty" plan:"live"`
	XmitHashPolicy  *string  `json:"xmitHashPolicy,omitempty" plan:"live"`
	LACPRate        *string  `json:"lacpRate,omitempty" plan:"down"` // slow, fast
	ADSelect        *string  `json:"adSelect,omitempty" plan:"down"` // stable, bandwidth, count
	MinLinks        *uint32  `json:"minLinks,omitempty" plan:"live"`
	AllPortsActive  *bool    `json:"allSlavesActive,omitempty" plan:"live,name=allSlavesActive"`
	TLBDynamicLB    *bool    `json:"tlbDynamicLb,omitempty" plan:"down"`
	Primary         *string  `json:"primary,omitempty" plan:"ports"` // needs the port to be there
}

// VRF is a virtual routing and forwarding domain; its table is immutable.
type VRF struct {
	Table *uint32 `json:"table,omitempty" plan:"replace,identity"`
}

// IPVLAN holds the options of an ipvlan link. The mode belongs to the parent:
// setting it changes every ipvlan of that parent.
type IPVLAN struct {
	Mode *string `json:"mode,omitempty" plan:"live"` // l2, l3, l3s
	Flag *string `json:"flag,omitempty" plan:"live"` // bridge, private, vepa
}

// MACVLAN holds the options of a macvlan link. Passthru cannot be switched.
type MACVLAN struct {
	Mode           *string `json:"mode,omitempty" plan:"live"` // bridge, private, vepa, passthru
	BroadcastQueue *uint32 `json:"bcQueueLen,omitempty" plan:"live,name=bcQueueLen"`
}

// Bridge holds the options of a bridge.
type Bridge struct {
	VLANFiltering *bool   `json:"vlanFiltering,omitempty" plan:"live"`
	DefaultPVID   *uint16 `json:"defaultPvid,omitempty" plan:"live"`
	// NoLinkLocalLearn: the bridge does not learn source addresses of frames to link-local groups
	// (01:80:c2:00:00:0x), which pass no rule of nftables before it does (br_handle_frame in net/bridge/br_input.c).
	NoLinkLocalLearn *bool `json:"noLinkLocalLearn,omitempty" plan:"live"`
}

// DefaultVLAN is the VLAN in which the kernel puts each new port of the bridge, as its PVID and without
// tag; 0 is none.
func (l Link) DefaultVLAN() uint16 {
	if l.Bridge == nil || l.Bridge.DefaultPVID == nil {
		return 1 // br_vlan_init in net/bridge/br_vlan.c
	}
	return *l.Bridge.DefaultPVID
}

// Veth names the other end of a pair; Peer carries its place.
type Veth struct {
	Peer *string `json:"peer,omitempty" plan:"replace"`
	// PeerMAC is used at creation only.
	PeerMAC *string `json:"peerMac,omitempty" plan:"-"`
}

// VXLAN holds the options of a VXLAN tunnel. All its addresses are of one family;
// one that is not set is that family's unspecified address.
// Source: vxlan_changelink in drivers/net/vxlan/vxlan_core.c.
type VXLAN struct {
	ID     *uint32 `json:"id,omitempty" plan:"replace,identity"`
	Port   *uint16 `json:"port,omitempty" plan:"replace,identity"`   // UDP, of both ends
	Family *string `json:"family,omitempty" plan:"replace,identity"` // ipv4, ipv6
	Local  *string `json:"local,omitempty" plan:"live"`
	Remote *string `json:"remote,omitempty" plan:"live"` // unicast
	// Group is joined when the link comes up. Debian's 6.12.107 and 7.3.4 also leave
	// and join when it changes; kernels without "vxlan: Join / leave MC group after
	// remote changes" do not.
	Group    *string `json:"group,omitempty" plan:"down"`
	TTL      *uint8  `json:"ttl,omitempty" plan:"live"` // 0: the namespace's default
	Learning *bool   `json:"learning,omitempty" plan:"live"`
}

// IPoIB holds the options of an interface of InfiniBand, of a device or of a partition on it. The kernel sets the bit of full membership in
// each PKey (ipoib_ndo_init in drivers/infiniband/ulp/ipoib/ipoib_main.c), and takes several links with one.
type IPoIB struct {
	PKey *string `json:"pkey,omitempty" plan:"replace,identity,name=pkey"` // "0x8001"
	Mode *string `json:"mode,omitempty" plan:"live"`                       // datagram, connected
}

// Port holds the options a link has as a port of a bridge (IFLA_BRPORT_*).
type Port struct {
	Hairpin  *bool `json:"hairpin,omitempty" plan:"live"`
	Isolated *bool `json:"isolated,omitempty" plan:"live"`
}

// Key is the name with its place.
func (l Link) Key() Key { return LinkKey(l.Name) }

// LivesOn is the parent: a link is gone with it.
func (l Link) LivesOn() Key {
	if l.Parent == nil || *l.Parent == "" {
		return Key{}
	}
	return LinkKey(*l.Parent)
}

var linkTraits = Traits{Whole: true, Cost: 32, effects: (*model).link}

// Traits returns the traits of links.
func (Link) Traits() *Traits { return &linkTraits }

// LinkKey is the key of the link of that name.
func LinkKey(name string) Key { return Key{KindLink, name} }

// Addr is an IP address on a link.
type Addr struct {
	Link    string `json:"link" plan:"key"`
	Address string `json:"address" plan:"key"` // address/prefix, canonical
	NoDAD   *bool  `json:"noDad,omitempty" plan:"replace"`
	// NoPrefixRoute keeps the kernel from making a route to the address's network; nil is
	// that it does.
	NoPrefixRoute *bool `json:"noPrefixRoute,omitempty" plan:"replace"`
	// Optimistic is used at creation only: the kernel drops it when detection has ended.
	Optimistic bool `json:"optimistic,omitempty" plan:"-"`
	// Expires is when the kernel deletes a leased address, in seconds since boot; 0 is never.
	// It is used at creation only: the client that renews the lease changes it.
	Expires int64 `json:"expires,omitempty" plan:"-"`
	// Observed only.
	Tentative bool `json:"tentative,omitempty" plan:"-"`
	DADFailed bool `json:"dadFailed,omitempty" plan:"-"`
	// Kernel marks an address the kernel or router advertisements made.
	Kernel bool `json:"kernelMade,omitempty" plan:"-"`
}

// Key is link and address.
func (a Addr) Key() Key { return Key{KindAddress, a.Address + " on " + a.Link} }

// LivesOn is the link.
func (a Addr) LivesOn() Key { return LinkKey(a.Link) }

var addrTraits = Traits{
	Whole: true, Phase: PhaseAddresses, Cost: 8, effects: (*model).address,
	kernelMade: func(o Object) bool { return o.(Addr).Kernel },
}

// Traits returns the traits of addresses.
func (Addr) Traits() *Traits { return &addrTraits }

// Table numbers with a name.
const (
	TableMain uint32 = 254
)

// RouteProtocol is the rtm_protocol of every route plumbline makes, so that
// ours and the pod's can be distinguished (RTPROT_* values from 5 up are free for
// routing daemons; see rt_protos).
const RouteProtocol = 112

// HostTable is the routing table of the host with the routes to what pods on other nodes have,
// and the priority of the rules that lead there, which is before the main table.
const HostTable = 28780

// PodTable is the routing table of the host with the routes to the pod CIDRs of other nodes, and
// the priority of its rules.
const PodTable = 28781

// RouteProtocolKernel marks the connected routes the kernel makes (RTPROT_KERNEL).
const RouteProtocolKernel = 2

// Route is a unicast route out of one link. Two routes to one destination with
// different gateways are two objects, as the kernel keeps IPv4 ones; IPv6 next
// hops are split on observation.
type Route struct {
	Link    string `json:"link" plan:"key"`
	Dst     string `json:"dst" plan:"key"`               // canonical prefix; "0.0.0.0/0" and "::/0" are the defaults
	Gateway string `json:"gateway,omitempty" plan:"key"` // "" is: on the link
	Table   uint32 `json:"table" plan:"key"`
	Metric  uint32 `json:"metric,omitempty" plan:"key"` // IPv6: 1024 when the user says nothing, as the kernel does

	Source *string `json:"src,omitempty" plan:"live"`
	Scope  *string `json:"scope,omitempty" plan:"live"` // global, link, host
	MTU    *uint32 `json:"mtu,omitempty" plan:"live"`
	AdvMSS *uint32 `json:"advmss,omitempty" plan:"live"`
	OnLink *bool   `json:"onlink,omitempty" plan:"live"`
	Type   *string `json:"type,omitempty" plan:"-"`
	// Observed only.
	Protocol int `json:"protocol,omitempty" plan:"-"`
}

// Key is everything the kernel tells routes apart by, and the next hop.
func (r Route) Key() Key {
	var b strings.Builder
	b.WriteString(r.Dst)
	if r.Gateway != "" {
		fmt.Fprintf(&b, " via %s", r.Gateway)
	}
	fmt.Fprintf(&b, " dev %s", r.Link)
	if r.Table != TableMain {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	return Key{KindRoute, b.String()}
}

// LivesOn is the link.
func (r Route) LivesOn() Key { return LinkKey(r.Link) }

var routeTraits = Traits{
	Whole: true, Phase: PhaseRoutes, Cost: 8, Flushed: true,
	kernelMade: func(o Object) bool { return o.(Route).Protocol == RouteProtocolKernel && !o.(Route).IsDefault() },
}

// Traits returns the traits of routes.
func (Route) Traits() *Traits { return &routeTraits }

// IsDefault reports whether the route matches every destination of its family.
func (r Route) IsDefault() bool { return r.Dst == "0.0.0.0/0" || r.Dst == "::/0" }

// IPv6 reports the family of the route.
func (r Route) IPv6() bool { return strings.Contains(r.Dst, ":") }

// Sysctl is one setting below net. in the sandbox; Path is "net/ipv4/...". One of the host
// has HostPrefix before it, and is only read.
type Sysctl struct {
	Path  string  `json:"path" plan:"key"`
	Value *string `json:"value,omitempty" plan:"live"` // white space normalised to single blanks
}

// Key is the path.
func (s Sysctl) Key() Key { return Key{KindSysctl, s.Path} }

// LivesOn is the link of a per-interface sysctl.
func (s Sysctl) LivesOn() Key {
	if link := s.Link(); link != "" {
		return LinkKey(link)
	}
	return Key{}
}

var sysctlTraits = Traits{
	Setting: true, Cost: 8, effects: (*model).sysctl,
	absent: func(o Object) error {
		return fault.New(fault.Unsupported, fmt.Errorf("sysctl %q does not exist in this network namespace", o.(Sysctl).Path))
	},
	imagined: func(o Object, _ Imagined) Object { return Sysctl{Path: o.(Sysctl).Path, Value: new("as it is")} },
}

// Traits returns the traits of sysctls.
func (Sysctl) Traits() *Traits { return &sysctlTraits }

// Secret reports whether the value is a key. The kernel lets only root read it.
func (s Sysctl) Secret() bool {
	name := s.Path[strings.LastIndex(s.Path, "/")+1:]
	return name == "stable_secret" || name == "tcp_fastopen_key"
}

// Link returns the interface a per-interface sysctl belongs to, or "".
func (s Sysctl) Link() string {
	p := strings.Split(s.Path, "/")
	if len(p) >= 5 && p[0] == "net" && (p[2] == "conf" || p[2] == "neigh") && p[3] != "all" && p[3] != "default" {
		return p[3]
	}
	return ""
}

// Spreads reports whether the kernel gives each link the value when it is written.
func (s Sysctl) Spreads() bool {
	_, _, spreads := s.spread()
	return spreads
}

// SpreadsTo reports whether the kernel gives another sysctl the value.
func (s Sysctl) SpreadsTo(other Sysctl) bool {
	first, last, spreads := s.spread()
	return spreads && other.Path != s.Path && strings.HasPrefix(other.Path, first) && strings.HasSuffix(other.Path, last)
}

// spread returns the first and the last part of the paths of the sysctls that the kernel gives the value (inet_forward_change in
// net/ipv4/devinet.c; addrconf_disable_change, addrconf_forward_change, addrconf_linkdown_change and addrconf_sysctl_addr_gen_mode in
// net/ipv6/addrconf.c).
func (s Sysctl) spread() (first, last string, spreads bool) {
	switch s.Path {
	case "net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding":
		return "net/ipv4/conf/", "/forwarding", true
	case "net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/ignore_routes_with_linkdown",
		"net/ipv6/conf/all/addr_gen_mode":
		return "net/ipv6/conf/", s.Path[strings.LastIndex(s.Path, "/"):], true
	}
	return "", "", false
}

// OfNewLinks returns the sysctl that gives new links their value (inetdev_init in net/ipv4/devinet.c, ipv6_add_dev in
// net/ipv6/addrconf.c), false where the kernel computes it.
func (s Sysctl) OfNewLinks() (Sysctl, bool) {
	p := strings.Split(s.Path, "/")
	if s.Link() == "" || len(p) != 5 || p[2] != "conf" || p[1] != "ipv4" && p[1] != "ipv6" {
		return s, false
	}
	p[3] = "default"
	return Sysctl{Path: strings.Join(p, "/")}, p[4] != "mtu" && !s.Secret()
}

// The classes of ethtool settings.
const (
	EthtoolFeature     = "feature"
	EthtoolRing        = "ring"
	EthtoolChannel     = "channel"
	EthtoolCoalesce    = "coalesce"
	EthtoolPrivateFlag = "private-flag"
)

// Ethtool is one ethtool setting of a link. Value is "on"/"off" for features
// and flags, a decimal number else.
type Ethtool struct {
	Link  string  `json:"link" plan:"key"`
	Class string  `json:"class" plan:"key"`
	Name  string  `json:"name" plan:"key"` // the kernel's name, e.g. "tx-tcp-segmentation"
	Value *string `json:"value,omitempty" plan:"live"`
	Fixed bool    `json:"fixed,omitempty" plan:"-"` // observed: the driver does not let it change
}

// Key is link, class and name.
func (e Ethtool) Key() Key { return Key{KindEthtool, e.Class + " " + e.Name + " on " + e.Link} }

// LivesOn is the link.
func (e Ethtool) LivesOn() Key { return LinkKey(e.Link) }

var ethtoolTraits = Traits{
	Setting: true, Held: true, MovesWithCarrier: true, Cost: 8,
	// A feature that others need has to be on before they can be
	// (netdev_fix_features in net/core/dev.c).
	InOrder: true,
	absent: func(o Object) error {
		e := o.(Ethtool)
		return fault.New(fault.Unsupported, fmt.Errorf("link %q has no ethtool %s %q", e.Link, e.Class, e.Name))
	},
}

// Traits returns the traits of ethtool settings.
func (Ethtool) Traits() *Traits { return &ethtoolTraits }

// BridgeVLAN is one VLAN a bridge port (or the bridge itself) carries.
type BridgeVLAN struct {
	Link     string `json:"link" plan:"key"`
	VID      uint16 `json:"vid" plan:"key"`
	PVID     *bool  `json:"pvid,omitempty" plan:"live"`
	Untagged *bool  `json:"untagged,omitempty" plan:"live"`
}

// Key is link and VLAN.
func (b BridgeVLAN) Key() Key { return Key{KindBridgeVLAN, fmt.Sprintf("%d on %s", b.VID, b.Link)} }

// LivesOn is the link.
func (b BridgeVLAN) LivesOn() Key { return LinkKey(b.Link) }

var bridgeVLANTraits = Traits{
	Whole: true, OfPort: true, Cost: 2, // a full trunk is 4094
	effects: (*model).bridgeVLAN,
}

// Traits returns the traits of VLANs of bridge ports.
func (BridgeVLAN) Traits() *Traits { return &bridgeVLANTraits }

// Device is a network device that travels between the host and the sandbox. It
// is known by its PCI address ("0000:03:00.2"), or "if:NAME" when it has none,
// never by its current name.
type Device struct {
	ID string  `json:"id" plan:"key"`
	At *string `json:"at,omitempty" plan:"live"` // link name with its place
	// The device's fields before it was moved. They are compared only when it returns
	// to the host, so that it arrives as it left.
	MAC      *string  `json:"mac,omitempty" plan:"live"`
	MTU      *uint32  `json:"mtu,omitempty" plan:"live"`
	Up       *bool    `json:"up,omitempty" plan:"live"`
	AltNames []string `json:"altNames,omitzero" plan:"live"` // empty is none, nil unknown
	Alias    *string  `json:"alias,omitempty" plan:"live"`
	// Settings are read on the host only, and only for a query whose device has
	// Settings, if empty ones.
	Settings Settings `json:"settings,omitzero" plan:"live"`
	// Observed only.
	Driver string `json:"driver,omitempty" plan:"-"`
	// Use says what the host needs it for ("default route", "bridge port"); such
	// a device is not taken away.
	Use string `json:"use,omitempty" plan:"-"`
	// Lost: the device is expected to exist, but was not found.
	Lost  bool `json:"-" plan:"-"`
	Index int  `json:"index,omitempty" plan:"-"` // in the namespace At names
	// Facts that identify the device, and that the owner of its namespace cannot set.
	// LinkKind is that of Link, "" when not known; Parent is bus and name of the link's
	// parent device ("pci/0000:03:00.2"), "" for none; PortName is the driver's name of
	// the port. HostIndex is set only in a query: the index it had on the host before
	// it left.
	LinkKind string `json:"kind,omitempty" plan:"-"`
	Parent   string `json:"parent,omitempty" plan:"-"`
	PortName string `json:"portName,omitempty" plan:"-"`
	PermMAC  string `json:"permMac,omitempty" plan:"-"`
	// PortGUID is the GUID that an interface of InfiniBand on the host has (LinkKind ipoib). Such a device has no MAC here: its hardware
	// address belongs to its driver.
	PortGUID  string `json:"portGUID,omitempty" plan:"-"`
	HostIndex int    `json:"-" plan:"-"`
	// RDMA are the RDMA devices of the same hardware by name, or those in software on its link. RDMAExclusive says that each
	// RDMA device of the node belongs to one network namespace (rdma-system(8)).
	RDMA          []RDMADevice `json:"rdma,omitempty" plan:"-"`
	RDMAExclusive bool         `json:"rdmaExclusive,omitempty" plan:"-"`
	// Nodes are the paths of character devices by kind: NodePTP of the device, NodeVhost and NodeTun of the node.
	Nodes map[string][]string `json:"nodes,omitempty" plan:"-"`
}

// Kinds of device nodes that are given only where they are asked for.
const (
	NodeUMAD  = "umad"
	NodeISSM  = "issm"
	NodePTP   = "ptp"
	NodeVhost = "vhost-net"
	NodeTun   = "tun"
)

// ManagementNodes are the device nodes of a kind, NodeUMAD or NodeISSM, of one of the device's RDMA devices.
func (d Device) ManagementNodes(rdma, kind string) (out []string) {
	for _, r := range d.RDMA {
		for _, n := range r.Management {
			if r.Name == rdma && strings.HasPrefix(path.Base(n), kind) {
				out = append(out, n)
			}
		}
	}
	return out
}

// RDMADevice is a device for verbs, such as mlx5_2.
type RDMADevice struct {
	Name string `json:"name"`
	// Nodes are the paths of the character devices that a program needs: uverbsN, and rdma_cm, which all RDMA
	// devices share.
	Nodes []string `json:"nodes,omitempty"`
	// Management are the paths of those for the management of the subnet: umadN, and issmN of InfiniBand, one of each port.
	Management []string `json:"management,omitempty"`
	// Software says that the device is of the link (soft RoCE), not of the hardware: it ends when the link leaves its
	// network namespace.
	Software bool `json:"software,omitempty"`
}

// InfiniBandKind is the kind of link of an interface of InfiniBand (drivers/infiniband/ulp/ipoib): of a device, or, with a
// parent, of a partition.
const InfiniBandKind = "ipoib"

// VirtualPrefix begins the identity of a device that has no PCI address; the name
// it had on the host follows.
const VirtualPrefix = "if:"

// DefaultRouteDevice is the identity of the host's link that carries its
// default route, whatever that is; it can be looked up, not moved.
const DefaultRouteDevice = "default-route"

// NetworkPrefix begins the identity of the host's link that has an address in a network,
// whatever link that is; the network follows. It can be looked up, not moved.
const NetworkPrefix = "net:"

// AddressPrefix begins the identity of the host's link that has an address, whatever link
// that is; the address follows. It can be looked up, not moved.
const AddressPrefix = "addr:"

// HasPCIAddress reports whether the device is known by its PCI address.
func (d Device) HasPCIAddress() bool { return !strings.HasPrefix(d.ID, VirtualPrefix) }

// Made reports whether the device is a link that somebody has made, rather than
// hardware. Whoever owns the namespace it is in can make another one like it.
func (d Device) Made() bool {
	return !d.HasPCIAddress() && d.LinkKind != "" && d.LinkKind != "device"
}

// Recorded returns the query for a device of a history: where it was moved to, and the
// facts that identify it.
func Recorded(history []Change, queried Device) Device {
	for _, c := range history {
		if c.Key() != queried.Key() {
			continue
		}
		if before, ok := c.Before.(Device); ok {
			queried.LinkKind, queried.Parent = before.LinkKind, before.Parent
			queried.PortName, queried.PermMAC = before.PortName, before.PermMAC
			queried.HostIndex, queried.Settings = before.Index, before.Settings
		}
		if after, ok := c.After.(Device); ok {
			queried.At, queried.Index = after.At, after.Index
		}
	}
	return queried
}

// Key is the device's identity.
func (d Device) Key() Key { return Key{KindDevice, d.ID} }

// LivesOn returns no key: a device has no carrier.
func (Device) LivesOn() Key { return Key{} }

var deviceTraits = Traits{Host: true, Cost: 32, effects: (*model).device}

// Traits returns the traits of devices.
func (Device) Traits() *Traits { return &deviceTraits }

// DeviceKey is the key of the device with that identity.
func DeviceKey(id string) Key { return Key{KindDevice, id} }

// VF holds the settings of a physical function for one virtual function
// (IFLA_VF_*, set on the PF in the host's namespace).
type VF struct {
	ID            string  `json:"id" plan:"key"` // PCI address of the VF
	MAC           *string `json:"mac,omitempty" plan:"live"`
	VLAN          *uint16 `json:"vlan,omitempty" plan:"live"`
	QoS           *uint8  `json:"qos,omitempty" plan:"live"`
	Protocol      *string `json:"protocol,omitempty" plan:"live"` // 802.1q, 802.1ad
	SpoofCheck    *bool   `json:"spoofchk,omitempty" plan:"live,name=spoofchk"`
	Trust         *bool   `json:"trust,omitempty" plan:"live"`
	MinTxRateMbps *uint32 `json:"minTxRate,omitempty" plan:"live,name=minTxRate"` // 0: no guarantee
	MaxTxRateMbps *uint32 `json:"maxTxRate,omitempty" plan:"live,name=maxTxRate"` // 0: no limit
	LinkState     *string `json:"linkState,omitempty" plan:"live"`                // auto, enable, disable
	// GUIDs of a function of InfiniBand, "" for none; nil where the driver of the PF has none.
	NodeGUID *string `json:"nodeGUID,omitempty" plan:"live,name=nodeGUID"`
	PortGUID *string `json:"portGUID,omitempty" plan:"live,name=portGUID"`
	// Observed only.
	PF    string `json:"pf,omitempty" plan:"-"`
	Index int    `json:"index,omitempty" plan:"-"`
	// NoLink says that the PF has no carrier. Drivers that compare a rate with the speed of the
	// link refuse it then, such as igb (igb_ndo_set_vf_bw).
	NoLink bool `json:"noLink,omitempty" plan:"-"`
	// LACP is the state of the PF as a port of a bond with LACP, nil if it is none.
	LACP *LACPPort `json:"lacp,omitempty" plan:"-"`
}

// LACPPort is the state of a port of a bond with LACP.
type LACPPort struct {
	// Agreed: LACP has found a partner, and both have agreed to use the port.
	Agreed bool `json:"agreed"`
	// SettlesMillis is the time for which they still have to agree until that counts as
	// stable; 0 if it does, or if it is not known since when they agree.
	SettlesMillis uint32 `json:"settlesMillis,omitempty"`
}

// Key is the VF's PCI address.
func (v VF) Key() Key { return Key{KindVF, v.ID} }

// LivesOn is none: the physical function holds the settings, wherever the virtual
// one is.
func (VF) LivesOn() Key { return Key{} }

var vfTraits = Traits{
	Host: true, Setting: true, Held: true, Cost: 8,
	absent: func(o Object) error {
		return fault.New(fault.Gone, fmt.Errorf("no physical function holds VF %q", o.(VF).ID))
	},
	imagined: func(o Object, on Imagined) Object {
		return VF{
			ID: o.(VF).ID, MAC: new(on.MAC()), VLAN: new(uint16(0)), QoS: new(uint8(0)), Protocol: new("802.1q"), SpoofCheck: new(true),
			Trust: new(false), MinTxRateMbps: new(uint32(0)), MaxTxRateMbps: new(uint32(0)), LinkState: new("auto"),
			NodeGUID: new(""), PortGUID: new(""),
		}
	},
}

// Traits returns the traits of the settings of virtual functions.
func (VF) Traits() *Traits { return &vfTraits }

// Refused is the error of settings that a driver does not have or does not accept. Nothing of the
// change was made.
type Refused struct {
	Paths []string // of the fields
	Err   error
}

func (r *Refused) Error() string { return r.Err.Error() }
func (r *Refused) Unwrap() error { return r.Err }
