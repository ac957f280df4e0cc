package nriplugin

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestWithin holds when a runtime that allows two seconds is answered: a hook has three
// quarters of them, and one that goes on is left behind shortly before they end.
func TestWithin(t *testing.T) {
	for name, c := range map[string]struct {
		hook  func(ctx context.Context) error
		want  string
		after time.Duration
	}{
		"in time":       {func(context.Context) error { time.Sleep(time.Second); return nil }, "<nil>", time.Second},
		"heeds its end": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "context deadline exceeded", 1500 * time.Millisecond},
		"does not heed": {func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return ctx.Err() }, "AnyHook did not finish in time", 1800 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := New(Options{Recorder: NewMetrics(), Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				begun := time.Now()
				if err := p.within(ctx, "AnyHook", "s1", c.hook); !strings.Contains(fmt.Sprint(err), c.want) {
					t.Errorf("answered with %v, want %q", err, c.want)
				}
				if took := time.Since(begun); took != c.after {
					t.Errorf("answered after %s, want %s", took, c.after)
				}
				if !p.hooks.Wait(time.Minute) {
					t.Error("the hook does not end")
				}
			})
		})
	}
}
