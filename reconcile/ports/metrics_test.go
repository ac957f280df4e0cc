package ports_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// node is a node as a Monitor sees it: records and states of links. Tests with one run in
// a bubble of package synctest, whose clock stands still while any goroutine runs.
type node struct {
	*ports.Monitor

	mu      sync.Mutex
	records map[reconcile.SandboxID]reconcile.Record
	states  map[string]ports.State // by netns and link
	reads   int
	rdma    map[string]*ports.RDMAPort // by netns and link
	asked   int                        // for RDMA ports
	failing bool
	// readings of rules, by netns and rule.
	readings map[string]ports.Reading
	reports  chan ports.Report
}

func newNode() *node {
	n := &node{
		records: map[reconcile.SandboxID]reconcile.Record{}, states: map[string]ports.State{}, readings: map[string]ports.Reading{},
		reports: make(chan ports.Report, 1000),
	}
	n.Monitor = ports.New(ports.Options{
		Record: func(id reconcile.SandboxID) (reconcile.Record, bool, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			rec, ok := n.records[id]
			return rec, ok, nil
		},
		Read: func(_ context.Context, path string, _ reconcile.NetnsID, of []ports.Port) ([]ports.State, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.reads++
			if n.failing {
				return nil, errors.New("the kernel is busy")
			}
			var out []ports.State
			for _, p := range of {
				out = append(out, n.states[path+"/"+p.Name])
			}
			return out, nil
		},
		ReadRDMA: func(_ context.Context, path string, _ reconcile.NetnsID, of []ports.Port, states []ports.State) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.asked++
			for i, p := range of {
				states[i].RDMA = n.rdma[path+"/"+p.Name]
			}
		},
		SilentRDMA: func() int { return 2 },
		Pod: func(id reconcile.SandboxID) (ports.Pod, bool) {
			uid := id.Origin().ClaimUID
			pod, _, _ := strings.Cut(uid, "+") // "claim1+second" is the second claim of the pod of "claim1"
			return ports.Pod{Namespace: "default", Name: "pod-" + pod, Claim: uid}, true
		},
		Changed: func(r ports.Report) { n.reports <- r },
		Now:     time.Now,
	})
	return n
}

// inBubble runs a test with a node.
func inBubble(t *testing.T, f func(t *testing.T, n *node)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		ctx, cancel := context.WithCancel(t.Context())
		go n.Run(ctx)
		defer cancel()
		f(t, n)
	})
}

// pod adds a pod with a bond of two devices, and notifies the Monitor of it.
func (n *node) pod(sandbox, claim string) reconcile.SandboxID {
	id := reconcile.IDOfClaim(sandbox, claim, "ai")
	at := func(s string) *string { return &s }
	device := func(step, name string, index int) netstate.Change {
		return netstate.Change{
			Step: step, Before: netstate.Device{ID: "0000:03:10." + name[3:], At: at("host:x"), LinkKind: "device"},
			After: netstate.Device{ID: "0000:03:10." + name[3:], At: at(name), Index: index},
		}
	}
	n.mu.Lock()
	n.records[id] = reconcile.Record{
		Phase: reconcile.Applied,
		Sandbox: reconcile.Sandbox{
			ID: id, Netns: sandbox, Given: ops.Givens{"left": {Device: "0000:03:10.1"}, "right": {Device: "0000:03:10.2"}},
			Topology: &topology.Topology{Name: "ai", Steps: []topology.Step{{Name: "left"}, {Name: "right"}, {Name: "bond0", DependOn: []string{"left", "right"}}}},
		},
		History: []netstate.Change{
			device("left", "net1", 3), device("right", "net2", 4), {Step: "bond0", After: netstate.Link{Name: "bond0", LinkKind: "bond", Index: 5}},
		},
	}
	n.mu.Unlock()
	for i, name := range []string{"bond0", "net1", "net2"} {
		n.set(sandbox, name, ports.State{Found: true, Up: true, Carrier: true, Counters: ports.Counters{
			ReceivedBytes: 100 + uint64(i), SentBytes: 200, ReceivedPackets: 3, SentPackets: 4, ReceiveErrors: 5, SendErrors: 6, ReceiveDropped: 7, SendDropped: 8,
		}})
	}
	n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerEnsure})
	return id
}

func (n *node) set(netns, link string, s ports.State) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.states[netns+"/"+link] = s
}

// report receives the next report.
func (n *node) report(t *testing.T) ports.Report {
	t.Helper()
	select {
	case r := <-n.reports:
		return r
	case <-time.After(time.Hour):
		t.Fatal("no report within an hour")
		return ports.Report{}
	}
}

