package pluginschema_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/pluginschema"
	"github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files")

// TestBuiltIn writes the object of every built-in type and reads it back: what a schema can
// express must be unchanged.
func TestBuiltIn(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range registry.Types() {
		t.Run(typ, func(t *testing.T) {
			c, _ := registry.Contract(typ)
			o := pluginschema.FromContract(c)
			got, err := yaml.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "built-in", typ+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-want +got, -update rewrites it:\n%s", diff)
			}
			read, err := pluginschema.Contract(load(t, file))
			if err != nil {
				t.Fatal(err)
			}
			again := pluginschema.FromContract(read)
			if diff := cmp.Diff(o, again); diff != "" {
				t.Errorf("a schema that was read and written (-before +after):\n%s", diff)
			}
		})
	}
}

func load(t *testing.T, file string) *v1alpha1.CNIPluginSchema {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.CNIPluginSchema{}
	if err := yaml.UnmarshalStrict(raw, o); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return o
}

// TestSeed reads the schemas of the original proposal, unchanged.
func TestSeed(t *testing.T) {
	for typ, want := range map[string]contract.Contract{
		"bond": {
			Input:  contract.Input{Required: true, MinInterfaces: 2, MaxInterfaces: 8},
			Output: contract.Output{Interfaces: contract.Flow{Appends: 1, Passthrough: true}, IPs: contract.Flow{Passthrough: true}, Routes: contract.Flow{Passthrough: true}},
		},
		"vlan": {
			Input:  contract.Input{Required: true, MinInterfaces: 1},
			Output: contract.Output{Interfaces: contract.Flow{Appends: 1, Passthrough: true}, IPs: contract.Flow{Passthrough: true}, Routes: contract.Flow{Passthrough: true}},
		},
		"sriov": {
			Input:  contract.Input{Device: true},
			Output: contract.Output{Interfaces: contract.Flow{Appends: 1}},
		},
		"vfio-pci": {Input: contract.Input{Device: true}},
		"rdma":     {Input: contract.Input{Device: true}, Output: contract.Output{Interfaces: contract.Flow{Conditional: true}}},
		"tuning": {
			Input: contract.Input{Required: true, MinInterfaces: 1},
			Output: contract.Output{
				Interfaces: contract.Flow{Passthrough: true, Modifies: true},
				IPs:        contract.Flow{Appends: -1, Passthrough: true}, Routes: contract.Flow{Appends: -1, Passthrough: true},
			},
		},
	} {
		t.Run(typ, func(t *testing.T) {
			c, err := pluginschema.Contract(load(t, filepath.Join("testdata", "published", typ+".yaml")))
			if err != nil {
				t.Fatal(err)
			}
			if c.Type != typ {
				t.Errorf("type %q", c.Type)
			}
			if diff := cmp.Diff(want, c, cmpopts.IgnoreFields(contract.Contract{}, "Type", "Summary", "Params", "Output.Devices")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestPublishedSchemasDecode decodes configs with the params that are read from the
// schemas in testdata.
func TestPublishedSchemasDecode(t *testing.T) {
	for _, c := range []struct{ typ, config, want string }{
		{"bond", `{"mode":"802.3ad","links":[{"name":"net1"},{"name":"net2"}]}`, ""},
		{"bond", `{"mode":"802.3ad","links":[{"name":"net1"}]}`, "links: "},
		{"bond", `{"links":[{"name":"a"},{"name":"b"}]}`, `CNIPluginSchema "bond" requires parameter "mode".`},
		{"bond", `{"mode":"802.3ad","links":[{"nam":"a"},{"name":"b"}]}`, `does not accept parameter "links[0].nam"`},
		{"vlan", `{"vlanId":5,"master":"bond0"}`, "CNIPluginSchema \"vlan\" does not accept parameter \"vlanId\".\nDid you mean \"id\"?"},
		{"vlan", `{"id":4095,"master":"bond0"}`, "id: "},
		{"sriov", `{"trust":true}`, ""},
		{"tuning", `{"mtu":9000,"sysctl":{"net.core.somaxconn":"512"},"ethtool":{"features":{"rx":true}}}`, ""},
		{"tuning", `{"ethtool":{"features":{"rx":"yes"}}}`, "ethtool.features.rx: "},
		{"tuning", `{"routes":[{"destination":"10.0.0.0/8","via":"10.0.0.1"}]}`, `does not accept parameter "routes[0].via"`},
	} {
		t.Run(c.typ+" "+c.config, func(t *testing.T) {
			read, err := pluginschema.Contract(load(t, filepath.Join("testdata", "published", c.typ+".yaml")))
			if err != nil {
				t.Fatal(err)
			}
			var config map[string]any
			if err := json.Unmarshal([]byte(c.config), &config); err != nil {
				t.Fatal(err)
			}
			for k, v := range config {
				if f, ok := v.(float64); ok {
					config[k] = int64(f)
				}
			}
			_, problems := read.Decode(config, contract.Options{})
			var got []string
			for _, p := range problems {
				got = append(got, p.Error())
			}
			if text := strings.Join(got, "\n"); c.want == "" && text != "" || !strings.Contains(text, c.want) {
				t.Errorf("said:\n%s\nwant:\n%s", text, c.want)
			}
		})
	}
}

func TestWrong(t *testing.T) {
	for _, c := range []struct{ name, spec, want string }{
		{"type", `{cniType: x, configParameters: {optional: [{name: a, type: strin}]}}`, `configParameters.optional[a]: type "strin" is unknown: want string, integer, boolean, object, any, []TYPE or map[string]TYPE`},
		{"twice", `{cniType: x, configParameters: {required: [{name: a, type: string}], optional: [{name: a, type: string}]}}`, `parameter "a": the spelling "a" is taken`},
		{"bounds", `{cniType: x, configParameters: {optional: [{name: a, type: string, minimum: 1}]}}`, `parameter "a": only integers have bounds`},
		{"default", `{cniType: x, configParameters: {optional: [{name: a, type: integer, default: much}]}}`, `parameter "a": the default is refused`},
		{"interfaces", `{cniType: x, input: {prevResult: {interfaces: {minItems: 3, maxItems: 2}}}}`, "at most 2 interfaces are fewer than the least 3"},
		{"sentence", `{cniType: x, output: {explain: "red\u001b[31m"}}`, "output.explain: want a sentence of at most 512 bytes without control characters"},
		{"sentence to", `{cniType: x, output: {explainTo: [{cniType: bond, explain: "a\nb"}]}}`, "output.explainTo[0].explain: want a sentence"},
		{"no type", `{}`, "spec.cniType: is missing"},
		{"deep", `{cniType: x, configParameters: {optional: [{name: a, type: "` + strings.Repeat("[]", 12) + `string"}]}}`, "nested deeper than 8 levels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &v1alpha1.CNIPluginSchema{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
			if err := yaml.UnmarshalStrict([]byte(c.spec), &o.Spec); err != nil {
				t.Fatal(err)
			}
			if _, err := pluginschema.Contract(o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
}

func TestKnown(t *testing.T) {
	builtIn, err := contract.NewSet(contract.Contract{Type: "bond", Summary: "ours"})
	if err != nil {
		t.Fatal(err)
	}
	schema := func(name, typ, param string) v1alpha1.CNIPluginSchema {
		o := v1alpha1.CNIPluginSchema{ObjectMeta: metav1.ObjectMeta{Name: name}}
		o.Spec.CNIType, o.Spec.Description = typ, name
		o.Spec.ConfigParameters.Optional = []v1alpha1.Parameter{{Name: "a", Property: v1alpha1.Property{Type: param}}}
		return o
	}
	set, problems := pluginschema.Known(builtIn, []v1alpha1.CNIPluginSchema{
		schema("z", "ovn", "string"), schema("b", "ovn", "string"), schema("bond", "bond", "string"), schema("bad", "bad", "what"),
	})
	if got := strings.Join(set.Types(), " "); got != "bond ovn" {
		t.Errorf("types %s", got)
	}
	for typ, want := range map[string]string{"bond": "ours", "ovn": "b"} {
		if c, _ := set.Contract(typ); c.Summary != want {
			t.Errorf("%s is described by %q, want %q", typ, c.Summary, want)
		}
	}
	var text []string
	for _, p := range problems {
		text = append(text, p.Error())
	}
	want := []string{
		`CNIPluginSchema "bad": configParameters.optional[a]: type "what" is unknown: want string, integer, boolean, object, any, []TYPE or map[string]TYPE`,
		`CNIPluginSchema "z": CNIPluginSchema "b" describes type "ovn" already`,
	}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func FuzzContract(f *testing.F) {
	for _, dir := range []string{"published", "built-in"} {
		files, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			data, err := yaml.YAMLToJSON(raw)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data, []byte(`{"mode":"802.3ad","links":[{"name":"{{ a.interfaceName }}"}]}`))
		}
	}
	f.Fuzz(func(t *testing.T, schema, config []byte) {
		o := &v1alpha1.CNIPluginSchema{}
		if json.Unmarshal(schema, o) != nil {
			return
		}
		c, err := pluginschema.Contract(o)
		if err != nil {
			return
		}
		var with map[string]any
		if json.Unmarshal(config, &with) != nil {
			return
		}
		out, problems := c.Decode(with, contract.Options{Unresolved: true})
		if out == nil == (len(problems) == 0) {
			t.Errorf("%d problems, and the config is %v", len(problems), out)
		}
	})
}

// TestNeeds holds that a step whose schema needs addresses or routes must depend on one
// that has them.
func TestNeeds(t *testing.T) {
	schema := func(text string) v1alpha1.CNIPluginSchema {
		t.Helper()
		var s v1alpha1.CNIPluginSchema
		if err := yaml.UnmarshalStrict([]byte("spec: "+text), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	builtIn, err := contract.NewSet()
	if err != nil {
		t.Fatal(err)
	}
	set, problems := pluginschema.Known(builtIn, []v1alpha1.CNIPluginSchema{
		schema(`{cniType: bare, input: {prevResult: {required: false}}, output: {interfaces: {appends: 1}}}`),
		schema(`{cniType: addressed, input: {prevResult: {required: false}}, output: {interfaces: {appends: 1}, ips: {appends: 1}, routes: {appends: 1}}}`),
		schema(`{cniType: needs-ips, input: {prevResult: {required: true, ips: {required: true}}}}`),
		schema(`{cniType: needs-routes, input: {prevResult: {required: true, routes: {required: true}}}}`),
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, tt := range []struct{ root, typ, want string }{
		{"bare", "needs-ips", "requires at least 1 IP address in prevResult"},
		{"bare", "needs-routes", "requires at least 1 route in prevResult"},
		{"addressed", "needs-ips", ""},
		{"addressed", "needs-routes", ""},
	} {
		err := topology.Validate(t.Context(), &topology.Topology{Name: "t", Steps: []topology.Step{
			{Name: "a", Type: tt.root}, {Name: "b", Type: tt.typ, DependOn: []string{"a"}},
		}}, set)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s on %s: %v", tt.typ, tt.root, err)
		}
	}
}
