package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/kernel/ethtoolnl"
)

// attacker is a malicious owner of a network namespace, in a pod. It has CAP_NET_ADMIN and
// CAP_BPF there, and namespaces of its own beside it. All it does it may do again;
// what the kernel refuses is nothing.
type attacker struct {
	t       *testing.T
	path    string
	nested  []string // namespaces of its own, unknown to others
	held    []*os.File
	devices []string // its devices
	names   []string // that have a meaning for some program
	floods  int      // how much it makes of what it makes many of
	made    int
}

func newAttacker(t *testing.T, path string, devices, names []string, floods int) *attacker {
	t.Helper()
	p := &attacker{t: t, path: path, devices: devices, names: names, floods: floods, nested: []string{newNetns(t), newNetns(t)}}
	t.Cleanup(p.release)
	return p
}

// hold keeps a descriptor open, as another process could to which it was sent.
func (p *attacker) hold(fd int, err error) error {
	if err == nil {
		p.held = append(p.held, os.NewFile(uintptr(fd), "held"))
	}
	return err
}

// release closes what was held.
func (p *attacker) release() {
	for _, f := range p.held {
		f.Close()
	}
	p.held = nil
}

// view is the pod in one of its namespaces.
type view struct {
	*attacker
	*netlink.Handle
	rng *rand.Rand
}

// action is something that the owner of a namespace can do.
type action struct {
	name string
	do   func(v view) error
}

// act does something at random, in one of the pod's namespaces, and returns a description.
func (p *attacker) act(rng *rand.Rand, from []action) (string, error) {
	a, where := pick(rng, from), p.path
	if rng.IntN(8) == 0 {
		where = pick(rng, p.nested)
	}
	err := kernel.Within(where, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		if err := h.SetSocketTimeout(10 * time.Second); err != nil {
			return err
		}
		return a.do(view{p, h, rng})
	})
	return fmt.Sprintf("%s in %s", a.name, filepath.Base(where)), err
}

// some picks a link, mostly one of the pod's devices.
func (v view) some() (netlink.Link, error) {
	// Not from a list, for there may be more than can be listed.
	for range 24 {
		var l netlink.Link
		var err error
		if v.rng.IntN(2) == 0 {
			l, err = v.LinkByName(pick(v.rng, v.names))
		} else {
			l, err = v.LinkByIndex(2 + v.rng.IntN(48))
		}
		if err == nil {
			return l, nil
		}
	}
	return nil, errors.New("no link")
}

// name draws a name, mostly one that means something.
func (v view) name() string {
	if v.rng.IntN(3) > 0 {
		return pick(v.rng, v.names)
	}
	v.made++
	return fmt.Sprintf("own%d", v.made)
}

// on makes an action of something that is done to a link.
func on(name string, f func(v view, l netlink.Link) error) action {
	return action{name, func(v view) error {
		l, err := v.some()
		if err != nil {
			return err
		}
		return f(v, l)
	}}
}

// kinds are the links that need no other.
var kinds = []string{"dummy", "bridge", "bond", "vrf", "ifb", "veth", "tap", "nlmon", "vxlan", "wireguard", "team", "netkit", "gre"}

// stackedKinds stand on another link.
var stackedKinds = []string{"macvlan", "macvtap", "ipvlan", "vlan", "macsec"}

func (v view) link(kind, name string, parent int) netlink.Link {
	attrs := netlink.LinkAttrs{Name: name, ParentIndex: parent, TxQLen: -1}
	if realCard() && v.rng.IntN(4) == 0 { // a virtual card is known by no more than its index and kind
		attrs.Index = 2 + v.rng.IntN(48)
	}
	switch kind {
	case "ifb":
		if !realCard() {
			kind = "dummy" // as the card reports itself
		}
	case "veth":
		return &netlink.Veth{LinkAttrs: attrs, PeerName: v.name() + "p"}
	case "tap":
		return &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP} // it stays without a descriptor
	case "bond":
		b := netlink.NewLinkBond(attrs)
		b.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
		return b
	case "vrf":
		return &netlink.Vrf{LinkAttrs: attrs, Table: uint32(1 + v.rng.IntN(300))}
	case "vxlan":
		return &netlink.Vxlan{LinkAttrs: attrs, VxlanId: v.rng.IntN(1 << 20), VtepDevIndex: parent}
	case "macvlan":
		return &netlink.Macvlan{LinkAttrs: attrs, Mode: pick(v.rng, []netlink.MacvlanMode{netlink.MACVLAN_MODE_BRIDGE, netlink.MACVLAN_MODE_PASSTHRU})}
	case "macvtap":
		return &netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_VEPA}}
	case "ipvlan":
		return &netlink.IPVlan{LinkAttrs: attrs, Mode: netlink.IPVLAN_MODE_L2}
	case "vlan":
		return &netlink.Vlan{LinkAttrs: attrs, VlanId: 1 + v.rng.IntN(16)}
	}
	return &netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}
}

