package all_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// TestVRFOfEarlierVersion: a VRF that an earlier version has made without routes that refuse gets them with the first pass, also
// where a record says that it was chosen to leak; not if the topology says leak: true.
func TestVRFOfEarlierVersion(t *testing.T) {
	dummy := netstate.Link{
		Name: "d0", LinkKind: "dummy", MAC: new("02:00:00:00:00:01"), MTU: new(uint32(1500)), Up: new(true), Master: new("blue"), Promisc: new(false), AllMulti: new(false),
	}
	vrf := netstate.Link{Name: "blue", LinkKind: "vrf", VRF: &netstate.VRF{Table: new(uint32(1001))}, MTU: new(uint32(65575)), Up: new(true), Master: new("")}
	for _, c := range []struct {
		config string
		chosen ops.Choices
		want   int
	}{
		{"", nil, 2},
		{"", ops.Choices{"link blue leak": "true"}, 2},
		{", leak: true", nil, 0},
		{", leak: true", ops.Choices{"link blue leak": "false"}, 0},
	} {
		reg, err := all.Registry()
		if err != nil {
			t.Fatal(err)
		}
		req := ops.Request{
			Netns: "/run/netns/blue", Kept: true, Chosen: c.chosen, Have: netstate.NewSnapshot(dummy, vrf, netstate.Sysctl{Path: "net/ipv6/conf/default/accept_ra", Value: new("1")}),
			Owned: []netstate.Change{{Step: "d", After: dummy}, {Step: "v", After: vrf}},
		}
		text := "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec: {steps: [" +
			`{name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}, {name: v, type: vrf, dependOn: [d], config: {vrfname: blue, table: 1001` + c.config + "}}]}\n"
		if req.Topology, err = topology.Decode([]byte(text)); err != nil {
			t.Fatal(err)
		}
		var plan *ops.Plan
		for range 8 {
			if plan, err = reg.Plan(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			for _, o := range plan.Missing {
				req.Have.PutAbsent(o.Key())
			}
		}
		refusing := slices.DeleteFunc(slices.Clone(plan.Changes), func(c netstate.Change) bool { return c.Key().Kind != netstate.KindUnreachable || c.After == nil })
		if len(refusing) != c.want || len(plan.Missing) > 0 {
			t.Errorf("config %q, chosen %v: %d routes that refuse are added, want %d\n%s", c.config, c.chosen, len(refusing), c.want, plan)
		}
	}
}

// TestChosenTable: a table that was chosen for a VRF, and that a step names later, is refused, but not for what was applied.
func TestChosenTable(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range []bool{false, true} {
		req := ops.Request{
			Netns: "/run/netns/blue", Kept: kept, Chosen: ops.Choices{"link blue vrf.table": "1"}, Have: withoutIPv6(netstate.NewSnapshot()),
			Topology: steps(t, "  - {name: d, type: dummy, config: {name: d0}}\n  - {name: v, type: vrf, dependOn: [d], config: {vrfname: blue}}\n"+
				"  - {name: e, type: dummy, config: {name: e0, addresses: [192.0.2.5/24], routes: [{dst: 198.51.100.0/24}, {dst: 203.0.113.0/24, table: 1}]}}\n"),
		}
		_, err := reg.Plan(t.Context(), req)
		want := `step "v": table: 1 was chosen for VRF "blue", and step "e": config.routes[1].table names it`
		if refused := err != nil && strings.Contains(err.Error(), want); refused == kept || err != nil && !refused {
			t.Errorf("kept %t: %v", kept, err)
		}
	}
}

// TestVRFWithoutIPv6: where the kernel has no IPv6 it refuses its routes, and a VRF needs none.
func TestVRFWithoutIPv6(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, "  - {name: d, type: dummy, config: {name: d0}}\n  - {name: v, type: vrf, dependOn: [d], config: {vrfname: blue}}\n")
	have := withoutIPv6(netstate.NewSnapshot())
	have.PutAbsent(netstate.Unreachable{Dst: "0.0.0.0/0", Table: 1, Metric: 4278198272}.Key())
	plan, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/blue", Have: have})
	if err != nil || len(plan.Missing) > 0 {
		t.Fatalf("%v, missing %v", err, plan.Missing)
	}
	for _, o := range []netstate.Unreachable{{Dst: "0.0.0.0/0", Table: 1, Metric: 4278198272}, {Dst: "::/0", Table: 1, Metric: 4278198272}} {
		if there := slices.ContainsFunc(plan.Changes, func(c netstate.Change) bool { return c.Key() == o.Key() }); there != (o.Dst == "0.0.0.0/0") {
			t.Errorf("%s: planned %t", o.Key(), there)
		}
	}
}
