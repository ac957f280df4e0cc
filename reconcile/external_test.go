package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// sandbox is the kernel's domain as package netstate models it.
type sandbox struct {
	*netstate.Snapshot
	foreign netstate.Kind // which must not be read from it
	t       *testing.T
	// dead reports, before each change and each observation, whether the process has ended.
	dead func(c *netstate.Change) bool
}

var errDead = errors.New("the process is dead")

func (s *sandbox) died(c *netstate.Change) error {
	if s.dead != nil && s.dead(c) {
		return errDead
	}
	return nil
}

func (s *sandbox) Observe(ctx context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	seen := netstate.NewSnapshot(netstate.All[netstate.Object](s.Snapshot)...)
	return seen, s.Extend(ctx, seen, queried)
}

func (s *sandbox) Extend(_ context.Context, seen *netstate.Snapshot, queried []netstate.Object) error {
	if err := s.died(nil); err != nil {
		return err
	}
	for _, o := range queried {
		if o.Key().Kind == s.foreign {
			s.t.Errorf("the kernel is queried for %s", o.Key())
		}
		if _, written := s.Get(o.Key()); written {
			continue
		}
		if sysctl, ok := o.(netstate.Sysctl); ok {
			seen.Put(netstate.Sysctl{Path: sysctl.Path, Value: new("0")})
		} else if !seen.Known(o) {
			seen.PutAbsent(o.Key())
		}
	}
	return nil
}

func (s *sandbox) Apply(_ context.Context, c netstate.Change) error {
	if c.Key().Kind == s.foreign {
		s.t.Errorf("the kernel is given %s", c)
	}
	if err := s.died(&c); err != nil {
		return err
	}
	s.Snapshot.Apply(c)
	return nil
}

func (s *sandbox) NetnsID() reconcile.NetnsID { return reconcile.NetnsID{Inode: 1} }
func (s *sandbox) Close() error               { return nil }

// database is a domain that can become unreachable.
type database struct {
	rows map[netstate.Key]netstate.Object
	down error
	open int
}

func (d *database) Extend(_ context.Context, seen *netstate.Snapshot, queried []netstate.Object) error {
	if d.down != nil {
		return d.down
	}
	for _, o := range queried {
		if row, ok := d.rows[o.Key()]; ok {
			seen.Put(row)
		} else {
			seen.PutAbsent(o.Key())
		}
	}
	return nil
}

func (d *database) Apply(_ context.Context, c netstate.Change) error {
	switch {
	case d.down != nil:
		return d.down
	case c.After == nil:
		delete(d.rows, c.Key())
	default:
		d.rows[c.Key()] = c.After
	}
	return nil
}

func (d *database) Close() error {
	d.open--
	return nil
}

// withDatabase is an engine whose rules are kept by a database instead of the
// kernel, or by what boot is given, and a sandbox that wants a link and a rule.
func withDatabase(t *testing.T, durable bool) (boot func(id string, external ...reconcile.External) *reconcile.Reconciler, k *sandbox, d *database, sb reconcile.Sandbox) {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	k = &sandbox{Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")}), foreign: netstate.KindRule, t: t}
	d = &database{rows: map[netstate.Key]netstate.Object{}}
	boot = func(id string, external ...reconcile.External) *reconcile.Reconciler {
		return reconcile.New(reconcile.Options{
			Registry: registry, Store: store, BootID: id, Now: time.Now,
			Open: func(string) (reconcile.Domain, error) { return k, nil },
			External: []reconcile.ExternalDomain{{
				Name: "the database", Kinds: []netstate.Kind{netstate.KindRule}, Durable: durable,
				Open: func(context.Context, reconcile.Sandbox) (reconcile.External, error) {
					d.open++
					return append(external, d)[0], nil
				},
			}},
		})
	}
	t.Cleanup(func() {
		if d.open != 0 {
			t.Errorf("%d views are still open", d.open)
		}
	})
	sb = reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{
		{Name: "a", Type: "dummy", Config: map[string]any{"name": "a0", "rules": []any{map[string]any{"priority": int64(100), "table": int64(9), "from": "192.0.2.0/24"}}}},
		{Name: "b", Type: "dummy", Config: map[string]any{"name": "b0"}},
	}}}
	return boot, k, d, sb
}

func (s *sandbox) has(links ...string) bool {
	for _, l := range links {
		if _, ok := s.Link(l); !ok {
			return false
		}
	}
	return true
}

var errDown = errors.New("connection refused")

