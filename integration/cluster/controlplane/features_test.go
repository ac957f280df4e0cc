//go:build cluster

package controlplane_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/topology/apiserver"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestWithoutFeatures runs a control plane of the oldest version that is supported, without
// the features of DRA that can be off there. A device that needs one is withheld, with a reason that
// names the feature, and nothing is written repeatedly; claims for functions work.
func TestWithoutFeatures(t *testing.T) {
	without := []string{"--feature-gates=DRAConsumableCapacity=false,DRAPartitionableDevices=false," +
		"DRADeviceTaints=false,DRADeviceBindingConditions=false,DRAExtendedResource=false"}
	if strings.HasPrefix(cluster.Version(), "v1.37.") {
		without = append(without, "--emulated-version=1.36")
	}
	b := startOf(t, cluster.Options{APIServer: without, ControllerManager: without, Scheduler: without})
	b.run(t)
	b.mustKubectl(t, b.webhooks, "apply", "-f", "-")
	b.asked(t)
	if err := b.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}); err != nil {
		t.Fatal(err)
	}
	b.speakFor(t)
	m := &machine{bench: b, name: "plain", state: t.TempDir()}
	m.start(t)
	defer func() { m.stop() }()
	functions := []string{"01-10-0", "02-10-0", "02-10-2", "02-10-4", "02-10-6"}
	m.offered(t, "without policies", functions...)
	for _, part := range []struct {
		name string
		test func(*testing.T, *machine)
	}{
		{"devices that need a feature are withheld", b.withheldFeatures},
		{"a class without its extended resource name", b.unnamed},
		{"a template with a distinct attribute", b.indistinct},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, m) })
	}
}

// because waits until a device is withheld for a reason.
func (m *machine) because(t *testing.T, device, words string) {
	t.Helper()
	m.eventually(t, "the reason of "+device, func() error {
		for _, w := range m.pub.Withheld() {
			if w.Name == device && strings.Contains(w.Reason, words) {
				return nil
			}
		}
		return fmt.Errorf("withheld %q", m.pub.Withheld())
	})
}

func (b *bench) withheldFeatures(t *testing.T, m *machine) {
	b.mustKubectl(t, policy("share", sharePolicy), "create", "--validate=strict", "-f", "-")
	m.because(t, sharedName, "feature DRAConsumableCapacity")
	m.because(t, strings.TrimSuffix(sharedName, "-x"), "feature DRAPartitionableDevices")
	m.offered(t, "beside what is withheld", "01-10-0", "02-10-0", "02-10-2", "02-10-4", "02-10-6")
	m.mu.Lock()
	m.dirty = map[string]string{"0000:02:10.2": "for the test"}
	m.mu.Unlock()
	m.changed.Changed()
	m.because(t, "pci-0000-02-10-2", "dirty, and the API server does not support taints (feature DRADeviceTaints)")
	left := []string{"01-10-0", "02-10-0", "02-10-4", "02-10-6"}
	m.offered(t, "without the dirty one", left...)

	before := m.written.requests.Load()
	m.scanned(t)
	if n := m.written.requests.Load() - before; n > 0 {
		t.Errorf("%d writes of slices though nothing changed", n)
	}
	// An agent that starts does not know what the API server lacks.
	m.stop()
	m.start(t)
	m.because(t, sharedName, "feature DRAConsumableCapacity")
	m.because(t, "pci-0000-02-10-2", "feature DRADeviceTaints")
	m.offered(t, "after a restart", left...)
	b.verdict(t, "share", "Succeeded", "decides for 1 device on 1 node; 0 offered")
}

func (b *bench) unnamed(t *testing.T, _ *machine) {
	b.mustKubectl(t, strings.ReplaceAll(simple("old", "vf"), "type: sriov", "type: sriov, extendedResourceName: openshift.io/sriov"), "create", "--validate=strict", "-f", "-")
	says := func(when string) *v1alpha1.NetworkTopology {
		t.Helper()
		o := b.ready(t, "old", metav1.ConditionTrue)
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); !strings.Contains(c.Message, `step "vf": the API server has dropped extendedResourceName (feature DRAExtendedResource)`) {
			t.Errorf("%s: condition %+v", when, c)
		}
		return o
	}
	says("first")
	b.mustKubectl(t, "", "annotate", "deviceclass", "old-vf", "example.com/note=x")
	class := b.class(t, "old-vf")
	b.still(t, class, says("later"))
	if said := b.mustKubectl(t, "", "get", "events", "-A", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}"); strings.Contains(said, "Repaired: ") {
		t.Errorf("events:\n%s", said)
	}
	b.asking(t, "by-name", "openshift.io/sriov: 1")
	b.unplaced(t, "by-name", "Insufficient openshift.io/sriov")
	b.pod(t, template("by-claim", "{name: vf, exactly: {deviceClassName: old-vf}}")+"---"+claiming("by-claim", "by-claim"))
	if claims := b.placed(t, "by-claim"); len(claims) != 1 {
		t.Errorf("%d claims", len(claims))
	}
}

func (b *bench) indistinct(t *testing.T, _ *machine) {
	b.mustKubectl(t, bonded, "create", "--validate=strict", "-f", "-")
	b.templatesSay(t, "bonded", "Unsupported", "its distinctAttribute needs the feature DRAConsumableCapacity; without it, set spec.claimTemplate.bondPorts to Any")
	b.mustKubectl(t, "", "patch", "nettopo", "bonded", "--type=merge", "-p", `{"spec":{"claimTemplate":{"bondPorts":"Any"}}}`)
	b.templates(t, "ports of any function", "bonded", "default")
}

// TestServerLacks: plumbline version --cluster names what a real server of this version lacks by default, and no more.
func TestServerLacks(t *testing.T) {
	b := start(t)
	said, err := exec.CommandContext(t.Context(), b.program, "version", "--cluster", "-o", "json", "--kubeconfig", b.Admin()).Output()
	if err != nil {
		t.Fatal(err)
	}
	var of struct {
		Cluster, Note string
		Features      []apiserver.Finding
	}
	if err := json.Unmarshal(said, &of); err != nil {
		t.Fatal(err)
	}
	var off []string
	for _, f := range of.Features {
		if (f.State == apiserver.Off) != (f.Reason != "") {
			t.Errorf("%s is %s: %q", f.Feature, f.State, f.Reason)
		}
		if f.State == apiserver.Off {
			off = append(off, f.Feature)
		}
	}
	want := map[string][]string{
		"v1.35": {"DRAConsumableCapacity", "DRAPartitionableDevices", "DRADeviceTaints", "DRADeviceTaintRules", "DRAExtendedResource"},
		"v1.36": {"DRADeviceTaintRules"},
	}[cluster.Version()[:len("v1.35")]]
	if !slices.Equal(off, want) || of.Cluster != cluster.Version() || of.Note != "" {
		t.Errorf("%s lacks %q (%s), want %s and %q", of.Cluster, off, of.Note, cluster.Version(), want)
	}
}
