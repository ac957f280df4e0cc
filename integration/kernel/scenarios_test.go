package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
)

const header = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: NAME}\nspec:\n  steps:\n"

// parse reads the steps of a topology.
func parse(t *testing.T, name, steps string) *topology.Topology {
	t.Helper()
	top, err := topology.Decode([]byte(strings.Replace(header, "NAME", name, 1) + steps))
	if err != nil {
		t.Fatal(err)
	}
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Validate(top, reg); err != nil {
		t.Fatal(err)
	}
	return top
}

func box(path string, top *topology.Topology) reconcile.Sandbox {
	return reconcile.Sandbox{ID: reconcile.SandboxID(filepath.Base(path) + "/" + top.Name), Netns: path, Topology: top}
}

// meddle makes changes as a stranger would.
func (l *lane) meddle(path string, changes ...netstate.Change) {
	l.t.Helper()
	d, err := open(l.host, path)
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.Close()
	for _, c := range changes {
		if err := d.Apply(context.Background(), c); err != nil {
			l.t.Fatalf("%s: %v", c, err)
		}
	}
}

const driftSteps = `
    - {name: a, type: dummy, config: {name: a0, mac: "02:00:00:00:00:01"}}
    - {name: b, type: dummy, config: {name: b0, mac: "02:00:00:00:00:02"}}
    - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 100}}
    - {name: data, type: vlan, dependOn: [bond], config: {id: 100, name: data0, addresses: [192.0.2.5/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
    - {name: tune, type: tuning, dependOn: [data], config: {mtu: 4000, sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2}}}
    - {name: mgmt, type: vlan, dependOn: [bond], config: {id: 200, name: mgmt0}}
    - {name: blue, type: vrf, dependOn: [mgmt], config: {vrfname: blue, table: 1001}}
`

// TestDrift: each way to spoil a sandbox is seen, laid at the right step and
// field, and repaired.
func TestDrift(t *testing.T) {
	link := func(before, after netstate.Link) netstate.Change {
		return netstate.Change{Before: before, After: after}
	}
	cases := map[string]struct {
		meddle            netstate.Change
		step, kind, field string
	}{
		"vlan deleted":    {netstate.Change{Before: netstate.Link{Name: "data0", LinkKind: "vlan"}}, "data", "link", ""},
		"bond deleted":    {netstate.Change{Before: netstate.Link{Name: "bond0", LinkKind: "bond"}}, "bond", "link", ""},
		"root deleted":    {netstate.Change{Before: netstate.Link{Name: "a0", LinkKind: "dummy"}}, "a", "link", ""},
		"mtu lowered":     {link(netstate.Link{Name: "data0", MTU: new(uint32(4000))}, netstate.Link{Name: "data0", MTU: new(uint32(1400))}), "tune", "link", "mtu"},
		"bond mtu":        {link(netstate.Link{Name: "bond0", MTU: new(uint32(4000))}, netstate.Link{Name: "bond0", MTU: new(uint32(1400))}), "tune", "link", "mtu"},
		"port out":        {link(netstate.Link{Name: "b0", Master: new("bond0")}, netstate.Link{Name: "b0", Master: new("")}), "bond", "link", "master"},
		"port mtu":        {link(netstate.Link{Name: "b0", MTU: new(uint32(4000))}, netstate.Link{Name: "b0", MTU: new(uint32(1300))}), "", "link", "mtu"},
		"down":            {link(netstate.Link{Name: "data0", Up: new(true)}, netstate.Link{Name: "data0", Up: new(false)}), "data", "link", "up"},
		"miimon":          {link(netstate.Link{Name: "bond0", Bond: &netstate.Bond{MIIMonMillis: new(uint32(100))}}, netstate.Link{Name: "bond0", Bond: &netstate.Bond{MIIMonMillis: new(uint32(50))}}), "bond", "link", "bond.miimon"},
		"mac of a root":   {link(netstate.Link{Name: "data0", MAC: new("x")}, netstate.Link{Name: "data0", MAC: new("02:00:00:00:00:77")}), "", "", ""},
		"address removed": {netstate.Change{Before: netstate.Addr{Link: "data0", Address: "192.0.2.5/24"}}, "data", "address", ""},
		"route removed":   {netstate.Change{Before: netstate.Route{Link: "data0", Dst: "198.51.100.0/24", Gateway: "192.0.2.1", Table: netstate.TableMain}}, "data", "route", ""},
		"out of the vrf":  {link(netstate.Link{Name: "mgmt0", Master: new("blue")}, netstate.Link{Name: "mgmt0", Master: new("")}), "blue", "link", "master"},
		"vrf deleted":     {netstate.Change{Before: netstate.Link{Name: "blue", LinkKind: "vrf"}}, "blue", "link", ""},
		"sysctl":          {netstate.Change{Before: netstate.Sysctl{Path: "net/ipv4/conf/data0/rp_filter", Value: new("2")}, After: netstate.Sysctl{Path: "net/ipv4/conf/data0/rp_filter", Value: new("1")}}, "tune", "sysctl", "value"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l, path := newLane(t), newNetns(t)
			start := l.state(path)
			sb := box(path, parse(t, "drift", driftSteps))
			r := l.engine(nil)
			if _, err := r.Ensure(ctxFor(t), sb); err != nil {
				t.Fatal(err)
			}
			l.meddle(path, c.meddle)
			st, err := r.Check(ctxFor(t), sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			if c.kind == "" { // no step says what it must be
				if st.State != reconcile.InSync {
					t.Errorf("state %s: %+v", st.State, st.Drift)
				}
			} else if st.State != reconcile.Drifted || !slices.ContainsFunc(st.Drift, func(d reconcile.Drift) bool {
				return (c.step == "" || d.Step == c.step) && string(d.Object.Kind) == c.kind && d.Field == c.field
			}) {
				t.Errorf("want drift of step %q, %s %q; got %s: %+v", c.step, c.kind, c.field, st.State, st.Drift)
			}
			if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
				t.Fatalf("repair: %v", err)
			}
			if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
				t.Errorf("after repair: %v, %+v", err, st)
			}
			if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
				t.Fatal(err)
			}
			l.mustEqual(start, path, "after release")
		})
	}
}

