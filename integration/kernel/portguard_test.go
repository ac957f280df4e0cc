package kernel

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// forger is pods of one bridge that plumbline has made: a forges, b is the victim, and c is the neighbor whose view is looked at.
type forger struct {
	*lane
	*foreignWriter
	r      *reconcile.Reconciler
	pods   map[string]reconcile.Sandbox
	macs   map[string]net.HardwareAddr
	sender *sender
	vlan   bool
	table  bool // pods of tests before are still guarded
}

// The pods, and the gateway.
var forgedIPs = map[string][2]netip.Addr{
	"a": {netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8:9::5")},
	"b": {netip.MustParseAddr("192.0.2.6"), netip.MustParseAddr("2001:db8:9::6")},
	"c": {netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8:9::7")},
	"g": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:9::1")},
}

// newForger attaches the pods, with more config of the first. Those of a VLAN have no gateway.
func newForger(t *testing.T, more string, vlan bool) *forger {
	f := &forger{lane: newLane(t), foreignWriter: &foreignWriter{t: t}, vlan: vlan, pods: map[string]reconcile.Sandbox{}, macs: map[string]net.HardwareAddr{}}
	f.devices = []string{}
	f.table = strings.Contains(f.run("nft list tables"), guardTable)
	f.r = f.engine(nil)
	for _, pod := range []string{"b", "a", "c"} {
		config := ""
		if pod == "a" {
			config = more
		}
		f.attach(pod, config)
	}
	f.macs["g"] = f.mac("cat /sys/class/net/forgebr/address")
	f.sender = newSender(t, f.pods["a"].Netns, "net1")
	t.Cleanup(func() { _, _ = f.try("ip link delete forgebr") }) // if the test fails
	return f
}

// others are those whose place c knows: the victim, and the gateway if there is one.
func (f *forger) others() []string {
	if f.vlan {
		return []string{"b"}
	}
	return []string{"b", "g"}
}

func (f *forger) attach(pod, config string) {
	f.lane.t.Helper()
	ips := forgedIPs[pod]
	addresses := fmt.Sprintf(`dad: "off", isDefaultGateway: true, addresses: [{address: %s/24, gateway: 192.0.2.1}, {address: "%s/64", gateway: "2001:db8:9::1"}]`, ips[0], ips[1])
	if f.vlan {
		addresses = fmt.Sprintf(`dad: "off", vlan: 100, addresses: [%s/24, "%s/64"]`, ips[0], ips[1])
	}
	sb := box(newNetns(f.lane.t), parse(f.lane.t, pod, "    - {name: net, type: bridge, config: {bridge: forgebr, "+addresses+config+"}}\n"))
	if _, err := f.r.Ensure(ctxFor(f.lane.t), sb); err != nil {
		f.lane.t.Fatal(err)
	}
	f.pods[pod] = sb
	f.macs[pod] = f.mac("ip netns exec " + f.ns(pod) + " cat /sys/class/net/net1/address")
}

func (f *forger) mac(script string) net.HardwareAddr {
	f.lane.t.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(f.run(script)))
	if err != nil {
		f.lane.t.Fatal(err)
	}
	return mac
}

func (f *forger) ns(pod string) string { return filepath.Base(f.pods[pod].Netns) }

// reach has one pod ping another one, in both families.
func (f *forger) reach(from, to string) {
	f.lane.t.Helper()
	for _, ip := range forgedIPs[to] {
		eventually.Succeeds(f.lane.t, patience, "the pods reach one another", func() error {
			out, err := f.try(fmt.Sprintf("ip netns exec %s ping -c 1 -W 2 %s", f.ns(from), ip))
			if err != nil {
				return fmt.Errorf("%s does not reach %s: %s", from, to, out)
			}
			return nil
		})
	}
}

// counted are rules of c that count redirects.
const counted = "flush ruleset; table inet seen { chain c { type filter hook input priority -300; icmpv6 type nd-redirect counter; icmp type redirect counter; }; }"

// view returns the wrong entries in the neighbor table of c, and the wrong port to which the bridge forwards frames for b.
func (f *forger) view() string {
	f.lane.t.Helper()
	script := fmt.Sprintf(`ip -n %[1]s neigh show dev net1; echo PART; bridge fdb show br forgebr | grep -i '^%[2]s ' | grep -v permanent || true
		echo PART; ip -n %[1]s -6 route show default proto ra; echo PART; ip netns exec %[1]s nft list table inet seen; echo PART; ls -d /sys/class/net/*/brport | cut -d/ -f5 | while read p; do echo $(cat /sys/class/net/$p/ifindex) $p; done
		echo PART; ip -n %[3]s -o link show dev net1 | sed 's/.*@if\([0-9]*\):.*/\1/'`, f.ns("c"), f.macs["b"], f.ns("a"))
	part := strings.Split(f.run(script), "PART\n")
	var out []string
	for line := range strings.Lines(part[0]) {
		words := strings.Fields(line)
		i := slices.Index(words, "lladdr")
		for _, of := range f.others() {
			local, _ := netstate.LinkLocal(f.macs[of].String())
			ip, err := netip.ParseAddr(words[0])
			if err == nil && i >= 0 && words[i+1] != f.macs[of].String() && (ip == forgedIPs[of][0] || ip == forgedIPs[of][1] || ip == local) {
				out = append(out, fmt.Sprintf("%s is at %s", ip, words[i+1]))
			}
		}
	}
	for line := range strings.Lines(part[4]) {
		if index, port, _ := strings.Cut(strings.TrimSpace(line), " "); index == strings.TrimSpace(part[5]) && strings.Contains(part[1], " "+port+" ") {
			out = append(out, "the bridge sends to b at the port of a")
		}
	}
	if strings.TrimSpace(part[2]) != "" {
		out = append(out, "another default route: "+strings.TrimSpace(part[2]))
	}
	if strings.Count(part[3], "packets 0") != 2 {
		out = append(out, "a redirect came")
	}
	return strings.Join(out, "; ")
}

// restore makes the view of c right again: all that it knows is forgotten, and asked for.
func (f *forger) restore() {
	f.lane.t.Helper()
	// Else nobody can see what an advertisement does.
	script := fmt.Sprintf("ip netns exec %[1]s sysctl -qw net.ipv6.conf.net1.accept_ra=2; ip -n %[1]s neigh flush dev net1; ip -n %[1]s -6 route flush proto ra; ip netns exec %[1]s nft '%[2]s'\n", f.ns("c"), counted)
	ping := func(from string, to netip.Addr, zone string) {
		script += fmt.Sprintf("ip netns exec %[1]s ping -q -c 1 -W 5 %[2]s%[3]s || ip netns exec %[1]s ping -q -c 1 -W 20 %[2]s%[3]s\n", f.ns(from), to, zone)
	}
	ping("b", forgedIPs["c"][0], "") // the bridge learns where b is
	for _, of := range f.others() {
		local, _ := netstate.LinkLocal(f.macs[of].String())
		ping("c", forgedIPs[of][0], "")
		ping("c", forgedIPs[of][1], "")
		ping("c", local, "%net1")
	}
	f.run(script)
}

// sent has a reach others, so that what it has sent before has come, too.
func (f *forger) sent() {
	f.lane.t.Helper()
	f.reach("a", "c")
	if !f.vlan {
		f.reach("a", "g")
	}
}

var everybody = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func arpFor(op byte, mac net.HardwareAddr, ip, to netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op}, mac, ip.AsSlice(), make([]byte, 6), to.AsSlice())
}

