package admission

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/topology"
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
		`{}`: nil,
		`{"ipam":{"type":"pool","pool":"blue"},"addresses":["203.0.113.5/24"]}`: nil,
		`{"ipam":{"type":"pool","pool":"none"}}`:                                nil, // its condition says what is wrong
		`{"ipam":{"type":"pool","pool":"blu"}}`: {
			`NetworkTopology "t", step "s": there is no AddressPool "blu", did you mean "blue"?: pods wait until there is one`,
		},
		`{"ipam":{"type":"pool","pool":"host","interface":3}}`: nil,
		`{"ipam":{"type":"pool","pool":"host","interface":4}}`: {
			`NetworkTopology "t", step "s": ipam.interface: AddressPool "host" has no part 4, only 4: no pod gets an address`,
		},
		`{"ipam":{"type":"multi-nic-ipam","pool":"host","subnet":"192.168.0.0/16","hostBlock":6,"interfaceBlock":2}}`: nil,
		`{"ipam":{"type":"multi-nic-ipam","pool":"host","hostBlock":8,"interfaceBlock":2}}`: {
			`NetworkTopology "t", step "s": ipam.hostBlock: AddressPool "host" has 6 bits, and the step says 8: write the pool's, or name another pool: pods wait until they agree`,
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
			`NetworkTopology "t", step "s": NetworkTopology "plain", step "a" has the address 192.0.2.5, too: of two pods with it one waits. Set allowDuplicate: true on both steps for anycast, or where these networks do not reach one another`,
		},
		`"config":{"addresses":["2001:db8:0::5/64"]}`: {
			`NetworkTopology "t", step "s": NetworkTopology "cni", step "a" has the address 2001:db8::5, too: of two pods with it one waits. Set allowDuplicate: true on both steps for anycast, or where these networks do not reach one another`,
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