// actions are those of a hostile pod: one after the other, or all the time.
var actions = []action{
	{"make a link", func(v view) error { return v.LinkAdd(v.link(pick(v.rng, kinds), v.name(), 0)) }},
	on("stack a link", func(v view, l netlink.Link) error {
		return v.LinkAdd(v.link(pick(v.rng, stackedKinds), v.name(), l.Attrs().Index))
	}),
	on("delete a link", func(v view, l netlink.Link) error {
		if virtualCardIs(l) {
			return nil // no card can be deleted
		}
		return v.LinkDel(l)
	}),
	on("rename", func(v view, l netlink.Link) error { return v.LinkSetName(l, v.name()) }),
	on("down and rename", func(v view, l netlink.Link) error {
		return errors.Join(v.LinkSetDown(l), v.LinkSetName(l, v.name()))
	}),
	on("alias of a device", func(v view, l netlink.Link) error {
		return v.LinkSetAlias(l, "plumbline:"+pick(v.rng, v.devices))
	}),
	on("alias", func(v view, l netlink.Link) error {
		return v.LinkSetAlias(l, pick(v.rng, []string{"", "see me", "plumbline:"}))
	}),
	on("alternative name", func(v view, l netlink.Link) error { return v.LinkAddAltName(l, v.name()) }),
	on("all alternative names", func(v view, l netlink.Link) (err error) {
		// A few more have room, but the library used here does not support such a link.
		for n := 0; err == nil && n < 460; n++ {
			err = v.LinkAddAltName(l, fmt.Sprintf("%d-%0120d", v.rng.IntN(1000), n))
		}
		return err
	}),
	on("up", func(v view, l netlink.Link) error { return v.LinkSetUp(l) }),
	on("down", func(v view, l netlink.Link) error { return v.LinkSetDown(l) }),
	on("MTU", func(v view, l netlink.Link) error {
		return v.LinkSetMTU(l, pick(v.rng, []int{68, 576, 1280, 1500, 2000, 9000}))
	}),
	on("MAC", func(v view, l netlink.Link) error {
		return v.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0xee, byte(v.rng.IntN(256))})
	}),
	on("queue length", func(v view, l netlink.Link) error { return v.LinkSetTxQLen(l, v.rng.IntN(3000)) }),
	on("group", func(v view, l netlink.Link) error { return v.LinkSetGroup(l, v.rng.IntN(100)) }),
	on("promiscuous", func(v view, l netlink.Link) error {
		return errors.Join(netlink.SetPromiscOn(l), v.LinkSetAllmulticastOn(l))
	}),
	on("GSO and GRO", func(v view, l netlink.Link) error {
		return errors.Join(v.LinkSetGSOMaxSize(l, 4000), v.LinkSetGSOMaxSegs(l, 7), v.LinkSetGROMaxSize(l, 5000), v.LinkSetGSOIPv4MaxSize(l, 4000), v.LinkSetGROIPv4MaxSize(l, 5000))
	}),
	on("address generation", func(v view, l netlink.Link) error { return v.LinkSetIP6AddrGenMode(l, 1) }),
	on("ARP off", func(v view, l netlink.Link) error { return errors.Join(v.LinkSetARPOff(l), v.LinkSetMulticastOff(l)) }),
	on("function's settings from inside", func(v view, l netlink.Link) error {
		return errors.Join(v.LinkSetVfVlan(l, 0, 9), v.LinkSetVfTrust(l, 0, true), v.LinkSetVfSpoofchk(l, 0, false))
	}),
	on("all multicast that stays", func(v view, l netlink.Link) error {
		ipvlan := v.link("ipvlan", v.name(), l.Attrs().Index)
		if err := v.LinkAdd(ipvlan); err != nil {
			return err
		}
		return errors.Join(v.LinkSetAllmulticastOn(ipvlan), v.LinkDel(ipvlan))
	}),
	on("port", func(v view, l netlink.Link) error {
		master, err := v.some()
		if err != nil {
			return err
		}
		return v.LinkSetMaster(l, master)
	}),
	on("no port", func(v view, l netlink.Link) error { return v.LinkSetNoMaster(l) }),
	on("move", func(v view, l netlink.Link) error {
		if virtualCardIs(l) {
			return nil // it would go with the namespace, which no card does
		}
		f, err := os.Open(pick(v.rng, append([]string{v.path}, v.nested...)))
		if err != nil {
			return err
		}
		defer f.Close()
		return v.LinkSetNsFd(l, int(f.Fd()))
	}),
	on("addresses", func(v view, l netlink.Link) error { return v.flood(1+v.rng.IntN(v.floods), v.address(l)) }),
	on("routes", func(v view, l netlink.Link) error {
		protocol := pick(v.rng, []int{unix.RTPROT_BOOT, unix.RTPROT_BIRD, 112})
		table := pick(v.rng, []int{0, 0, 100, 1001})
		return v.flood(1+v.rng.IntN(10*v.floods), func(i int) error {
			return v.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Protocol: netlink.RouteProtocol(protocol), Table: table, Scope: netlink.SCOPE_LINK, Dst: number(i, 32)})
		})
	}),
	on("default routes", func(v view, l netlink.Link) error {
		return v.flood(v.floods, func(i int) error {
			return v.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Priority: i, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}})
		})
	}),
	on("neighbours", func(v view, l netlink.Link) error {
		return v.flood(v.floods, func(i int) error {
			return v.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: number(i, 32).IP, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}})
		})
	}),
	{"rules", func(v view) error {
		return v.flood(v.floods/10, func(i int) error {
			r := netlink.NewRule()
			r.Src, r.Table, r.Priority = number(i, 32), 100+i%7, 1+i
			return v.RuleAdd(r)
		})
	}},
	{"links", func(v view) error {
		return v.flood(v.floods/4, func(int) error { return v.LinkAdd(v.link("veth", fmt.Sprintf("l%d", v.rng.IntN(1<<20)), 0)) })
	}},
	on("clsact and a queue", func(v view, l netlink.Link) error {
		at := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
		root := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		return errors.Join(v.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"}), v.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: root, QdiscType: "prio"}))
	}),
	on("filters in our place", func(v view, l netlink.Link) error {
		var lines []string
		for range 1 + v.rng.IntN(4) {
			lines = append(lines, pick(v.rng, trafficControl))
		}
		return v.batch("tc", l, lines)
	}),
	on("filters", func(v view, l netlink.Link) error {
		lines := []string{"qdisc add dev LINK clsact"}
		for i := range v.floods / 4 {
			lines = append(lines, fmt.Sprintf("filter add dev LINK egress pref %d protocol ip handle %d flower dst_ip %s action ok", 20000+i%40, 1+i/40, number(i, 32)))
		}
		return v.batch("tc", l, lines)
	}),
	on("forwarding entries", func(v view, l netlink.Link) error {
		lines := []string{"fdb flush dev LINK", "fdb append 00:00:00:00:00:00 dev LINK dst 192.0.2.7 port 4788 vni 9", "fdb add 02:00:00:00:00:88 dev LINK dst 192.0.2.88"}
		for i := range v.rng.IntN(v.floods / 4) {
			lines = append(lines, fmt.Sprintf("fdb append 00:00:00:00:00:00 dev LINK dst %s", number(i, 32).IP))
		}
		return v.batch("bridge", l, lines[v.rng.IntN(4):])
	}),
	on("XDP", func(v view, l netlink.Link) error {
		fd, err := loadProgram(unix.BPF_PROG_TYPE_XDP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return netlink.LinkSetXdpFdWithFlags(l, fd, nl.XDP_FLAGS_SKB_MODE)
	}),
	on("XDP by a link", func(v view, l netlink.Link) error { return v.attach(unix.BPF_PROG_TYPE_XDP, unix.BPF_XDP, l) }),
	on("tcx", func(v view, l netlink.Link) error {
		return v.attach(unix.BPF_PROG_TYPE_SCHED_CLS, unix.BPF_TCX_INGRESS, l)
	}),
	on("ethtool", func(v view, l netlink.Link) error { return v.ethtool(l.Attrs().Index) }),
	{"sysctls", func(v view) error { return v.sysctls() }},
	on("packet socket", func(v view, l netlink.Link) error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0300)
		if err := v.hold(fd, err); err != nil {
			return err
		}
		index := l.Attrs().Index
		member := &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: index}), unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, member))
	}),
	{"hold the namespace", func(v view) error {
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return v.hold(fd, err)
	}},
	{"forged notice", func(v view) error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		m := make([]byte, 64)
		m[0], m[4] = 64, pick(v.rng, []byte{unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_DELNSID})
		return unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << v.rng.IntN(30)})
	}},
}

