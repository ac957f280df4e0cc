package kernel

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
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
	// The gateway is unreachable with the address alone, and nothing is changed.
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

// TestGivenRate: the PF limits a function to what its claim has of the bandwidth, a limit
// that another process lifts is set again from the record alone, and release restores the
// one of before. The output of ip is compared.
func TestGivenRate(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	l := newLane(t)
	device := functions(t, map[string]string{"vf0": "enp3s0f0/1"})
	l.devices = []string{device["vf0"]}
	host := &foreignWriter{t: t}
	// The card takes rates of its link only while that is up.
	host.run("ip link set enp3s0f0 up; timeout 60 sh -c 'until [ \"$(cat /sys/class/net/enp3s0f0/carrier)\" = 1 ]; do :; done'; ip link set enp3s0f0 vf 1 max_tx_rate 700")
	t.Cleanup(func() { host.run("ip link set enp3s0f0 vf 1 max_tx_rate 0") })
	is := func(when, want string) {
		t.Helper()
		vf := regexp.MustCompile(`(?m)^ +vf 1 .*$`).FindString(host.run("ip link show dev enp3s0f0"))
		if have := regexp.MustCompile(`(max_)?tx_?( )?rate \d+|max_tx_rate \d+Mbps`).FindString(vf); !strings.Contains(have, want) {
			t.Fatalf("%s: the function has %q, want %q: %s", when, have, want, vf)
		}
	}
	is("before", "700")
	sb := box(newNetns(t), parse(t, "t", "    - {name: vf0, type: sriov}\n"))
	sb.Given = ops.Givens{"vf0": {Device: device["vf0"], Share: "s1", MaxTxRate: 300}}
	if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	is("attached", "300")
	r := l.engine(nil) // which has the record alone
	host.run("ip link set enp3s0f0 vf 1 max_tx_rate 0")
	if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	is("repaired", "300")
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	is("released", "700")
}
