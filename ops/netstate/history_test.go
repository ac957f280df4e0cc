package netstate_test

import (
	"fmt"
	"slices"
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
		t.Errorf("recreated: %v", made)
	}
	others := netstate.Change{Before: netstate.Addr{Link: "eth0", Address: "192.0.2.1/24"}}
	left := netstate.DropDeleted(append(history, others), func(netstate.Change) bool { return true })
	if len(left) != 1 || left[0].Key() != others.Key() {
		t.Errorf("left %v, want what was not ours", left)
	}
}

// TestCompactUsesObservation holds that what a pass intended to restore, and did not,
// stays ours.
func TestCompactUsesObservation(t *testing.T) {
	onHost, inside := netstate.HostName("enp3s0f0v0"), "net1"
	history := []netstate.Change{
		{Before: netstate.Device{ID: "a", At: &onHost}, After: netstate.Device{ID: "a", At: &onHost}},
		{Before: netstate.VF{ID: "a", Trust: new(false)}, After: netstate.VF{ID: "a", Trust: new(false)}},
		{Before: netstate.Link{Name: "eth0", MTU: new(uint32(1500))}, After: netstate.Link{Name: "eth0", MTU: new(uint32(1500))}},
	}
	if left := netstate.Compact(history, netstate.NewSnapshot(
		netstate.Device{ID: "a", At: &onHost, Up: new(true)},
		netstate.VF{ID: "a", Trust: new(false), SpoofCheck: new(true)},
	)); len(left) > 0 {
		t.Errorf("it is as it was, and this is left: %v", left)
	}
	left := netstate.Compact(history, netstate.NewSnapshot(
		netstate.Device{ID: "a", At: &inside, Up: new(true)},
		netstate.VF{ID: "a", Trust: new(true), SpoofCheck: new(true)},
		netstate.Link{Name: "eth0", MTU: new(uint32(9000)), Up: new(true)},
	))
	want := []string{"~ device a at host:enp3s0f0v0 → net1", "~ vf a trust off → on", "~ link eth0 mtu 1500 → 9000"}
	var got []string
	for _, c := range left {
		got = append(got, c.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}

// TestDriftIsNotTheOriginal holds that a setting which was as wanted before us is
// recorded with that value, also if it drifts until it is repaired.
func TestDriftIsNotTheOriginal(t *testing.T) {
	held := netstate.Change{
		Before: netstate.VF{ID: "a", VLAN: new(uint16(0)), Trust: new(false)},
		After:  netstate.VF{ID: "a", VLAN: new(uint16(7)), Trust: new(false)},
	}
	asWas := netstate.Change{Before: netstate.VF{ID: "b", Trust: new(false)}, After: netstate.VF{ID: "b", Trust: new(false)}}
	history := netstate.Coalesce(nil, netstate.Change{Before: netstate.VF{ID: "a", VLAN: new(uint16(0))}, After: netstate.VF{ID: "a", VLAN: new(uint16(7))}}, held, asWas)
	now := netstate.NewSnapshot(held.After, asWas.After)
	history = netstate.Compact(history, now, held, asWas)
	for _, id := range []string{"a", "b"} {
		history = netstate.Coalesce(history, netstate.Change{Before: netstate.VF{ID: id, Trust: new(true)}, After: netstate.VF{ID: id, Trust: new(false)}})
	}
	var got []string
	for _, c := range netstate.Compact(history, now, held, asWas) {
		got = append(got, fmt.Sprint(c, netstate.Fields(c.Before)))
	}
	want := []string{"~ vf a vlan 0 → 7 [{vlan live 0} {trust live false}]", "~ vf b [{trust live false}]"}
	if !slices.Equal(got, want) {
		t.Errorf("remembered %q, want %q", got, want)
	}
	if left := netstate.Compact(history, now); len(left) != 1 || left[0].Key().ID != "a" {
		t.Errorf("no step wants them any more, and this is left: %v", left)
	}
}
