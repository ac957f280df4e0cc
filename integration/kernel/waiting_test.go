package kernel

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// TestNoSandboxWaits: while more sandboxes than the loop has workers are locked, as attachments lock them, another one is repaired each
// time that it is disturbed, and those that are locked are left to whoever has the lock.
func TestNoSandboxWaits(t *testing.T) {
	l := newLane(t)
	r := l.engine(nil)
	steps := parse(t, "t", "    - {name: a, type: dummy, config: {name: a0, mtu: 1400}}\n")
	var boxes []reconcile.Sandbox
	for range 5 {
		sb := box(newNetns(t), steps)
		if _, err := r.Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, sb)
	}
	applied, other := boxes[:4], boxes[4]
	l.loop(r)
	store, _, err := parts(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	damage := netstate.Change{Before: netstate.Link{Name: "a0", MTU: new(uint32(1400))}, After: netstate.Link{Name: "a0", MTU: new(uint32(1300))}}
	for _, sb := range applied {
		unlock, err := store.Lock(ctxFor(t), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(unlock)
		l.disturb(sb.Netns, damage)
	}
	for range 10 {
		l.disturb(other.Netns, damage)
		l.await("the sandbox that nothing else concerns is repaired", func() bool {
			a0, ok := l.state(other.Netns).Link("a0")
			return ok && a0.MTU != nil && *a0.MTU == 1400
		})
	}
	for _, sb := range applied {
		if a0, ok := l.state(sb.Netns).Link("a0"); !ok || *a0.MTU != 1300 {
			t.Errorf("%s was repaired while it was locked", sb.ID)
		}
	}
}