// TestTwoTopologiesOneNamespace: what collides is refused by name, what does not
// lives and goes side by side.
func TestTwoTopologiesOneNamespace(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	start := l.state(path)
	r := l.engine(nil)
	one := box(path, parse(t, "one", "    - {name: d, type: dummy, config: {name: d0}}\n"))
	same := box(path, parse(t, "same", "    - {name: d, type: dummy, config: {name: d0}}\n"))
	two := box(path, parse(t, "two", "    - {name: d, type: dummy, config: {name: d1}}\n"))
	if _, err := r.Ensure(ctxFor(t), one); err != nil {
		t.Fatal(err)
	}
	_, err := r.Ensure(ctxFor(t), same)
	if fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), string(one.ID)) {
		t.Fatalf("the second topology wants the same name: %v", err)
	}
	if _, err := r.Ensure(ctxFor(t), two); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Release(ctxFor(t), one.ID); err != nil {
		t.Fatal(err)
	}
	if st, err := r.Check(ctxFor(t), two.ID); err != nil || st.State != reconcile.InSync {
		t.Fatalf("the other topology was touched: %v, %+v", err, st)
	}
	if _, err := r.Release(ctxFor(t), two.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(start, path, "after both are released")
}

// TestForeignNameStays: a link that is not ours is never replaced.
func TestForeignNameStays(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	l.meddle(path, netstate.Change{After: netstate.Link{Name: "d1", LinkKind: "dummy", MAC: new("02:00:00:00:00:09")}})
	start := l.state(path)
	sb := box(path, parse(t, "t", "    - {name: a, type: dummy, config: {name: d0}}\n    - {name: b, type: dummy, config: {name: d1}}\n"))
	_, err := l.engine(nil).Ensure(ctxFor(t), sb)
	if fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `step "b"`) {
		t.Fatalf("the name is taken: %v", err)
	}
	l.mustEqual(start, path, "after the refusal")
}

