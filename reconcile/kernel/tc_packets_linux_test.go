package kernel_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/tc"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// wired is a sandbox with d0, a veth whose peer is p0 of the host. All addresses are behind
// one neighbor.
type wired struct {
	*bench
	capture int    // a socket that receives what p0 does
	sent    uint32 // packets, each of which has its number
}

func newWired(t testing.TB) *wired {
	t.Helper()
	w := &wired{bench: newBench(t), capture: -1}
	hostNS := w.hostNS
	const neighbor = "02:00:00:00:00:99"
	w.create(up(netstate.Link{Name: "d0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("host:p0")}}))
	w.apply(netstate.Change{Before: netstate.Link{Name: "host:p0"}, After: netstate.Link{Name: "host:p0", Up: new(true)}})
	for _, n := range [][4]string{{"192.0.2.2/24", "192.0.2.1", "0.0.0.0/0", "192.0.2.77"}, {"2001:db8::2/64", "2001:db8::1", "::/0", "2001:db8::77"}} {
		w.create(
			netstate.Addr{Link: "d0", Address: n[0], NoDAD: new(strings.Contains(n[0], ":"))},
			netstate.Neighbor{Link: "d0", Address: n[1], MAC: new(neighbor)}, netstate.Neighbor{Link: "d0", Address: n[3], MAC: new(neighbor)},
			netstate.Route{Link: "d0", Dst: n[2], Gateway: n[1], Table: netstate.TableMain, Metric: 7},
		)
	}
	w.create(netstate.Clsact{Link: "d0"})
	err := kernel.Within(hostNS.path(), func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if w.capture, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		// A lost packet is a failure, not an endless wait.
		return unix.SetsockoptTimeval(w.capture, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(w.capture) })
	pinned(t)
	return w
}

// pinned keeps the test on one thread and one CPU: packets of one CPU arrive in order.
func pinned(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	})
}

// sender is a raw socket of the sandbox for one protocol.
func (w *wired) sender(p qos.Packet, ecn int) int {
	w.Helper()
	fd := -1
	err := kernel.Within(w.ns.path(), func() (err error) {
		family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TOS
		if p.Destination.Is6() {
			family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		}
		if fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(p.Protocol)); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, level, option, ecn)
	})
	if err != nil {
		w.Fatal(err)
	}
	return fd
}

// send sends a packet with so many bytes after its IP header, and returns its number.
func (w *wired) send(fd int, p qos.Packet, size int) uint32 {
	w.Helper()
	w.sent++
	b := make([]byte, max(size, 32))
	binary.BigEndian.PutUint16(b, 4000)
	binary.BigEndian.PutUint16(b[2:], p.Port)
	copy(b[20:], "plum")
	binary.BigEndian.PutUint32(b[24:], w.sent)
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(p.Destination.AsSlice()[:4])}
	if p.Destination.Is6() {
		to = &unix.SockaddrInet6{Addr: p.Destination.As16()}
	}
	// Of a packet that is dropped, IPv6 says so.
	if err := unix.Sendto(fd, b, 0, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
		w.Fatalf("send to %s: %v", p.Destination, err)
	}
	return w.sent
}

// one sends one packet.
func (w *wired) one(p qos.Packet, ecn int) uint32 {
	w.Helper()
	fd := w.sender(p, ecn)
	defer unix.Close(fd)
	return w.send(fd, p, 64)
}

