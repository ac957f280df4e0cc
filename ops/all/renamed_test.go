package all_test

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// vlanOnDummy has VLAN 100 "data0" with an address on a dummy "d0".
func vlanOnDummy() *topology.Topology {
	return &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{
		{Name: "d", Type: "dummy", Config: map[string]any{"name": "d0"}},
		{Name: "v", Type: "vlan", DependOn: []string{"d"}, Config: map[string]any{"id": int64(100), "name": "data0", "addresses": []any{"192.0.2.5/24"}}},
	}}
}

// A link we made is known by its index when somebody has renamed it.
func TestRenamed(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := vlanOnDummy()
	d0 := netstate.Link{Name: "d0", LinkKind: "dummy", MTU: new(uint32(1500)), Up: new(true), Master: new(""), Index: 6}
	data0 := netstate.Link{
		Name: "data0", LinkKind: "vlan", Parent: new("d0"), VLAN: &netstate.VLAN{ID: new(uint16(100)), Protocol: new("802.1q")},
		MTU: new(uint32(1500)), Up: new(true), Master: new(""), Index: 7,
	}
	owned := []netstate.Change{{Step: "d", After: d0}, {Step: "v", After: data0}, {Step: "v", After: netstate.Addr{Link: "data0", Address: "192.0.2.5/24"}}}
	spare0 := data0
	spare0.Name = "spare0"
	addr := netstate.Addr{Link: "spare0", Address: "192.0.2.5/24"}
	spared := d0
	spared.Name = "spare0"
	upon := data0
	upon.Parent = new("spare0")
	other0 := netstate.Link{Name: "d0", LinkKind: "veth", MTU: new(uint32(1500)), Up: new(true), Master: new(""), Index: 9}
	later := spare0 // another link, which has the name only
	later.Index = 8
	for name, c := range map[string]struct {
		have       []netstate.Object
		plan, undo string
		conflict   string
	}{
		"renamed":          {have: []netstate.Object{d0, spare0, addr}, plan: "~ link data0 name spare0 → data0", undo: "- link d0"},
		"its name taken":   {have: []netstate.Object{other0, spared, upon}, conflict: `step "d": the name "d0" is taken in the sandbox by a veth link that is not ours; ours was renamed to "spare0"`, undo: "- link spare0"},
		"another of these": {have: []netstate.Object{d0, later}, conflict: `VLAN 100 on "d0" exists already as "spare0"`, undo: "- link d0"},
	} {
		t.Run(name, func(t *testing.T) {
			have := withoutIPv6(netstate.NewSnapshot(c.have...), "d0", "data0")
			plan, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/x", Have: have, Owned: owned})
			switch {
			case c.conflict != "":
				if fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), c.conflict) {
					t.Errorf("plan: %v, want %q", err, c.conflict)
				}
			case err != nil:
				t.Fatal(err)
			case len(plan.Changes) != 1 || plan.Changes[0].String() != c.plan || plan.Changes[0].Step != "v":
				t.Errorf("plan: %v, want %q", plan.Changes, c.plan)
			}
			changes, missing := ops.Undo(have, owned)
			if len(missing) > 0 || len(changes) != 1 || changes[0].String() != c.undo {
				t.Errorf("undo: %v, want %q; missing %v", changes, c.undo, missing)
			}
		})
	}
	// An object that no step wants any more is still deleted.
	less := &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: top.Steps[:1]}
	have := withoutIPv6(netstate.NewSnapshot(d0, spare0, addr), "d0")
	plan, err := reg.Plan(t.Context(), ops.Request{Topology: less, Netns: "/run/netns/x", Have: have, Owned: owned})
	if err != nil || len(plan.Changes) < 2 || plan.Changes[0].String() != "~ link data0 name spare0 → data0" || plan.Changes[1].String() != "- link data0" {
		t.Errorf("plan without its step: %v, %v", err, plan)
	}
	// Where its parent is not ours the link goes by itself.
	changes, _ := ops.Undo(netstate.NewSnapshot(d0, spare0, addr), owned[1:])
	if len(changes) != 1 || changes[0].String() != "- link spare0" {
		t.Errorf("undo of the VLAN alone: %v", changes)
	}

	// A VRF is used as it is where it is another's; one of ours is still that of
	// its step.
	red := &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{
		top.Steps[0], {Name: "red", Type: "vrf", DependOn: []string{"d"}, Config: map[string]any{"vrfname": "red", "table": int64(9), "leak": true}},
	}}
	vrf := netstate.Link{Name: "red", LinkKind: "vrf", VRF: &netstate.VRF{Table: new(uint32(9))}, Up: new(true), Master: new(""), Index: 8}
	owned = append(owned[:1:1], netstate.Change{Step: "red", After: vrf})
	vrf.Name = "spare0"
	d0.Master = new("spare0")
	plan, err = reg.Plan(t.Context(), ops.Request{Topology: red, Netns: "/run/netns/x", Have: withoutIPv6(netstate.NewSnapshot(d0, vrf), "d0"), Owned: owned})
	if err != nil || len(plan.Changes) != 1 || plan.Changes[0].Step != "red" || plan.Changes[0].String() != "~ link red name spare0 → red" {
		t.Errorf("plan of a VRF: %v, %v", err, plan)
	}
}

