package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
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
// once or forever, all that is in the kernel is undone by that call of Release. What is left in the database stays recorded,
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
