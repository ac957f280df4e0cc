package admission

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestWarningsOfPools holds what a topology is warned of when it names pools, or has
// addresses that a pool gives away.
func TestWarningsOfPools(t *testing.T) {
	var pools []v1alpha1.AddressPool
	for name, spec := range map[string]string{
		"blue": `{"subnets":[{"prefix":"192.0.2.0/24","gateway":"192.0.2.1"}],"exclude":["192.0.2.8/29"]}`,
		"host": `{"subnets":[{"prefix":"192.168.0.0/16"}],"hostBlock":6,"interfaceBlock":2}`,
		"none": `{"subnets":[{"prefix":"198.51.100.9/24"}]}`,
	} {
		o := v1alpha1.AddressPool{}
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"`+name+`"},"spec":`+spec+`}`), &o); err != nil {
			t.Fatal(err)
		}
		pools = append(pools, o)
	}
	for config, want := range map[string][]string{
		`{}`:                       nil,
		`{"ipam":{"type":"pool"}}`: nil, // the device decides
		`{"ipam":{"type":"pool","pool":"blue"},"addresses":["203.0.113.5/24"]}`: nil,
		`{"ipam":{"type":"pool","pool":"none"}}`:                                nil, // its condition says what is wrong
		`{"ipam":{"type":"pool","pool":"blu"}}`: {
			`NetworkTopology "t", step "s": there is no AddressPool "blu", did you mean "blue"?: pods wait until there is one`,
		},
		`{"ipam":{"type":"pool","pool":"host","interface":3}}`:                                                        nil,
		`{"ipam":{"type":"multi-nic-ipam","pool":"host","subnet":"192.168.0.0/16","hostBlock":6,"interfaceBlock":2}}`: nil,
		`{"ipam":{"type":"multi-nic-ipam","pool":"host","hostBlock":8,"interfaceBlock":2}}`: {
			`NetworkTopology "t", step "s": ipam.hostBlock: AddressPool "host" has 6 bits, and the step says 8: write the pool's, or name another pool: pods wait until step and pool agree`,
		},
		`{"ipam":{"type":"multi-nic-ipam","hostBlock":6}}`: {
			`NetworkTopology "t", step "s": there is no AddressPool "t": pods wait until there is one`,
		},
		`{"addresses":["192.0.2.1/24","{{ x.ips[0].address }}",{"address":"192.0.2.9/24"},"192.0.2.255/24"]}`: nil,
		`{"addresses":["192.0.2.5/32"],"ipam":{"type":"static","addresses":[{"address":"192.0.2.6/24"}]}}`: {
			`NetworkTopology "t", step "s": 192.0.2.5 is allocated to other pods by AddressPool "blue", so no pod gets it: add it to exclude there, or set allowDuplicate: true on the step if these networks do not reach one another`,
			`NetworkTopology "t", step "s": 192.0.2.6 is allocated to other pods by AddressPool "blue", so no pod gets it: add it to exclude there, or set allowDuplicate: true on the step if these networks do not reach one another`,
		},
	} {
		o := &v1alpha1.NetworkTopology{}
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"t"},"spec":{"steps":[{"name":"s","type":"dummy","config":`+config+`}]}}`), o); err != nil {
			t.Fatal(err)
		}
		decoded, err := topology.FromObject(o)
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		warnOfPools(decoded, pools, &a)
		if !slices.Equal(a.warnings, want) {
			t.Errorf("%s:\nwarnings %q\nwant     %q", config, a.warnings, want)
		}
	}
}

// TestSubnets holds what a topology with subnets of OVN is warned of, and refused for, while the controller has not made the pool of
// them, and when there is one with other subnets.
func TestSubnets(t *testing.T) {
	const blue = `"type":"ovn-k8s-cni-overlay","config":{"topology":"layer2","name":"blue"`
	step := func(name, rest string) string { return `{"name":"` + name + `",` + rest + `}}` }
	made := topology.OVN{Topology: topology.OVNLayer2, Name: "red"}
	pools := []v1alpha1.AddressPool{*addresspool.OfSubnets(topology.IPAM{Pool: made.Pool(), Switch: made.Switch(), Subnets: []string{"10.0.0.0/24"}})}
	for name, c := range map[string]struct {
		steps []string
		want  string
	}{
		"not made yet":  {[]string{step("a", blue+`,"subnets":"10.0.0.0/24"`)}, ""},
		"too small":     {[]string{step("a", blue+`,"subnets":"10.0.0.0/30"`), step("b", blue+`,"subnets":"10.0.0.0/30"`), step("c", blue+`,"subnets":"10.0.0.0/30"`)}, "has 2 IPv4 addresses, and 3 steps of a pod take one each"},
		"two subnets":   {[]string{step("a", blue+`,"subnets":"10.0.0.0/24"`), step("b", blue+`,"subnets":"10.0.1.0/24"`)}, `step "b": subnets: AddressPool "` + (&topology.OVN{Topology: "layer2", Name: "blue"}).Pool() + `" of this network has 10.0.0.0/24, and the step says 10.0.1.0/24: pods wait until step and pool agree`},
		"others before": {[]string{step("a", strings.Replace(blue, "blue", "red", 1)+`,"subnets":"10.0.0.0/23"`)}, `of this network has 10.0.0.0/24, and the step says 10.0.0.0/23: pods wait`},
		"a literal":     {[]string{step("a", blue+`,"subnets":"10.0.0.0/24"`), step("b", blue+`,"addresses":["10.0.0.5/24"]`)}, `10.0.0.5 is allocated to other pods by AddressPool "ovn-blue-`},
		"excluded":      {[]string{step("a", blue+`,"subnets":"10.0.0.0/24","excludeSubnets":"10.0.0.5/32"`), step("b", blue+`,"addresses":["10.0.0.5/24"]`)}, ""},
		"elsewhere":     {[]string{step("a", blue+`,"subnets":"10.0.0.0/24"`), step("b", `"type":"macvlan","config":{"addresses":["10.0.0.5/24"]`)}, ""},
	} {
		o := &v1alpha1.NetworkTopology{}
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"t"},"spec":{"steps":[`+strings.Join(c.steps, ",")+`]}}`), o); err != nil {
			t.Fatal(err)
		}
		decoded, err := topology.FromObject(o)
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		all := withSubnets(decoded, slices.Clone(pools))
		warnOfPools(decoded, all, &a)
		said := strings.Join(append(a.warnings, neverEnough(decoded, all)...), "\n")
		if (said == "") != (c.want == "") || !strings.Contains(said, c.want) {
			t.Errorf("%s: said %q, want %q", name, said, c.want)
		}
	}
}

// TestManyPools holds that a topology is not compared with the pools of ten thousand other networks, each on its own switch.
func TestManyPools(t *testing.T) {
	var pools []v1alpha1.AddressPool
	for i := range 10_000 {
		n := topology.OVN{Topology: topology.OVNLayer2, Name: fmt.Sprint("tenant", i)}
		pools = append(pools, *addresspool.OfSubnets(topology.IPAM{Pool: n.Pool(), Switch: n.Switch(), Subnets: []string{"10.0.0.0/16"}}))
	}
	o := &v1alpha1.NetworkTopology{}
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"t"},"spec":{"steps":[
		{"name":"a","type":"ovn-k8s-cni-overlay","config":{"topology":"layer2","name":"tenant5","subnets":"10.0.0.0/24"}},
		{"name":"b","type":"macvlan","config":{"addresses":["10.0.0.5/24"]}}]}}`), o); err != nil {
		t.Fatal(err)
	}
	decoded, err := topology.FromObject(o)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1, func() {
		var a answer
		all := withSubnets(decoded, pools)
		warnOfPools(decoded, all, &a)
		neverEnough(decoded, all)
		if len(a.warnings) != 1 || !strings.Contains(a.warnings[0], "of this network has 10.0.0.0/16, and the step says 10.0.0.0/24") {
			t.Errorf("said %q", a.warnings)
		}
	}); n > 1000 {
		t.Errorf("%.0f allocations: pools are read that are of other networks", n)
	}
}