// icmpv6 is an IPv6 packet of neighbor discovery, with extension headers before it.
func icmpv6(from, to netip.Addr, body []byte, extension ...byte) []byte {
	sum := func(b []byte) (n uint32) {
		for i := 0; i < len(b); i += 2 {
			n += uint32(b[i])<<8 | uint32(b[i+1])
		}
		return n
	}
	n := sum(from.AsSlice()) + sum(to.AsSlice()) + uint32(len(body)) + unix.IPPROTO_ICMPV6 + sum(body)
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	binary.BigEndian.PutUint16(body[2:], ^uint16(n))
	next := byte(unix.IPPROTO_ICMPV6)
	if len(extension) > 0 {
		next = unix.IPPROTO_DSTOPTS
	}
	head := []byte{0x60, 0, 0, 0, 0, byte(len(extension) + len(body)), next, 255}
	return slices.Concat(head, from.AsSlice(), to.AsSlice(), extension, body)
}

// frames are the frames that a sends, each with its description. Each changes the view of c if nothing keeps it from that.
func (f *forger) frames() map[string]func() {
	a, b, g := f.macs["a"], f.macs["b"], f.macs["g"]
	arp := func(of netip.Addr) []byte { return arpFor(1, a, of, of) }
	nodes := netip.MustParseAddr("ff02::1")
	toNodes := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	aLocal, _ := netstate.LinkLocal(a.String())
	bLocal, _ := netstate.LinkLocal(b.String())
	v6 := func(packet []byte) { f.sender.frame(a, toNodes, unix.ETH_P_IPV6, packet) }
	na := func(of netip.Addr, extension ...byte) {
		v6(icmpv6(aLocal, nodes, slices.Concat([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, of.AsSlice(), []byte{2, 1}, a), extension...))
	}
	c4, c6 := forgedIPs["c"][0], forgedIPs["c"][1]
	ipv4 := func(proto byte, from, to netip.Addr, body []byte) []byte {
		head := slices.Concat([]byte{0x45, 0, 0, byte(20 + len(body)), 0, 0, 0, 0, 64, proto, 0, 0}, from.AsSlice(), to.AsSlice())
		n := uint32(0)
		for i := 0; i < len(head); i += 2 {
			n += uint32(head[i])<<8 | uint32(head[i+1])
		}
		binary.BigEndian.PutUint16(head[10:], ^uint16(n>>16+n&0xffff))
		return append(head, body...)
	}
	return map[string]func(){
		"a frame with the MAC of b":     func() { f.sender.frame(b, everybody, 0x88b5, []byte("forged")) },
		"a frame to a link-local group": func() { f.sender.frame(b, net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0xe}, 0x88cc, make([]byte, 2)) },
		"a request of ARP for b":        func() { f.sender.frame(a, everybody, unix.ETH_P_ARP, arp(forgedIPs["b"][0])) },
		"a reply of ARP for b": func() {
			f.sender.frame(a, f.macs["c"], unix.ETH_P_ARP, arpFor(2, a, forgedIPs["b"][0], forgedIPs["b"][0]))
		},
		"a request of ARP for the gateway": func() { f.sender.frame(a, everybody, unix.ETH_P_ARP, arp(forgedIPs["g"][0])) },
		"a request of ARP in VLAN 0": func() {
			f.sender.frame(a, everybody, unix.ETH_P_8021Q, slices.Concat([]byte{0, 0, 8, 6}, arp(forgedIPs["b"][0])))
		},
		"a request of ARP in VLAN 0 in VLAN 0": func() {
			f.sender.frame(a, everybody, unix.ETH_P_8021Q, slices.Concat([]byte{0, 0, 0x81, 0, 0, 0, 8, 6}, arp(forgedIPs["b"][0])))
		},
		"an advertisement in VLAN 0": func() {
			packet := icmpv6(aLocal, nodes, slices.Concat([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, forgedIPs["b"][1].AsSlice(), []byte{2, 1}, a))
			f.sender.frame(a, toNodes, unix.ETH_P_8021Q, append([]byte{0, 0, 0x86, 0xdd}, packet...))
		},
		"an advertisement of the address of b":       func() { na(forgedIPs["b"][1]) },
		"one with an extension header":               func() { na(forgedIPs["b"][1], unix.IPPROTO_ICMPV6, 0, 1, 4, 0, 0, 0, 0) },
		"an advertisement of b's link-local address": func() { na(bLocal) },
		"an advertisement of the gateway's":          func() { na(forgedIPs["g"][1]) },
		"a solicitation by the address of b": func() {
			v6(icmpv6(forgedIPs["b"][1], netip.AddrFrom16(solicited(c6)), slices.Concat([]byte{135, 0, 0, 0, 0, 0, 0, 0}, c6.AsSlice(), []byte{1, 1}, a)))
		},
		"a router advertisement": func() {
			v6(icmpv6(aLocal, nodes, slices.Concat([]byte{134, 0, 0, 0, 64, 8, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, []byte{1, 1}, a)))
		},
		"a redirect": func() {
			v6(icmpv6(aLocal, c6, slices.Concat([]byte{137, 0, 0, 0, 0, 0, 0, 0}, aLocal.AsSlice(), netip.MustParseAddr("2001:db8:f::1").AsSlice())))
		},
		"a redirect of IPv4": func() {
			body := append([]byte{5, 1, 0, 0, 192, 0, 2, 5}, ipv4(unix.IPPROTO_UDP, c4, netip.MustParseAddr("203.0.113.9"), make([]byte, 8))...)
			f.sender.frame(a, f.macs["c"], unix.ETH_P_IP, ipv4(unix.IPPROTO_ICMP, forgedIPs["g"][0], c4, body))
		},
		"a frame with the MAC of the gateway": func() {
			f.sender.frame(g, f.macs["c"], unix.ETH_P_ARP, arpFor(1, a, forgedIPs["b"][0], forgedIPs["b"][0]))
		},
	}
}

// sample are a third of the frames, in the long form all.
func (f *forger) sample() iter.Seq2[string, func()] {
	return func(yield func(string, func()) bool) {
		frames := f.frames()
		for _, what := range effort.Sample(f.lane.t, 3, slices.Sorted(maps.Keys(frames))) {
			if !yield(what, frames[what]) {
				return
			}
		}
	}
}

// solicited is the solicited-node multicast address (RFC 4291 section 2.7.1).
func solicited(a netip.Addr) [16]byte {
	b := a.As16()
	return [16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]}
}

// TestForgedFrames: what a pod of a bridge sends changes for no neighbor where an address or a MAC is, and who is its router. Each
// of the frames does so where the pod is not checked. Everybody reaches everybody, and the table ends with the last pod.
func TestForgedFrames(t *testing.T) {
	t.Run("not checked", func(t *testing.T) {
		f := newForger(t, ", macspoofchk: false, raGuard: false", false)
		defer f.end()
		f.run("ip link set forgebr type bridge no_linklocal_learn 0")
		for what, send := range f.sample() {
			if what == twoTags {
				continue // dropped from each port on a bridge of ours
			}
			f.restore()
			if before := f.view(); before != "" {
				t.Fatalf("before %s: %s", what, before)
			}
			eventually.Succeeds(t, patience, "the frame has an effect", func() error {
				send()
				if f.view() == "" {
					return fmt.Errorf("%s changes nothing, and tests nothing", what)
				}
				return nil
			})
		}
	})
	const inVLAN = "checked in a VLAN"
	for _, name := range effort.Sample(t, 2, []string{"checked", inVLAN}) {
		t.Run(name, func(t *testing.T) {
			f := newForger(t, "", name == inVLAN)
			for _, sb := range f.pods {
				if st, err := f.r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
					t.Fatalf("after the attachment: %v %+v", err, st)
				}
			}
			for what, send := range f.sample() {
				f.restore()
				send()
				f.sent()
				if now := f.view(); now != "" {
					t.Errorf("after %s: %s", what, now)
				}
			}
			f.restore()
			f.end()
		})
	}
}

