package topology_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/topology"
)

// TestForEach holds what a step with forEach stands for: names, selectors, configs, and which steps depend on which.
func TestForEach(t *testing.T) {
	o := multiNIC(t, `
		{"name":"rail","type":"sriov","forEach":["0","1"],"selector":{"cel":"device.attributes[\"dra.networking\"].rail == \"{{ each.value }}\""},
		 "config":{"name":"rail{{each.value}}","mtu":9000,"vlan":"{{ each.index }}","ipam":{"type":"pool","pool":"rail-{{ each.value }}"},"list":["{{ each.index }}-{{ each.value }}", "{{ \"{{\" }} each.value }}"]}},
		{"name":"tune","type":"tuning","forEach":["0","1"],"dependOn":["rail"],"config":{"dev":"{{ rail.interfaceName }}","other":"{{ railway.mac }}{{ rail.mac }}"}},
		{"name":"vlan","type":"vlan","forEach":["a","b"],"dependOn":["tune"],"config":{"id":1}},
		{"name":"all","type":"vrf","dependOn":["rail"]}`)
	decoded, err := topology.FromObject(o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range decoded.Steps {
		config, _ := json.Marshal(s.Config)
		got = append(got, fmt.Sprintf("%s %v %s %s", s.Name, s.DependOn, s.Selector, config))
	}
	want := []string{
		`rail0 [] device.attributes["dra.networking"].rail == "0" {"ipam":{"pool":"rail-0","type":"pool"},"list":["0-0","{{ \"{{\" }} each.value }}"],"mtu":9000,"name":"rail0","vlan":0}`,
		`rail1 [] device.attributes["dra.networking"].rail == "1" {"ipam":{"pool":"rail-1","type":"pool"},"list":["1-1","{{ \"{{\" }} each.value }}"],"mtu":9000,"name":"rail1","vlan":1}`,
		`tune0 [rail0]  {"dev":"{{ rail0.interfaceName }}","other":"{{ railway.mac }}{{ rail0.mac }}"}`,
		`tune1 [rail1]  {"dev":"{{ rail1.interfaceName }}","other":"{{ railway.mac }}{{ rail1.mac }}"}`,
		`vlana [tune0 tune1]  {"id":1}`,
		`vlanb [tune0 tune1]  {"id":1}`,
		`all [rail0 rail1]  null`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	roots, derived := topology.StepNames(o)
	if !slices.Equal(roots, []string{"rail0", "rail1"}) || !slices.Equal(derived, []string{"tune0", "tune1", "vlana", "vlanb", "all"}) {
		t.Errorf("names %q and %q", roots, derived)
	}
}

// TestForEachResources: each step has an extended resource of its own, whose name has the value.
func TestForEachResources(t *testing.T) {
	set := testContracts(t)
	for name, want := range map[string]string{
		"example.com/rail-{{ each.value }}":  "example.com/rail-a example.com/rail-b",
		"example.com/rail-{{ each.index }}x": "example.com/rail-0x example.com/rail-1x",
	} {
		decoded, err := topology.FromObject(multiNIC(t, `{"name":"rail","type":"sriov","forEach":["a","b"],"extendedResourceName":"`+name+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range decoded.Steps {
			got = append(got, s.ExtendedResourceName)
		}
		if err := topology.Validate(t.Context(), decoded, set); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q %v, want %s", name, got, err, want)
		}
	}
	o := multiNIC(t, `{"name":"rail","type":"sriov","forEach":["a","b"],"extendedResourceName":"x.y/{{ each.value }}"},{"name":"other","type":"sriov","extendedResourceName":"x.y/a"},{"name":"none","type":"sriov"}`)
	if got := topology.StepResources(o); !slices.Equal(got, []topology.StepResource{{Step: "raila", Resource: "x.y/a"}, {Step: "railb", Resource: "x.y/b"}, {Step: "other", Resource: "x.y/a"}}) {
		t.Errorf("resources: %v", got)
	}
}

// TestForEachRefused holds the form of values, what does not go with them, and that the bounds hold before steps are made.
func TestForEachRefused(t *testing.T) {
	many := `"v0"`
	for i := range 32 {
		many += fmt.Sprintf(`,"v%d"`, i+1)
	}
	for fields, want := range map[string]string{
		`"forEach":[]`:                                                 "forEach: is empty",
		`"forEach":[` + many + `]`:                                     "forEach: has 33 values, at most 32 are accepted",
		`"forEach":["a","b","a"]`:                                      `forEach[2]: "a" is listed twice`,
		`"forEach":["A"]`:                                              `forEach[0]: "A" is not the end of a step's name`,
		`"forEach":["a\" || true"]`:                                    `forEach[0]: "a\" || true" is not the end of a step's name`,
		`"forEach":["` + strings.Repeat("a", 33) + `"]`:                "forEach[0]: has 33 bytes, at most 32 are accepted",
		`"forEach":["a"],"extendedResourceName":"x.y/z"`:               "extendedResourceName: names the devices of one selector, and forEach makes a step for each value: write {{ each.value }} into it",
		`"forEach":["a"],"extendedResourceName":"x.y/{{ each.name }}"`: "extendedResourceName: {{ each.name }}: each has value and index",
		`"forEach":["a"],"config":{"masterNets":["10.0.0.0/8"]}`:       "config.masterNets: makes several steps, as forEach does",
		`"forEach":["a"],"config":{"x":[{"y":"{{ each.name }}"}]}`:     "config.x[0].y: {{ each.name }}: each has value and index",
		`"forEach":["a"],"selector":{"cel":"{{ each.name }}"}`:         "selector.cel: {{ each.name }}: each has value and index",
		`"forEach":[` + many[:len(many)-6] + `],"config":{"x":"` + strings.Repeat("x", 200_000) + `"}`: "forEach: the configs of the steps that it makes are too large",
	} {
		_, err := topology.FromObject(multiNIC(t, `{"name":"rail","type":"ipvlan",`+fields+`}`))
		if err == nil || !strings.Contains(err.Error(), `step "rail": `+want) {
			t.Errorf("%.100s: %.300v; want %q", fields, err, want)
		}
	}
	values := `"0"`
	for i := range 31 {
		values += fmt.Sprintf(`,"%d"`, i+1)
	}
	var steps []string
	for i := range 256 {
		steps = append(steps, fmt.Sprintf(`{"name":"s%d-","type":"dummy","forEach":[%s]}`, i, values))
	}
	if _, err := topology.FromObject(multiNIC(t, strings.Join(steps, ","))); err == nil || !strings.Contains(err.Error(), "spec.steps: stand for more than 256 steps") {
		t.Errorf("%v", err)
	}
}

// TestForEachProblemsFollow: what follows from a wrong forEach, or from a wrong reference to its value, is not reported beside it.
func TestForEachProblemsFollow(t *testing.T) {
	set := testContracts(t)
	const step = `{"name":"vf","type":"sriov","forEach":%s,"selector":{"cel":"device.attributes[\"dra.networking\"].ifName == \"{{ each.value }}\""},"config":{"mac":"%s","vlan":"{{ each.index }}"}}`
	for _, tt := range []struct{ steps, want string }{
		{fmt.Sprintf(step, `["a","a"]`, "02:00:00:00:00:0{{ each.value }}"), `step "vf": forEach[1]: "a" is listed twice`},
		{fmt.Sprintf(step, `["A"]`, "02:00:00:00:00:0{{ each.value }}"), `step "vf": forEach[0]: "A" is not the end of a step's name: lower-case letters, digits and '-', a letter or digit at both ends`},
		{fmt.Sprintf(step, `[]`, "02:00:00:00:00:0{{ each.value }}"), `step "vf": forEach: is empty: list the values, or remove it`},
		{
			fmt.Sprintf(step, `["a","b"]`, "02:00:00:00:00:0{{ each.valu }}") + `,{"name":"t","type":"tuning","forEach":["a","b"],"dependOn":["vf"],"config":{"mtu":9000}}`,
			`step "vf": config.mac: {{ each.valu }}: each has value and index`,
		},
		{
			`{"name":"vf0","type":"sriov"},{"name":"t","type":"tuning","forEach":["0"],"dependOn":["vf{{ each.value }}"],"config":{"mtu":9000}}`,
			`step "t": dependOn[0]: "vf{{ each.value }}" is not the name of a step: write that of a step with the same forEach, without a value`,
		},
		{
			`{"name":"vf","type":"sriov","config":{"mac":"{{ each.value }}"}}`,
			`step "vf": config.mac: {{ each.value }}: no step is named "each": {{ each.value }} and {{ each.index }} stand for something only in a step with forEach`,
		},
	} {
		decoded, err := topology.FromObject(multiNIC(t, tt.steps))
		if decoded != nil {
			err = errors.Join(topology.Validate(t.Context(), decoded, set), err)
		}
		if want := `NetworkTopology "t", ` + tt.want; err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", tt.steps, err, want)
		}
	}
}

// TestForEachProblems: a problem of all steps is one, of the step that was written; that of some is theirs.
func TestForEachProblems(t *testing.T) {
	set := testContracts(t)
	for config, want := range map[string][]string{
		`{"vlan":5000}`:                  {`NetworkTopology "t", step "vf": config.vlan: 5000 is above the maximum 4094`},
		`{"vlan":"{{ each.index }}"}`:    nil,
		`{"mac":"0{{ each.value }}:00"}`: {`NetworkTopology "t", step "vf1": config.mac: "01:00" is not a MAC`, `NetworkTopology "t", step "vf2": config.mac: "02:00" is not a MAC`},
	} {
		decoded, err := topology.FromObject(multiNIC(t, `{"name":"vf","type":"sriov","forEach":["1","2"],"config":`+config+`}`))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		if err := topology.Validate(t.Context(), decoded, set); err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", config, got, want)
		}
		for i, line := range got {
			if from := fmt.Sprintf(`(the step is forEach[%d] of step "vf")`, i); len(got) > 1 && !strings.HasSuffix(line, from) {
				t.Errorf("%s: %q does not end with %q", config, line, from)
			}
		}
	}
}