// TestRenamedWithFilters: the filters of a renamed link are queried under the name that it
// has, so that one plan gives it back its name and nothing else.
func TestRenamedWithFilters(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: vlanOnDummy().Steps[:1]}
	d0 := netstate.Link{Name: "d0", LinkKind: "dummy", MTU: new(uint32(1500)), Up: new(true), Master: new(""), Index: 6}
	filter := netstate.Filter{
		Pref: 20000, Handle: 1, Family: new(netstate.IPv4), To: new(""), Protocol: new(""), Port: new(uint16(0)),
		DSCP: new(uint8(8)), Policer: new(uint16(0)), Rate: new(uint64(0)), BurstNanos: new(uint64(0)),
	}
	on := func(link string) []netstate.Object {
		f := filter
		f.Link = link
		return []netstate.Object{netstate.Clsact{Link: link}, f}
	}
	owned := []netstate.Change{{Step: "d", After: d0}, {Step: "d", After: on("d0")[0]}, {Step: "d", After: on("d0")[1]}}
	d0.Name = "spare0"
	have := withoutIPv6(netstate.NewSnapshot(d0))
	for _, o := range on("d0") {
		have.PutAbsent(o.Key()) // as it was queried
	}
	request := ops.Request{Topology: top, Netns: "/run/netns/x", Have: have, Owned: owned, Rules: ops.Rules{Filters: []netstate.Filter{filter}}}
	plan, err := reg.Plan(t.Context(), request)
	if err != nil || len(plan.Missing) != 2 || plan.Missing[0].Key() != netstate.ClsactKey("spare0") || netstate.LinkOf(plan.Missing[1]) != "spare0" {
		t.Fatalf("plan: %+v, %v", plan, err)
	}
	for _, o := range on("spare0") {
		have.Put(o)
	}
	plan, err = reg.Plan(t.Context(), request)
	if err != nil || plan.String() != "~ link d0 name spare0 → d0\n" {
		t.Errorf("plan: %v, %v", plan, err)
	}
	// An object that the pod has deleted meanwhile is created after the rename.
	have.PutAbsent(on("spare0")[1].Key())
	plan, err = reg.Plan(t.Context(), request)
	if err != nil || plan.String() != "~ link d0 name spare0 → d0\n+ filter d0 egress pref 20000 handle 1 family ipv4, dscp 8\n" {
		t.Errorf("plan: %v, %v", plan, err)
	}
}

// TestCutOff: an update died before it deleted what it was to recreate, which the
// record by then describes as it was to become.
func TestCutOff(t *testing.T) {
	d0 := netstate.Link{Name: "d0", LinkKind: "device", MTU: new(uint32(1500)), Up: new(true), Master: new("")}
	up0 := func(id uint16) netstate.Link {
		return netstate.Link{Name: "up0", LinkKind: "vlan", Parent: new("d0"), VLAN: &netstate.VLAN{ID: &id, Protocol: new("802.1q")}, Up: new(true), Index: 7}
	}
	sysctl := netstate.Sysctl{Path: "net/ipv4/conf/up0/rp_filter", Value: new("2")}
	owned := []netstate.Change{{Step: "v", After: up0(9)}, {Step: "t", After: sysctl}}
	owned = netstate.Coalesce(owned, netstate.Change{Step: "v", Before: up0(9)}, netstate.Change{Step: "v", After: up0(10)})
	changes, missing := ops.Undo(netstate.NewSnapshot(d0, up0(9), sysctl), owned)
	if len(missing) > 0 || len(changes) != 1 || changes[0].String() != "- link up0" {
		t.Errorf("the old one: %v, missing %v", changes, missing)
	}
	// A foreign one that was made meanwhile is not ours either.
	other := up0(11)
	other.Index = 8
	if changes, _ := ops.Undo(netstate.NewSnapshot(d0, other, sysctl), owned); len(changes) != 0 {
		t.Errorf("a foreign link: %v", changes)
	}
	// A setting on a link that was recreated is not there to be taken away.
	if changes, _ := ops.Undo(netstate.NewSnapshot(d0, other, sysctl), owned[len(owned)-1:]); len(changes) != 0 {
		t.Errorf("a setting: %v", changes)
	}
}
