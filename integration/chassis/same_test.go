package chassis_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/traffic"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology"
)

// rate sends packets of 8000 bytes faster than a limit for a while, and returns how many bytes pass
// in a second, with Ethernet headers. It is measured between two packets that are dropped, as the
// bucket is empty then. A packet to free, which nothing limits, says that no other one comes.
// It is measured again after a pause of the machine, in which the bucket overflows.
func (b *bench) rate(s *traffic.Sender, limited, free qos.Packet) float64 {
	b.Helper()
	for tries := 1; ; tries++ {
		bytesPerSecond, pause, err := b.measured(s, limited, free)
		if pause > 500*time.Millisecond && tries < 10 {
			b.Logf("nothing was sent for %s", pause)
			continue
		}
		b.ok(err)
		return bytesPerSecond
	}
}

// measured is one measurement, and the longest time between two packets.
func (b *bench) measured(s *traffic.Sender, limited, free qos.Packet) (bytesPerSecond float64, pause time.Duration, err error) {
	b.Helper()
	const size = 8000 // few of them are enough, on a slow machine
	header := 14 + 20
	if limited.Destination.Is6() {
		header += 20
	}
	type sent struct {
		number uint32
		at     time.Time
	}
	var list []sent
	// The first packet of a flow goes through ovs-vswitchd, which a flood would leave no time.
	b.await(b.receiver, b.send(s, limited, 0, 64))
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		at := time.Now()
		if len(list) > 0 {
			pause = max(pause, at.Sub(list[len(list)-1].at))
		}
		list = append(list, sent{b.send(s, limited, 0, size), at})
	}
	got := b.await(b.receiver, b.send(s, free, 0, 64))
	b.Logf("%d sent, %d passed", len(list), len(got))
	dropped := func(s sent) bool { _, ok := got[s.number]; return !ok }
	first := slices.IndexFunc(list, dropped)
	if first < 0 {
		return 0, pause, fmt.Errorf("none of %d packets to %s is dropped in 3 s", len(list), limited.Destination)
	}
	last := len(list) - 1
	for !dropped(list[last]) {
		last--
	}
	passed := 0
	for _, s := range list[first:last] {
		if !dropped(s) {
			passed += size + header
		}
	}
	elapsed := list[last].at.Sub(list[first].at)
	if elapsed < time.Second {
		return 0, pause, fmt.Errorf("packets to %s are dropped for %s of 3 s", limited.Destination, elapsed)
	}
	return float64(passed) / elapsed.Seconds(), pause, nil
}

// one is the object of TestSameObject: it covers the default network, which is one of OVN, and a
// topology.
const one = `apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: training, namespace: ai}
spec:
  priority: 10
  podSelector: {matchLabels: {app: training}}
  networkSelectors:
  - networkSelectionType: DefaultNetwork
  - networkSelectionType: NetworkTopologies
    networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}
  egress:
  - {dscp: 8, classifier: {to: [{ipBlock: {cidr: 198.51.0.0/16}}, {ipBlock: {cidr: '2001:db8:1::/48', except: ['2001:db8:1::8/128']}}]}}
  - {dscp: 46, classifier: {ports: [{protocol: TCP, port: 443}, {protocol: SCTP}]}}
  - {dscp: 26, bandwidth: {rate: 2000, burst: 2000}, classifier: {to: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: '2001:db8:2::/64'}}], ports: [{protocol: UDP}]}}
`

const storage = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: storage, labels: {rail: storage}}
spec:
  steps:
  - {name: d, type: bridge, config: {bridge: br-storage, mtu: 9000, addresses: [192.0.2.3/24, "2001:db8::3/64"]}}
