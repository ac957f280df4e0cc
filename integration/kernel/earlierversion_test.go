package kernel

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestTopologyOfEarlierVersion: an earlier version applied a topology that this one
// refuses, though the kernel takes it: a VRF with the table main, an address on the
// loopback device, an MTU that the pod's uplink had already. In the running pod it
// is checked, repaired and released as ever, also by the next process; only a new
// sandbox and an edit are refused.
func TestTopologyOfEarlierVersion(t *testing.T) {
	const steps = `
    - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01", addresses: [192.0.2.1/24]}}
    - {name: v, type: vrf, dependOn: [d], config: {vrfname: blue, table: 254}}
    - {name: u, type: tuning, dependOn: [d], config: {dev: eth0, mtu: 1500}}
    - {name: l, type: tuning, dependOn: [d], config: {dev: lo, addresses: [198.51.100.1/32]}}
`
	l, path := newLane(t), newNetns(t)
	l.devices = []string{}
	s := &foreignWriter{t, strings.TrimPrefix(path, "/run/netns/"), ""}
	s.run("$ip link add eth0 type dummy; $ip link set eth0 up; $ip link set lo up")
	start := l.state(path)
	decode := func(steps string) *topology.Topology {
		top, err := topology.Decode([]byte(strings.Replace(header, "NAME", "t", 1) + steps))
		if err != nil {
			t.Fatal(err)
		}
		return top
	}
	sb := box(path, decode(steps))

	r := l.engine(nil)
	if _, err := r.Ensure(ctxFor(t), sb); fault.Of(err) != fault.Invalid {
		t.Fatalf("in a new sandbox: %v", err)
	}
	l.mustEqual(start, path, "after the refusal")

	l.recordApplied(sb)
	if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	applied := l.state(path)
	for _, round := range []string{"first process", "next process"} {
		r = l.engine(nil)
		l.inSync(r, sb.ID)
		s.run("$ip link delete d0; $ip address delete 198.51.100.1/32 dev lo")
		st, err := r.Check(ctxFor(t), sb.ID)
		if err != nil || st.State != reconcile.Drifted {
			t.Fatalf("%s: disturbed: %+v, %v", round, st, err)
		}
		if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
			t.Fatalf("%s: %v", round, err)
		}
		l.mustEqual(applied, path, round+": after the repair")
		l.inSync(r, sb.ID)
	}
	if rep, err := r.Ensure(ctxFor(t), sb); err != nil || !rep.Unchanged {
		t.Errorf("attached again: %+v, %v", rep, err)
	}
	edited := box(path, decode(steps+"    - {name: e, type: dummy, config: {name: e0}}\n"))
	if _, err := r.Ensure(ctxFor(t), edited); fault.Of(err) != fault.Invalid {
		t.Errorf("edited: %v", err)
	}
	l.mustEqual(applied, path, "after the edit was refused")
	if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(start, path, "after the release")

	// After a reboot the pod's sandbox is a new one, and its claim's record shows that it
	// had this topology.
	sb.AppliedBefore = true
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal("after a reboot:", err)
	}
	l.inSync(l.engine(nil), sb.ID)
	if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(start, path, "after the second release")
}

// recordApplied writes the record of a sandbox whose topology was applied, and of
// which everything has been lost since.
func (l *lane) recordApplied(sb reconcile.Sandbox) {
	l.t.Helper()
	d, err := open(l.host, sb.Netns)
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.Close()
	store, err := journal.Open(l.dir)
	if err != nil {
		l.t.Fatal(err)
	}
	rec := reconcile.Record{Sandbox: sb, BootID: l.host.BootID(), NetnsID: d.NetnsID(), Phase: reconcile.Applied}
	for _, s := range sb.Topology.Steps {
		rec.Results = append(rec.Results, topology.StepResult{Name: s.Name, Type: s.Type})
	}
	if err := store.Put(rec); err != nil {
		l.t.Fatal(err)
	}
}

// inSync fails unless a sandbox matches its topology.
func (l *lane) inSync(r *reconcile.Reconciler, id reconcile.SandboxID) {
	l.t.Helper()
	if st, err := r.Check(ctxFor(l.t), id); err != nil || st.State != reconcile.InSync {
		l.t.Fatalf("%+v, %v", st, err)
	}
}
