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

// TestSubnetsOfNoPool holds that subnets of which no pool can be made stop no pod that has had them all the time: that of an earlier
// sandbox, and one with a port of ovn-kubernetes.
func TestSubnetsOfNoPool(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const many = "10.0.0.0/24,10.0.1.0/24,10.0.2.0/24,10.0.3.0/24,10.0.4.0/24,10.0.5.0/24,10.0.6.0/24,10.0.7.0/24,10.0.8.0/24"
	port := ops.Port{Name: "pod-p1 default/blue", Holder: "p1", MAC: "0a:58:0a:00:00:05", Attachment: "default/blue", Network: "blue", Topology: "layer2"}
	for what, req := range map[string]ops.Request{
		"running":          {Kept: true},
		"applied before":   {AppliedBefore: true},
		"ovn-kubernetes's": {Given: ops.Givens{"blue": {Port: &port}}},
	} {
		for _, subnets := range []string{many, "10.0.0.0/7", "10.0.0.0/24,10.0.0.0/25"} {
			req.Netns, req.Topology = "/run/netns/blue", steps(t, "  - {name: blue, type: ovn-k8s-cni-overlay, config: {topology: layer2, netAttachDefName: default/blue, name: blue, subnets: \""+subnets+"\"}}\n")
			req.Have = withoutIPv6(netstate.NewSnapshot(netstate.Chassis{ID: netstate.ThisChassis.ID, Name: new("node-1"), Int: new("br-int")}))
			_, err := reg.Plan(t.Context(), req)
			if err != nil {
				t.Errorf("%s, %s: %v", what, subnets, err)
			}
		}
	}
}
