package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/objectfile"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

const examples = "../../docs/examples"

// TestExamples holds that the objects of each example are valid together without a note, that its claim equals the
// output of plumbline claim, that its pod requests it, and that the list of the examples says whether one is applied.
func TestExamples(t *testing.T) {
	folders, err := filepath.Glob(examples + "/*/topology.yaml")
	if err != nil || len(folders) < 15 {
		t.Fatalf("%d examples, %v", len(folders), err)
	}
	list := contentOf(t, examples+"/README.md")
	for _, file := range folders {
		folder := filepath.Dir(file)
		name := filepath.Base(folder)
		t.Run(name, func(t *testing.T) {
			example(t, folder)
			shown := "validated"
			if _, err := os.Stat(folder + "/check"); err == nil {
				shown = "shown"
			}
			if !strings.Contains(list, "]("+name+"/README.md) | "+shown+" |\n") {
				t.Errorf("README.md does not list %s as %s", name, shown)
			}
			page := contentOf(t, folder+"/README.md")
			if words := len(strings.Fields(fenced.ReplaceAllString(page, ""))); words > 120 {
				t.Errorf("the page has %d words, more than 120", words)
			}
			for _, part := range []string{"# ", "\n**What you see:** ", "\n**What goes wrong:** "} {
				if !strings.Contains(page, part) {
					t.Errorf("the page has no %q", part)
				}
			}
		})
	}
}

func example(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	command := []string{"validate", "--strict"}
	for _, file := range files {
		if filepath.Base(file) != "pod.yaml" { // of which validate has only a note
			command = append(command, "-f", file)
		}
	}
	if _, said, code := runs(t, command...); code != 0 {
		t.Errorf("exit status %d of %q:\n%s", code, command, said)
	}
	var pod struct {
		Spec struct {
			ResourceClaims []struct{ Name, ResourceClaimTemplateName string }
			Containers     []struct {
				Resources struct{ Claims []struct{ Name string } }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(contentOf(t, folder+"/pod.yaml")), &pod); err != nil {
		t.Fatal(err)
	}
	claim := folder + "/claim.yaml"
	printing := []string{"claim", "-f", folder + "/topology.yaml"}
	if m := pairing.FindStringSubmatch(contentOf(t, folder+"/README.md")); m != nil {
		printing = append(printing, "--pair", m[1])
	}
	printed, said, code := runs(t, printing...)
	if !slices.Contains(files, claim) {
		if code == 0 || len(pod.Spec.ResourceClaims) > 0 {
			t.Errorf("no claim.yaml, and plumbline claim prints one, or the pod requests one: %v", pod.Spec.ResourceClaims)
		}
		return
	}
	if code != 0 || printed != contentOf(t, claim) {
		t.Errorf("claim.yaml is not what plumbline claim prints (exit status %d):\n%s%s", code, printed, said)
	}
	templates := ""
	for _, file := range files {
		templates += contentOf(t, file)
	}
	for i, requested := range pod.Spec.ResourceClaims {
		claims := pod.Spec.Containers[0].Resources.Claims
		if name := requested.ResourceClaimTemplateName; i == 0 && name != filepath.Base(folder) || !strings.Contains(templates, "kind: ResourceClaimTemplate\nmetadata:\n  name: "+name+"\n") ||
			len(claims) != len(pod.Spec.ResourceClaims) || claims[i].Name != requested.Name {
			t.Errorf("the pod does not request the claim: %v", requested)
		}
	}
}

// fenced matches the code of a page.
var fenced = regexp.MustCompile("(?s)\n```.*?\n```")

// pairing is how a page prints its claim, where that is not for the topology alone.
var pairing = regexp.MustCompile("plumbline claim -f topology.yaml --pair ([^ \n]+)")

// runs runs a command, and returns what it prints, its errors and its exit status.
func runs(t *testing.T, command ...string) (printed, said string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), command, stdio{in: strings.NewReader(""), out: &out, err: &errs})
	return out.String(), errs.String(), code
}

