package netstate_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestOursUntilGone holds that what we made is not forgotten when it is about to
// be deleted, as a crash may come first, but when it is seen to be gone.
func TestOursUntilGone(t *testing.T) {
	vlan := netstate.Link{Name: "data0", LinkKind: "vlan"}
	history := netstate.Coalesce([]netstate.Change{{Step: "v", After: vlan}}, netstate.Change{Step: "v", Before: vlan})
	if len(history) != 1 || history[0].Before != nil || history[0].Key() != vlan.Key() {
		t.Fatalf("history %v, want what we made", history)
	}
	again := netstate.Link{Name: "data0", LinkKind: "vlan", MTU: new(uint32(1400))}
	made := netstate.Coalesce(history, netstate.Change{Step: "v", After: again})
	if l, ok := made[0].After.(netstate.Link); len(made) != 1 || !ok || l.MTU == nil {
		t.Errorf("made again: %v", made)
	}
	others := netstate.Change{Before: netstate.Addr{Link: "eth0", Address: "192.0.2.1/24"}}
	left := netstate.Unmade(append(history, others), func(netstate.Change) bool { return true })
	if len(left) != 1 || left[0].Key() != others.Key() {
		t.Errorf("left %v, want what was not ours", left)
	}
}