// received returns the traffic class of each packet up to the one with a number.
func (w *wired) received(last uint32) map[uint32]uint8 {
	w.Helper()
	out := map[uint32]uint8{}
	b := make([]byte, 64<<10)
	for {
		n, from, err := unix.Recvfrom(w.capture, b, 0)
		if err != nil {
			w.Fatalf("packet %d does not arrive: %v", last, err)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING || n < 48 {
			continue
		}
		head, class := 20, b[1]
		if b[0]>>4 == 6 {
			head, class = 40, b[0]<<4|b[1]>>4
		} else if checksum(b[:20]) != 0 {
			w.Errorf("the checksum of the header is wrong: % x", b[:20])
		}
		p := b[head:n] // with extension headers of IPv6, if it has some
		if at := bytes.Index(p, []byte("plum")); at >= 20 && len(p) >= at+8 {
			number := binary.BigEndian.Uint32(p[at+4:])
			out[number] = class
			if number == last {
				return out
			}
		}
	}
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// enforce puts the rules of objects on d0, for a pod of namespace ai, and returns how they
// decide.
func (w *wired) enforce(objects string) (filters []netstate.Filter, decide func(qos.Packet) *qos.Rule) {
	w.Helper()
	decoded, err := qostest.Objects([]byte(objects))
	if err != nil {
		w.Fatal(err)
	}
	c := qos.NewCompiler()
	c.SetNamespace("ai", map[string]string{"team": "ai"})
	net := qos.Network{NetworkID: qos.NetworkID{Kind: qos.NetworkTopology, Name: "storage"}, Labels: map[string]string{"rail": "storage"}}
	for name, addresses := range map[string]string{"source": "192.0.2.2 2001:db8::2", "server": "192.0.2.77 2001:db8::77"} {
		pod := &qos.Pod{Labels: map[string]string{"app": name}, Attachments: []qos.Attachment{{Network: net}}}
		pod.Key.Namespace, pod.Key.Name = "ai", name
		for a := range strings.FieldsSeq(addresses) {
			pod.Attachments[0].Addresses = append(pod.Attachments[0].Addresses, netip.MustParseAddr(a))
		}
		c.SetPod(pod)
	}
	for _, o := range decoded {
		p := qos.New(o)
		if p.Err != nil {
			w.Fatal(p.Err)
		}
		c.SetPolicy(p)
	}
	source := qos.Pod{}.Key
	source.Namespace, source.Name = "ai", "source"
	rules := c.Rules(source)[0]
	compiled, err := tc.Compile(rules, c.Members)
	if err != nil || len(rules) == 0 {
		w.Fatalf("%d rules: %v", len(rules), err)
	}
	filters = compiled.Objects()
	for i := range filters {
		filters[i].Link = "d0"
		w.create(filters[i])
	}
	return filters, func(p qos.Packet) *qos.Rule {
		i := slices.IndexFunc(rules, func(r qos.Rule) bool { return qostest.Matches(&r, p, c.Members) })
		if i < 0 {
			return nil
		}
		return &rules[i]
	}
}

// object writes a NetworkQoS with these rules.
func object(name string, priority int, rules ...string) string {
	return fmt.Sprintf(`---
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: %s, namespace: ai}
spec:
  priority: %d
  podSelector: {matchLabels: {app: source}}
  networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}}]
  egress: [%s]
`, name, priority, strings.Join(rules, ", "))
}

// TestMarks: packets are marked as the rules say, for each case of the end-to-end tests of
// ovn-kubernetes and more, and their ECN bits are kept.
func TestMarks(t *testing.T) {
	w := newWired(t)
	for name, objects := range map[string]string{
		"everything":         object("a", 1, "{dscp: 46}"),
		"addresses":          object("a", 1, "{dscp: 10, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8:1::/48'}}]}}"),
		"hosts":              object("a", 1, "{dscp: 11, classifier: {to: [{ipBlock: {cidr: 198.51.100.7/32}}, {ipBlock: {cidr: '2001:db8:1::7/128'}}]}}"),
		"exceptions":         object("a", 1, "{dscp: 12, classifier: {to: [{ipBlock: {cidr: 0.0.0.0/0, except: [198.51.100.7/32, 203.0.113.0/24]}}, {ipBlock: {cidr: '::/0', except: ['2001:db8:1::7/128']}}]}}"),
		"pods":               object("a", 1, "{dscp: 13, classifier: {to: [{podSelector: {matchLabels: {app: server}}}]}}"),
		"pods of namespaces": object("a", 1, "{dscp: 14, classifier: {to: [{namespaceSelector: {matchLabels: {team: ai}}, podSelector: {}}]}}"),
		"protocol":           object("a", 1, "{dscp: 15, classifier: {ports: [{protocol: TCP}]}}"),
		"protocol and port":  object("a", 1, "{dscp: 16, classifier: {ports: [{protocol: UDP, port: 80}, {protocol: SCTP, port: 443}]}}"),
		"pods, protocol":     object("a", 1, "{dscp: 17, classifier: {to: [{podSelector: {}}], ports: [{protocol: SCTP}, {protocol: TCP, port: 443}]}}"),
		"later rule wins":    object("a", 1, "{dscp: 18}", "{dscp: 19, classifier: {to: [{ipBlock: {cidr: 198.51.0.0/16}}, {ipBlock: {cidr: '2001:db8:1::/64'}}]}}", "{dscp: 63, classifier: {to: [{ipBlock: {cidr: 198.51.100.7/32}}]}}"),
		"priority wins":      object("a", 7, "{dscp: 20, classifier: {ports: [{protocol: TCP}]}}") + object("b", 6, "{dscp: 21}", "{dscp: 22, classifier: {ports: [{protocol: TCP, port: 80}]}}"),
		"mark of 0":          object("a", 7, "{dscp: 0, classifier: {ports: [{protocol: TCP}]}}") + object("b", 6, "{dscp: 21}"),
		"tie":                object("a", 7, "{dscp: 33, classifier: {ports: [{protocol: TCP}]}}") + object("b", 7, "{dscp: 34}"),
	} {
		t.Run(name, func(t *testing.T) {
			w := &wired{bench: new(*w.bench), capture: w.capture, sent: w.sent}
			w.TB = t
			defer func(parent *uint32) { *parent = w.sent }(&w.sent)
			filters, decide := w.enforce(objects)
			type expected struct {
				qos.Packet
				class uint8
			}
			want := map[uint32]expected{}
			last, marked := uint32(0), 0
			for _, to := range []string{"192.0.2.77", "198.51.100.7", "198.51.100.8", "203.0.113.9", "2001:db8::77", "2001:db8:1::7", "2001:db8:1::8", "2001:db8:2::9"} {
				for i, protocol := range []qos.Protocol{qos.TCP, qos.UDP, qos.SCTP, 253} {
					for _, port := range []uint16{80, 443} {
						p, ecn := qos.Packet{Destination: netip.MustParseAddr(to), Protocol: protocol, Port: port}, i%4
						class := uint8(ecn)
						if r := decide(p); r != nil {
							class |= r.DSCP << 2
							marked++
						}
						last = w.one(p, ecn)
						want[last] = expected{p, class}
					}
				}
			}
			got := w.received(last)
			for number, e := range want {
				if class, ok := got[number]; !ok || class != e.class {
					t.Errorf("%+v: traffic class %#x (%v), want %#x", e.Packet, class, ok, e.class)
				}
			}
			if marked == 0 {
				t.Error("no rule decides about any packet")
			}
			for _, f := range filters {
				w.holds(f)
				w.remove(f)
			}
		})
	}
}

// TestExtensionHeaders: what a pod sends with extension headers of IPv6 is decided by the protocol and port after them.
func TestExtensionHeaders(t *testing.T) {
	w := newWired(t)
	filters, decide := w.enforce(object("a", 1, "{dscp: 5}", "{dscp: 10, classifier: {ports: [{protocol: UDP, port: 80}, {protocol: TCP}]}}"))
	for _, f := range filters {
		w.holds(f)
	}
	want := map[uint32]uint8{}
	for _, protocol := range []qos.Protocol{qos.TCP, qos.UDP, qos.SCTP} {
		for _, port := range []uint16{80, 443} {
			p := qos.Packet{Destination: netip.MustParseAddr("2001:db8:1::7"), Protocol: protocol, Port: port}
			fd := w.sender(p, 0)
			defer unix.Close(fd)
			if err := traffic.Extend(fd); err != nil {
				t.Fatal(err)
			}
			want[w.send(fd, p, 64)] = decide(p).DSCP << 2
		}
	}
	got := w.received(w.sent)
	for number, class := range want {
		if is, ok := got[number]; !ok || is != class {
			t.Errorf("packet %d has traffic class %#x (%t), want %#x", number, is, ok, class)
		}
	}
}

// TestStory: what a pod sends is marked as OKEP-4380 says of its objects, which are verbatim, and a limit is in the kernel.
func TestStory(t *testing.T) {
	chapters, err := qostest.Story("../../qos/testdata/okep-4380")
	if err != nil {
		t.Fatal(err)
	}
	w := newWired(t)
	for _, c := range chapters {
		compiled, err := tc.Compile(c.Rules, nil)
		if err != nil || len(c.Rules) != 1 || c.Rules[0].Precedence != c.Priority {
			t.Fatalf("%s: rules %v, %v", c.File, c.Rules, err)
		}
		filters := compiled.Objects()
		for i := range filters {
			f := &filters[i]
			f.Link = "d0"
			w.create(*f)
			w.holds(*f)
			if limit := uint64(c.RateKbit) * 125; limit != *f.Rate {
				t.Errorf("%s: filter to %s limits to %d bytes a second, want %d", c.File, *f.To, *f.Rate, limit)
			}
		}
		want, last := map[uint32]uint8{}, uint32(0)
		for marks, list := range map[uint8][]string{c.DSCP: c.Marked, 0: c.Unmarked} {
			for _, to := range list {
				for _, protocol := range []qos.Protocol{qos.TCP, qos.UDP} {
					last = w.one(qos.Packet{Destination: netip.MustParseAddr(to), Protocol: protocol, Port: 443}, 0)
					want[last] = marks << 2
				}
			}
		}
		got := w.received(last)
		for number, class := range want {
			if have, ok := got[number]; !ok || have != class {
				t.Errorf("%s: packet %d has traffic class %#x (%t), want %#x", c.File, number, have, ok, class)
			}
		}
		for _, f := range filters {
			w.remove(f)
		}
	}
}

// TestLimits: what exceeds the burst and the rate is dropped, filters of one rule share the
// bucket, a rule without a limit lifts that of those below it, and other packets pass.
func TestLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		objects string
		limited []string // destinations that share a bucket
		free    []string
	}{
		"IPv4":     {object("a", 1, "{dscp: 1, bandwidth: {rate: 1, burst: 24}, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}]}}"), []string{"198.51.100.7"}, []string{"203.0.113.9", "2001:db8:1::7"}},
		"IPv6":     {object("a", 1, "{dscp: 1, bandwidth: {rate: 1, burst: 24}, classifier: {to: [{ipBlock: {cidr: '2001:db8:1::/48'}}]}}"), []string{"2001:db8:1::7"}, []string{"203.0.113.9", "2001:db8:2::7"}},
		"pods":     {object("a", 1, "{dscp: 1, bandwidth: {rate: 1, burst: 24}, classifier: {to: [{podSelector: {}}]}}"), []string{"192.0.2.77", "2001:db8::77"}, []string{"203.0.113.9"}},
		"together": {object("a", 1, "{dscp: 1, bandwidth: {rate: 1, burst: 24}}"), []string{"198.51.100.7", "203.0.113.9", "2001:db8:1::7"}, nil},
		"lifted":   {object("a", 2, "{dscp: 1, classifier: {to: [{ipBlock: {cidr: 203.0.113.0/24}}]}}") + object("b", 1, "{dscp: 2, bandwidth: {rate: 1, burst: 24}}"), []string{"198.51.100.7", "2001:db8:1::7"}, []string{"203.0.113.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWired(t)
			w.enforce(tt.objects)
			began := time.Now()
			senders := map[string]int{}
			packet := func(to string) qos.Packet {
				return qos.Packet{Destination: netip.MustParseAddr(to), Protocol: qos.UDP, Port: 9}
			}
			limited := map[uint32]bool{}
			for range 5 {
				for _, to := range slices.Concat(tt.limited, tt.free) {
					if senders[to] == 0 {
						senders[to] = w.sender(packet(to), 0)
						defer unix.Close(senders[to])
					}
					n := w.send(senders[to], packet(to), 1000)
					limited[n] = slices.Contains(tt.limited, to)
				}
			}
			w.unlimit() // for the packet that says that no other one comes
			last := w.send(senders[tt.limited[0]], packet(tt.limited[0]), 64)
			elapsed := time.Since(began)
			got := w.received(last)
			passed := 0
			for n, is := range limited {
				_, ok := got[n]
				switch {
				case !is && !ok:
					t.Errorf("packet %d is not limited, and dropped", n)
				case is && ok:
					passed++
				}
			}
			// 24 kbit are two packets of 1000 bytes with their headers.
			if most := 2 + int(elapsed.Seconds()*125/1034) + 1; passed < 2 || passed > most || passed >= 5*len(tt.limited) {
				t.Errorf("%d packets of %d passed, want 2 to %d", passed, 5*len(tt.limited), most)
			}
		})
	}
}

