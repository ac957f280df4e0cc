package all_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
)

// TestSubnetsOfEarlierSandboxes holds that a sandbox which was applied when subnets gave no addresses is repaired without one, and says
// so; a new one waits.
func TestSubnetsOfEarlierSandboxes(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []ops.Request{{}, {Kept: true}, {AppliedBefore: true}} {
		req.Netns, req.Topology = "/run/netns/blue", steps(t, "  - {name: blue, type: ovn-k8s-cni-overlay, config: {topology: layer2, name: blue, subnets: 172.31.0.0/24}}\n")
		req.Have = withoutIPv6(netstate.NewSnapshot(netstate.Chassis{ID: netstate.ThisChassis.ID, Name: new("node-1"), Int: new("br-int")}))
		plan, err := reg.Plan(t.Context(), req)
		if before := req.Kept || req.AppliedBefore; before != (err == nil) {
			t.Fatalf("applied before %t: %v", before, err)
		} else if !before {
			continue
		}
		for range 8 {
			for _, o := range plan.Missing {
				req.Have.PutAbsent(o.Key())
			}
			if plan, err = reg.Plan(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		if text := fmt.Sprint(plan, plan.Notes); !strings.Contains(text, `interface "net1" has no address of subnets`) || !strings.Contains(text, "+ logical-port") || strings.Contains(text, "+ address") {
			t.Errorf("%s", text)
		}
	}
}
