package exposure_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestPools holds which pools a policy names, and which names it refuses.
func TestPools(t *testing.T) {
	for pool, want := range map[string]string{
		"tenants": "[{a 0 tenants}] <nil>",
		"":        "[] <nil>",
		"Tenants": `[{a 0 Tenants}] DeviceExposurePolicy "p": spec.physicalNetworks[1].addressPool: "Tenants" is not an AddressPool name: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
		`{{ node.labels["topology.example.com/rack"] }}-{{device.rail}}`: `[{a 0 {{ node.labels["topology.example.com/rack"] }}-{{device.rail}}}] <nil>`,
		`{{ node.labels["a b"] }}`:                                       `[{a 0 {{ node.labels["a b"] }}}] DeviceExposurePolicy "p": spec.physicalNetworks[1].addressPool: "a b" is not a label key: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`,
		`a-{{ node.zone }}`:                                              `[{a 0 a-{{ node.zone }}}] DeviceExposurePolicy "p": spec.physicalNetworks[1].addressPool: "a-{{ node.zone }}": only {{ device.rail }}, {{ node.name }} and {{ node.labels["KEY"] }} can stand in the name of an AddressPool`,
	} {
		o := &v1alpha1.DeviceExposurePolicy{}
		o.Name = "p"
		o.Spec.PhysicalNetworks = []v1alpha1.PhysicalNetwork{{Name: "b"}, {Name: "a", AddressPool: pool}}
		p := exposure.New(o)
		if have := fmt.Sprint(p.Pools(), " ", p.Err); have != want {
			t.Errorf("pool %q: %s\nwant %s", pool, have, want)
		}
	}
}

// TestPoolsByPlace holds which pools the networks of devices have where their names follow from the rail and the labels of the
// node, and why there is none. A function has that of its PF.
func TestPoolsByPlace(t *testing.T) {
	const template = `rack-{{ node.labels["topology.example.com/rack"] }}-{{ device.rail }}`
	for name, c := range map[string]struct {
		pool   string
		labels map[string]string
		pools  string // of two ports, a function of the first, and a port without a rail
		why    string // the last has none
	}{
		"fixed":        {"tenants", nil, "tenants tenants tenants tenants", ""},
		"by rail":      {"rail{{ device.rail }}", nil, "rail1 rail2 rail1 ", `physical network "data" has none here: device "0000:02:00.0" has no rail`},
		"by node":      {"rail{{ device.rail }}-{{ node.name }}", nil, "rail1-node-7 rail2-node-7 rail1-node-7 ", `physical network "data" has none here: device "0000:02:00.0" has no rail`},
		"by place":     {template, map[string]string{"topology.example.com/rack": "b7"}, "rack-b7-1 rack-b7-2 rack-b7-1 ", `physical network "data" has none here: device "0000:02:00.0" has no rail`},
		"no label":     {template, nil, "   ", `physical network "data" has none here: the node has no label "topology.example.com/rack"`},
		"empty label":  {`{{ node.labels["rack"] }}`, map[string]string{"rack": ""}, "   ", `physical network "data" has none here: the node has no label "rack"`},
		"no name":      {`{{ node.labels["rack"] }}`, map[string]string{"rack": "B_7"}, "   ", `physical network "data" has none here: "B_7" is not an AddressPool name, which has up to 63 lowercase letters, digits, '-' and '.'`},
		"too long":     {`{{ node.labels["rack"] }}-{{ node.labels["rack"] }}`, map[string]string{"rack": strings.Repeat("r", 40)}, "   ", "which has up to 63"},
		"label, twice": {`{{ node.labels["a"] }}.{{ node.labels["a"] }}`, map[string]string{"a": "x"}, "x.x x.x x.x x.x", ""},
	} {
		o := &v1alpha1.DeviceExposurePolicy{}
		o.Name = "p"
		o.Spec.Selector = &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].type == "pf"`}
		o.Spec.PhysicalNetworks = []v1alpha1.PhysicalNetwork{{Name: "data", AddressPool: c.pool}}
		o.Spec.Neighbour = &v1alpha1.Neighbour{Rail: &v1alpha1.RailRule{Match: "leaf-([0-9]+)"}}
		p := exposure.New(o)
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		port := func(id, leaf string) inventory.Device {
			return inventory.Device{ID: id, Name: id, Kind: inventory.KindPF, Neighbour: &inventory.Neighbour{Switch: leaf}}
		}
		function := port("0000:01:10.0", "leaf-1")
		function.Kind, function.PF = inventory.KindVF, &inventory.PF{PCIAddress: "0000:01:00.0"}
		devices, err := exposure.NewSet([]*exposure.Policy{p}, exposure.Node{Name: "node-7", Labels: c.labels}).Decide(t.Context(), []inventory.Device{
			port("0000:01:00.0", "leaf-1"), port("0000:01:00.1", "leaf-2"), function, port("0000:02:00.0", "spine"),
		})
		if err != nil {
			t.Fatal(err)
		}
		var pools []string
		for _, d := range devices {
			pools = append(pools, d.PhysicalNetworks[0].AddressPool)
			if why := d.Exposure.NoPool; (why != "") != (pools[len(pools)-1] == "") {
				t.Errorf("%s: pool %q, and %q", name, pools[len(pools)-1], why)
			}
		}
		if got, why := strings.Join(pools, " "), devices[3].Exposure.NoPool; got != c.pools || !strings.Contains(why, c.why) || c.why == "" && why != "" {
			t.Errorf("%s: %q, %s\nwant %q, %s", name, got, why, c.pools, c.why)
		}
		if p.Networks[0].AddressPool != c.pool {
			t.Errorf("%s: the policy has pool %q", name, p.Networks[0].AddressPool)
		}
	}
}