`

// TestSameObject: one NetworkQoS covers two pods, of which one has an interface of a topology,
// where filters of tc enforce it, and the other a port of OVN. Both send the same packets to the
// same server, which receives the same marks, and the same rate of what is limited.
func TestSameObject(t *testing.T) {
	b := newBench(t)
	pod := enforce.Pod{Namespace: "ai", Labels: map[string]string{"app": "training"}}
	rules, members, err := qostest.Compile([]byte(one), qos.Network{NetworkID: qos.NetworkID{Kind: qos.DefaultNetwork}, Primary: true}, pod.Namespace, pod.Labels)
	b.ok(err)
	b.apply(rules, members)

	// As plumbline apply does.
	registry, err := all.Registry()
	b.ok(err)
	file, err := topology.Parse("", []byte(storage+"---\n"+one))
	b.ok(err)
	enforced, notes, err := enforce.Objects([]*topology.Manifest{file}, file, pod, registry)
	b.ok(err)
	filters := enforced.Filters
	if len(notes) > 0 || len(rules) != 3 || len(filters) == 0 {
		t.Fatalf("notes %q, %d rules, %d filters", notes, len(rules), len(filters))
	}
	filtered, err := traffic.Bare("filtered")
	b.ok(err)
	t.Cleanup(func() { filtered.Close() })
	sandbox := reconcile.Sandbox{ID: "filtered/storage", Netns: filtered.Netns, Rules: ops.Rules{Filters: filters}}
	sandbox.Topology, err = topology.Decode([]byte(storage))
	b.ok(err)
	b.ensure(sandbox)
	// The bridge of the host has a second port, in the namespace of the server.
	const mac = "02:00:00:00:00:4e"
	b.ok(traffic.IP(t.Context(), "link add wire mtu 9000 type veth peer name eth1 mtu 9000 netns server address "+mac+"\nlink set wire master br-storage up"))
	b.ok(b.server.IP(t.Context(), "link set eth1 up"))
	b.ok(filtered.SendTo(t.Context(), "net1", mac))
	sender := traffic.NewSender(filtered.Netns, b.sent)
	t.Cleanup(sender.Close)

	decide := func(p qos.Packet) *qos.Rule {
		if i := slices.IndexFunc(rules, func(r qos.Rule) bool { return qostest.Matches(&r, p, members) }); i >= 0 {
			return &rules[i]
		}
		return nil
	}
	list := slices.DeleteFunc(packets(), func(p qos.Packet) bool {
		return p.Destination == traffic.Packet("192.0.2.77", 0, 0).Destination || p.Destination == traffic.Packet("2001:db8::77", 0, 0).Destination
	})
	const limit = 2e6
	rates := map[string][]float64{} // by destination
	for name, s := range map[string]*traffic.Sender{"filters of tc": sender, "rows of OVN": b.sender} {
		t.Run(name, func(t *testing.T) {
			b := b.in(t)
			if n := b.marks(s, b.receiver, list, decide); n < 10 || n == len(list) {
				t.Errorf("%d packets of %d are marked", n, len(list))
			}
			for _, to := range []string{"203.0.113.9", "2001:db8:2::9"} {
				got := 8 * b.rate(s, traffic.Packet(to, qos.UDP, 9), traffic.Packet(to, 253, 0))
				t.Logf("to %s %.2f Mbit/s", to, got*1e-6)
				// A pause of the machine costs some of the rate.
				if got < 0.7*limit || got > 1.2*limit {
					t.Errorf("to %s %.0f bit/s pass, want %.0f", to, got, limit)
				}
				rates[to] = append(rates[to], got)
			}
		})
	}
	for to, of := range rates {
		if len(of) != 2 || math.Abs(of[0]-of[1]) > 0.1*limit {
			t.Errorf("to %s the backends let %.0f bit/s pass, want the same", to, of)
		}
	}
}

// ensure applies a sandbox by the engine, and releases it in the end.
func (b *bench) ensure(sandbox reconcile.Sandbox) {
	b.Helper()
	registry, err := all.Registry()
	b.ok(err)
	b.ok(topology.Validate(b.Context(), sandbox.Topology, registry))
	store, err := journal.Open(filepath.Join(b.TempDir(), "journal"))
	b.ok(err)
	host, err := kernel.Open(kernel.Options{})
	b.ok(err)
	b.Cleanup(func() { host.Close() })
	r := reconcile.New(reconcile.Options{Registry: registry, Store: store, BootID: host.BootID(), Open: func(path string) (reconcile.Domain, error) {
		if path == "" {
			return host.WithoutSandbox(), nil
		}
		return host.Sandbox(path)
	}})
	_, err = r.Ensure(b.Context(), sandbox)
	b.ok(err)
	// Addresses are tried on the link before they are used.
	b.ok(waitUsable(b, sandbox.Netns))
}

// waitUsable waits until no address is tentative.
func waitUsable(b *bench, path string) error {
	for {
		out := b.run("ip", "-n", filepath.Base(path), "-6", "addr", "show", "tentative")
		if out == "" {
			return nil
		}
		select {
		case <-b.Context().Done():
			return errors.Join(b.Context().Err(), os.ErrDeadlineExceeded)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
