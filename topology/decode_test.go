package topology_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

const header = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t, generation: 3}\nspec:\n  steps:\n  - name: s\n    type: dummy\n    config:\n"

func TestDecodeConfigKeepsNumbers(t *testing.T) {
	top, err := topology.Decode([]byte(header + "      {a: 1, b: 1.5, c: 1.0, d: 9007199254740993, e: 18446744073709551615, f: on, g: 0x10, h: [1, {i: 2}], j: '1'}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"a": int64(1), "b": 1.5, "c": int64(1), "d": int64(9007199254740993), "e": json.Number("18446744073709551615"),
		"f": true, "g": int64(16), "h": []any{int64(1), map[string]any{"i": int64(2)}}, "j": "1",
	}
	if diff := cmp.Diff(want, top.Steps[0].Config); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if top.Generation != 3 || top.DriftPolicy != topology.Repair || top.UpdatePolicy != topology.Immutable || top.Steps[0].DriftPolicy != topology.Repair {
		t.Errorf("defaults are missing: %+v", top)
	}
}

// TestDecodeHostile holds the bounds: each input is refused before it has grown.
// Otherwise the test hangs or exhausts the machine's memory.
func TestDecodeHostile(t *testing.T) {
	bomb := func(levels int) string {
		s := header + "      a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
		for i := 1; i < levels; i++ {
			s += fmt.Sprintf("      a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 8), i-1)
		}
		return s
	}
	text := header + "      t: &t " + strings.Repeat("x", 500_000) + "\n      l: [" + strings.Repeat("*t, ", 1000) + "*t]\n"
	wide := header + "      t: &t {" + strings.Repeat("a", 10) + ": 1}\n      l: [" + strings.Repeat("*t, ", 60_000) + "*t]\n"
	for _, tt := range []struct{ name, input, want string }{
		{"too large", strings.Repeat("#", 1<<20) + "\n", "the input has more than 1048576 bytes"},
		{"bomb of lists", bomb(9), "document 1: "},
		{"bomb of text", text, "more than 4194304 bytes of text"},
		{"bomb of maps", wide, "document 1: "},
		{"deep lists", header + "      a: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "\n", "nested deeper than 64 levels"},
		{"deep objects", header + "      a: " + strings.Repeat("{a: ", 100) + "1" + strings.Repeat("}", 100) + "\n", "nested deeper than 64 levels"},
		{"very deep", strings.Repeat("[", 500_000), "document 1: "},
		{"many values", header + "      a: [" + strings.Repeat("1,", 210_000) + "1]\n", "more than 100000 values"},
		{"many steps", strings.TrimSuffix(header, "    config:\n") + strings.Repeat("  - {name: a, type: dummy}\n", 256), "spec.steps: has 257 entries, at most 256 are accepted"},
		{"many documents", strings.Repeat("---\na: [b, c]\n", 70_000), "more than 256 documents"},
		{"itself", header + "      a: &a [*a]\n", "document 1: "},
		{"a map as a key", header + "      ? {a: b}\n      : c\n", "line 9: a key must be a string"},
		{"two keys of one text", header + "      {1: a, '1': b}\n", `key "1" is given twice`},
		{"not UTF-8", header + "      a: \"\xff\xfe\"\n", "line 9: the byte 0xff is not UTF-8: save the file as UTF-8"},
		{"control character", header + "      a: \x01\n", "line 9: the control character U+0001 cannot be part of YAML: remove it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := topology.Decode([]byte(tt.input))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestFromObject(t *testing.T) {
	object := &v1alpha1.NetworkTopology{
		ObjectMeta: metav1.ObjectMeta{Name: "t", Generation: 7},
		Spec: v1alpha1.NetworkTopologySpec{
			DriftPolicy:  v1alpha1.Observe,
			UpdatePolicy: v1alpha1.InPlace,
			Steps: []v1alpha1.Step{
				{Name: "vf0", Type: "sriov", Selector: &v1alpha1.Selector{CEL: "true"}, Config: &runtime.RawExtension{Raw: []byte(`{"vlan":100}`)}},
				{Name: "tune", Type: "tuning", DependOn: []string{"vf0"}, DriftPolicy: v1alpha1.Repair, Config: &runtime.RawExtension{Raw: []byte("null")}},
			},
		},
	}
	got, err := topology.FromObject(object)
	if err != nil {
		t.Fatal(err)
	}
	want := &topology.Topology{
		Name: "t", Generation: 7, DriftPolicy: topology.Observe, UpdatePolicy: topology.InPlace,
		Steps: []topology.Step{
			{Name: "vf0", Type: "sriov", Selector: "true", Config: map[string]any{"vlan": int64(100)}, DriftPolicy: topology.Observe},
			{Name: "tune", Type: "tuning", DependOn: []string{"vf0"}, DriftPolicy: topology.Repair},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// A record on disk holds the topology as JSON.
	raw, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var again topology.Topology
	if err := json.Unmarshal(raw, &again); err != nil {
		t.Fatal(err)
	}
	if err := topology.Validate(t.Context(), &again, testContracts(t)); err != nil {
		t.Errorf("read back from JSON: %v", err)
	}

	for _, bad := range []string{"[]", `{"a":`, `"x"`} {
		object.Spec.Steps[0].Config.Raw = []byte(bad)
		if _, err := topology.FromObject(object); err == nil || !strings.HasPrefix(err.Error(), `NetworkTopology "t", step "vf0": config: `) {
			t.Errorf("config %s: got %v", bad, err)
		}
	}
}

// TestValidateHostile checks the largest graphs; an algorithm worse than quadratic in the
// edges would hang the test.
func TestValidateHostile(t *testing.T) {
	complete := &topology.Topology{Name: "t"} // every step depends on all before it
	cyclic := &topology.Topology{Name: "t"}   // every step depends on all others
	for i := range 256 {
		s := topology.Step{Name: fmt.Sprintf("s%d", i), Type: "quad"}
		for j := range 256 {
			if j < i {
				s.DependOn = append(s.DependOn, fmt.Sprintf("s%d", j))
			}
		}
		if i == 0 {
			s.Type = "sriov"
		}
		complete.Steps = append(complete.Steps, s)
		s.DependOn = nil
		for j := range 256 {
			s.DependOn = append(s.DependOn, fmt.Sprintf("s%d", j))
		}
		cyclic.Steps = append(cyclic.Steps, s)
	}
	if err := topology.Validate(t.Context(), complete, testContracts(t)); err == nil || strings.Contains(err.Error(), "cycle") {
		t.Errorf("the complete graph: %v", err)
	}
	err := topology.Validate(t.Context(), cyclic, testContracts(t))
	if n := strings.Count(errString(err), "forms a cycle: s0 → s1 → s0"); n != 1 {
		t.Errorf("%d cycles reported of the cyclic graph", n)
	}
}

// FuzzDecode holds that whatever is decoded can be validated, and that what is
// valid can be ordered and merged.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(header + "      {a: 1}\n"))
	f.Add([]byte(header + "      {a: '{{ b.mac }}', c: &x [1], d: *x}\n  - {name: v, type: vlan, dependOn: [s], config: {id: 1, master: '{{ s.interfaceName }}'}}\n"))
	f.Add([]byte("kind: Pod\napiVersion: v1\n---\n" + header + "      {}\n"))
	f.Add([]byte(`{"apiVersion":"networking.dra.io/v1alpha1","kind":"NetworkTopology","metadata":{"name":"a"},"spec":{"steps":[{"name":"a","type":"sriov"},{"name":"b","type":"tuning","dependOn":["a","b"]}]}}`))
	set := testContracts(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		top, err := topology.Decode(data)
		if err != nil {
			return
		}
		if err := topology.Validate(t.Context(), top, set); err != nil {
			if err.Error() == "" {
				t.Error("an error says nothing")
			}
			return
		}
		order, err := topology.Order(top)
		if err != nil || len(order) != len(top.Steps) {
			t.Errorf("valid, but ordered as %v (%v)", order, err)
		}
		at := map[string]int{}
		for i, s := range order {
			for _, d := range s.DependOn {
				if j, ok := at[d]; !ok || j >= i {
					t.Errorf("step %q comes before its dependency %q", s.Name, d)
				}
			}
			at[s.Name] = i
		}
	})
}

// TestMisspeltField holds that a field with a typing error is the near one, also where another struct has a field of that name.
func TestMisspeltField(t *testing.T) {
	_, err := topology.Decode([]byte(strings.Replace(header, "steps:", "step:", 1) + "      {}\n"))
	if want := `unknown field "spec.step", did you mean "steps"?`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("have %v\nwant %s", err, want)
	}
}

// TestListItems holds that an item of a List that is no object is refused, not passed over.
func TestListItems(t *testing.T) {
	_, err := topology.Decode([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod}, vf0]\n"))
	if want := `document 1: items[1]: want an object with apiVersion and kind, got the string "vf0"`; err == nil || err.Error() != want {
		t.Errorf("have %v\nwant %s", err, want)
	}
}

// TestOtherKinds holds that a kind of our groups that is like one that is read is a mistake, and that other kinds of them are not.
func TestOtherKinds(t *testing.T) {
	read := []string{"NetworkTopology", "AddressPool", "DeviceExposurePolicy", "NetworkQoS", "CNIPluginSchema"}
	for _, c := range []struct{ group, kind, meant string }{
		{"networking.dra.io", "AddressPools", "AddressPool"},
		{"networking.dra.io", "AdressPool", "AddressPool"},
		{"k8s.ovn.org", "NetworkQoSes", "NetworkQoS"},
		{"networking.dra.io", "AddressLease", ""},
		{"networking.dra.io", "DeviceExposureReport", ""},
		{"networking.dra.io", "NetworkQoSReport", ""},
		{"networking.dra.io", "NetworkQoSDestinations", ""},
		{"k8s.ovn.org", "EgressQoS", ""},
		{"networking.dra.io", "CNIPlugin", ""}, // of the proposal, and answered by its own reason
		{"other.example.com", "AddressPools", ""},
	} {
		f, err := topology.Parse("", []byte("apiVersion: "+c.group+"/v1\nkind: "+c.kind+"\nmetadata: {name: a}\n"))
		if err != nil {
			t.Fatal(err)
		}
		others, err := f.Others(read...)
		if c.meant == "" && (err != nil || len(others) != 1) || c.meant != "" && (err == nil || !strings.Contains(err.Error(), `did you mean "`+c.meant+`"?`)) {
			t.Errorf("%s of %s: %q, %v", c.kind, c.group, others, err)
		}
	}
}
