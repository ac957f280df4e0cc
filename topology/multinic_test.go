package topology_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func multiNIC(t *testing.T, steps string) *v1alpha1.NetworkTopology {
	t.Helper()
	o := &v1alpha1.NetworkTopology{}
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"t"},"spec":{"steps":[`+steps+`]}}`), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestMasterNets holds what a step with masterNets stands for, that what depends on it
// depends on all of these, and that the names are known without decoding.
func TestMasterNets(t *testing.T) {
	o := multiNIC(t, `
		{"name":"own","type":"dummy"},
		{"name":"nic","type":"ipvlan","config":{"masterNets":["10.0.1.0/24","10.0.2.0/24"],"ipam":{"type":"multi-nic-ipam","hostBlock":6,"interfaceBlock":2,"vlanMode":"l3"}}},
		{"name":"one","type":"macvlan","config":{"ifName":"data","masterNets":["10.0.3.0/24"],"ipam":{"type":"pool","pool":"blue"}}},
		{"name":"tune","type":"tuning","dependOn":["own","nic"]}`)
	decoded, err := topology.FromObject(o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range decoded.Steps {
		config, _ := json.Marshal(s.Config)
		got = append(got, fmt.Sprintf("%s %s %v %s", s.Name, s.Type, s.DependOn, config))
	}
	want := []string{
		`own dummy [] null`,
		`nic-0 ipvlan [] {"ipam":{"hostBlock":6,"interface":0,"interfaceBlock":2,"pool":"t","type":"multi-nic-ipam"},"masterNet":"10.0.1.0/24","mode":"l3","name":"net2-0"}`,
		`nic-1 ipvlan [] {"ipam":{"hostBlock":6,"interface":1,"interfaceBlock":2,"pool":"t","type":"multi-nic-ipam"},"masterNet":"10.0.2.0/24","mode":"l3","name":"net2-1"}`,
		`one-0 macvlan [] {"ipam":{"interface":0,"pool":"blue","type":"pool"},"masterNet":"10.0.3.0/24","name":"data-0"}`,
		`tune tuning [own nic-0 nic-1] null`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	roots, derived := topology.StepNames(o)
	var names []string
	for _, s := range decoded.Roots() {
		names = append(names, s.Name)
	}
	if !slices.Equal(roots, names) || !slices.Equal(derived, []string{"tune"}) {
		t.Errorf("names %q and %q, want %q", roots, derived, names)
	}
	if again, err := topology.FromObject(o); err != nil || len(again.Steps) != len(want) {
		t.Errorf("decoded again: %v, %v", again, err)
	}
}

// TestEmptyMultiNICPool holds that an empty name is that of the topology, as none is, and not the pool of a physical network.
func TestEmptyMultiNICPool(t *testing.T) {
	o := multiNIC(t, `{"name":"nic","type":"ipvlan","config":{"ipam":{"type":"multi-nic-ipam","pool":"","hostBlock":6}}}`)
	decoded, err := topology.FromObject(o)
	if err != nil {
		t.Fatal(err)
	}
	if pool, _, _ := topology.FromPool(&decoded.Steps[0]); pool != "t" || topology.OfNetwork(&decoded.Steps[0]) {
		t.Errorf("the pool is %q", pool)
	}
}

// TestMasterNetsRefused holds what does not go with masterNets, and that the bound holds
// before steps are made.
func TestMasterNetsRefused(t *testing.T) {
	many := `"10.0.0.0/24"` + strings.Repeat(`,"10.0.0.0/24"`, 32)
	for config, want := range map[string]string{
		`"masterNets":[]`:                                                    "config.masterNets: is not a list of networks",
		`"masterNets":"10.0.1.0/24"`:                                         "config.masterNets: is not a list of networks",
		`"masterNets":[5]`:                                                   "config.masterNets[0]: is not a network",
		`"masterNets":[` + many + `]`:                                        "config.masterNets: has 33 entries, at most 32",
		`"masterNets":["a","a"]`:                                             `config.masterNets[1]: "a" is listed twice`,
		`"masterNets":["a"],"master":"b"`:                                    "config.master: does not go with masterNets",
		`"masterNets":["a"],"addresses":["192.0.2.1/24"]`:                    "config.addresses: would be those of each interface",
		`"masterNets":["a"],"ipam":{"type":"static"}`:                        `config.ipam.type: "static" does not go with masterNets`,
		`"masterNets":["a"],"ipam":{"type":"pool","pool":"b","interface":1}`: "config.ipam.interface: is the position in masterNets",
	} {
		_, err := topology.FromObject(multiNIC(t, `{"name":"nic","type":"ipvlan","config":{`+config+`}}`))
		if err == nil || !strings.Contains(err.Error(), `step "nic": `+want) {
			t.Errorf("%s: %v; want %q", config, err, want)
		}
	}
	_, err := topology.FromObject(multiNIC(t, `{"name":"nic","type":"ipvlan","extendedResourceName":"example.com/nic","config":{"masterNets":["a"]}}`))
	if err == nil || !strings.Contains(err.Error(), "extendedResourceName: is of one device") {
		t.Errorf("an extended resource: %v", err)
	}
}