// TestHostNamespaceIsRefused: no path leads the engine into the host's own
// namespace.
func TestHostNamespaceIsRefused(t *testing.T) {
	l := newLane(t)
	start := l.state("")
	for _, path := range []string{"/proc/self/ns/net", "/proc/1/ns/net"} {
		sb := box(path, parse(t, "t", "    - {name: a, type: dummy, config: {name: d0}}\n"))
		if _, err := l.engine(nil).Ensure(ctxFor(t), sb); fault.Of(err) != fault.Conflict {
			t.Errorf("%s: %v", path, err)
		}
	}
	for path, kind := range map[string]fault.Kind{"/run/netns/there-is-none": fault.Gone, os.Args[0]: fault.Gone} {
		sb := box(path, parse(t, "t", "    - {name: a, type: dummy, config: {name: d0}}\n"))
		if _, err := l.engine(nil).Ensure(ctxFor(t), sb); fault.Of(err) != kind {
			t.Errorf("%s: %v", path, err)
		}
	}
	l.mustEqual(start, "", "after the refusals")
}

// TestEditedTopology: a new version is reached by changes, not by starting over,
// and a version that fails leaves the old one in place.
func TestEditedTopology(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	start := l.state(path)
	r := l.engine(nil)
	first := box(path, parse(t, "t", `
    - {name: d, type: dummy, config: {name: d0}}
    - {name: v, type: vlan, dependOn: [d], config: {id: 100, name: data0, addresses: [192.0.2.5/24]}}
    - {name: w, type: vlan, dependOn: [d], config: {id: 200, name: mgmt0}}
    - {name: t, type: tuning, dependOn: [v], config: {mtu: 2000, txQLen: 7}}
`))
	second := box(path, parse(t, "t", `
    - {name: d, type: dummy, config: {name: d0}}
    - {name: v, type: vlan, dependOn: [d], config: {id: 101, name: data0, addresses: [192.0.2.6/24]}}
    - {name: t, type: tuning, dependOn: [v], config: {mtu: 3000}}
`))
	if _, err := r.Ensure(ctxFor(t), first); err != nil {
		t.Fatal(err)
	}
	before := l.state(path)
	applied := 0
	for n := 1; ; n++ {
		applied = 0
		_, err := l.engine(func(d reconcile.Domain) reconcile.Domain {
			return faulty{Domain: d, applied: &applied, at: n, before: func() error { return errInjected }}
		}).Ensure(ctxFor(t), second)
		if err == nil {
			break
		}
		if !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		l.mustEqual(before, path, "the new version failed")
		if st, err := r.Check(ctxFor(t), first.ID); err != nil || st.State != reconcile.InSync {
			t.Fatalf("the old version is not in place: %v, %+v", err, st)
		}
	}
	after := l.state(path)
	if _, ok := after.Link("mgmt0"); ok {
		t.Error("mgmt0 is there still")
	}
	data, ok := after.Link("data0")
	if !ok || data.VLAN == nil || *data.VLAN.ID != 101 || *data.MTU != 3000 {
		t.Errorf("data0: %+v", data)
	}
	if _, err := r.Release(ctxFor(t), first.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(start, path, "after release")
}

// TestDeviceIsHeld: a device belongs to one sandbox at a time, and is free again
// once that sandbox's namespace died.
func TestDeviceIsHeld(t *testing.T) {
	if os.Getenv("PLUMBLINE_LANE") == "uml" {
		return // no PCI there
	}
	l := newLane(t)
	hostStart := l.state("")
	r := l.engine(nil)
	device := l.watched()[0].Key().ID
	path, other := newNetns(t), newNetns(t)
	one := box(path, parse(t, "one", "    - {name: vf, type: sriov}\n"))
	two := box(other, parse(t, "two", "    - {name: vf, type: sriov}\n"))
	one.Devices, two.Devices = map[string]string{"vf": device}, map[string]string{"vf": device}
	if _, err := r.Ensure(ctxFor(t), one); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ensure(ctxFor(t), two); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), string(one.ID)) {
		t.Fatalf("the device is held: %v", err)
	}
	deleteNetns(path)
	if _, err := r.Ensure(ctxFor(t), two); err != nil {
		t.Fatalf("the device is free again: %v", err)
	}
	if _, err := r.Release(ctxFor(t), one.ID); err != nil {
		t.Fatalf("late release: %v", err)
	}
	if st, err := r.Check(ctxFor(t), two.ID); err != nil || st.State != reconcile.InSync {
		t.Fatalf("a late release touched the new owner: %v, %+v", err, st)
	}
	if _, err := r.Release(ctxFor(t), two.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(hostStart, "", "after both are released")
}

