package kernel

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// marking is a filter that marks and limits what is sent to a network, or to any with "".
func marking(pref uint16, to string, dscp uint8, rate uint64) netstate.Filter {
	f := netstate.Filter{
		Rule: "ai/a[0]", Pref: pref, Handle: 1, Family: new(netstate.IPv4), To: &to, Protocol: new(""), Port: new(uint16(0)),
		DSCP: &dscp, Policer: new(uint16(0)), Rate: &rate, BurstNanos: new(uint64(0)),
	}
	if rate > 0 {
		f.Policer, f.BurstNanos = new(uint16(1)), new(uint64(64_000_000))
	}
	return f
}

// TestGivenFilters: what a pod deletes or changes of its filters is repaired from the record
// alone, a change of the rules touches no link, and a release leaves what is the pod's own.
func TestGivenFilters(t *testing.T) {
	l := newLane(t)
	sb := box(newNetns(t), parse(t, "t", "    - {name: d, type: dummy, config: {name: d0, mac: \"02:00:00:00:00:01\"}}\n    - {name: v, type: vlan, dependOn: [d], config: {id: 7, name: v0, addresses: [192.0.2.5/24]}}\n"))
	start := l.state(sb.Netns)
	sb.Filters = []netstate.Filter{marking(20000, "198.51.100.0/24", 26, 1_250_000), marking(20002, "", 8, 0)}
	if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	r := l.engine(nil) // which has the record alone
	inSync := func(when string) {
		t.Helper()
		if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
			t.Fatalf("%s: %v, %+v", when, err, st)
		}
	}
	inSync("applied")
	limit, all := marking(20000, "198.51.100.0/24", 26, 1_250_000), marking(20002, "", 8, 0)
	limit.Link, all.Link = "v0", "v0"
	for name, changes := range map[string][]netstate.Change{
		"a filter is deleted":       {{Before: limit}},
		"the mark is changed":       {{Before: netstate.Filter{Link: "v0", Pref: 20002, Handle: 1}, After: netstate.Filter{Link: "v0", Pref: 20002, Handle: 1, DSCP: new(uint8(46))}}},
		"the rate is changed":       {{Before: netstate.Filter{Link: "v0", Pref: 20000, Handle: 1}, After: netstate.Filter{Link: "v0", Pref: 20000, Handle: 1, Rate: new(uint64(125_000_000))}}},
		"another one has its place": {{Before: limit}, {After: func() netstate.Filter { f := marking(20000, "203.0.113.0/24", 1, 0); f.Link = "v0"; return f }()}},
		"all are deleted":           {{Before: limit}, {Before: all}, {Before: netstate.Clsact{Link: "v0"}}},
		"the link is deleted":       {{Before: netstate.Link{Name: "v0"}}},
		"the link is renamed":       {{Before: netstate.Link{Name: "v0", Called: new("v0")}, After: netstate.Link{Name: "v0", Called: new("other0")}}},
	} {
		for _, c := range changes {
			l.disturb(sb.Netns, c)
		}
		if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.Drifted {
			t.Errorf("%s: %v, %+v", name, err, st)
		}
		if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		inSync(name)
	}

	sb.Filters = []netstate.Filter{marking(20000, "198.51.100.0/24", 26, 2_500_000), marking(20004, "203.0.113.0/24", 10, 0)}
	rep, err := r.Ensure(ctxFor(t), sb)
	if err != nil || slices.ContainsFunc(rep.Changes, func(c netstate.Change) bool { return c.Key().Kind != netstate.KindFilter }) || len(rep.Changes) != 3 {
		t.Errorf("other rules: %v, %v", err, rep.Changes)
	}
	inSync("other rules")

	// A filter of the pod's own keeps the clsact.
	own := marking(10, "192.0.2.9/32", 1, 0)
	own.Link = "v0"
	l.disturb(sb.Netns, netstate.Change{After: own})
	sb.Filters = nil
	rep, err = r.Ensure(ctxFor(t), sb)
	if err != nil {
		t.Fatal(err)
	}
	inSync("without rules")
	d, err := open(l.host, sb.Netns)
	if err != nil {
		t.Fatal(err)
	}
	left, err := d.Observe(ctxFor(t), []netstate.Object{limit, own, netstate.Clsact{Link: "v0"}})
	d.Close()
	if err != nil {
		t.Fatal(err)
	}
	_, ours := left.Get(limit.Key())
	_, theirs := left.Get(own.Key())
	if _, hook := left.Get(netstate.ClsactKey("v0")); ours || !theirs || !hook {
		t.Errorf("without rules: our filter %v, that of the pod %v, its clsact %v", ours, theirs, hook)
	}
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
	l.mustEqual(start, sb.Netns, "after release")
}
