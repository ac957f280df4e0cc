package imports_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	godiff "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/imports"
)

var update = flag.Bool("update", false, "rewrite the expected output")

func contracts(t testing.TB) contract.Set {
	t.Helper()
	set, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func convert(t testing.TB, set contract.Set, objects []map[string]any) imports.Result {
	t.Helper()
	got, err := imports.Convert(t.Context(), objects, imports.Options{Set: set, Namespace: "default", ResourcePrefix: "openshift.io", Pods: true})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// show is all that a conversion has returned, as text.
func show(t testing.TB, r imports.Result) (output, remarks string) {
	t.Helper()
	var out, said strings.Builder
	for i, o := range r.Objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	for _, p := range r.Patches {
		text, err := yaml.Marshal(p.Merge)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "--- # %s, unchanged %t\n%s", p.Object, p.Unchanged, text)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&said, "note: %s\n", n)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&said, "error: %s\n", p)
	}
	return out.String(), said.String()
}

// cases returns the files of testdata.
func cases(t testing.TB) map[string]*txtar.Archive {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	out := map[string]*txtar.Archive{}
	for _, f := range files {
		archive, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if len(archive.Files) == 0 || archive.Files[0].Name != "input.yaml" {
			t.Fatalf("%s: its first file is not input.yaml", f)
		}
		out[f] = archive
	}
	return out
}

func objectsOf(t testing.TB, archive *txtar.Archive) []map[string]any {
	t.Helper()
	return objectsIn(t, archive.Files[0].Data)
}

func objectsIn(t testing.TB, text []byte) []map[string]any {
	t.Helper()
	f, err := topology.Parse("", text)
	if err != nil {
		t.Fatal(err)
	}
	return f.Values()
}

