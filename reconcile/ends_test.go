package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// failing is a domain whose nth call fails, and each later one if that lasts. A call that is lost has its effect, and
// its answer does not arrive.
type failing struct {
	*database
	calls, at   int
	lasts, lost bool
	reads       bool // is read all the while
	with        error
	failed      string // the first call that failed
}

func (f *failing) fails(call string) bool {
	if f.at == 0 || call == "read" && f.reads {
		return false
	}
	if f.calls++; f.calls < f.at || f.calls > f.at && !f.lasts {
		return false
	}
	if f.failed == "" {
		f.failed = fmt.Sprintf("call %d (%s): %v, forever: %t, lost: %t, is read: %t", f.calls, call, f.with, f.lasts, f.lost, f.reads)
	}
	return true
}

func (f *failing) Extend(ctx context.Context, seen *netstate.Snapshot, queried []netstate.Object) error {
	if f.fails("read") {
		return f.with
	}
	return f.database.Extend(ctx, seen, queried)
}

func (f *failing) Apply(ctx context.Context, c netstate.Change) error {
	if f.fails("write") {
		if f.lost {
			_ = f.database.Apply(ctx, c)
		}
		return f.with
	}
	return f.database.Apply(ctx, c)
}

// TestReleaseEndsWithoutDatabase: whichever call of a release to a database fails, is late or has an error as its answer, at
// once or forever, all that is in the kernel is undone by that call of Release. The rest in the database stays recorded,
// and is undone once it answers.
func TestReleaseEndsWithoutDatabase(t *testing.T) {
	answers := map[string]error{
		"gone":    errDown,
		"late":    fault.New(fault.NotReady, context.DeadlineExceeded),
		"refuses": fault.New(fault.Internal, errors.New("constraint violation")),
	}
	for what, with := range answers {
		for _, kind := range []struct{ lasts, lost, reads bool }{{}, {lost: true}, {lasts: true}, {lasts: true, reads: true}, {true, true, false}} {
			for at := 0; ; {
				at++
				boot, k, d, sb := withDatabase(t, true)
				f := &failing{database: d, lasts: kind.lasts, lost: kind.lost, reads: kind.reads, with: with}
				r := boot("boot", f)
				if _, err := r.Ensure(t.Context(), sb); err != nil {
					t.Fatal(err)
				}
				f.at = at
				_, err := r.Release(t.Context(), sb.ID)
				if f.failed == "" {
					break
				}
				if k.has("a0") || k.has("b0") {
					t.Errorf("%s: %s: the kernel still has a0 (%t) or b0 (%t)", what, f.failed, k.has("a0"), k.has("b0"))
				}
				rec, known, _ := r.Record(sb.ID)
				if known != (err != nil) || known && rec.Phase != reconcile.Releasing || len(d.rows) > 0 && !known {
					t.Errorf("%s: %s: answered %v, recorded %t, phase %s, rows %v", what, f.failed, err, known, rec.Phase, d.rows)
				}
				f.at = 0
				if _, err := r.Release(t.Context(), sb.ID); err != nil || len(d.rows) > 0 {
					t.Errorf("%s: %s: once it answers: %v, rows %v", what, f.failed, err, d.rows)
				}
				if _, known, _ := r.Record(sb.ID); known {
					t.Errorf("%s: %s: the record still exists", what, f.failed)
				}
			}
		}
	}
}

// strict is a sandbox that refuses routes by a gateway.
type strict struct{ *sandbox }

func (s *strict) Apply(ctx context.Context, c netstate.Change) error {
	if r, ok := c.After.(netstate.Route); ok && r.Gateway != "" {
		return fault.New(fault.NotReady, errors.New("gateway is not reachable"))
	}
	return s.sandbox.Apply(ctx, c)
}

// TestReleaseWithoutForeignRoute: a route of the pod that the kernel does not accept any more, and that was moved into a VRF,
// does not keep the sandbox from its release, which reports it.
func TestReleaseWithoutForeignRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := journal.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		s := &strict{&sandbox{Snapshot: netstate.NewSnapshot(netstate.Link{Name: "eth0", Index: 2, Up: new(true)}), t: t}}
		r := reconcile.New(reconcile.Options{
			Store: store, BootID: "boot", Now: time.Now, Patience: time.Minute,
			Open: func(string) (reconcile.Domain, error) { return s, nil },
		})
		lost := netstate.Route{Link: "eth0", Dst: "::/0", Gateway: "2001:db8::1", Table: netstate.TableMain}
		if err := store.Put(reconcile.Record{
			Sandbox: reconcile.Sandbox{ID: "s1/c1/t", Netns: "/netns/s1", Topology: &topology.Topology{Name: "t"}},
			BootID:  "boot", NetnsID: s.NetnsID(), Phase: reconcile.Applied,
			History: []netstate.Change{{Step: "vrf", Before: lost, Foreign: true}},
		}); err != nil {
			t.Fatal(err)
		}
		rep, err := r.Release(t.Context(), "s1/c1/t")
		if err != nil || len(rep.Notes) != 1 {
			t.Errorf("release: %v, notes %q", err, rep.Notes)
		}
		if _, known, err := r.Record("s1/c1/t"); known || err != nil {
			t.Errorf("the record is kept: %t, %v", known, err)
		}
	})
}
