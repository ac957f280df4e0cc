package reconcile_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
)

// wired is a sandbox whose VLANs may have a carrier, and that counts announcements.
type wired struct {
	*sandbox
	carrier   bool
	announced []string
}

func (w *wired) Observe(ctx context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	seen, err := w.sandbox.Observe(ctx, queried)
	for _, l := range seen.LinksWhere(func(l netstate.Link) bool { return l.LinkKind == "vlan" }) {
		l.Carrier = w.carrier
		seen.Put(l)
	}
	return seen, err
}

func (w *wired) Announce(_ []netstate.Link, addresses []netstate.Addr) error {
	for _, a := range addresses {
		w.announced = append(w.announced, a.Address)
	}
	return nil
}

// TestCarrierComesLater: the addresses of a link that gets its carrier after the attachment are announced then, once,
// also if the carrier comes and goes; and those of a flapping one every few seconds at most.
func TestCarrierComesLater(t *testing.T) {
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	w := &wired{sandbox: &sandbox{Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")}), t: t}}
	now := time.Unix(1e9, 0)
	r := reconcile.New(reconcile.Options{
		Registry: registry, Store: store, BootID: "boot", Now: func() time.Time { return now },
		Open: func(string) (reconcile.Domain, error) { return w, nil },
	})
	sb := reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{
		{Name: "d", Type: "dummy", Config: map[string]any{"name": "d0"}},
		{Name: "v", Type: "vlan", DependOn: []string{"d"}, Config: map[string]any{"name": "v0", "id": 7, "addresses": []any{"192.0.2.5/24"}}},
	}}}
	if _, err := r.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	pass := func(carrier bool) (announced int, settles time.Duration) {
		t.Helper()
		w.carrier, w.announced = carrier, nil
		rep, err := r.Repair(t.Context(), sb.ID)
		if err != nil || !rep.Unchanged {
			t.Fatalf("%v, %v", err, rep.Changes)
		}
		if wrong := slices.DeleteFunc(slices.Clone(w.announced), func(a string) bool { return a == "192.0.2.5/24" }); len(wrong) > 0 {
			t.Errorf("announced %v", wrong)
		}
		return len(w.announced), rep.Settles
	}
	for _, step := range []struct {
		carrier   bool
		announced int
	}{{false, 0}, {true, 1}, {true, 0}} {
		if n, _ := pass(step.carrier); n != step.announced {
			t.Errorf("carrier %t: announced %d times, want %d", step.carrier, n, step.announced)
		}
	}
	total, settles := 0, time.Duration(0)
	for i := range 600 { // a minute
		now = now.Add(100 * time.Millisecond)
		n, after := pass(i%2 == 1)
		total, settles = total+n, max(settles, after)
	}
	if total < 5 || total > 12 {
		t.Errorf("announced %d times in a minute of flapping", total)
	}
	if settles == 0 || settles > 5*time.Second {
		t.Errorf("what is too early is announced after %s", settles)
	}
	now = now.Add(6 * time.Second) // nobody notifies of what has been since
	if n, after := pass(true); n > 1 || after != 0 {
		t.Errorf("announced %d times, and again after %s", n, after)
	}
	if _, err := r.Release(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}
