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
		{ID: "if:nic", LinkKind: "device", Lost: true},
		{ID: "if:dummy0", LinkKind: "dummy"},
		{ID: "if:dummy1", LinkKind: "dummy", Lost: true},
		{ID: "if:old"},
	}
	snap := netstate.NewSnapshot()
	var history []netstate.Change
	for _, d := range devices {
		snap.Put(d)
		history = append(history, netstate.Change{Before: d, After: netstate.Device{ID: d.ID, At: new("net1")}})
	}
	for id, netns := range map[string]string{"0000:01:10.1": netstate.RDMAOfOther, "0000:01:10.2": netstate.RDMAOfHost} {
		snap.Put(netstate.RDMANetns{ID: id, Netns: &netns})
		history = append(history, netstate.Change{Before: netstate.RDMANetns{ID: id, Netns: new(netstate.RDMAOfHost)}, After: netstate.RDMANetns{ID: id, Netns: new(netstate.RDMAOfSandbox)}})
	}
	if got := ops.Absent(snap, history); !slices.Equal(got, []string{"0000:01:10.0", "if:vmbus", "if:nic", "if:dummy1", "0000:01:10.1"}) {
		t.Errorf("got %q", got)
	}
}

// A step that was edited in records what the pod had set by then. The device is
// given back with what the host had, and nothing of the pod's.
func TestSettingsOfThePodAreNotRestored(t *testing.T) {
	const id = "0000:01:10.0"
	own := netstate.Settings{"feature.rx-gro=on", "link.flags=0x0", "link.txqlen=1000"}
	history := []netstate.Change{
		{Before: netstate.Device{ID: id, At: new("host:v0"), Settings: own}, After: netstate.Device{ID: id, At: new("net1")}},
		{Before: netstate.Link{Name: "net1", TxQueueLen: new(uint32(7)), AllMulti: new(true)}, After: netstate.Link{Name: "net1", TxQueueLen: new(uint32(500)), AllMulti: new(false)}},
		{Before: netstate.Ethtool{Link: "net1", Class: netstate.EthtoolFeature, Name: "rx-gro", Value: new("off")}, After: netstate.Ethtool{Link: "net1", Class: netstate.EthtoolFeature, Name: "rx-gro", Value: new("on")}},
	}
	for _, at := range []string{"net1", "host:v0"} {
		snap := netstate.NewSnapshot()
		snap.Put(netstate.Device{ID: id, Driver: "igbvf", At: &at, Settings: own})
		snap.Put(netstate.Link{Name: at, LinkKind: "device", DeviceID: id, TxQueueLen: new(uint32(500)), AllMulti: new(false)})
		snap.Put(netstate.Ethtool{Link: at, Class: netstate.EthtoolFeature, Name: "rx-gro", Value: new("on")})
		snap.PutAbsent(netstate.LinkKey("host:v0"))
		if at == "host:v0" {
			snap.Put(netstate.Link{Name: at, LinkKind: "device", DeviceID: id, TxQueueLen: new(uint32(500)), AllMulti: new(false)})
		}
		changes, missing := ops.Undo(snap, history)
		if len(missing) > 0 {
			t.Fatalf("at %s: missing %v", at, missing)
		}
		for _, c := range changes {
			if _, ok := c.Object().(netstate.Device); !ok {
				t.Errorf("at %s: %s", at, c)
			}
		}
	}
}
