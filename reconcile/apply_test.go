package reconcile_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
)

// choosing is a sandbox whose links get MACs that only the kernel knows before.
type choosing struct{ *sandbox }

func (c choosing) Apply(ctx context.Context, change netstate.Change) error {
	if err := c.sandbox.Apply(ctx, change); err != nil {
		return err
	}
	if l, ok := change.After.(netstate.Link); ok && change.Before == nil {
		have, _ := c.Link(l.Name)
		have.Index = 7
		if have.MAC == nil {
			have.MAC = new("02:00:00:00:00:07")
		}
		c.Put(have)
	}
	return nil
}

func choosingEngine(t *testing.T) (*reconcile.Reconciler, choosing) {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	k := choosing{&sandbox{Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")}), t: t}}
	return reconcile.New(reconcile.Options{
		Registry: registry, Store: store, BootID: "boot", Now: time.Now,
		Open: func(string) (reconcile.Domain, error) { return k, nil },
	}), k
}

// TestTwoStages: a plan whose later changes need values that exist only after the earlier ones
// converges in several stages.
func TestTwoStages(t *testing.T) {
	r, k := choosingEngine(t)
	sb := reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{
		{Name: "d", Type: "dummy", Config: map[string]any{"name": "d0"}},
		{Name: "a", Type: "macvlan", DependOn: []string{"d"}, Config: map[string]any{"name": "a0", "mode": "passthru"}}, // whose MAC the kernel chooses
		{Name: "b", Type: "dummy", DependOn: []string{"a"}, Config: map[string]any{"name": "b0", "mac": "{{ a.mac }}"}},
	}}}
	if _, err := r.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	if b, ok := k.Link("b0"); !ok || b.MAC == nil || *b.MAC != "02:00:00:00:00:07" {
		t.Errorf("%+v", b)
	}
}

// TestRepairThatCannotObserve: a sandbox that cannot be read for a moment is not one whose repair has
// failed: its record stays as it is.
func TestRepairThatCannotObserve(t *testing.T) {
	r, k := choosingEngine(t)
	sb := reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{
		{Name: "a", Type: "dummy", Config: map[string]any{"name": "a0", "rules": []any{map[string]any{"priority": int64(100), "table": int64(9), "from": "192.0.2.0/24"}}}},
	}}}
	if _, err := r.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	before, _, err := r.Record(sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	k.dead = func(*netstate.Change) bool { return true }
	if _, err := r.Repair(t.Context(), sb.ID); !errors.Is(err, errDead) {
		t.Errorf("repair: %v", err)
	}
	after, known, err := r.Record(sb.ID)
	if err != nil || !known || after.Phase != reconcile.Applied || len(after.Failures) > 0 || !after.Updated.Equal(before.Updated) {
		t.Errorf("the record is now %+v, %v", after, err)
	}
	k.dead = nil
	if rep, err := r.Repair(t.Context(), sb.ID); err != nil || !rep.Unchanged {
		t.Errorf("afterwards: %v, %v", err, rep.Changes)
	}
}