// trafficControl are the changes that tc(8) can make to a link whose filters have preferences from 20000, and
// handle 1: in their place, before them, and instead of what they are on.
var trafficControl = []string{
	"qdisc del dev LINK clsact",
	"qdisc add dev LINK clsact",
	"qdisc add dev LINK ingress",
	"qdisc add dev LINK egress_block 5 clsact",
	"filter del dev LINK egress",
	"filter del dev LINK egress pref 20000",
	"filter add dev LINK egress pref 1 protocol all matchall action ok",
	"filter add dev LINK egress pref 20000 protocol all handle 1 matchall action ok",
	"filter add dev LINK egress pref 20000 protocol ipv6 handle 1 flower action ok",
	"filter add dev LINK egress pref 20000 protocol ip handle 9 flower dst_ip 198.51.100.0/24 action ok",
	"filter replace dev LINK egress pref 20000 protocol ip handle 1 flower dst_ip 198.51.100.0/24 action goto chain 7",
	"filter replace dev LINK egress pref 20000 protocol ip handle 1 flower dst_ip 198.51.100.0/24 " + strings.Repeat("action pedit ex "+strings.Repeat("munge ip ttl set 3 ", 20)+"pipe ", 12) + "action ok",
	"filter add dev LINK egress chain 3 pref 20000 protocol ip handle 1 flower action ok",
	"chain add dev LINK egress chain 0 protocol ip flower dst_mac 00:00:00:00:00:00/FF:FF:FF:00:00:00",
	"actions add action police rate 1gbit burst 1m index POLICER",
}