// TestAroundFilters: what docs/qos.md says a pod can do against its filters. A packet socket,
// for which NET_RAW is enough, sends past the hook (dev_direct_xmit, net/core/dev.c), and a
// filter of the pod with a lower preference decides before ours.
func TestAroundFilters(t *testing.T) {
	w := newWired(t)
	w.enforce(object("a", 1, "{dscp: 46}"))
	fd := -1
	err := kernel.Within(w.ns.path(), func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	l, _ := w.observe().Link("d0")
	w.sent++
	b := make([]byte, 20+32) // as of sender, with an IPv4 header
	b[0], b[3], b[8], b[9] = 0x45, byte(len(b)), 64, 253
	copy(b[12:], []byte{192, 0, 2, 2, 192, 0, 2, 77})
	binary.BigEndian.PutUint16(b[10:], checksum(b[:20]))
	copy(b[40:], "plum")
	binary.BigEndian.PutUint32(b[44:], w.sent)
	around := w.sent
	to := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{8, 0}), Ifindex: l.Index, Halen: 6, Addr: [8]byte{2, 0, 0, 0, 0, 0x99}}
	if err := unix.Sendto(fd, b, 0, to); err != nil {
		t.Fatal(err)
	}
	p := qos.Packet{Destination: netip.MustParseAddr("192.0.2.77"), Protocol: qos.UDP, Port: 9}
	through := w.one(p, 0)
	w.as(func(h *netlink.Handle) error {
		return h.FilterAdd(&netlink.MatchAll{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Index, Parent: netlink.HANDLE_MIN_EGRESS, Priority: 1, Protocol: unix.ETH_P_ALL, Handle: 1},
			Actions:     []netlink.Action{&netlink.GenericAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_OK}}},
		})
	})
	before := w.one(p, 0)
	got := w.received(before)
	if want := map[uint32]uint8{around: 0, through: 46 << 2, before: 0}; !maps.Equal(got, want) {
		t.Errorf("traffic classes %v, want %v: packet %d past the hook, %d through our filters, %d after a filter of the pod", got, want, around, through, before)
	}
}

