package exposure_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/inventory/sysfstest"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func decode(data []byte) ([]*v1alpha1.DeviceExposurePolicy, error) {
	f, err := topology.Parse("", data)
	if err != nil {
		return nil, err
	}
	return objectfile.Decode[v1alpha1.DeviceExposurePolicy](f, v1alpha1.GroupVersion.WithKind(v1alpha1.PolicyKind))
}

func policies(tb testing.TB, data []byte) []*exposure.Policy {
	tb.Helper()
	objects, err := decode(data)
	if err != nil {
		tb.Fatal(err)
	}
	out := make([]*exposure.Policy, len(objects))
	for i, o := range objects {
		out[i] = exposure.New(o)
	}
	return out
}

// TestDecide compares the verdicts on each device of whole machines with golden files. The
// comment of a case may hold the lines
//
//	@tree NAME           the machine, of inventory/testdata/tree
//	@route INTERFACE     with a default route
//	@label KEY=VALUE     of the node
//	@network PF NETWORK  of the agent's --physical-network
//	@wire PF SWITCH PORT the LLDP neighbor of a PF and its functions; without SWITCH there is none
func TestDecide(t *testing.T) {
	files, err := filepath.Glob("testdata/decide/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil || len(archive.Files) != 2 {
				t.Fatal("want policies.yaml and decided.txt", err)
			}
			wires := map[string]inventory.Neighbour{}
			tree, opt, labels, uplinks := "", inventory.Options{PhysicalNetworks: map[string]string{}}, map[string]string{}, inventory.Uplinks{}
			for line := range strings.Lines(string(archive.Comment)) {
				switch word := strings.Fields(line); {
				case !strings.HasPrefix(line, "@"):
				case word[0] == "@tree":
					tree = word[1]
				case word[0] == "@route":
					uplinks.Routes = append(uplinks.Routes, word[1])
				case word[0] == "@network":
					opt.PhysicalNetworks[word[1]] = word[2]
				case word[0] == "@wire" && len(word) == 2:
					wires[word[1]] = inventory.Neighbour{}
				case word[0] == "@wire":
					wires[word[1]] = inventory.Neighbour{Switch: word[2], Port: word[3]}
				case word[0] == "@label":
					key, value, _ := strings.Cut(word[1], "=")
					labels[key] = value
				default:
					t.Fatalf("%q is no directive", line)
				}
			}
			devices, err := inventory.Discover(sysfstest.Open(t, "../../inventory/testdata/tree/"+tree+".txtar"), opt)
			if err != nil {
				t.Fatal(err)
			}
			for i, d := range devices {
				port := d.IfName
				if d.PF != nil {
					port = d.PF.IfName
				}
				if n, ok := wires[port]; ok {
					devices[i].Neighbour = &n
				}
			}
			set := exposure.NewSet(policies(t, archive.Files[0].Data), exposure.Node{Labels: labels})
			decided, err := set.Decide(t.Context(), inventory.GuardUplinks(devices, uplinks))
			if err != nil {
				t.Fatal(err)
			}
			have := show(set, decided)
			if *update {
				archive.Files[1].Data = have
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(archive.Files[1].Data), string(have)); diff != "" {
				t.Errorf("decided (-want +got):\n%s", diff)
			}
		})
	}
}

