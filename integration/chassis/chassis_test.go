package chassis_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/qostest"
)

// The logical switch, and the port of the pod whose packets are marked.
var port = netstate.LogicalPort{Switch: new("sw0"), Name: "ai_source"}

// bench is a pod that sends, source, and one that receives, server, on one logical switch.
type bench struct {
	*testing.T
	chassis        *chassis.Chassis
	port           netstate.LogicalPort // of the source
	source, server *traffic.Pod
	sender         *traffic.Sender
	receiver       *traffic.Receiver
	sent           *uint32
}

// start starts OVN, without pods.
func start(t *testing.T) *bench {
	t.Helper()
	if os.Getenv("PLUMBLINE_BENCH") == "" {
		t.Skip("needs the programs of OVN: make test-ovn")
	}
	b := &bench{T: t, port: port, sent: new(uint32)}
	var err error
	b.chassis, err = chassis.Start(t.Context(), t.TempDir())
	b.ok(err)
	t.Cleanup(func() {
		if err := b.chassis.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := start(t)
	b.run("ovn-nbctl", "ls-add", *port.Switch)
	b.source, b.server = b.pod("source", 2), b.pod("server", 77)
	b.ok(b.source.SendTo(t.Context(), "eth0", b.server.MAC))
	var err error
	b.sender = traffic.NewSender(b.source.Netns, b.sent)
	t.Cleanup(b.sender.Close)
	b.receiver, err = traffic.NewReceiver(b.server.Netns)
	b.ok(err)
	t.Cleanup(func() { b.receiver.Close() })
	b.ok(b.chassis.Sync(t.Context()))
	return b
}

// in is the bench in a part of a test.
func (b *bench) in(t *testing.T) *bench {
	out := *b
	out.T = t
	return &out
}

func (b *bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) run(program string, arguments ...string) string {
	b.Helper()
	out, err := b.chassis.Run(b.Context(), program, arguments...)
	b.ok(err)
	return out
}

// pod makes a pod, and plugs it in the switch.
func (b *bench) pod(name string, host uint8) *traffic.Pod {
	b.Helper()
	p, err := traffic.NewPod(b.Context(), name, host)
	b.ok(err)
	b.Cleanup(func() {
		if err := p.Close(); err != nil {
			b.Error(err)
		}
	})
	b.run("ovn-nbctl", "lsp-add", *port.Switch, "ai_"+name, "--", "lsp-set-addresses", "ai_"+name, fmt.Sprintf("%s %s %s", p.MAC, p.IPv4, p.IPv6))
	b.ok(b.chassis.Plug(b.Context(), "ai_"+name, name))
	return p
}

// decide says which rule decides about a packet, nil for none.
type decide func(qos.Packet) *qos.Rule

// enforce writes the rules that objects have for the source, and waits until they decide.
func (b *bench) enforce(objects string) decide {
	b.Helper()
	c := qos.NewCompiler()
	c.SetNamespace("ai", map[string]string{"team": "ai"})
	for _, p := range []struct{ name, four, six string }{{"source", b.source.IPv4, b.source.IPv6}, {"server", b.server.IPv4, b.server.IPv6}} {
		pod := &qos.Pod{Labels: map[string]string{"app": p.name}, Attachments: []qos.Attachment{{
			Network:   qos.Network{NetworkID: qos.NetworkID{Kind: qos.DefaultNetwork}, Primary: true},
			Addresses: []netip.Addr{netip.MustParseAddr(p.four), netip.MustParseAddr(p.six)},
		}}}
		pod.Key.Namespace, pod.Key.Name = "ai", p.name
		c.SetPod(pod)
	}
	decoded, err := qostest.Objects([]byte(objects))
	b.ok(err)
	for _, o := range decoded {
		p := qos.New(o)
		b.ok(p.Err)
		c.SetPolicy(p)
	}
	source := qos.Pod{}.Key
	source.Namespace, source.Name = "ai", "source"
	rules := c.Rules(source)[0]
	if len(rules) == 0 {
		b.Fatal("no rule")
	}
	b.apply(rules, c.Members)
	return func(p qos.Packet) *qos.Rule {
		i := slices.IndexFunc(rules, func(r qos.Rule) bool { return qostest.Matches(&r, p, c.Members) })
		if i < 0 {
			return nil
		}
		return &rules[i]
	}
}

// apply writes rows for the rules of the source, without the engine, and waits until they decide.
func (b *bench) apply(rules []qos.Rule, members func(qos.SetID) []netip.Addr) {
	b.Helper()
	rows, err := ovn.Objects(rules, members)
	b.ok(err)
	for i := range rows {
		rows[i] = rows[i].Of(b.port, "")
	}
	b.ok(b.chassis.SetRules(b.Context(), *b.port.Switch, rows))
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
  egress: [%s]
`, name, priority, strings.Join(rules, ", "))
}

// send sends a packet that has to leave.
func (b *bench) send(s *traffic.Sender, p qos.Packet, ecn, size int) uint32 {
	b.Helper()
	n, err := s.Send(p, ecn, size)
	b.ok(err)
	return n
}

// await returns what arrives until each of these packets has. They need not arrive in order: the
// first packet of a flow goes through ovs-vswitchd.
func (b *bench) await(r *traffic.Receiver, numbers ...uint32) map[uint32]traffic.Received {
	b.Helper()
	out := map[uint32]traffic.Received{}
	for {
		missing := slices.DeleteFunc(slices.Clone(numbers), func(n uint32) bool { _, ok := out[n]; return ok })
		if len(missing) == 0 {
			return out
		}
		p, err := r.Next(20 * time.Second)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			b.Fatalf("%d of %d packets do not arrive, the first is %d of %d sent", len(missing), len(numbers), missing[0], *b.sent)
		}
		b.ok(err)
		out[p.Number] = p
	}
}

// packets have every destination, protocol and port that the rules of the tests match, and others.
func packets() (out []qos.Packet) {
	for _, to := range []string{"192.0.2.77", "198.51.100.7", "198.51.100.8", "203.0.113.9", "2001:db8::77", "2001:db8:1::7", "2001:db8:1::8", "2001:db8:2::9"} {
		for _, protocol := range []qos.Protocol{qos.TCP, qos.UDP, qos.SCTP, 253} {
			for _, port := range []uint16{80, 443} {
				out = append(out, traffic.Packet(to, protocol, port))
			}
		}
	}
	return out
}

// marks sends these packets, with all ECN bits in turn, and says how many are marked: each is as
// the rules say, or not at all without rules, and keeps its ECN bits.
func (b *bench) marks(s *traffic.Sender, r *traffic.Receiver, list []qos.Packet, decide decide) (marked int) {
	b.Helper()
	want := map[uint32]uint8{}
	of := map[uint32]qos.Packet{}
	var numbers []uint32
	for i, p := range list {
		class := uint8(i % 4)
		n := b.send(s, p, i%4, 64)
		if decide != nil {
			if r := decide(p); r != nil {
				class |= r.DSCP << 2
				marked++
			}
		}
		want[n], of[n] = class, p
		numbers = append(numbers, n)
	}
	got := b.await(r, numbers...)
	for _, n := range numbers {
		if got[n].Class != want[n] {
			b.Errorf("%+v: traffic class %#x, want %#x", of[n], got[n].Class, want[n])
		}
	}
	return marked
}

// TestMarks: packets from one pod to another are marked as the rules say, and keep their ECN bits.
// A change decides about the next packet, and so does the end of the rules.
func TestMarks(t *testing.T) {
	b := newBench(t)
	for _, tt := range []struct{ name, objects string }{
		{"everything", object("a", 1, "{dscp: 46}")},
		{"addresses", object("a", 1, "{dscp: 10, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8:1::/48'}}]}}")},
		{"hosts", object("a", 1, "{dscp: 11, classifier: {to: [{ipBlock: {cidr: 198.51.100.7/32}}, {ipBlock: {cidr: '2001:db8:1::7/128'}}]}}")},
		{"exceptions", object("a", 1, "{dscp: 12, classifier: {to: [{ipBlock: {cidr: 0.0.0.0/0, except: [198.51.100.7/32, 203.0.113.0/24]}}, {ipBlock: {cidr: '::/0', except: ['2001:db8:1::7/128']}}]}}")},
		{"pods", object("a", 1, "{dscp: 13, classifier: {to: [{podSelector: {matchLabels: {app: server}}}]}}")},
		{"protocol", object("a", 1, "{dscp: 15, classifier: {ports: [{protocol: TCP}]}}")},
		{"protocol and port", object("a", 1, "{dscp: 16, classifier: {ports: [{protocol: UDP, port: 80}, {protocol: SCTP, port: 443}]}}")},
		{"pods, protocol", object("a", 1, "{dscp: 17, classifier: {to: [{podSelector: {}}], ports: [{protocol: SCTP}, {protocol: TCP, port: 443}]}}")},
		{"later rule wins", object("a", 1, "{dscp: 18}", "{dscp: 19, classifier: {to: [{ipBlock: {cidr: 198.51.0.0/16}}, {ipBlock: {cidr: '2001:db8:1::/64'}}]}}", "{dscp: 63, classifier: {to: [{ipBlock: {cidr: 198.51.100.7/32}}]}}")},
		{"priority wins", object("a", 7, "{dscp: 20, classifier: {ports: [{protocol: TCP}]}}") + object("b", 6, "{dscp: 21}", "{dscp: 22, classifier: {ports: [{protocol: TCP, port: 80}]}}")},
		{"mark of 0", object("a", 7, "{dscp: 0, classifier: {ports: [{protocol: TCP}]}}") + object("b", 6, "{dscp: 21}")},
		{"tie", object("a", 7, "{dscp: 33, classifier: {ports: [{protocol: TCP}]}}") + object("b", 7, "{dscp: 34}")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := b.in(t)
			if b.marks(b.sender, b.receiver, packets(), b.enforce(tt.objects)) == 0 {
				t.Error("no rule decides about any packet")
			}
		})
	}
	b.apply(nil, nil)
	b.marks(b.sender, b.receiver, packets(), nil)
}

// TestLimits: what exceeds the burst and the rate is dropped, all packets of one rule share a
// bucket, a rule without a limit lifts that of those below it, and other packets pass.
func TestLimits(t *testing.T) {
	b := newBench(t)
	for _, tt := range []struct {
		name, objects string
		limited, free []string // destinations; the limited ones share a bucket
	}{
		{"IPv4", object("a", 1, "{dscp: 1, bandwidth: {rate: 1, burst: 24}, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}]}}"), []string{"198.51.100.7"}, []string{"203.0.113.9", "2001:db8:1::7"}},
		{"IPv6", object("a", 1, "{dscp: 1, bandwidth: {rate: 1, burst: 24}, classifier: {to: [{ipBlock: {cidr: '2001:db8:1::/48'}}]}}"), []string{"2001:db8:1::7"}, []string{"203.0.113.9", "2001:db8:2::7"}},
		{"together", object("a", 1, "{dscp: 1, bandwidth: {rate: 1, burst: 24}}"), []string{"198.51.100.7", "203.0.113.9", "2001:db8:1::7"}, nil},
		{"lifted", object("a", 2, "{dscp: 1, classifier: {to: [{ipBlock: {cidr: 203.0.113.0/24}}]}}") + object("b", 1, "{dscp: 2, bandwidth: {rate: 1, burst: 24}}"), []string{"198.51.100.7", "2001:db8:1::7"}, []string{"203.0.113.9"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := b.in(t)
			b.enforce(tt.objects)
			began := time.Now()
			limited := map[uint32]bool{}
			for range 5 {
				for _, to := range slices.Concat(tt.limited, tt.free) {
					limited[b.send(b.sender, traffic.Packet(to, qos.UDP, 9), 0, 1000)] = slices.Contains(tt.limited, to)
				}
			}
			elapsed := time.Since(began)
			b.apply(nil, nil) // for the packet that says that no other one comes
			got := b.await(b.receiver, b.send(b.sender, traffic.Packet(tt.limited[0], qos.UDP, 9), 0, 64))
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
	// docs/ovn.md says what Open vSwitch does without a burst.
	t.Run("burst not given", func(t *testing.T) {
		b := b.in(t)
		b.enforce(object("a", 1, "{dscp: 1, bandwidth: {rate: 1000}}"))
		p := traffic.Packet("198.51.100.7", qos.UDP, 9)
		began := time.Now()
		for range 60 {
			b.send(b.sender, p, 0, 8000)
		}
		elapsed := time.Since(began)
		b.apply(nil, nil)
		passed := len(b.await(b.receiver, b.send(b.sender, p, 0, 64))) - 1
		t.Logf("%d of 60 packets passed in %s", passed, elapsed)
		const length = 8000 + 20 + 14
		if least, most := 125_000/length, int(125_000*(1+elapsed.Seconds()))/length+1; passed < least || passed > most || passed == 60 {
			t.Errorf("%d packets passed, want %d to %d, which is one second of the rate", passed, least, most)
		}
	})
}

// TestFragments: no fragment of a datagram has a port for Open vSwitch, which sets it to 0 also in the first (the mode "normal" of
// ovs-ofctl(8), set-frags), and later ones of IPv6 have no protocol either. So they are decided and limited by the rule without.
// Filters of tc limit them by the rule with the port, too: TestFragments of reconcile/kernel.
func TestFragments(t *testing.T) {
	const strict = "bandwidth: {rate: 1, burst: 24}, " // two fragments of 1500 bytes
	const four, six = "198.51.100.7", "2001:db8:1::7"
	b := newBench(t)
	b.ok(b.source.IP(t.Context(), "link set eth0 mtu 1500")) // the other ends have 9000
	udp := func(more, port string) string {
		return "{dscp: 10, " + more + "classifier: {ports: [{protocol: UDP" + port + "}]}}"
	}
	for _, tt := range []struct {
		name, objects string
		first, later  map[string]uint8 // marks that differ from 5, by destination
		limited       bool
	}{
		{"a port", object("a", 1, "{dscp: 5}", udp("", ", port: 9")), nil, nil, false},
		{"a protocol", object("a", 1, "{dscp: 5}", udp("", "")), map[string]uint8{four: 10, six: 10}, map[string]uint8{four: 10}, false},
		{"a limit of a port", object("a", 1, "{dscp: 5}", udp(strict, ", port: 9")), nil, nil, false},
		{"a port without a limit", object("a", 1, "{dscp: 5, "+strict+"}", udp("", ", port: 9")), nil, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := b.in(t)
			b.enforce(tt.objects)
			for _, to := range []string{four, six} {
				const datagrams = 10 // of three fragments each
				for range datagrams {
					b.send(b.sender, traffic.Packet(to, qos.UDP, 9), 0, 4000)
				}
				b.apply(nil, nil) // for the packet that says that no other one comes
				first, later := b.fragments(b.send(b.sender, traffic.Packet(to, 253, 0), 0, 64))
				check := func(what string, got []uint8, marks map[string]uint8) {
					t.Helper()
					if want := cmp.Or(marks[to], 5); slices.ContainsFunc(got, func(is uint8) bool { return is != want }) {
						t.Errorf("%s fragments to %s are marked %v, want %d", what, to, got, want)
					}
				}
				check("first", first, tt.first)
				check("later", later, tt.later)
				if n := len(first) + len(later); n == 0 || tt.limited == (n == 3*datagrams) {
					t.Errorf("%d of %d fragments to %s pass, limited: %t", n, 3*datagrams, to, tt.limited)
				}
				b.enforce(tt.objects) // with full buckets
			}
		})
	}
}

// fragments returns the codepoints of first and of later fragments that arrive before a packet.
func (b *bench) fragments(end uint32) (first, later []uint8) {
	b.Helper()
	for {
		p, err := b.receiver.Next(20 * time.Second)
		b.ok(err)
		switch {
		case p.Number == end:
			return first, later
		case p.Later:
			later = append(later, p.Class>>2)
		case p.Fragment:
			first = append(first, p.Class>>2)
		}
	}
}

// TestExtensionHeaders: what a pod sends with extension headers of IPv6 is decided by the protocol and port after them.
func TestExtensionHeaders(t *testing.T) {
	b := newBench(t)
	extended := traffic.NewSender(b.source.Netns, b.sent)
	extended.Extended = true
	t.Cleanup(extended.Close)
	six := slices.DeleteFunc(packets(), func(p qos.Packet) bool { return p.Destination.Is4() })
	if b.marks(extended, b.receiver, six, b.enforce(object("a", 1, "{dscp: 5}", "{dscp: 10, classifier: {ports: [{protocol: UDP, port: 80}, {protocol: TCP}]}}"))) == 0 {
		t.Error("no rule decides about any packet")
	}
}