func TestExposition(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		id := n.pod("ns1", "one")
		n.report(t)
		n.set("ns1", "net1", ports.State{Found: true, Up: true})
		n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerCheck})
		if r := n.report(t); r.Outcome.Topology != ports.Degraded {
			t.Errorf("%+v", r)
		}
		n.gives(t, id, map[string]string{"left": "mlx5_3"})
		n.rule(id, "ai/storage[1]", 20000)
		n.count("ns1", "ai/storage[1]", 3, of{keys{Pref: 20000, Handle: 1}: count{Packets: 10, Bytes: 1000}})
		time.Sleep(time.Minute)
		fabric := n.fabricMetrics(100, func(string, []string) map[string]map[string]uint64 {
			return map[string]map[string]uint64{"net1": {"rx_prio3_pause": 1, "tx_prio3_pause": 2, "rx_prio3_marked": 3, "rx_discards_phy": 4}}
		})
		metricstest.Golden(t, *update, &ports.Metrics{Monitor: n.Monitor, Interfaces: 100}, n.ruleMetrics(100), n.rdmaMetrics(100, rdmaFiles), fabric)
	})
}

// TestCardinality fills a node: the number of series is bounded, and what is left out
// is counted.
func TestCardinality(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		for i := range 50 {
			n.pod(fmt.Sprint("ns", i), fmt.Sprint("claim", i))
		}
		for range 50 {
			n.report(t)
		}
		for _, tt := range []struct{ most, want, omitted int }{{0, 0, 0}, {1, 1, 149}, {100, 100, 50}, {150, 150, 0}, {1000, 150, 0}} {
			got := metricstest.Exposition(t, &ports.Metrics{Monitor: n.Monitor, Interfaces: tt.most})
			if have := strings.Count(got, "\nplumbline_interface_receive_bytes_total{"); have != tt.want {
				t.Errorf("at most %d: %d series, want %d", tt.most, have, tt.want)
			}
			if tt.most > 0 && !strings.Contains(got, fmt.Sprintf("plumbline_interfaces_omitted %d\n", tt.omitted)) {
				t.Errorf("at most %d: want %d omitted", tt.most, tt.omitted)
			}
			if tt.most == 0 && strings.Contains(got, "default") {
				t.Error("switched off, and a namespace is named")
			}
		}
	})
}

// TestOnePodTwoSandboxes is a pod whose sandbox was recreated while the old one is still
// being stopped: a series that is sent twice would make the whole scrape fail.
func TestOnePodTwoSandboxes(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.pod("old", "one")
		n.pod("new", "one")
		n.report(t)
		n.report(t)
		n.set("new", "net1", ports.State{Found: true, Counters: ports.Counters{ReceivedBytes: 7}})
		got := metricstest.Exposition(t, &ports.Metrics{Monitor: n.Monitor, Interfaces: 100})
		if want := `plumbline_interface_receive_bytes_total{claim="one",interface="net1",namespace="default",pod="pod-one",step="left",topology="ai"} 7` + "\n"; !strings.Contains(got, want) {
			t.Errorf("not the new sandbox's:\n%s", got)
		}
	})
}

// TestOnePodTwoClaims: a pod that has a topology by two claims has the counters of both.
func TestOnePodTwoClaims(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		for i, claim := range []string{"one", "one+second"} {
			n.pod(fmt.Sprint("ns", i), claim)
			n.report(t)
		}
		fabric := n.fabricMetrics(100, func(string, []string) map[string]map[string]uint64 {
			return map[string]map[string]uint64{"net1": {"rx_discards_phy": 4}}
		})
		got := metricstest.Exposition(t, &ports.Metrics{Monitor: n.Monitor, Interfaces: 100}, fabric)
		for _, metric := range []string{"plumbline_interface_receive_bytes_total", "plumbline_fabric_discards_total"} {
			for _, claim := range []string{"one", "one+second"} {
				series := metric + `{claim="` + claim + `",interface="net1",namespace="default",pod="pod-one",step="left",topology="ai"} `
				if !strings.Contains(got, "\n"+series) {
					t.Errorf("no series %s:\n%s", series, got)
				}
			}
		}
	})
}

// TestScrapeIsBounded: frequent scrapes do not read the kernel more often, and
// what cannot be read has the values of before.
func TestScrapeIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		n.pod("ns1", "one")
		n.report(t)
		m := &ports.Metrics{Monitor: n.Monitor, Interfaces: 100}
		first := metricstest.Exposition(t, m)
		n.mu.Lock()
		before := n.reads
		n.mu.Unlock()
		for range 100 {
			metricstest.Exposition(t, m)
		}
		n.mu.Lock()
		if n.reads != before {
			t.Errorf("%d reads for 100 scrapes at one time", n.reads-before)
		}
		n.failing = true
		n.mu.Unlock()
		time.Sleep(time.Hour)
		if diff := cmp.Diff(first, metricstest.Exposition(t, m)); diff != "" {
			t.Errorf("after a read that failed:\n%s", diff)
		}
	})
}