func show(set exposure.Set, devices []inventory.Device) []byte {
	var b bytes.Buffer
	withheld := publish.Why(devices)
	offered := map[string]bool{}
	for _, d := range inventory.Forms(devices) {
		fmt.Fprintf(&b, "%s %s %s", d.Name, d.Kind, d.IfName)
		if d.Shared != nil {
			fmt.Fprintf(&b, ", shared by %s", *inventory.Attributes(d)[inventory.AttrSharedBy].StringValue)
			capacity := inventory.Capacity(d)
			for _, name := range slices.Sorted(maps.Keys(capacity)) {
				c := capacity[name]
				fmt.Fprintf(&b, ", %s %s by %s", c.Value.String(), name, c.RequestPolicy.Default)
			}
		}
		if e := d.Exposure; e.Policy != "" {
			fmt.Fprintf(&b, ", %s by %s", e.Verdict, e.Policy)
		}
		if names := inventory.JoinNetworks(d); names != "" {
			fmt.Fprintf(&b, ", wired to %s", names)
		}
		for _, n := range d.PhysicalNetworks {
			if n.VLAN != 0 || n.AddressPool != "" {
				fmt.Fprintf(&b, " (%s: VLAN %d, pool %q)", n.Name, n.VLAN, n.AddressPool)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(d.Additional)) {
			fmt.Fprintf(&b, ", %s=%s", name, d.Additional[name])
		}
		if d.Rail != "" {
			fmt.Fprintf(&b, ", rail %s", d.Rail)
		}
		fmt.Fprintln(&b)
		if d.Exposure.Miswired != "" {
			fmt.Fprintf(&b, "  miswired: %s\n", d.Exposure.Miswired)
		}
		if offered[d.Name] = withheld[d.Name] == ""; !offered[d.Name] {
			fmt.Fprintf(&b, "  not offered: %s\n", withheld[d.Name])
		}
	}
	fmt.Fprintf(&b, "attributes: %s\n", strings.Join(set.Attributes(), " "))
	for _, r := range set.Reports(devices, offered) {
		fmt.Fprintf(&b, "policy %s: %d devices, %d offered, %d undecided\n", r.Name, r.Devices, r.Offered, r.Undecided)
		if r.Problem != "" {
			fmt.Fprintf(&b, "  %s\n", r.Problem)
		}
		if len(r.Conflicts) > 0 {
			fmt.Fprintf(&b, "  conflicts with %s\n", strings.Join(r.Conflicts, ", "))
		}
	}
	return b.Bytes()
}

// TestInvalid has one error for each invalid policy: NAME.yaml is the spec, and said.txt
// behind it the error.
func TestInvalid(t *testing.T) {
	const file = "testdata/invalid.txtar"
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(archive.Files); i += 2 {
		text := ""
		objects, err := decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: DeviceExposurePolicy\nmetadata: {name: p}\nspec:\n" + string(archive.Files[i].Data)))
		if err == nil {
			err = exposure.New(objects[0]).Err
		}
		if err != nil {
			text += err.Error() + "\n"
		}
		if *update {
			archive.Files[i+1].Data = []byte(text)
		} else if diff := cmp.Diff(string(archive.Files[i+1].Data), text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", archive.Files[i].Name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLeastAmount holds that no claim can ask for nothing or less, whatever the policy says
// of amounts: only slices bound what claims ask for.
func TestLeastAmount(t *testing.T) {
	for _, p := range policies(t, []byte(`
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: p}
spec: {exposure: {allowMultipleAllocations: true, capacity: {
  a: {value: 10, requestPolicy: {default: 5}}, none: {value: 10, requestPolicy: {default: 0}}, range: {value: 10, requestPolicy: {default: 5, validRange: {min: 2}}}}}}
`)) {
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		for name, want := range map[string]int64{"a": 1, "none": 0, "range": 2} {
			if r := p.Sharing.Capacity[name].RequestPolicy.ValidRange; r == nil || r.Min.Value() != want {
				t.Errorf("%s: range %+v, want from %d", name, r, want)
			}
		}
	}
}

// TestDocs holds that the policies of the page are valid.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for i, part := range strings.Split(string(page), "```") {
		if text, ok := strings.CutPrefix(part, "yaml\n"); ok && i%2 == 1 {
			for _, p := range policies(t, []byte(text)) {
				if seen++; p.Err != nil {
					t.Error(p.Err)
				}
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d policies", seen)
	}
}

// TestAttributesOfCluster holds that policies together add no more attributes than fit
// on a device, and that the one of the lowest priority is left out.
func TestAttributesOfCluster(t *testing.T) {
	var all []*exposure.Policy
	for i := range 9 {
		o := &v1alpha1.DeviceExposurePolicy{}
		o.Name = fmt.Sprintf("p%d", i)
		o.Spec.Priority = int32(i)
		o.Spec.Exposure = &v1alpha1.Exposure{AdditionalAttributes: map[string]string{fmt.Sprintf("example.com/a%d", i): "x"}}
		all = append(all, exposure.New(o))
	}
	ordered, attributes := exposure.Limit(all)
	for _, p := range ordered {
		if (p.Err != nil) != (p.Name == "p0") {
			t.Errorf("policy %q: %v", p.Name, p.Err)
		}
	}
	if len(attributes) != 8 || all[0].Err != nil {
		t.Errorf("attributes %v; the argument is changed: %v", attributes, all[0].Err)
	}
}

// TestStops holds that a context that ends stops the evaluation with an error: partial
// results must not be taken for complete ones.
func TestStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	set := exposure.NewSet([]*exposure.Policy{exposure.New(&v1alpha1.DeviceExposurePolicy{})}, exposure.Node{})
	if decided, err := set.Decide(ctx, []inventory.Device{{Name: "d"}}); err == nil {
		t.Errorf("decided %v", decided)
	}
}

// FuzzPolicy reads hostile files. A valid policy can be evaluated, and yields no device that
// the API server would refuse.
func FuzzPolicy(f *testing.F) {
	for _, file := range []string{"shared-pf", "networks"} {
		archive, err := txtar.ParseFile("testdata/decide/" + file + ".txtar")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data)
	}
	devices, err := inventory.Discover(sysfstest.Open(f, "../../inventory/testdata/tree/igb.txtar"), inventory.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := decode(data)
		if err != nil {
			return
		}
		var all []*exposure.Policy
		for _, o := range objects {
			all = append(all, exposure.New(o))
		}
		set := exposure.NewSet(all, exposure.Node{})
		decided, err := set.Decide(t.Context(), devices)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range decided {
			if d.ID != devices[i].ID || d.HostUse != devices[i].HostUse {
				t.Fatalf("device %q became %+v", devices[i].Name, d)
			}
			attributes := inventory.Attributes(d)
			if len(attributes) > 32 {
				t.Errorf("%d attributes", len(attributes))
			}
			for name, a := range attributes {
				if a.StringValue != nil && len(*a.StringValue) > 64 {
					t.Errorf("attribute %q is too long", name)
				}
			}
			if *attributes[inventory.AttrType].StringValue != string(d.Kind) || *attributes[inventory.AttrIfName].StringValue != d.IfName {
				t.Errorf("a policy changes what a device is: %v", attributes)
			}
		}
		set.Reports(decided, nil)
	})
}
