package chassis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/chassis"
	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/openvswitch"
	"github.com/plumbline/plumbline/topology/fault"
)

// failover is within what time writes succeed after a leader was lost, with an election timer of one second,
// which is the default. docs/ovn.md says so.
const failover = 30 * time.Second

// raft is a Northbound database of three servers.
type raft struct {
	*testing.T
	*chassis.Raft
	all []int
}

func startRaft(t *testing.T) *raft {
	t.Helper()
	if os.Getenv("PLUMBLINE_BENCH") == "" {
		t.Skip("needs the programs of OVN: make test-ovn")
	}
	r, err := chassis.StartRaft(t.Context(), t.TempDir(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return &raft{t, r, []int{0, 1, 2}}
}

func (r *raft) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// in is the database in a part of a test.
func (r *raft) in(t *testing.T) *raft { return &raft{t, r.Raft, r.all} }

// without are the servers other than one.
func (r *raft) without(i int) []int {
	return slices.DeleteFunc(slices.Clone(r.all), func(o int) bool { return o == i })
}

// leader is one of these servers, once it is the leader.
func (r *raft) leader(of ...int) int {
	r.Helper()
	i, err := r.Leader(r.Context(), of...)
	r.ok(err)
	return i
}

// view is the database as the engine has it, at these servers or at all of them.
func (r *raft) view(timeout time.Duration, of ...int) reconcile.External {
	r.Helper()
	n, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: r.at(of...), Timeout: timeout})
	r.ok(err)
	r.Cleanup(n.Close)
	out, err := n.Domain().Open(r.Context(), reconcile.Sandbox{})
	r.ok(err)
	return out
}

func (r *raft) at(of ...int) (out []string) {
	endpoints := r.Endpoints()
	if len(of) == 0 {
		return endpoints
	}
	for _, i := range of {
		out = append(out, endpoints[i])
	}
	return out
}

// marking are the rules of a port on the switch "rules", as objects have them.
func (r *raft) marking(dscp uint8) []netstate.LogicalRule {
	r.Helper()
	written := object("a", 1, fmt.Sprintf("{dscp: %d}", dscp), "{dscp: 1, classifier: {ports: [{protocol: TCP}]}}")
	network := qos.Network{NetworkID: qos.NetworkID{Kind: qos.DefaultNetwork}, Primary: true}
	compiled, members, err := qostest.Compile([]byte(written), network, "ai", map[string]string{"app": "source"})
	r.ok(err)
	rules, err := ovn.Objects(compiled, members)
	r.ok(err)
	for i := range rules {
		rules[i] = rules[i].Of(netstate.LogicalPort{Name: "p", Switch: new("rules")}, "net1")
	}
	return rules
}

// mark writes rules.
func (r *raft) mark(in reconcile.External, rules []netstate.LogicalRule) error {
	for _, o := range rules {
		if err := in.Apply(r.Context(), netstate.Change{After: o}); err != nil {
			return err
		}
	}
	return nil
}

