package all_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
)

// TestFacts holds what a drawing says of steps, and that it has no address that an imagined node has invented.
func TestFacts(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top, err := topology.Decode([]byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: facts}
spec:
  steps:
    - {name: tagged, type: sriov, config: {vlan: 100, mtu: 4200, addresses: [192.0.2.1/24]}}
    - {name: untagged, type: sriov, config: {vlan: 0}}
    - {name: user, type: vfio-pci}
    - {name: leased, type: macvlan, config: {addresses: [192.0.2.65/26], ipam: {type: dhcp}}}
    - {name: lab, type: bridge, config: {bridge: br-lab, ipam: {type: host-local, subnet: 192.0.2.128/26}}}
    - {name: red, type: vlan, dependOn: [untagged], config: {name: red0, id: 7, addresses: ["2001:db8::1/64"], ipam: {type: pool, pool: red}}}
    - {name: tenant, type: vrf, dependOn: [red], config: {name: tenant, table: 1001}}
    - {name: slow, type: tuning, dependOn: [tenant], config: {dev: red0, mtu: 1400}}
`))
	if err != nil {
		t.Fatal(err)
	}
	plan, given, err := registry.PlanImagined(t.Context(), top, nil, ops.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"tagged":   {"VLAN 100", "net1 mtu 4200", "192.0.2.1/24"},
		"untagged": {"net2"},
		"leased":   {"net4", "192.0.2.65/26", "address by DHCP"},
		"lab":      {"host:br-lab", "net5", "address of the node's range"},
		"red":      {"red0 id 7 mtu 1400", "2001:db8::1/64", "address of pool red"},
		"tenant":   {"tenant table 1001"},
	}
	if diff := cmp.Diff(want, plan.Facts(top, given)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