// TestOwnNameTaken: a device whose own name was taken meanwhile comes home under
// another one instead of staying away.
func TestOwnNameTaken(t *testing.T) {
	if os.Getenv("PLUMBLINE_LANE") == "uml" {
		return // no PCI there
	}
	l, path := newLane(t), newNetns(t)
	r := l.engine(nil)
	device := l.watched()[0].Key().ID
	start, _ := l.state("").Device(device)
	sb := box(path, parse(t, "t", "    - {name: vf, type: sriov}\n"))
	sb.Devices = map[string]string{"vf": device}
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	squatter := netstate.Link{Name: *start.At, LinkKind: "dummy"}
	l.meddle("", netstate.Change{After: squatter})
	if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	got, ok := l.state("").Device(device)
	if !ok || got.At == nil || !netstate.OnHost(*got.At) || *got.At == *start.At {
		t.Errorf("device came home as %+v", got)
	}
	l.meddle("", netstate.Change{Before: squatter})
	l.meddle("", netstate.Change{Before: got, After: start})
	if got, _ := l.state("").Device(device); *got.At != *start.At {
		t.Errorf("device is %q, was %q", *got.At, *start.At)
	}
}

// TestDeviceVanishes: a device that loses its driver under a running sandbox is
// reported, cannot be repaired, and does not stand in the way of a release.
func TestDeviceVanishes(t *testing.T) {
	if os.Getenv("PLUMBLINE_LANE") == "uml" {
		return // no PCI there
	}
	l, path := newLane(t), newNetns(t)
	r := l.engine(nil)
	device := l.watched()[0].Key().ID
	home, _ := l.state("").Device(device)
	sb := box(path, parse(t, "t", "    - {name: vf, type: host-device}\n    - {name: v, type: vlan, dependOn: [vf], config: {id: 7, name: v7}}\n"))
	sb.Devices = map[string]string{"vf": device}
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	write := func(file string) {
		if err := os.WriteFile("/sys/bus/pci/drivers/igbvf/"+file, []byte(device), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("unbind")
	st, err := r.Check(ctxFor(t), sb.ID)
	if err != nil || st.State != reconcile.StateFailed || !strings.Contains(st.Failure, device) || !strings.Contains(st.Failure, `step "vf"`) {
		t.Errorf("check: %v, %+v", err, st)
	}
	if _, err := r.Repair(ctxFor(t), sb.ID); err == nil || !strings.Contains(err.Error(), device) {
		t.Errorf("repair: %v", err)
	}
	if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
		t.Errorf("release: %v", err)
	}
	write("bind")
	back, _ := l.state("").Device(device)
	l.meddle("", netstate.Change{Before: back, After: netstate.Device{ID: device, At: home.At}})
}

// TestObservedStepIsSpared: a repair leaves alone what its step only wants
// reported, also when other steps drifted with it.
func TestObservedStepIsSpared(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	r := l.engine(nil)
	sb := box(path, parse(t, "t", "    - {name: a, type: dummy, driftPolicy: Observe, config: {name: a0, mtu: 1400}}\n    - {name: b, type: dummy, config: {name: b0, mtu: 1400}}\n"))
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a0", "b0"} {
		l.meddle(path, netstate.Change{Before: netstate.Link{Name: name, MTU: new(uint32(1400))}, After: netstate.Link{Name: name, MTU: new(uint32(1300))}})
	}
	rep, err := r.Repair(ctxFor(t), sb.ID)
	if err != nil || len(rep.Changes) != 1 || rep.Changes[0].Step != "b" {
		t.Fatalf("repair: %v, %v", err, rep.Changes)
	}
	st, err := r.Check(ctxFor(t), sb.ID)
	if err != nil || st.State != reconcile.Drifted || len(st.Drift) != 1 || st.Drift[0].Step != "a" {
		t.Errorf("check: %v, %+v", err, st)
	}
	if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Repair(ctxFor(t), sb.ID); fault.Of(err) != fault.Gone {
		t.Errorf("repair after release: %v", err)
	}
	if recs, _ := r.List(); len(recs) != 0 {
		t.Errorf("a repair brought the sandbox back: %+v", recs)
	}
}
