package topology_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology"
)

// TestFromSubnets holds which steps have the addresses of the subnets of their network, and of which pool: one for each logical
// switch, with a name that an AddressPool can have.
func TestFromSubnets(t *testing.T) {
	const blue = `topology: layer2, netAttachDefName: default/blue, subnets: "10.0.0.0/24, fd00::/64"`
	for name, c := range map[string]struct{ config, want string }{
		"two families":            {blue, "ovn-default-blue-3cb7b5d9 [10.0.0.0/24 fd00::/64] []"},
		"a name":                  {`topology: layer2, name: default/blue, netAttachDefName: other/red, subnets: 10.1.0.0/24`, "ovn-default-blue-3cb7b5d9 [10.1.0.0/24] []"},
		"another name":            {`topology: layer2, name: default-blue, subnets: 10.0.0.0/24`, "ovn-default-blue-"},
		"excluded":                {blue + `, excludeSubnets: "10.0.0.0/28,192.0.2.0/24"`, "ovn-default-blue-3cb7b5d9 [10.0.0.0/24 fd00::/64] [10.0.0.0/28]"},
		"localnet":                {`topology: localnet, name: Blue_1, physicalNetworkName: p, vlanID: 7, subnets: 10.0.0.0/24`, "ovn-blue-1-"},
		"localnet without a VLAN": {`topology: localnet, name: Blue_1, physicalNetworkName: p, subnets: 10.0.0.0/24`, "ovn-blue-1-"},
		"VLAN 0":                  {`topology: localnet, name: Blue_1, physicalNetworkName: p, vlanID: 0, subnets: 10.0.0.0/24`, "ovn-blue-1-"},
		"a long name":             {`topology: layer2, name: ` + strings.Repeat("a", 200) + `, subnets: 10.0.0.0/24`, "ovn-" + strings.Repeat("a", 48) + "-"},
		"empty addresses":         {blue + `, addresses: []`, "ovn-default-blue-3cb7b5d9"},
		"own addresses":           {blue + `, addresses: [10.0.0.5/24]`, ""},
		"own ipam":                {blue + `, ipam: {type: pool, pool: mine}`, ""},
		"no subnets":              {`topology: layer2, name: blue`, ""},
		"a reference":             {`topology: layer2, name: "{{ a.name }}", subnets: 10.0.0.0/24`, ""},
		"wrong":                   {`topology: layer2, name: blue, subnets: 10.0.0.1/24`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			decoded, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec: {steps: [{name: net, type: ovn-k8s-cni-overlay, config: {" + c.config + "}}]}"))
			if err != nil {
				t.Fatal(err)
			}
			s := &decoded.Steps[0]
			of, ok := topology.FromSubnets(s)
			if have := fmt.Sprintf("%s %v %v", of.Pool, of.Subnets, of.ExcludeCIDRs); ok != (c.want != "") || ok && !strings.HasPrefix(have, c.want) {
				t.Errorf("%t: %s, want %s", ok, have, c.want)
			}
			if len(of.Pool) > 63 {
				t.Errorf("%q has %d bytes", of.Pool, len(of.Pool))
			}
			if pool, _, _ := topology.FromPool(s); ok && pool != of.Pool {
				t.Errorf("it has the pool %q", pool)
			}
			s.Type = "macvlan"
			if _, ok := topology.FromSubnets(s); ok {
				t.Error("another type has them")
			}
		})
	}
}

// TestSwitches holds that networks have one pool if they have one logical switch.
func TestSwitches(t *testing.T) {
	names := map[string]string{}
	for _, n := range []topology.OVN{
		{Topology: "layer2", Name: "a/b"},
		{Topology: "layer2", Name: "a-b"},
		{Topology: "layer2", Name: "a_b"},
		{Topology: "layer2", Name: "A-B"},
		{Topology: "localnet", Name: "a/b", PhysicalNetworkName: "p"},
		{Topology: "localnet", Name: "a/b", PhysicalNetworkName: "q"},
		{Topology: "localnet", Name: "a/b", PhysicalNetworkName: "p", VLANID: 7},
		{Topology: "localnet", Name: "p"},
	} {
		if other, has := names[n.Pool()]; has {
			t.Errorf("%s and %s have pool %s", n.Switch(), other, n.Pool())
		}
		names[n.Pool()] = n.Switch()
	}
	for config, want := range map[string]string{
		`{"topology":"layer2","name":"blue"}`: "plumbline:layer2:blue", `{"topology":"localnet","name":"blue"}`: "", `{"topology":"layer2","name":"{{ a.b }}"}`: "",
	} {
		s := topology.Step{Type: topology.TypeOVN}
		if err := json.Unmarshal([]byte(config), &s.Config); err != nil {
			t.Fatal(err)
		}
		if have := topology.SwitchOf(&s); have != want {
			t.Errorf("%s is on %q, want %q", config, have, want)
		}
	}
	a, b := topology.OVN{Topology: "localnet", Name: "p"}, topology.OVN{Topology: "localnet", Name: "p", PhysicalNetworkName: "p"}
	if a.Pool() != b.Pool() {
		t.Error("the default of the physical network is another pool")
	}
}
