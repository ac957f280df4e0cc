package ops_test

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// A device that has to be somewhere keeps its record: a pod may hide it in a
// namespace of its own.
func TestAbsent(t *testing.T) {
	devices := []netstate.Device{
		{ID: "0000:01:10.0", Driver: "igbvf"},
		{ID: "0000:01:10.1", Driver: "igbvf", At: new("host:v1")},
		{ID: "0000:01:10.2", Driver: "vfio-pci"},
		{ID: "0000:01:10.3"},
		{ID: "if:vmbus", LinkKind: "device", Parent: "vmbus/1", Driver: "hv_netvsc"},
		{ID: "if:unbound", LinkKind: "device", Parent: "vmbus/2"},
		{ID: "if:nic", LinkKind: "device"},
		{ID: "if:dummy0", LinkKind: "dummy"},
		{ID: "if:old"},
	}
	snap := netstate.NewSnapshot()
	var history []netstate.Change
	for _, d := range devices {
		snap.Put(d)
		history = append(history, netstate.Change{Before: d, After: netstate.Device{ID: d.ID, At: new("net1")}})
	}
	if got := ops.Absent(snap, history); !slices.Equal(got, []string{"0000:01:10.0", "if:vmbus", "if:nic"}) {
		t.Errorf("got %q", got)
	}
}
