package all_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
)

// TestReplace: what cannot be changed in place is one change that names the field
// and both values, whatever else has to be recreated.
func TestReplace(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := vlanOnDummy()
	d0 := netstate.Link{Alias: new(""), Name: "d0", LinkKind: "dummy", MTU: new(uint32(1500)), Up: new(true), Master: new(""), Promisc: new(false), AllMulti: new(false), TxQueueLen: new(uint32(1000)), Index: 6}
	data0 := netstate.Link{
		Name: "data0", LinkKind: "vlan", Alias: new(""), Parent: new("d0"), VLAN: &netstate.VLAN{ID: new(uint16(100)), Protocol: new("802.1q")},
		MTU: new(uint32(1500)), Up: new(true), Master: new(""), Promisc: new(false), AllMulti: new(false), TxQueueLen: new(uint32(1000)), Index: 7,
	}
	addr := netstate.Addr{Link: "data0", Address: "192.0.2.5/24"}
	owned := []netstate.Change{{Step: "d", After: d0}, {Step: "v", After: data0}, {Step: "v", After: addr}}
	other, dummy := data0, d0
	other.VLAN = &netstate.VLAN{ID: new(uint16(101)), Protocol: new("802.1q")}
	dummy.Name, dummy.Index = "data0", 8
	for name, c := range map[string]struct {
		have       netstate.Link
		line, says string
	}{
		"other VLAN": {other, "∓ link data0 vlan.id 101 → 100", "vlan.id 101 100"},
		"other kind": {dummy, "∓ link data0 kind dummy → vlan, parent d0, vlan.id 100, vlan.protocol 802.1q", "kind dummy vlan"},
	} {
		t.Run(name, func(t *testing.T) {
			have := withoutIPv6(netstate.NewSnapshot(d0, c.have, addr), "d0", "data0")
			plan, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/x", Have: have, Owned: owned})
			if err != nil {
				t.Fatal(err)
			}
			if want := c.line + "\n~ link data0 up off → on\n+ address 192.0.2.5/24 on data0\n"; plan.String() != want {
				t.Errorf("plan:\n%swant:\n%s", plan, want)
			}
			change := plan.Changes[0]
			var said []string
			for _, f := range change.Reasons() {
				said = append(said, f.Path+" "+netstate.FormatValue(f.Before)+" "+netstate.FormatValue(f.After))
			}
			if got := strings.Join(said, "; "); change.Action() != netstate.Replace || got != c.says {
				t.Errorf("%s for %q, want %q", change.Action(), got, c.says)
			}
			inRecord(t, have, plan.Changes)
		})
	}
}

// inRecord holds that a record has the parts of a replacement, as one written by
// earlier versions has, and leads back to what was there.
func inRecord(t *testing.T, have *netstate.Snapshot, changes []netstate.Change) {
	t.Helper()
	lasting := netstate.Lasting(changes)
	data, err := json.Marshal(lasting)
	if err != nil || strings.Contains(string(data), "recreate") {
		t.Fatalf("a record has what earlier versions do not know: %s, %v", data, err)
	}
	var read []netstate.Change
	if err := json.Unmarshal(data, &read); err != nil || !reflect.DeepEqual(netstate.Coalesce(nil, read...), netstate.Coalesce(nil, changes...)) {
		t.Errorf("read from the record: %v (%v), want %v", netstate.Coalesce(nil, read...), err, netstate.Coalesce(nil, changes...))
	}
	now := have.Clone()
	for _, c := range changes {
		if !c.Implied {
			now.Apply(c)
		}
	}
	back, missing := ops.Undo(now, netstate.Coalesce(nil, read...))
	if len(missing) > 0 || len(back) == 0 || back[0].Action() != netstate.Replace {
		t.Fatalf("undo: %v, missing %v; want a replacement first", back, missing)
	}
	for _, c := range back {
		if !c.Implied {
			now.Apply(c)
		}
	}
	if diff := netstatetest.Differences(have, now); len(diff) > 0 {
		t.Errorf("undone, it differs from the start: %v", diff)
	}
}
