package kernel

import (
	"context"
	"errors"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// concurrentWriter is a Domain in which another writer creates a link a moment before it is
// made, once.
type concurrentWriter struct {
	reconcile.Domain
	link string
	done *bool
}

func (f concurrentWriter) Apply(ctx context.Context, c netstate.Change) error {
	if l, ok := c.After.(netstate.Link); ok && c.Before == nil && l.Name == f.link && !*f.done {
		*f.done = true
		if err := f.Domain.Apply(ctx, c); err != nil {
			return errors.Join(errors.New("the other one"), err)
		}
	}
	return f.Domain.Apply(ctx, c)
}

// TestConcurrentWriter: what another writer has created since the observation is used if
// possible, and else named; in neither case is it taken away.
func TestConcurrentWriter(t *testing.T) {
	for name, c := range map[string]struct {
		steps, link string
		shared      bool
	}{
		"the bridge on the host":  {"    - {name: a, type: bridge, config: {bridge: br77, ifName: a0}}\n", "host:br77", true},
		"a link in the namespace": {"    - {name: a, type: bridge, config: {bridge: br78, ifName: a0}}\n    - {name: b, type: bridge, dependOn: [a], config: {name: b0}}\n", "b0", false},
	} {
		t.Run(name, func(t *testing.T) {
			l, path := newLane(t), newNetns(t)
			there := func() bool {
				d, err := open(l.host, path)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				s, err := d.Observe(ctxFor(t), []netstate.Object{netstate.Link{Name: c.link}})
				if err != nil {
					t.Fatal(err)
				}
				_, ok := s.Link(c.link)
				return ok
			}
			t.Cleanup(func() {
				if c.shared {
					l.disturb(path, netstate.Change{Before: netstate.Link{Name: c.link, LinkKind: "bridge"}})
				}
			})
			done := false
			r := l.engine(func(d reconcile.Domain) reconcile.Domain { return concurrentWriter{d, c.link, &done} })
			sb := box(path, parse(t, "t", c.steps))
			if _, err := r.Ensure(ctxFor(t), sb); (err == nil) != c.shared {
				t.Errorf("ensure: %v", err)
			}
			if !done || !there() {
				t.Errorf("made by the other one: %t, and there afterwards: %t", done, there())
			}
			if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
				t.Errorf("release: %v", err)
			}
			if !there() {
				t.Error("what the other one made went with the release")
			}
		})
	}
}