// TestRDMADown: a device whose RDMA port is not active is down. A scrape does not ask for that: its
// time is for the counters, and drivers may answer late.
func TestRDMADown(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		id := n.pod("ns1", "one")
		n.report(t)
		n.mu.Lock()
		n.rdma = map[string]*ports.RDMAPort{"ns1/net1": {}, "ns1/net2": {Active: true}}
		n.mu.Unlock()
		n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerCheck})
		want := []ports.Verdict{{Status: ports.Up, Reason: ports.Carrier}, {Status: ports.Down, Reason: ports.RDMADown}, {Status: ports.Up, Reason: ports.Carrier}}
		if r := n.report(t); !slices.Equal(r.Verdicts, want) {
			t.Errorf("%+v, want %+v", r.Verdicts, want)
		}
		n.mu.Lock()
		before, reads := n.asked, n.reads
		n.mu.Unlock()
		metricstest.Exposition(t, &ports.Metrics{Monitor: n.Monitor, Interfaces: 100})
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.asked != before || n.reads != reads+1 {
			t.Errorf("a scrape asked %d times for RDMA ports, and read %d times", n.asked-before, n.reads-reads)
		}
	})
}

// TestFlood is a pod that changes its link all the time: each notification causes a
// pass, and passes cause neither reads nor reports without bound.
func TestFlood(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		id := n.pod("ns1", "one")
		n.report(t)
		changes := uint32(0)
		for range 600 {
			for range 20 { // more the loop does not do
				changes += 50
				n.set("ns1", "net1", ports.State{Found: true, Up: true, Carrier: changes%100 == 0, CarrierChanges: changes})
				time.Sleep(50 * time.Millisecond)
				n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerRepair})
			}
		}
		n.mu.Lock()
		// One read a second, and one more for a notification during a read, which may be
		// older than the change.
		if n.reads > 2*600+10 {
			t.Errorf("%d reads in 600 seconds", n.reads)
		}
		n.mu.Unlock()
		if len(n.reports) > 2 {
			t.Errorf("%d reports of a port that flaps", len(n.reports))
		}
	})
}

func TestForget(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		id := n.pod("ns1", "one")
		n.report(t)
		n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerRelease})
		if r := n.report(t); !r.Gone || r.Sandbox != id {
			t.Errorf("%+v", r)
		}
		if got := metricstest.Exposition(t, &ports.Metrics{Monitor: n.Monitor, Interfaces: 100}); strings.Contains(got, "pod-one") {
			t.Errorf("still there:\n%s", got)
		}
	})
}

// TestReplacedLinks are pods that delete a link all the time, which is recreated with another
// index and is a new port each time. They do not use up the reports of another pod.
func TestReplacedLinks(t *testing.T) {
	inBubble(t, func(t *testing.T, n *node) {
		const hostile, seconds = 20, 600
		var ids []reconcile.SandboxID
		for i := range hostile {
			ids = append(ids, n.pod(fmt.Sprint("ns", i), fmt.Sprint("hostile", i)))
		}
		victim := n.pod("victim", "victim")
		reports := map[reconcile.SandboxID]int{}
		var lost, seen time.Time
		for second := range seconds {
			n.mu.Lock()
			for _, id := range ids {
				rec := n.records[id]
				rec.History = append(slices.Clone(rec.History[:2]), netstate.Change{Step: "bond0", After: netstate.Link{Name: "bond0", LinkKind: "bond", Index: 6 + second}})
				n.records[id] = rec
			}
			n.mu.Unlock()
			for _, id := range ids {
				n.Pass(reconcile.Pass{Sandbox: id, Trigger: reconcile.TriggerRepair})
			}
			if second == seconds/2 {
				lost = time.Now()
				n.set("victim", "net1", ports.State{Found: true, Up: true})
				n.Pass(reconcile.Pass{Sandbox: victim, Trigger: reconcile.TriggerCheck})
			}
			time.Sleep(time.Second)
			for len(n.reports) > 0 {
				r := <-n.reports
				reports[r.Sandbox]++
				if r.Sandbox == victim && r.Outcome.Topology == ports.Degraded {
					seen = time.Now()
				}
			}
		}
		for _, id := range ids {
			if reports[id] < seconds/10 || reports[id] > seconds/10+11 {
				t.Errorf("%d reports of %s in %d seconds", reports[id], id, seconds)
			}
		}
		if took := seen.Sub(lost); seen.IsZero() || took > 5*time.Second {
			t.Errorf("the other pod's failure was reported after %v", took)
		}
	})
}