// marked reports whether rules are read as they are to be, and an error if they were not read.
func (r *raft) marked(in reconcile.External, rules []netstate.LogicalRule) (bool, error) {
	for _, o := range rules {
		if ok, err := present(r.Context(), in, o); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// nbctl reads the database at its leader.
func (r *raft) nbctl(arguments ...string) string {
	r.Helper()
	var out string
	r.ok(chassis.Eventually(r.Context(), "ovn-nbctl", func() (err error) {
		out, err = r.Member[0].Run(r.Context(), "ovn-nbctl", append([]string{"--db=" + strings.Join(r.Endpoints(), ","), "--timeout=20"}, arguments...)...)
		return err
	}))
	return out
}

// names are those of rows of a table, in order.
func (r *raft) names(table string) []string {
	r.Helper()
	return slices.Sorted(strings.FieldsSeq(r.nbctl("--bare", "--columns=name", "list", table)))
}

func raftPort(name string) netstate.LogicalPort {
	addresses := []string{"02:00:00:00:00:01 192.0.2.1"}
	return netstate.LogicalPort{
		Name: name, Switch: new("sw"), PhysicalNetwork: new("phys"), VLAN: new(uint16(7)), Addresses: addresses, PortSecurity: addresses, Holder: new("pod/t/blue"), Chassis: new("node-1"),
	}
}

// retried retries while the database is away, and returns for how long that was.
func retried(ctx context.Context, what string, f func() error) (away time.Duration, err error) {
	began := time.Now()
	var other error
	err = chassis.Eventually(ctx, what, func() error {
		err := f()
		if err == nil {
			return nil
		}
		if fault.Of(err) != fault.NotReady {
			other = fmt.Errorf("%s: %w", what, err)
			return nil
		}
		return err
	})
	if other != nil {
		err = other
	}
	return time.Since(began), err
}

// present reports whether an object is read as it is to be, and an error if it was not read.
func present(ctx context.Context, in reconcile.External, o netstate.Object) (bool, error) {
	s := netstate.NewSnapshot()
	if err := in.Extend(ctx, s, []netstate.Object{o}); err != nil {
		return false, err
	}
	have, ok := s.Get(o.Key())
	return ok && len(netstate.Diff(o, have)) == 0, nil
}

// TestRaft: a Northbound database of three servers, whose leader is lost in a series of changes. The next one
// continues within a stated time, and no row is doubled or lost. The knowledge of a minority is never
// taken for an empty database.
func TestRaft(t *testing.T) {
	r := startRaft(t)
	r.nbctl("ls-add", "rules", "--", "set", "Logical_Switch", "rules", "external_ids:dra.networking/owner=plumbline")
	var names []string
	r.part("the leader is killed while ports are added", func(r *raft) {
		names = r.series(func(in reconcile.External, p netstate.LogicalPort) error {
			return in.Apply(r.Context(), netstate.Change{After: p})
		}, nil)
	})
	r.part("nothing is lost or doubled", func(r *raft) {
		if got, want := r.names("Logical_Switch_Port"), slices.Sorted(slices.Values(append([]string{"sw:localnet"}, names...))); !slices.Equal(got, want) {
			r.Errorf("ports %q\nwant  %q", got, want)
		}
		if got := r.names("Logical_Switch"); !slices.Equal(got, []string{"rules", "sw"}) {
			r.Errorf("switches %q", got)
		}
		if got := strings.Fields(r.nbctl("--bare", "--columns=priority", "list", "QoS")); len(got) != 2 {
			r.Errorf("rows of rules have priorities %q, want two", got)
		}
	})
	r.part("the leader is isolated", (*raft).isolated)
	r.part("a minority is left", (*raft).minority)
	r.part("the leader is killed while ports are removed", func(r *raft) {
		r.series(func(in reconcile.External, p netstate.LogicalPort) error {
			return in.Apply(r.Context(), netstate.Change{Before: p})
		}, names)
		if got := r.names("Logical_Switch"); !slices.Equal(got, []string{"rules"}) {
			r.Errorf("switches %q", got)
		}
		if got := r.names("Logical_Switch_Port"); len(got) > 0 {
			r.Errorf("ports %q", got)
		}
	})
	r.part("connections leave nothing in the process", (*raft).reconnected)
	r.part("pods are attached while the leader is killed", (*raft).pods)
}

// reconnected: an agent connects again each time it has lost the leader. What a connection needed ends with it.
func (r *raft) reconnected() {
	connect := func() {
		n, err := openvswitch.NewNorthbound(openvswitch.Server{Endpoints: r.at()})
		r.ok(err)
		defer n.Close()
		in, err := n.Domain().Open(r.Context(), reconcile.Sandbox{})
		r.ok(err)
		_, err = retried(r.Context(), "read", func() error { _, err := present(r.Context(), in, raftPort("none")); return err })
		r.ok(err)
	}
	connect()
	const times = 20
	before := runtime.NumGoroutine()
	for range times {
		connect()
	}
	r.ok(chassis.Eventually(r.Context(), "connections end", func() error {
		if after := runtime.NumGoroutine(); after > before+times/2 {
			return fmt.Errorf("%d goroutines before %d connections, %d after them", before, times, after)
		}
		return nil
	}))
}

func (r *raft) part(name string, run func(*raft)) {
	r.Helper()
	if !r.Run(name, func(t *testing.T) { run(r.in(t)) }) {
		r.Logf("failed, and what follows may be a consequence: %s", name)
	}
}

// series changes ports from three nodes at the same time, and rules, while the leader is killed and started. The ports are
// those of given names, or new ones, as many as it takes until there is a leader again. It returns their names.
func (r *raft) series(change func(reconcile.External, netstate.LogicalPort) error, given []string) []string {
	const nodes = 3
	least := 4
	if effort.Long() {
		least = 40
	}
	begun, killed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	var names []string
	var longest time.Duration
	var writers sync.WaitGroup
	work := func(what string, f func() error) bool {
		away, err := retried(r.Context(), what, f)
		if err != nil {
			r.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		longest = max(longest, away)
		return err == nil
	}
	over := func(round int) bool {
		select {
		case <-killed:
			return round >= least
		default:
			return false
		}
	}
	for node := range nodes {
		in := r.view(0)
		mine := []string{}
		for i, name := range given {
			if i%nodes == node {
				mine = append(mine, name)
			}
		}
		writers.Go(func() {
			for round := 0; given != nil && round < len(mine) || given == nil && !over(round); round++ {
				if round == 2 {
					once.Do(func() { close(begun) })
				}
				name := fmt.Sprintf("port-%d-%d", node, round)
				if given != nil {
					name = mine[round]
				}
				if !work(name, func() error { return change(in, raftPort(name)) }) {
					once.Do(func() { close(begun) })
					return
				}
				mu.Lock()
				names = append(names, name)
				mu.Unlock()
			}
		})
	}
	rules := r.view(5 * time.Second)
	writers.Go(func() {
		for round := 0; !over(round); round++ {
			want := r.marking(uint8(round % 64))
			if !work("rules", func() error { return r.mark(rules, want) }) {
				return
			}
			if ok, err := r.marked(rules, want); err == nil && !ok {
				r.Error("rules were written, and are not read")
			}
		}
	})
	<-begun
	old := r.leader(r.all...)
	err := r.Member[old].Kill(chassis.Database)
	began := time.Now()
	if err == nil {
		_, err = r.Leader(r.Context(), r.without(old)...)
	}
	r.Logf("there is a leader after %s", time.Since(began))
	close(killed)
	writers.Wait()
	r.ok(err)
	r.Logf("%d ports; the longest that a change took is %s", len(names), longest)
	if longest > failover {
		r.Errorf("a change took %s, want %s at most", longest, failover)
	}
	r.ok(r.Member[old].Start(r.Context(), chassis.Database))
	return names
}

// isolated: the other servers have a leader, and the isolated one, which still answers its clients, changes nothing
// and does not say that there is nothing. What it was given meanwhile does not double what the others were given.
func (r *raft) isolated() {
	old := r.leader(r.all...)
	every, alone, patient := r.view(0), r.view(time.Second, old), r.view(time.Minute, old)
	before, after := raftPort("before"), raftPort("after")
	_, err := retried(r.Context(), "a port is added", func() error { return every.Apply(r.Context(), netstate.Change{After: before}) })
	r.ok(err)
	for _, in := range []reconcile.External{alone, patient} {
		var ok bool
		_, err := retried(r.Context(), "read from the leader", func() (err error) { ok, err = present(r.Context(), in, before); return err })
		if err != nil || !ok {
			r.Fatalf("read from the leader: %v %v", ok, err)
		}
	}
	rules := r.view(20 * time.Second)
	want, stale := r.marking(40), r.view(time.Minute, old)
	for _, o := range want {
		_, err = retried(r.Context(), "rules", func() error { return rules.Apply(r.Context(), netstate.Change{Before: o}) })
		r.ok(err)
	}
	var is bool
	_, err = retried(r.Context(), "read from the leader", func() (err error) { is, err = r.marked(stale, want); return err })
	if err != nil || is {
		r.Fatalf("read from the leader: %v %v", is, err)
	}
	r.ok(r.Isolate(r.Context(), old, true))
	// It does not know yet that it is isolated: these read what was there, and what they write waits.
	var late sync.WaitGroup
	late.Go(func() {
		if _, err := retried(r.Context(), "late port", func() error { return patient.Apply(r.Context(), netstate.Change{After: after}) }); err != nil {
			r.Error(err)
		}
	})
	late.Go(func() {
		if _, err := retried(r.Context(), "late rules", func() error { return r.mark(stale, want) }); err != nil {
			r.Error(err)
		}
	})
	// They return once the server is connected, so nothing ends the test before that.
	err = chassis.Eventually(r.Context(), "two changes wait at the isolated server", func() error {
		usage, err := r.Member[old].Appctl(r.Context(), chassis.Database, "memory/show")
		if err == nil && !strings.Contains(usage, "triggers:2") {
			err = fmt.Errorf("%s", usage)
		}
		return err
	})
	away, failed := retried(r.Context(), "a port is added", func() error { return every.Apply(r.Context(), netstate.Change{After: after}) })
	err = errors.Join(err, failed)
	r.Logf("the others work after %s", away)
	if away > failover {
		r.Errorf("a change took %s, want %s at most", away, failover)
	}
	if ok, err := present(r.Context(), every, after); err != nil || !ok {
		r.Errorf("read from the next leader: %v %v", ok, err)
	}
	_, failed = retried(r.Context(), "rules", func() error { return r.mark(rules, want) })
	err = errors.Join(err, failed)
	switch ok, err := present(r.Context(), alone, before); {
	case err != nil && fault.Of(err) != fault.NotReady:
		r.Errorf("of the isolated server: %v", err)
	case err == nil && !ok:
		r.Error("the isolated server is read as an empty database")
	default:
		r.Logf("read from the isolated server: %v %v", ok, err)
	}
	if err := alone.Apply(r.Context(), netstate.Change{After: after}); fault.Of(err) != fault.NotReady {
		r.Errorf("the isolated server has taken a change: %v", err)
	}
	r.ok(errors.Join(err, r.Isolate(r.Context(), old, false)))
	late.Wait()
	for _, p := range []netstate.LogicalPort{before, after} {
		if got := r.nbctl("--bare", "--columns=name", "find", "Logical_Switch_Port", "name="+p.Name); got != p.Name {
			r.Errorf("ports %q, want one %q", got, p.Name)
		}
	}
	if got := strings.Fields(r.nbctl("--bare", "--columns=priority", "list", "QoS")); len(got) != 2 {
		r.Errorf("rows of rules have priorities %q, want two", got)
	}
	if ok, err := r.marked(rules, want); err != nil || !ok {
		r.Errorf("rules are read: %v, %v", ok, err)
	}
	for _, p := range []netstate.LogicalPort{before, after} {
		_, err := retried(r.Context(), "removed", func() error { return every.Apply(r.Context(), netstate.Change{Before: p}) })
		r.ok(err)
	}
}

// minority: without a majority nothing is read or written, neither from the server that is left nor from one
// that has lost its file.
func (r *raft) minority() {
	every, port := r.view(0), raftPort("kept")
	_, err := retried(r.Context(), "a port is added", func() error { return every.Apply(r.Context(), netstate.Change{After: port}) })
	r.ok(err)
	left := r.leader(r.all...)
	gone := r.without(left)
	for _, i := range gone {
		r.ok(r.Member[i].Kill(chassis.Database))
	}
	away := func(what string, in reconcile.External, may bool) {
		r.Helper()
		switch ok, err := present(r.Context(), in, port); {
		case err == nil && may && ok:
		case fault.Of(err) != fault.NotReady:
			r.Errorf("%s: read %v, %v", what, ok, err)
		}
		for _, c := range []netstate.Change{{Before: port}, {After: raftPort("another")}} {
			if err := in.Apply(r.Context(), c); fault.Of(err) != fault.NotReady {
				r.Errorf("%s: %s: %v", what, c, err)
			}
		}
	}
	// It takes the server some seconds to see that it is alone.
	r.ok(chassis.Eventually(r.Context(), "no leader", func() error {
		if _, err := present(r.Context(), every, port); err == nil {
			return fmt.Errorf("server %d is still read", left)
		}
		return nil
	}))
	away("the list of servers", every, false)
	away("the server that is left", r.view(time.Second, left), true)
	r.ok(r.Forget(r.Context(), gone[0]))
	r.ok(r.Member[gone[0]].Start(r.Context(), chassis.Database))
	away("the list with a server that has lost its file", every, false)
	away("the server that has lost its file", r.view(time.Second, gone[0]), false)
	r.ok(r.Member[gone[0]].Kill(chassis.Database))
	r.ok(r.Member[gone[0]].Remember())
	for _, i := range gone {
		r.ok(r.Member[i].Start(r.Context(), chassis.Database))
	}
	r.leader(r.all...)
	r.ok(chassis.Eventually(r.Context(), "the port is read", func() error {
		ok, err := present(r.Context(), every, port)
		if err == nil && !ok {
			r.Error("the port is gone")
		}
		return err
	}))
	_, err = retried(r.Context(), "removed", func() error { return every.Apply(r.Context(), netstate.Change{Before: port}) })
	r.ok(err)
}

// pods attaches pods on a chassis whose Northbound database are the servers.
func (r *raft) pods() {
	c, err := chassis.Start(r.Context(), r.TempDir(), r.Endpoints()...)
	r.ok(err)
	r.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.Error(err)
		}
	})
	n := newWorkerOf(&bench{T: r.T, chassis: c}, kernel.Options{}, r.Endpoints(), c.Endpoint())
	var pods []reconcile.Sandbox
	for i := range 2 {
		s := n.sandbox(fmt.Sprintf("pod%d", i), fmt.Sprintf(`{topology: layer2, netAttachDefName: default/tenant-blue, addresses: [192.0.2.%d/24], dad: "off"}`, 10+i))
		pods = append(pods, s)
		old := -1
		if i == 1 {
			old = r.leader(r.all...)
			r.ok(r.Member[old].Kill(chassis.Database))
		}
		away, err := retried(r.Context(), "attached", func() error { _, err := n.engine.Ensure(r.Context(), s); return err })
		r.ok(err)
		r.Logf("pod %d is attached after %s", i, away)
		if old >= 0 {
			r.ok(r.Member[old].Start(r.Context(), chassis.Database))
		}
	}
	if got := r.names("Logical_Switch_Port"); len(got) != len(pods) {
		r.Errorf("ports %q", got)
	}
	n.reach(pods[0].Netns, pods[1].Netns, "192.0.2.11")
	for _, s := range pods {
		n.apply(s)
		n.release(s)
	}
	if got := r.names("Logical_Switch"); !slices.Equal(got, []string{"rules"}) {
		r.Errorf("switches %q", got)
	}
}
