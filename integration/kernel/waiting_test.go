package kernel

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// refusing is a Domain that cannot create a link in one namespace: the kernel makes it, and it is deleted again. It counts how often.
type refusing struct {
	reconcile.Domain
	in    *reconcile.NetnsID
	tried *atomic.Int64
}

func (d refusing) Apply(ctx context.Context, c netstate.Change) error {
	if d.in.Inode == 0 || d.NetnsID().Inode != d.in.Inode || c.Action() != netstate.Create || c.Key() != netstate.LinkKey("b0") {
		return d.Domain.Apply(ctx, c)
	}
	d.tried.Add(1)
	return errors.Join(errors.New("operation not permitted"), d.Domain.Apply(ctx, c), d.Domain.Apply(ctx, netstate.Change{Before: c.After}))
}

// TestNoSandboxWaits: while one sandbox fails, whose passes the kernel notifies of a link that comes and goes, and more sandboxes than the loop has
// workers are being applied, another one is repaired each time that it is disturbed; and the failing one is tried by its
// backoff, whatever the kernel notifies of its own changes.
func TestNoSandboxWaits(t *testing.T) {
	l := newLane(t)
	var refused reconcile.NetnsID
	var tried atomic.Int64
	r := l.engine(func(d reconcile.Domain) reconcile.Domain { return refusing{d, &refused, &tried} })
	steps := parse(t, "t", "    - {name: a, type: dummy, config: {name: a0, mtu: 1400}}\n    - {name: b, type: dummy, config: {name: b0}}\n")
	var boxes []reconcile.Sandbox
	for range 5 {
		sb := box(newNetns(t), steps)
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, sb)
	}
	failing, applied, other := boxes[0], boxes[1:4], boxes[4]
	d, err := open(l.host, failing.Netns)
	if err != nil {
		t.Fatal(err)
	}
	refused = d.NetnsID()
	d.Close()
	l.loop(r)

	store, _, err := parts(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	damage := netstate.Change{Before: netstate.Link{Name: "a0", MTU: new(uint32(1400))}, After: netstate.Link{Name: "a0", MTU: new(uint32(1300))}}
	for _, sb := range applied {
		unlock, err := store.Lock(ctxFor(t), sb.ID) // as an attachment has it
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(unlock)
		l.disturb(sb.Netns, damage)
	}
	began := time.Now()
	l.disturb(failing.Netns, netstate.Change{Before: netstate.Link{Name: "b0"}})
	// As often as takes longer than await waits if a repair begins when another pass no longer waits for its lock.
	for range 10 {
		l.disturb(other.Netns, damage)
		l.await("the sandbox that nothing else concerns is repaired", func() bool {
			a0, ok := l.state(other.Netns).Link("a0")
			return ok && a0.MTU != nil && *a0.MTU == 1400
		})
		time.Sleep(1500 * time.Millisecond) // so that there is room for attempts
	}
	for _, sb := range applied {
		if a0, ok := l.state(sb.Netns).Link("a0"); !ok || *a0.MTU != 1300 {
			t.Errorf("%s was repaired while it was locked", sb.ID)
		}
	}
	// By the backoff there are ten in the first 51 s and one each 30 s. A few notifications are taken for changes from outside.
	took := time.Since(began)
	if n := tried.Load(); n < 3 || n > 20+int64(took/(5*time.Second)) {
		t.Errorf("a failing sandbox was tried %d times in %s", n, took)
	}
}
