package all_test

import (
	"slices"
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
			Netns: "/run/netns/blue", Kept: true, Chosen: c.chosen, Have: netstate.NewSnapshot(dummy, vrf),
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
