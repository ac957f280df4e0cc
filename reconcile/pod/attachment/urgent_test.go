package attachment

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/reconcile"
)

// slowEngine is an Engine whose Ensure takes some time.
type slowEngine struct {
	Engine
	takes time.Duration
}

func (e slowEngine) Ensure(context.Context, reconcile.Sandbox) (reconcile.Report, error) {
	time.Sleep(e.takes) // of the fake clock
	return reconcile.Report{}, nil
}

// TestRepairsYield holds that repairs wait while the engine attaches a topology, for
// two seconds at most, and go on exactly once.
func TestRepairsYield(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{
		time.Second:     time.Second,
		2 * time.Minute: 2 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var ended []time.Duration
			k := New(Options{Engine: slowEngine{takes: takes}, Now: time.Now, Yield: func() func() {
				return func() { ended = append(ended, time.Since(begin)) }
			}})
			if _, err := k.ensureUrgent(t.Context(), reconcile.Sandbox{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * urgentFor)
			if len(ended) != 1 || ended[0] != want {
				t.Errorf("an attachment of %s: repairs go on after %s, want once, after %s", takes, ended, want)
			}
		})
	}
	k := New(Options{Engine: slowEngine{}, Now: time.Now})
	if _, err := k.ensureUrgent(t.Context(), reconcile.Sandbox{}); err != nil {
		t.Errorf("without a loop: %v", err)
	}
}