func parsed(t *testing.T, file string) *topology.Manifest {
	t.Helper()
	f, err := topology.Parse(file, []byte(contentOf(t, file)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func contentOf(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestExamplesTogether holds that the objects of any two examples can be in one cluster: objects have names of their own,
// no two pools allocate one address, nothing is to be said of both folders together, and a device that both share is
// shared with both, or is undecided, with a reason, where their policies differ.
func TestExamplesTogether(t *testing.T) {
	folders, err := filepath.Glob(examples + "/*/topology.yaml")
	if err != nil {
		t.Fatal(err)
	}
	differentAddresses(t)
	var pairs [][2]string
	for i, one := range folders {
		for _, two := range folders[i+1:] {
			pairs = append(pairs, [2]string{filepath.Dir(one), filepath.Dir(two)})
		}
	}
	for _, of := range effort.Sample(t, 7, pairs) {
		t.Run(filepath.Base(of[0])+"/"+filepath.Base(of[1]), func(t *testing.T) { inOneCluster(t, of[:]) })
	}
}

// differentAddresses holds that no two pools of the examples allocate one address: they can be on one wire, and the
// controller would set the condition Overlap.
func differentAddresses(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(examples + "/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var layouts []*addresspool.Layout
	for _, file := range files {
		pools, err := objectfile.Decode[v1alpha1.AddressPool](parsed(t, file), v1alpha1.GroupVersion.WithKind(v1alpha1.AddressPoolKind))
		if err != nil {
			t.Fatal(err)
		}
		for _, pool := range pools {
			l, err := addresspool.Of(pool)
			if err != nil {
				t.Fatal(err)
			}
			for _, other := range layouts {
				if mine, theirs, ok := l.Overlaps(other); ok {
					t.Errorf("%s: AddressPool %q allocates addresses of %s that %q has, too, of %s: set other first and last", file, l.Name, mine, other.Name, theirs)
				}
			}
			layouts = append(layouts, l)
		}
	}
	if len(layouts) < 20 {
		t.Errorf("%d pools were found", len(layouts))
	}
}

func inOneCluster(t *testing.T, folders []string) {
	t.Helper()
	command := []string{"validate", "--strict"}
	var policies []*exposure.Policy
	for _, folder := range folders {
		files, _ := filepath.Glob(folder + "/*.yaml")
		for _, file := range files {
			if filepath.Base(file) == "pod.yaml" {
				continue
			}
			command = append(command, "-f", file)
			found, err := objectfile.Decode[v1alpha1.DeviceExposurePolicy](parsed(t, file), v1alpha1.GroupVersion.WithKind(v1alpha1.PolicyKind))
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range found {
				policies = append(policies, exposure.New(o))
			}
		}
	}
	if _, said, code := runs(t, command...); code != 0 {
		t.Errorf("the objects of both folders:\n%s", said)
	}
	shared := []inventory.Device{{IfName: "enp3s0f0", Kind: inventory.KindPF}, {IfName: "enp3s0f1", Kind: inventory.KindPF}, {IfName: "eth0", Kind: inventory.KindNIC}, {IfName: "eth1", Kind: inventory.KindNIC}, {IfName: "enp3s0f0.100", Kind: inventory.KindVirtual, DevType: "vlan"}, {IfName: "br-lab", Kind: inventory.KindVirtual, DevType: "bridge"}}
	for i := range shared {
		shared[i].ID, shared[i].Name = "if:"+shared[i].IfName, shared[i].IfName
	}
	decided, err := exposure.NewSet(policies, exposure.Node{}).Decide(t.Context(), shared)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range decided {
		var of []*exposure.Policy
		for _, p := range policies {
			alone, err := exposure.NewSet([]*exposure.Policy{p}, exposure.Node{}).Decide(t.Context(), []inventory.Device{d})
			if err != nil {
				t.Fatal(err)
			}
			if alone[0].Exposure.Verdict == inventory.Exposed {
				of = append(of, p)
			}
		}
		differ := len(of) == 2 && !reflect.DeepEqual(of[0].Sharing, of[1].Sharing)
		if undecided := d.Exposure.Verdict == inventory.Undecided; undecided != differ || undecided && !strings.Contains(d.Exposure.Reason, "has the same priority 0 and decides otherwise") {
			t.Errorf("device %q of %d policies that differ %t: %+v", d.IfName, len(of), differ, d.Exposure)
		}
	}
}
