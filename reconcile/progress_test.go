package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
)

// listing is a host that lists the links that are created.
type listing struct {
	*host
	created []string
}

func (l *listing) Apply(_ context.Context, c netstate.Change) error {
	if link, ok := c.After.(netstate.Link); ok && c.Action() == netstate.Create {
		l.created = append(l.created, link.Name)
	}
	return nil
}

// TestCancelledBetweenChanges holds that progress is reported before each change, and
// that an Ensure that is cancelled starts no further one and returns the reason.
func TestCancelledBetweenChanges(t *testing.T) {
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	l := &listing{host: &host{}}
	r := reconcile.New(reconcile.Options{
		Registry: registry, Store: store, Open: func(string) (reconcile.Domain, error) { return l, nil }, BootID: "boot", Now: time.Now,
	})
	top := &topology.Topology{Name: "t"}
	for i := range 4 {
		top.Steps = append(top.Steps, topology.Step{Name: fmt.Sprintf("s%d", i), Type: "dummy", Config: map[string]any{"name": fmt.Sprintf("d%d", i)}})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("the sandbox is being stopped")
	var steps []string
	ctx = reconcile.WithProgress(ctx, func(p reconcile.Progress) {
		steps = append(steps, fmt.Sprintf("%s %d/%d", p.Step, p.Done, p.Planned))
		if p.Step == "s1" {
			cancel(stopped)
		}
	})
	_, err = r.Ensure(ctx, reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: top})
	if !errors.Is(err, stopped) {
		t.Errorf("error %v, want the reason", err)
	}
	if slices.Contains(l.created, "d2") || slices.Contains(l.created, "d3") || !slices.Contains(l.created, "d0") {
		t.Errorf("created %q, want nothing after the step in which it was cancelled", l.created)
	}
	if len(steps) < 2 || !strings.HasPrefix(steps[0], "s0 0/") || slices.ContainsFunc(steps, func(s string) bool { return strings.HasPrefix(s, "s2") }) {
		t.Errorf("progress %q", steps)
	}
}
