package draplugin_test

import (
	"encoding/json"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// setting is a claim that sets parameters, in JSON.
func setting(rc *resourceapi.ResourceClaim, parameters string) *resourceapi.ResourceClaim {
	rc.Status.Allocation.Devices.Config = append(rc.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
		Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"r-vf1"},
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"parameters":[` + parameters + `]}`)},
		}},
	})
	return rc
}

// TestParameters holds that what a claim sets is in the topology of its sandbox, that its addresses are reserved as literal ones,
// that the record survives and is of a version that earlier agents leave alone, and that bounds are checked here, too: admission may
// have been bypassed.
func TestParameters(t *testing.T) {
	g := newGiven(t)
	a := &allocator{}
	g.Addresses = a
	g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"pool","pool":"blue"},"ifName":"net9"}`)}
	const mac = `{"mac":"02:00:5e:00:00:07","step":"vf1"}`
	g.refused(setting(allocated("c0", "p0", "0", "1"), mac), fault.Invalid,
		`ResourceClaim "claim-c0": parameters of step "vf1": mac: NetworkTopology "pair" does not let a claim set it: it has no claimParameters`)

	g.topology.Spec.ClaimParameters = []v1alpha1.ClaimParameter{
		{Step: "vf1", Key: v1alpha1.ParameterAddresses, Subnets: []v1alpha1.ParameterSubnet{{Prefix: "192.0.2.0/24", First: "192.0.2.64", Last: "192.0.2.127"}, {Prefix: "2001:db8::/64"}}},
		{Step: "vf1", Key: v1alpha1.ParameterMAC, MACPrefix: "02:00:5e"},
		{Step: "vf1", Key: v1alpha1.ParameterName, NamePattern: "data[0-9]|eth1"},
	}
	for parameters, want := range map[string]string{
		`{"addresses":["192.0.2.9"],"step":"vf1"}`:               `addresses: 192.0.2.9 is not in 192.0.2.64-192.0.2.127, 2001:db8::1-2001:db8::ffff:ffff:ffff:ffff`,
		`{"addresses":["192.0.2.70/8"],"step":"vf1"}`:            `addresses: 192.0.2.70/8: the prefix length of its subnet is 24`,
		`{"addresses":["192.0.2.70","192.0.2.71"],"step":"vf1"}`: `addresses: 192.0.2.71 is a second address in 192.0.2.64-192.0.2.127`,
		`{"addresses":["::ffff:192.0.2.70"],"step":"vf1"}`:       `is not an address such as 192.0.2.7`,
		`{"addresses":["fe80::1%eth0"],"step":"vf1"}`:            `is not an address such as 192.0.2.7`,
		`{"mac":"02:00:5f:00:00:07","step":"vf1"}`:               `mac: 02:00:5f:00:00:07 does not begin with 02:00:5e`,
		`{"mac":"0200.5e00.0007","step":"vf1"}`:                  `mac: "0200.5e00.0007" is not a MAC address such as`,
		`{"name":"data10","step":"vf1"}`:                         `name: "data10" does not match the pattern "data[0-9]|eth1"`,
		`{"name":"xeth1","step":"vf1"}`:                          `name: "xeth1" does not match the pattern`,
		`{"name":"data0","step":"vf0"}`:                          `parameters of step "vf0": name: NetworkTopology "pair" does not let a claim set it: its claimParameters are addresses of step "vf1", mac of step "vf1", name of step "vf1"`,
		mac + "," + mac:                                          `step: is named twice`,
		`{"step":"vf1"}`:                                         `step: sets no key`,
		`{"step":"vf1","vlan":7}`:                                `unknown field "vlan"`,
	} {
		g.refused(setting(allocated("c0", "p0", "0", "1"), parameters), fault.Invalid, want)
	}

	rc := setting(allocated("c1", "p1", "0", "1"), `{"addresses":["192.0.2.70","2001:db8::7/64"],"mac":"02:00:5E:00:00:07","name":"data0","step":"vf1"}`)
	for range 2 {
		if _, err := g.prepare(rc); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.taken) != 0 || a.literals != "pod-p1 [{pair vf1 192.0.2.70 } {pair vf1 2001:db8::7 } {pair vf1 ff00::200:5e00:7 }]" {
		t.Errorf("took %v of pools, and reserved %s", a.taken, a.literals)
	}
	e, _, err := g.store.Get("c1")
	if err != nil {
		t.Fatal(err)
	}
	sandboxes, err := e.Sandboxes("s", "/run/netns/s")
	if err != nil {
		t.Fatal(err)
	}
	vf1, _ := sandboxes[0].Topology.Step("vf1")
	got := strings.TrimSpace(string(mustJSON(t, vf1.Config)))
	if want := `{"addresses":["192.0.2.70/24","2001:db8::7/64"],"mac":"02:00:5e:00:00:07","name":"data0"}`; got != want {
		t.Errorf("the config in the sandbox is %s, want %s", got, want)
	}
	if raw := string(e.Topologies[0].Object.Spec.Steps[1].Config.Raw); strings.Contains(raw, "data0") {
		t.Errorf("the topology of the record is %s: another claim has it, too", raw)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
