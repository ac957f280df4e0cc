package kernel

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestGivenAddresses: sandboxes of one topology have addresses of their own, through drift,
// repair by another process, a change of the address, an edit that fails, and release.
func TestGivenAddresses(t *testing.T) {
	l := newLane(t)
	// Valid with an address only, so it is not validated as parse does.
	top, err := topology.Decode([]byte(`apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: data}
spec:
  steps:
    - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
    - {name: v, type: vlan, dependOn: [d], config: {id: 7, name: v0, addresses: [10.0.0.1/32], routes: [{destination: 203.0.113.0/24, gateway: 192.0.2.1}]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	give := func(sb reconcile.Sandbox, address string) reconcile.Sandbox {
		sb.Given = ops.Givens{"v": {Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}}
		return sb
	}
	has := func(sb reconcile.Sandbox, when string, want ...string) {
		t.Helper()
		var have []string
		for _, a := range netstate.All[netstate.Addr](l.state(sb.Netns)) {
			if p := netip.MustParsePrefix(a.Address); a.Link == "v0" && p.Addr().Is4() {
				have = append(have, a.Address)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("%s: v0 has %q, want %q", when, have, want)
		}
	}
	r := l.engine(nil)
	one, two := give(box(newNetns(t), top), "192.0.2.5/24"), give(box(newNetns(t), top), "192.0.2.6/24")
	start := l.state(one.Netns)
	for _, sb := range []reconcile.Sandbox{one, two} {
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
	}
	has(one, "applied", "10.0.0.1/32", "192.0.2.5/24")
	has(two, "applied", "10.0.0.1/32", "192.0.2.6/24")

	l.disturb(one.Netns, netstate.Change{Before: netstate.Addr{Link: "v0", Address: "192.0.2.5/24"}})
	later := l.engine(nil) // which has the record alone
	st, err := later.Check(ctxFor(t), one.ID)
	if want := (netstate.Addr{Link: "v0", Address: "192.0.2.5/24"}).Key(); err != nil || st.State != reconcile.Drifted ||
		!slices.ContainsFunc(st.Drift, func(d reconcile.Drift) bool { return d.Step == "v" && d.Object == want && d.Action == netstate.Create }) {
		t.Errorf("with its address taken away: %v, %+v", err, st)
	}
	if _, err := later.Repair(ctxFor(t), one.ID); err != nil {
		t.Error(err)
	}
	has(one, "repaired", "10.0.0.1/32", "192.0.2.5/24")
	if rep, err := later.Ensure(ctxFor(t), one); err != nil || !rep.Unchanged {
		t.Errorf("applied again: %v, %v", err, rep.Changes)
	}

	moved := give(one, "192.0.2.7/24")
	if _, err := later.Ensure(ctxFor(t), moved); err != nil {
		t.Error(err)
	}
	has(moved, "given another", "10.0.0.1/32", "192.0.2.7/24")
	if _, err := later.Ensure(ctxFor(t), give(one, "10.0.0.1/24")); fault.Of(err) != fault.Invalid {
		t.Errorf("an address that the config has: %v", err)
	}
	// The gateway is out of reach with the address alone, and nothing is changed.
	if _, err := later.Ensure(ctxFor(t), give(one, "198.51.100.5/24")); fault.Of(err) != fault.Invalid {
		t.Errorf("an address of another subnet: %v", err)
	}
	has(moved, "after what was refused", "10.0.0.1/32", "192.0.2.7/24")
	if st, err := later.Check(ctxFor(t), one.ID); err != nil || st.State != reconcile.InSync {
		t.Errorf("after what was refused: %v, %+v", err, st)
	}

	for _, sb := range []reconcile.Sandbox{moved, two} {
		if _, err := later.AwaitRelease(ctxFor(t), sb.ID); err != nil {
			t.Error(err)
		}
	}
	l.mustEqual(start, one.Netns, "after release")
}