// TestExternalDomain: objects of another domain are observed, created and deleted
// there, and nowhere else.
func TestExternalDomain(t *testing.T) {
	boot, k, d, sb := withDatabase(t, false)
	r := boot("boot")
	if _, err := r.Ensure(t.Context(), sb); err != nil || len(d.rows) != 1 || !k.has("a0", "b0") {
		t.Fatalf("apply: %v, rows %v", err, d.rows)
	}
	if rep, err := r.Ensure(t.Context(), sb); err != nil || !rep.Unchanged {
		t.Errorf("again: %v, %v", err, rep.Changes)
	}
	clear(d.rows)
	if st, err := r.Check(t.Context(), sb.ID); err != nil || len(st.Drift) != 1 || st.Drift[0].Object.Kind != netstate.KindRule {
		t.Errorf("check: %v, %v", err, st.Drift)
	}
	if _, err := r.Repair(t.Context(), sb.ID); err != nil || len(d.rows) != 1 {
		t.Errorf("repair: %v, rows %v", err, d.rows)
	}
	if _, err := r.Release(t.Context(), sb.ID); err != nil || len(d.rows) != 0 || k.has("a0") {
		t.Errorf("release: %v, rows %v", err, d.rows)
	}
}

// TestDomainOutOfReach: a domain that cannot be observed makes its own wants wait.
func TestDomainOutOfReach(t *testing.T) {
	boot, k, d, sb := withDatabase(t, false)
	r := boot("boot")
	waits := func(what string, err error) {
		t.Helper()
		if fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "the database cannot be observed: connection refused") {
			t.Errorf("%s: %v", what, err)
		}
	}

	// An attachment needs all domains, and leaves nothing behind.
	d.down = errDown
	_, err := r.Ensure(t.Context(), sb)
	waits("start", err)
	if _, known, _ := r.Record(sb.ID); known || k.has("a0") {
		t.Error("a start that failed left something behind")
	}
	d.down = nil
	if _, err := r.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}

	// A repair applies the rest, and reports what waits.
	d.down = errDown
	for _, l := range []string{"a0", "b0"} {
		link, _ := k.Link(l)
		k.Snapshot.Apply(netstate.Change{Before: link})
	}
	st, err := r.Check(t.Context(), sb.ID)
	if err != nil || len(st.Drift) != 3 || st.Drift[2].Step != "a" || !strings.Contains(st.Drift[2].Field, "the database cannot be observed") {
		t.Errorf("check: %v, %+v", err, st.Drift)
	}
	_, err = r.Repair(t.Context(), sb.ID)
	waits("repair", err)
	if !k.has("a0", "b0") || len(d.rows) != 1 {
		t.Errorf("after the repair: links %v, rows %v", netstate.All[netstate.Link](k.Snapshot), d.rows)
	}

	d.down = nil
	if _, err := r.Repair(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}

	// A release undoes what is in the kernel, and keeps the rest.
	d.down = errDown
	_, err = r.Release(t.Context(), sb.ID)
	waits("release", err)
	rec, known, _ := r.Record(sb.ID)
	if k.has("a0") || k.has("b0") || !known || rec.Phase != reconcile.Releasing || len(rec.History) != 1 || rec.History[0].Key().Kind != netstate.KindRule {
		t.Errorf("after the release: %+v", rec)
	}
	d.down = nil
	if _, err := r.Release(t.Context(), sb.ID); err != nil || len(d.rows) != 0 {
		t.Errorf("release: %v, rows %v", err, d.rows)
	}
	if _, known, _ := r.Record(sb.ID); known {
		t.Error("the record still exists")
	}
}

// TestPruneOutOfReach: what no step wants any more is deleted once its domain can be
// observed; until then the pass waits.
func TestPruneOutOfReach(t *testing.T) {
	boot, _, d, sb := withDatabase(t, false)
	r := boot("boot")
	if _, err := r.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	less := *sb.Topology
	less.Steps = less.Steps[1:]
	sb.Topology = &less
	d.down = errDown
	if _, err := r.Ensure(t.Context(), sb); fault.Of(err) != fault.NotReady {
		t.Errorf("without the step: %v", err)
	}
	d.down = nil
	if _, err := r.Ensure(t.Context(), sb); err != nil || len(d.rows) != 0 {
		t.Errorf("once it answers: %v, rows %v", err, d.rows)
	}
}

// TestAfterReboot: a reboot empties the kernel, and the record with it; what a durable
// domain holds stays in both.
func TestAfterReboot(t *testing.T) {
	for _, durable := range []bool{false, true} {
		boot, k, d, sb := withDatabase(t, durable)
		if _, err := boot("first").Ensure(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		k.Snapshot = netstate.NewSnapshot()
		r := boot("second")
		if _, err := r.Release(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if left := len(d.rows) > 0; left == durable {
			t.Errorf("durable %v: rows %v", durable, d.rows)
		}
	}
}
