package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
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
	if err := topology.Validate(t.Context(), top, reg); err != nil {
		t.Fatal(err)
	}
	return top
}

func box(path string, top *topology.Topology) reconcile.Sandbox {
	return reconcile.Sandbox{ID: reconcile.SandboxID(filepath.Base(path) + "/" + top.Name), Netns: path, Topology: top}
}

// disturb makes changes like another program.
func (l *lane) disturb(path string, changes ...netstate.Change) {
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
	if _, err := r.AwaitRelease(ctxFor(t), one.ID); err != nil {
		t.Fatal(err)
	}
	if st, err := r.Check(ctxFor(t), two.ID); err != nil || st.State != reconcile.InSync {
		t.Fatalf("the other topology was touched: %v, %+v", err, st)
	}
	if _, err := r.AwaitRelease(ctxFor(t), two.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(start, path, "after both are released")
}

// TestForeignNameStays: a link that is not ours is never replaced.
func TestForeignNameStays(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	l.disturb(path, netstate.Change{After: netstate.Link{Name: "d1", LinkKind: "dummy", MAC: new("02:00:00:00:00:09")}})
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
	if _, err := r.AwaitRelease(ctxFor(t), first.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(start, path, "after release")
}

// TestDeviceIsHeld: a device belongs to one sandbox at a time, and is free again
// once that sandbox's namespace died.
func TestDeviceIsHeld(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	l := newLane(t)
	hostStart := l.state("")
	r := l.engine(nil)
	device := l.watched()[0].Key().ID
	path, other := newNetns(t), newNetns(t)
	one := box(path, parse(t, "one", "    - {name: vf, type: sriov}\n"))
	two := box(other, parse(t, "two", "    - {name: vf, type: sriov}\n"))
	one.Given, two.Given = ops.Givens{}.WithDevices(map[string]string{"vf": device}), ops.Givens{}.WithDevices(map[string]string{"vf": device})
	if _, err := r.Ensure(ctxFor(t), one); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ensure(ctxFor(t), two); fault.Of(err) != fault.Conflict || !strings.Contains(fault.Detail(err), string(one.ID)) {
		t.Fatalf("the device is held: %v", err)
	}
	deleteNetns(path)
	if _, err := r.Ensure(ctxFor(t), two); err != nil {
		t.Fatalf("the device is free again: %v", err)
	}
	if _, err := r.AwaitRelease(ctxFor(t), one.ID); err != nil {
		t.Fatalf("late release: %v", err)
	}
	if st, err := r.Check(ctxFor(t), two.ID); err != nil || st.State != reconcile.InSync {
		t.Fatalf("a late release touched the new owner: %v, %+v", err, st)
	}
	if _, err := r.AwaitRelease(ctxFor(t), two.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(hostStart, "", "after both are released")
}

// TestOwnNameTaken: a device whose own name was taken meanwhile returns to the host under
// another one instead of staying away.
func TestOwnNameTaken(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	l, path := newLane(t), newNetns(t)
	r := l.engine(nil)
	device := l.watched()[0].Key().ID
	start, _ := l.state("").Device(device)
	sb := box(path, parse(t, "t", "    - {name: vf, type: sriov}\n"))
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"vf": device})
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	occupant := netstate.Link{Name: *start.At, LinkKind: "dummy"}
	l.disturb("", netstate.Change{After: occupant})
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	got, ok := l.state("").Device(device)
	if !ok || got.At == nil || !netstate.OnHost(*got.At) || *got.At == *start.At {
		t.Errorf("device returned as %+v", got)
	}
	l.disturb("", netstate.Change{Before: occupant})
	l.disturb("", netstate.Change{Before: got, After: start})
	if got, _ := l.state("").Device(device); *got.At != *start.At {
		t.Errorf("device is %q, was %q", *got.At, *start.At)
	}
}

// TestDeviceVanishes: a device that loses its driver under a running sandbox is
// reported, cannot be repaired, and does not prevent a release.
func TestDeviceVanishes(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	l, path := newLane(t), newNetns(t)
	r := l.engine(nil)
	device := l.watched()[0].Key().ID
	home, _ := l.state("").Device(device)
	sb := box(path, parse(t, "t", "    - {name: vf, type: host-device}\n    - {name: v, type: vlan, dependOn: [vf], config: {id: 7, name: v7}}\n"))
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"vf": device})
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
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Errorf("release: %v", err)
	}
	write("bind")
	back, _ := l.state("").Device(device)
	l.disturb("", netstate.Change{Before: back, After: netstate.Device{ID: device, At: home.At}})
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
		l.disturb(path, netstate.Change{Before: netstate.Link{Name: name, MTU: new(uint32(1400))}, After: netstate.Link{Name: name, MTU: new(uint32(1300))}})
	}
	rep, err := r.Repair(ctxFor(t), sb.ID)
	if err != nil || len(rep.Changes) != 1 || rep.Changes[0].Step != "b" {
		t.Fatalf("repair: %v, %v", err, rep.Changes)
	}
	st, err := r.Check(ctxFor(t), sb.ID)
	if err != nil || st.State != reconcile.Drifted || len(st.Drift) != 1 || st.Drift[0].Step != "a" {
		t.Errorf("check: %v, %+v", err, st)
	}
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Repair(ctxFor(t), sb.ID); fault.Of(err) != fault.Gone {
		t.Errorf("repair after release: %v", err)
	}
	if recs, _ := r.List(); len(recs) != 0 {
		t.Errorf("a repair brought the sandbox back: %+v", recs)
	}
}