// batch has a program do something to a link, line by line, whatever is refused.
func (v view) batch(program string, l netlink.Link, lines []string) error {
	index := l.Attrs().Index
	cmd := exec.CommandContext(v.t.Context(), program, "-force", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.NewReplacer("LINK", l.Attrs().Name, "POLICER", strconv.Itoa(index<<12|1)).Replace(strings.Join(lines, "\n") + "\n"))
	return cmd.Run()
}

// virtualCardIs reports whether a link represents a card, on machines without any.
func virtualCardIs(l netlink.Link) bool { return !realCard() && l.Type() == "ifb" }

// number is the ith network of an address alone.
func number(i, bits int) *net.IPNet {
	return &net.IPNet{IP: net.IPv4(11, byte(i>>16), byte(i>>8), byte(i)), Mask: net.CIDRMask(bits, 32)}
}

func (v view) address(l netlink.Link) func(int) error {
	return func(i int) error { return v.AddrAdd(l, &netlink.Addr{IPNet: number(i, 32)}) }
}

// flood does something many times, until it is refused.
func (v view) flood(times int, f func(int) error) error {
	from := v.rng.IntN(1 << 20)
	for i := range times {
		if err := f(from + i); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

func (v view) ethtool(index int) error {
	client, err := ethtoolnl.Dial()
	if err != nil {
		return err
	}
	defer client.Close()
	class := pick(v.rng, []ethtoolnl.Class{ethtoolnl.Feature, ethtoolnl.Feature, ethtoolnl.Ring, ethtoolnl.Coalesce})
	all, err := client.Get(v.t.Context(), class, index)
	if err != nil || len(all) == 0 {
		return err
	}
	one := pick(v.rng, all)
	value := 1 - min(one.Value, 1)
	if class != ethtoolnl.Feature {
		value = one.Value/2 + 1
	}
	return client.Set(v.t.Context(), class, index, one.Name, value)
}

// sysctls turns some of those of the namespace's links.
func (v view) sysctls() error {
	files, err := filepath.Glob("/proc/sys/net/ipv[46]/conf/*/*")
	if err != nil || len(files) == 0 {
		return err
	}
	for range 8 {
		err := os.WriteFile(pick(v.rng, files), []byte(pick(v.rng, []string{"0", "1", "2"})), 0)
		if errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// attach attaches a program by a link that lives as long as its descriptor.
func (v view) attach(typ, where uint32, l netlink.Link) error {
	prog, err := loadProgram(typ)
	if err != nil {
		return err
	}
	defer unix.Close(prog)
	fd, err := bpf(unix.BPF_LINK_CREATE, unsafe.Pointer(&struct{ prog, target, typ, flags uint32 }{uint32(prog), uint32(l.Attrs().Index), where, 0}), 16)
	return v.hold(fd, err)
}

// loadProgram loads a program that lets everything pass: r0 = code, exit.
func loadProgram(typ uint32) (int, error) {
	code := uint64(2) // XDP_PASS
	if typ != unix.BPF_PROG_TYPE_XDP {
		code = 0xffffffff // TC_ACT_UNSPEC
	}
	program := []uint64{0xb7 | code<<32, 0x95}
	license := []byte("GPL\x00")
	var pin runtime.Pinner // their addresses are hidden in numbers
	defer pin.Unpin()
	pin.Pin(&program[0])
	pin.Pin(&license[0])
	return bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&struct {
		typ, count     uint32
		code, license  uint64
		level, size    uint32
		log            uint64
		version, flags uint32
	}{typ: typ, count: 2, code: uint64(uintptr(unsafe.Pointer(&program[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0])))}), 48)
}

func bpf(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
