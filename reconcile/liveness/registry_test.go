package liveness_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/plumbline/plumbline/reconcile/liveness"
)

func TestCheck(t *testing.T) {
	now := time.Unix(0, 0)
	r := liveness.New(func() time.Time { return now })
	check := func(want string) {
		t.Helper()
		have := ""
		if err := r.Check(); err != nil {
			have = err.Error()
		}
		if have != want {
			t.Errorf("check says %q, want %q", have, want)
		}
	}
	check("")
	r.Alive("loop", 30*time.Second)
	r.Alive("server", 0)
	now = now.Add(2 * time.Minute) // late, as on a busy node
	check("")
	r.Alive("loop", 30*time.Second)
	now = now.Add(2*time.Minute + 30*time.Second)
	check("")
	now = now.Add(time.Minute)
	check("loop has given no sign of life, 1m0s after it was due")
	r.Alive("loop", 0)
	now = now.Add(time.Hour)
	check("")
	r.Ended("server", errors.New("accept: no such file"))
	r.Ended("server", errors.New("what followed from that"))
	r.Alive("server", 0)
	check("server has ended: accept: no such file")
}

func TestRun(t *testing.T) {
	r := liveness.New(time.Now)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx, "requested to end", func(context.Context) error { return nil }); err != nil || r.Check() != nil {
		t.Errorf("%v, %v", err, r.Check())
	}
	lost := errors.New("lost")
	if err := r.Run(t.Context(), "ended", func(context.Context) error { return lost }); !errors.Is(err, lost) || !errors.Is(r.Check(), lost) {
		t.Errorf("%v, %v", err, r.Check())
	}
	_ = r.Run(t.Context(), "returned", func(context.Context) error { return nil })
	if err := r.Check(); err == nil || err.Error() != "ended has ended: lost\nreturned has ended: it has returned" {
		t.Error(err)
	}
}