// TestWarningsOfLiterals holds that a topology is warned of literal addresses that another
// one has, in any spelling of the config, unless one of both allows it.
func TestWarningsOfLiterals(t *testing.T) {
	read := func(name, steps string) v1alpha1.NetworkTopology {
		o := v1alpha1.NetworkTopology{}
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"`+name+`"},"spec":{"steps":[`+steps+`]}}`), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	others := []v1alpha1.NetworkTopology{
		read("t", `{"name":"s","type":"dummy","config":{"addresses":["192.0.2.5/24"]}}`), // itself
		read("plain", `{"name":"a","type":"dummy","config":{"addresses":["192.0.2.5/24"]}},{"name":"b","type":"dummy","config":{"addresses":["192.0.2.50/24"]}}`),
		read("cni", `{"name":"a","type":"dummy","config":{"ipam":{"type":"static","addresses":[{"address":"2001:DB8:0:0::5/64"}]}}}`),
		read("anycast", `{"name":"a","type":"dummy","allowDuplicate":true,"config":{"addresses":["192.0.2.53/32"]}}`),
	}
	for step, want := range map[string][]string{
		`"config":{"addresses":["192.0.2.6/24","192.0.2.53/32","fe80::1/64"]}`: nil,
		`"allowDuplicate":true,"config":{"addresses":["192.0.2.5/24"]}`:        nil,
		`"config":{"addresses":["192.0.2.5/32"]}`: {
			`NetworkTopology "t", step "s": NetworkTopology "plain", step "a" has the address 192.0.2.5, too: only one pod can have it at a time. Set allowDuplicate: true on both steps for anycast, or where these networks do not reach one another`,
		},
		`"config":{"addresses":["2001:db8:0::5/64"]}`: {
			`NetworkTopology "t", step "s": NetworkTopology "cni", step "a" has the address 2001:db8::5, too: only one pod can have it at a time. Set allowDuplicate: true on both steps for anycast, or where these networks do not reach one another`,
		},
	} {
		o := read("t", `{"name":"s","type":"dummy",`+step+`}`)
		decoded, err := topology.FromObject(&o)
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		warnOfLiterals(decoded, others, &a)
		if !slices.Equal(a.warnings, want) {
			t.Errorf("%s:\nwarnings %q\nwant     %q", step, a.warnings, want)
		}
	}
}

// TestNeverEnough holds which steps are refused since no pod could ever have their addresses.
func TestNeverEnough(t *testing.T) {
	pool := func(name, spec string) v1alpha1.AddressPool {
		o := v1alpha1.AddressPool{}
		if err := json.Unmarshal([]byte(`{"metadata":{"name":"`+name+`"},"spec":`+spec+`}`), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	pools := []v1alpha1.AddressPool{pool("two", `{"subnets":[{"prefix":"192.0.2.0/30"}]}`), pool("host", `{"subnets":[{"prefix":"192.168.0.0/24"}],"hostBlock":4,"interfaceBlock":2}`), pool("wrong", `{}`)}
	for pools3, want := range map[string][]string{
		`two two two`:       {`NetworkTopology "t", step "s2": ipam: AddressPool "two" has 2 IPv4 addresses, and 3 steps of a pod take one each: no pod would get an address. Name another pool, or another interface`},
		`two two host:0`:    nil,
		`host:3 host:3 two`: nil,
		`host:0 host:4 two`: {`NetworkTopology "t", step "s1": ipam: AddressPool "host": no such interface: 4 is not from 0 to 3: no pod would get an address. Name another pool, or another interface`},
		`wrong none two`:    nil,
	} {
		var steps []topology.Step
		for i, text := range strings.Fields(pools3) {
			name, iface, _ := strings.Cut(text, ":")
			n, _ := strconv.Atoi(iface)
			steps = append(steps, topology.Step{Name: fmt.Sprint("s", i), Type: "dummy", Config: map[string]any{"ipam": map[string]any{"type": "pool", "pool": name, "interface": n}}})
		}
		if got := neverEnough(&topology.Topology{Name: "t", Steps: steps}, pools); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", pools3, got, want)
		}
	}
	now := metav1.Now()
	pools[0].DeletionTimestamp = &now
	if got := neverEnough(&topology.Topology{Name: "t", Steps: []topology.Step{{Name: "s", Config: map[string]any{"ipam": map[string]any{"type": "pool", "pool": "two", "interface": 9}}}}}, pools); got != nil {
		t.Errorf("of a pool that ends: %q", got)
	}
}

// TestEdited holds that an update of metadata alone is not refused for what the spec says.
func TestEdited(t *testing.T) {
	o := &v1alpha1.NetworkTopology{Spec: v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{{Name: "s", Type: "dummy"}}}}
	for old, want := range map[string]bool{
		``: true, `{"metadata":{"labels":{"a":"b"}},"spec":{"steps":[{"name":"s","type":"dummy"}]}}`: false, `{"spec":{"steps":[{"name":"s","type":"vrf"}]}}`: true,
	} {
		var r admission.Request
		r.OldObject.Raw = []byte(old)
		if got := edited(o, r); got != want {
			t.Errorf("of %s: %v", old, got)
		}
	}
}