// TestConvert compares what objects become, and what is said of them, with the expected text. All that comes out has been
// planned for an imagined node, which is a part of the validation.
func TestConvert(t *testing.T) {
	set := contracts(t)
	for file, archive := range cases(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			output, remarks := show(t, convert(t, set, objectsOf(t, archive)))
			if *update {
				archive.Files = append(archive.Files[:1], txtar.File{Name: "output.yaml", Data: []byte(output)}, txtar.File{Name: "remarks", Data: []byte(remarks)})
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(archive.Files) != 3 {
				t.Fatal("has no expected output: run with -update")
			}
			if diff := godiff.Diff(string(archive.Files[1].Data), output); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if diff := godiff.Diff(string(archive.Files[2].Data), remarks); diff != "" {
				t.Errorf("remarks (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTenOfEach counts the published definitions of testdata by plugin.
func TestTenOfEach(t *testing.T) {
	found := map[string]int{}
	for file, archive := range cases(t) {
		if !strings.HasPrefix(filepath.Base(file), "found-") {
			continue
		}
		for _, o := range objectsOf(t, archive) {
			spec, _ := o["spec"].(map[string]any)
			config, _ := spec["config"].(string)
			plugins := regexp.MustCompile(`"type"\s*:\s*"([^"]+)"`).FindAllStringSubmatch(config, -1)
			slices.SortFunc(plugins, func(a, b []string) int { return strings.Compare(a[1], b[1]) })
			for _, p := range slices.CompactFunc(plugins, slices.Equal) {
				found[p[1]]++
			}
			if strings.Contains(config, `"plugins"`) && len(plugins) > 1 {
				found["a chain"]++
			}
		}
	}
	for _, p := range []string{
		"a chain", "bond", "bridge", "dhcp", "host-device", "host-local", "ipvlan", "macvlan", "ovn-k8s-cni-overlay", "ptp", "sbr", "sriov", "static",
		"tuning", "vlan", "vrf", "whereabouts",
	} {
		if found[p] < 10 {
			t.Errorf("%d definitions with %s, want at least 10", found[p], p)
		}
	}
}

// TestPlacesAndWords holds where remarks on a definition are, and what they say to do.
func TestPlacesAndWords(t *testing.T) {
	for _, c := range []struct{ config, pod, want string }{
		{
			`{"type": "macvlan", "master": "eth1", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24"}], "routes": [{"dst": "10.9.0.0/16"}, {"dst": "0.0.0.0/0", "gw": "10.2.0.1"}]}}`, "",
			`spec.config.ipam.routes[1].gw: "10.2.0.1" is not on the subnet`,
		},
		{
			`{"type": "macvlan", "master": "eth1", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "10.9.0.0/16", "gw": "10.1.0.7"}, {"dst": "0.0.0.0/0", "gw": "10.2.0.1"}]}}`, "",
			`spec.config.ipam.routes[1].gw: "10.2.0.1" is in no subnet of the addresses: write a gateway that pods reach`,
		},
		{`{"plugins": [{"type": "macvlan", "master": "eth1", "ipam": {"type": "dhcp"}}, {"type": "sbr"}]}`, "", `spec.config.plugins[1].type: needs addresses that are known in advance`},
		{`{"plugins": [{"type": "macvlan", "master": "eth1", "ipam": {"type": "static"}}, {"type": "sbr"}]}`, "", `spec.config.plugins[1].type: needs addresses in the same step`},
		{`{"plugins": [{"type": "macvlan", "master": "eth1"}, {"type": "sbr", "gateways": ["10.1.0.1"]}]}`, "", `spec.config.plugins[1].gateways: the table has the gateway of the address: write it there`},
		{`{"plugins": [{"type": "macvlan", "master": "eth1", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24"}]}}, {"type": "sbr", "addSourceHints": true}]}`, "", `spec.config.plugins[1].addSourceHints: is left out: `},
		// A pod that names its address is the address of the routes and of sbr.
		{`{"type": "macvlan", "master": "eth1", "ipam": {"type": "static", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]}}`, "10.1.0.5/24", ""},
		{`{"type": "macvlan", "master": "eth1", "ipam": {"type": "static", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]}}`, "10.2.0.5/24", `spec.config.ipam.routes[0].gw: when a claim sets its claimParameters: "10.1.0.1" is not on the subnet`},
		{`{"plugins": [{"type": "macvlan", "master": "eth1", "ipam": {"type": "static", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]}}, {"type": "sbr"}]}`, "10.1.0.5/24", ""},
		{`{"type": "ptp", "mtu": 512, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}`, "", ""},
		{
			`{"type": "macvlan", "master": "eth1", "ipam": {"type": "whereabouts", "range": "10.1.0.225/28", "gateway": "10.1.0.1"}}`, "",
			`spec.config.ipam.gateway: "10.1.0.1" is in none of the ranges: write the whole network as range, with range_start and range_end, or remove the gateway`,
		},
		{`{"type": "macvlan", "master": "eth1", "ipam": {"type": "whereabouts", "range": "2001:db8::/64", "gateway": "fe80::1", "fast_ipam": true}}`, "", ""},
		{`{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.0.0/31", "gateway": "10.1.0.0"}}`, "", ""},
		{`{"type": "macvlan", "master": "eth1", "ipam": {"type": "host-local", "subnet": "10.1.0.0/31", "gateway": "10.1.0.0"}}`, "", ""},
		{`{"type": "macvlan", "master": "eth1", "ipam": {"type": "whereabouts", "range": "10.1.0.0/24", "fast_ipam": true}}`, "", `spec.config.ipam.fast_ipam: is left out: nodes lease blocks`},
		{`{"name": "ovn-kubernetes", "type": "ovn-k8s-cni-overlay", "logfile-maxage": 5}`, "", `spec.config.topology: is missing: the definition stands for the cluster's own network, which pods have without a claim: remove it`},
	} {
		text := fmt.Sprintf("{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: net}, spec: {config: '%s'}}\n", c.config)
		if c.pod != "" {
			text += fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {name: web, annotations: {k8s.v1.cni.cncf.io/networks: '[{\"name\": \"net\", \"ips\": [%q]}]'}}, spec: {containers: [{name: main, image: main}]}}\n", c.pod)
		}
		objects := objectsIn(t, []byte(text))
		got := convert(t, contracts(t), objects)
		_, remarks := show(t, got)
		if c.want == "" && len(got.Problems) > 0 || !strings.Contains(remarks, "net\": "+c.want) {
			t.Errorf("%s\nwant %q, got:\n%s", c.config, c.want, remarks)
		}
	}
	output, remarks := show(t, convert(t, contracts(t), objectsOf(t, txtar.Parse([]byte("-- input.yaml --\n"+
		"{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: a.b}, spec: {config: '{\"type\": \"macvlan\", \"master\": \"eth1\", \"ipam\": {\"type\": \"whereabouts\", \"range\": \"010.1.0.0/24\"}}'}}\n")))))
	if strings.Contains(remarks, "range: is missing") || output != "" {
		t.Errorf("a range that is there is missing, too:\n%s", remarks)
	}
}

// TestGatewayOfBridge holds that a bridge which is a gateway has an address where the network names none, as with the plugin.
func TestGatewayOfBridge(t *testing.T) {
	for _, c := range []struct{ flags, gateway, want string }{
		{`"isDefaultGateway": true`, "", "10.1.0.1"},
		{`"isGateway": true`, "", "10.1.0.1"},
		{`"isGateway": true`, `, "gateway": "10.1.0.9"`, "10.1.0.9"},
		{`"isGateway": false`, "", ""},
	} {
		objects := objectsIn(t, []byte(`{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: net}, spec: {config: '{"type": "bridge", "bridge": "br1", `+
			c.flags+`, "ipam": {"type": "whereabouts", "range": "10.1.0.0/24", "range_start": "10.1.0.30"`+c.gateway+`}}'}}`))
		output, remarks := show(t, convert(t, contracts(t), objects))
		if got := strings.Contains(output, "gateway: "); got != (c.want != "") || !strings.Contains(output, "gateway: "+c.want) && c.want != "" {
			t.Errorf("%s%s: want gateway %q:\n%s", c.flags, c.gateway, c.want, output)
		}
		if said := strings.Contains(remarks, `"10.1.0.1" becomes the gateway of the AddressPool`); said != (c.want == "10.1.0.1") {
			t.Errorf("%s%s:\n%s", c.flags, c.gateway, remarks)
		}
	}
}

// TestExcludedOnce holds that what a pool excludes for pods is one note, however many there are, with the first names.
func TestExcludedOnce(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{apiVersion: k8s.cni.cncf.io/v1, kind: NetworkAttachmentDefinition, metadata: {name: office}, spec: {config: '{"type": "macvlan", "master": "eth1", "ipam": {"type": "whereabouts", "range": "10.10.0.0/24"}}'}}` + "\n")
	for i := range 8 {
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Pod, metadata: {name: web-%d, annotations: {k8s.v1.cni.cncf.io/networks: office, k8s.v1.cni.cncf.io/network-status: '[{\"name\": \"office\", \"ips\": [\"10.10.0.%d\"]}]'}}, spec: {containers: [{name: main, image: main}]}}\n", i, 9+2*i)
		fmt.Fprintf(&text, "---\n{apiVersion: whereabouts.cni.cncf.io/v1alpha1, kind: OverlappingRangeIPReservation, metadata: {name: 10.10.0.%d, namespace: kube-system}, spec: {podref: default/web-%d}}\n", 9+2*i, i)
	}
	objects := objectsIn(t, []byte(text.String()))
	output, remarks := show(t, convert(t, contracts(t), objects))
	for i := range 8 {
		if !strings.Contains(output, fmt.Sprintf("- 10.10.0.%d\n", 9+2*i)) {
			t.Errorf("10.10.0.%d is not excluded:\n%s", 9+2*i, output)
		}
	}
	for _, want := range []string{
		`excludes the addresses of 8 pods ("default/web-0", "default/web-1", "default/web-2", "default/web-3", "default/web-4" and 3 more): remove them there`,
		`excludes 8 addresses that pods have of whereabouts (reservations "kube-system/10.10.0.11", "kube-system/10.10.0.13", "kube-system/10.10.0.15", "kube-system/10.10.0.17", "kube-system/10.10.0.19" and 3 more)`,
	} {
		if strings.Count(remarks, want) != 1 {
			t.Errorf("want one note %s:\n%s", want, remarks)
		}
	}
	if n := strings.Count(remarks, "AddressPool \"office\" excludes"); n != 2 {
		t.Errorf("%d notes:\n%s", n, remarks)
	}
}

// silent are values that may change without an effect, by kind and path, with the reason.
var silent = map[string]*regexp.Regexp{
	"the bookkeeping of an API server":                        regexp.MustCompile(`^\w+ metadata\.(creationTimestamp|finalizers|generation|managedFields|ownerReferences|resourceVersion|selfLink|uid)\b`),
	"what kubectl and an operator have written down":          regexp.MustCompile(`^\w+ metadata\.annotations\.(kubectl\.kubernetes\.io/last-applied-configuration|sriovnetwork\.openshift\.io/owner-ref|operator\.sriovnetwork\.openshift\.io/last-network-namespace)\b`),
	"versions of the format":                                  regexp.MustCompile(`^\w+ (apiVersion|.*\.cniVersions?)$`),
	"the name that the runtime's caches of plugins have":      regexp.MustCompile(`^NetworkAttachmentDefinition spec\.config(\.plugins\[\d+\])?\.name$`),
	"the state of an object, which others compute":            regexp.MustCompile(`^\w+ status\b`),
	"what the program that runs the plugins does, not they":   regexp.MustCompile(`\.(disableCheck|disableGC|loadOnlyInlinedPlugins)$`),
	"the name that the plugin bond itself does not use":       regexp.MustCompile(`\.ifname$`),
	"a host, of which only the networks count":                regexp.MustCompile(`^HostInterface (metadata\.name|spec\.hostName|spec\.interfaces\[\d+\]\.(hostIP|interfaceName|pciAddress|product|vendor))$`),
	"the resource of a device plugin, as the annotation says": regexp.MustCompile(`\.capabilities\.(deviceID|CNIDeviceInfo)$`),
	"what multi-nic-cni has computed of a network":            regexp.MustCompile(`^CIDR spec\.(config\b|cidr\[\d+\]\.(vlanCIDR|hosts))`),
	"what a pod is beside its networks":                       regexp.MustCompile(`^(Pod|Deployment|StatefulSet) (unheardOf|metadata\.unheardOf|.*annotations\.(unheardOf|k8s\.v1\.cni\.cncf\.io/network-status)|spec\b.*(replicas|containers|image|limits|claims|labels|selector|unheardOf)\b)`),
	"the namespace of an operator's own object":               regexp.MustCompile(`^(SriovNetwork|SriovIBNetwork|MultiNicNetwork|HostDeviceNetwork|IPoIBNetwork|MacvlanNetwork) metadata\.namespace$`),
	"who has an address":                                      regexp.MustCompile(`^(IPPool spec\.allocations\.\d+|OverlappingRangeIPReservation spec)\.(id|containerid|podref|ifname)$`),
}

// TestNothingIsDropped changes each value of each object, one at a time, and adds a key to each of their objects. The
// result has to differ, or the value was dropped in silence.
func TestNothingIsDropped(t *testing.T) {
	set := contracts(t)
	used := map[string]bool{}
	for file, archive := range cases(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			objects := objectsOf(t, archive)
			for _, o := range objects {
				with := alongside(objects, o)
				beside := slices.DeleteFunc(slices.Clone(objects), func(other map[string]any) bool {
					return title(other) == title(o) || !with[title(other)] && (other["kind"] == o["kind"] || isNetwork(o) && isNetwork(other))
				})
				whole := convert(t, set, append(slices.Clone(beside), o))
				output, remarks := show(t, whole)
				if slices.ContainsFunc(whole.Problems, func(p imports.Remark) bool { return p.Object == title(o) }) {
					continue // one problem is enough
				}
				for _, m := range mutations("", o) {
					if reason := exempt(fmt.Sprint(o["kind"], " ", m.path)); reason != "" {
						used[reason] = true
						continue
					}
					if reported(whole.Notes, title(o), m.path) {
						continue
					}
					gotOutput, gotRemarks := show(t, convert(t, set, append(slices.Clone(beside), m.value.(map[string]any))))
					if gotOutput == output && gotRemarks == remarks {
						t.Errorf("%s: %s: %s, and nothing differs", title(o), m.path, m.what)
					}
				}
			}
		})
	}
	for reason := range silent {
		if !used[reason] {
			t.Errorf("no case has %s: remove the exemption, or add a case", reason)
		}
	}
}

// reported says whether a note says of a key, or of one above, that it is left out.
func reported(notes []imports.Remark, object, path string) bool {
	return slices.ContainsFunc(notes, func(n imports.Remark) bool {
		rest, below := strings.CutPrefix(path, n.Path)
		return n.Object == object && below && (rest == "" || n.Path == "" || rest[0] == '.' || rest[0] == '[') &&
			(strings.Contains(n.Message, "is left out") || strings.Contains(n.Message, "is not converted"))
	})
}

// alongside returns the networks that a pod has beside a network, of which some build on others.
func alongside(objects []map[string]any, network map[string]any) map[string]bool {
	out := map[string]bool{}
	if network["kind"] != "NetworkAttachmentDefinition" {
		return out
	}
	meta, _ := network["metadata"].(map[string]any)
	for _, o := range objects {
		pod, _ := o["metadata"].(map[string]any)
		annotations, _ := pod["annotations"].(map[string]any)
		list, _ := annotations["k8s.v1.cni.cncf.io/networks"].(string)
		var names []string
		for e := range strings.SplitSeq(list, ",") {
			name, _, _ := strings.Cut(e, "@")
			names = append(names, name)
		}
		if fmt.Sprint(pod["namespace"]) != fmt.Sprint(meta["namespace"]) || !slices.Contains(names, fmt.Sprint(meta["name"])) {
			continue
		}
		for _, name := range names {
			out[title(map[string]any{"kind": network["kind"], "metadata": map[string]any{"name": name, "namespace": meta["namespace"]}})] = true
		}
	}
	return out
}

// isNetwork reports whether objects of its kind become topologies.
func isNetwork(o map[string]any) bool {
	switch o["kind"] {
	case "NetworkAttachmentDefinition", "SriovNetwork", "SriovIBNetwork", "MultiNicNetwork", "HostDeviceNetwork", "IPoIBNetwork", "MacvlanNetwork", "ResourceClaim", "ResourceClaimTemplate", "UserDefinedNetwork", "ClusterUserDefinedNetwork":
		return true
	}
	return false
}

func exempt(path string) string {
	for reason, r := range silent {
		if r.MatchString(path) {
			return reason
		}
	}
	return ""
}

func title(o map[string]any) string {
	meta, _ := o["metadata"].(map[string]any)
	name := fmt.Sprint(meta["name"])
	namespace, _ := meta["namespace"].(string)
	kind, _ := o["kind"].(string)
	if slices.Contains(imports.Kinds(), kind) {
		namespace = cmp.Or(namespace, "default")
	}
	switch kind {
	case "MultiNicNetwork", "ClusterUserDefinedNetwork", "CIDR", "HostInterface", "DeviceClass", "HostDeviceNetwork", "IPoIBNetwork", "MacvlanNetwork":
		namespace = ""
	}
	if namespace != "" {
		name = namespace + "/" + name
	}
	return fmt.Sprintf("%s %q", o["kind"], name)
}

// mutation is a copy of a value with one change.
type mutation struct {
	path, what string
	value      any
}

// mutations returns a copy of a value for each change in it. JSON in a string is changed as if it were an object.
func mutations(path string, v any) (out []mutation) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			at := strings.TrimPrefix(path+"."+k, ".")
			for _, m := range mutations(at, v[k]) {
				c := maps.Clone(v)
				c[k] = m.value
				out = append(out, mutation{m.path, m.what, c})
			}
		}
		c := maps.Clone(v)
		c["unheardOf"] = "x"
		out = append(out, mutation{strings.TrimPrefix(path+".unheardOf", "."), "was added", c})
	case []any:
		for i := range v {
			for _, m := range mutations(fmt.Sprintf("%s[%d]", path, i), v[i]) {
				c := slices.Clone(v)
				c[i] = m.value
				out = append(out, mutation{m.path, m.what, c})
			}
		}
	case string:
		if inner, before, after, ok := embedded(v); ok {
			for _, m := range mutations(path, inner) {
				raw, err := json.Marshal(m.value)
				if err != nil {
					panic(err)
				}
				out = append(out, mutation{m.path, m.what, strings.TrimSuffix(strings.TrimPrefix(string(raw), before), after)})
			}
			return out
		}
		out = append(out, mutation{path, "has another value", other(v)})
	case bool:
		out = append(out, mutation{path, "is negated", !v})
	case nil:
	default:
		n := fmt.Sprint(v)
		out = append(out, mutation{path, "is another number", json.RawMessage(n[:len(n)-1] + string("1234567890"[n[len(n)-1]-'0']))})
	}
	return out
}

// other is a text of the same form.
func other(s string) string {
	if s == "" {
		return "x"
	}
	if i := strings.LastIndexAny(s, "123456789"); i >= 0 {
		return s[:i] + string("0234567891"[s[i]-'0']) + s[i+1:]
	}
	return s + "x"
}

var trailing = regexp.MustCompile(`,(\s*[}\]])`)

// embedded decodes JSON in a string: an object, or several with commas.
func embedded(s string) (v any, before, after string, ok bool) {
	text := trailing.ReplaceAllString(s, "$1")
	if !strings.HasPrefix(strings.TrimSpace(text), "{") && !strings.HasPrefix(strings.TrimSpace(text), "[{") {
		return nil, "", "", false
	}
	for _, try := range [][2]string{{"", ""}, {"[", "]"}} {
		dec := json.NewDecoder(bytes.NewReader([]byte(try[0] + text + try[1])))
		dec.UseNumber()
		if dec.Decode(&v) == nil && !dec.More() {
			return topology.Exact(v), try[0], try[1], true
		}
	}
	return nil, "", "", false
}