// unlimit removes all filters.
func (w *wired) unlimit() {
	w.Helper()
	have, err := w.Dump(w.ctx)
	if err != nil {
		w.Fatal(err)
	}
	for _, f := range netstate.All[netstate.Filter](have) {
		w.remove(f)
	}
}

// TestRate: what passes is within a tenth of the rule's rate. The policer and the test read one
// clock, and the sender sees of each packet whether it was dropped. It is measured between two
// moments at which the bucket is empty, and the bucket holds what a pause of the machine
// saves up. The higher rate needs a machine that can send so much.
func TestRate(t *testing.T) {
	for name, tt := range map[string]struct {
		bytesPerSecond uint64
		size           int
	}{"10 Mbit": {1_250_000, 1000}, "1 Gbit": {125_000_000, 60_000}} {
		t.Run(name, func(t *testing.T) {
			w := newWired(t)
			for _, end := range []string{"host:p0", "d0"} {
				w.apply(netstate.Change{Before: netstate.Link{Name: end}, After: netstate.Link{Name: end, MTU: new(uint32(65535))}})
			}
			w.create(limited(filter("ipv6", 20001), 1, tt.bytesPerSecond, 500_000_000/netstate.BurstUnit*netstate.BurstUnit))
			to := &unix.SockaddrInet6{Addr: netip.MustParseAddr("2001:db8:1::7").As16()}
			fd := w.sender(qos.Packet{Destination: netip.AddrFrom16(to.Addr), Protocol: qos.UDP}, 0)
			defer unix.Close(fd)
			packet := make([]byte, tt.size)
			length := float64(tt.size + 40 + 14) // with the headers that the policer counts
			passes := func() bool {
				err := unix.Sendto(fd, packet, 0, to)
				if err != nil && !errors.Is(err, unix.ENOBUFS) {
					t.Fatal(err)
				}
				return err == nil
			}
			for began := time.Now(); passes(); {
				if time.Since(began) > 5*time.Second {
					t.Logf("this machine sends less than %s/s", name)
					return
				}
			}
			var passed, offered float64
			var elapsed, pause time.Duration
			// It is measured again after a pause in which the bucket may have overflowed.
			for tries := 1; tries == 1 || pause > 400*time.Millisecond && tries <= 10; tries++ {
				passed, offered, elapsed, pause = 0, 0, 0, 0
				began := time.Now()
				for dropped := false; !dropped || elapsed < time.Second; {
					offered += length
					if dropped = !passes(); !dropped {
						passed += length
					}
					now := time.Since(began)
					elapsed, pause = now, max(pause, now-elapsed)
				}
			}
			want := float64(tt.bytesPerSecond) * elapsed.Seconds()
			if offered < want { // a queue was full, and not the bucket empty
				t.Logf("this machine sends less than %s/s: %.0f bytes in %s", name, offered, elapsed)
				return
			}
			t.Logf("%.2f Mbit/s in %s", passed*8e-6/elapsed.Seconds(), elapsed)
			if passed < 0.9*want || passed > 1.1*want {
				t.Errorf("%.0f bytes passed in %s, want %.0f", passed, elapsed, want)
			}
		})
	}
}