// end releases the pods.
func (f *forger) end() {
	f.lane.t.Helper()
	for _, pod := range []string{"b", "a", "c"} {
		if _, err := f.r.AwaitRelease(ctxFor(f.lane.t), f.pods[pod].ID); err != nil {
			f.lane.t.Fatal(err)
		}
	}
	if left := f.run("nft list ruleset; ip -o link show type bridge"); !f.table && strings.Contains(left, guardTable) || strings.Contains(left, "forgebr") {
		f.lane.t.Errorf("left is\n%s", left)
	}
}

const guardTable = "plumbline-guard"

// twoTags is a frame that newer kernels accept as if it had no tag.
const twoTags = "a request of ARP in VLAN 0 in VLAN 0"

// TestGuardOfTwoTopologies: two topologies of one pod have a port each on one bridge. Others reach it at both, by the port that has the
// address, and the guard of one topology stays when the other one is released.
func TestGuardOfTwoTopologies(t *testing.T) {
	l, s := newLane(t), &foreignWriter{t: t}
	l.devices = []string{}
	r := l.engine(nil)
	path, other := newNetns(t), newNetns(t)
	attach := func(name, path, link string, n int) reconcile.Sandbox {
		sb := box(path, parse(t, name, fmt.Sprintf("    - {name: net, type: bridge, config: {bridge: twobr, ifName: %s, dad: \"off\", addresses: [192.0.%d.%d/24, \"2001:db8:%d::%d/64\"]}}\n", link, 2+n/10, n, n/10, n)))
		sb.ID = reconcile.SandboxID("two/" + name)
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
		return sb
	}
	boxes := []reconcile.Sandbox{attach("first", path, "one0", 5), attach("second", path, "two0", 15), attach("third", other, "one0", 6), attach("fourth", other, "two0", 16)}
	reach := func(addresses ...string) {
		t.Helper()
		for _, address := range addresses {
			eventually.Succeeds(t, patience, "the pod is reached", func() error {
				out, err := s.try("ip netns exec " + filepath.Base(other) + " ping -q -c 1 -W 2 " + address)
				if err != nil {
					return fmt.Errorf("%s: %s", address, out)
				}
				return nil
			})
		}
	}
	inSync := func(boxes []reconcile.Sandbox) {
		t.Helper()
		for _, sb := range boxes {
			if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
				t.Errorf("%s: %v %+v", sb.ID, err, st)
			}
		}
	}
	inSync(boxes)
	reach("192.0.2.5", "2001:db8:0::5", "192.0.3.15", "2001:db8:1::15")
	if _, err := r.AwaitRelease(ctxFor(t), boxes[0].ID); err != nil {
		t.Fatal(err)
	}
	inSync(boxes[1:])
	reach("192.0.3.15", "2001:db8:1::15")
	for _, sb := range boxes[1:] {
		if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
			t.Error(err)
		}
	}
	if left := s.run("nft list ruleset; ip -o link show type bridge"); strings.Contains(left, "twobr") {
		t.Errorf("left is\n%s", left)
	}
}
