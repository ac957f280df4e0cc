//go:build cluster

package controlplane_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/topology/admission"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	topologyv1alpha1 "github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestControlPlane is one story on one API server: each part relies on those
// before it.
func TestControlPlane(t *testing.T) {
	b := start(t)
	b.elects = true
	for _, part := range []struct {
		name string
		test func(*testing.T)
	}{
		{"the CRDs are structural", b.structural},
		{"published schemas are accepted", b.publishedSchemas},
		{"what the API server refuses by itself", b.rules},
		{"the controller starts", func(t *testing.T) {
			// Who takes over waits for the time in the lease.
			b.run(t, append([]string{"--leader-elect-lease-duration", "10s"}, shortLived...)...)
		}},
		{"built-in types are described", b.builtIn},
		{"the classes of the flagship", b.flagship},
		{"edits by hand are undone", b.handEdits},
		{"names that others have", b.clash},
		{"an invalid topology changes nothing", b.invalid},
		{"a type no node can run", b.unknown},
		{"a topology in use is deleted", b.inUse},
		{"an edit reaches running pods", b.rollout},
		{"a dead node holds up no other", b.deadNode},
		{"policies decide which devices are offered", b.policies},
		{"shares need a policy", b.unshared},
		{"another replica takes over", b.failover},
		{"the API server is away", b.absence},
		{"the webhook is registered", b.register},
		{"topologies are refused", b.refusedTopologies},
		{"policies are refused", b.refusedPolicies},
		{"shares without a policy are warned of", b.warnedOfShares},
		{"edits of what pods run", b.editedInUse},
		{"claims are refused", b.refusedClaims},
		{"what claims set has bounds", b.setParameters},
		{"classes are refused", b.refusedClasses},
		{"other secrets are not readable", b.secrets},
		{"the certificate is renewed", b.renewal},
		{"nobody answers", b.nobody},
		{"a certificate of one's own", b.ownCertificate},
	} {
		if !t.Run(part.name, part.test) {
			t.Fatal("the rest relies on this")
		}
	}
}

// shortLived has the controller make certificates that its default would renew.
var shortLived = []string{"--webhook-certificate-life", "2h", "--webhook-certificate-renewal", "1h"}

// still fails when an object is still being written repeatedly.
func (b *bench) still(t *testing.T, objects ...client.Object) {
	t.Helper()
	versions := make([]string, len(objects))
	for i, o := range objects {
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		versions[i] = o.GetResourceVersion()
	}
	time.Sleep(time.Second) // no sleep ends sooner: nothing is to be written in it
	for i, o := range objects {
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		if o.GetResourceVersion() != versions[i] {
			t.Errorf("%T %q is written again though nothing changed", o, o.GetName())
		}
	}
}

func (b *bench) structural(t *testing.T) {
	for _, name := range []string{"networktopologies.networking.dra.io", "deviceexposurepolicies.networking.dra.io", "deviceexposurereports.networking.dra.io", "networkqosreports.networking.dra.io", "networkqosdestinations.networking.dra.io", "cnipluginschemas.cni.networking.k8s.io"} {
		conditions := b.mustKubectl(t, "", "get", "crd", name, "-o", `jsonpath={range .status.conditions[*]}{.type}={.status} {end}`)
		for _, want := range []string{"NamesAccepted=True", "Established=True"} {
			if !strings.Contains(conditions, want) {
				t.Errorf("%s: conditions %s", name, conditions)
			}
		}
		if strings.Contains(conditions, "NonStructuralSchema=True") {
			t.Errorf("%s: conditions %s", name, conditions)
		}
	}
}

func (b *bench) publishedSchemas(t *testing.T) {
	files, err := filepath.Glob("../../../topology/pluginschema/testdata/published/*.yaml")
	if err != nil || len(files) != 6 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.mustKubectl(t, string(raw), "create", "--validate=strict", "-f", "-")
		want, got := &v1alpha1.CNIPluginSchema{}, &v1alpha1.CNIPluginSchema{}
		if err := yaml.Unmarshal(raw, want); err != nil {
			t.Fatal(err)
		}
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(want), got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
			t.Errorf("%s comes back as (-want +got):\n%s", file, diff)
		}
		if err := b.Delete(t.Context(), got); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *bench) rules(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"name: ai-bonded-rdma", "name: ai.bonded", "the name must be a DNS label of at most 63 characters"},
		{"dependOn: [vf0, vf1]", "dependOn: [vf0, vf1]\n      selector: {cel: 'true'}", "only a root step allocates a device: remove the selector, or dependOn"},
		{"name: vf1\n", "name: vf0\n", `Duplicate value`},
		{"spec:\n", "spec:\n  driftPolicy: Ignore\n", `Unsupported value: "Ignore": supported values: "Repair", "Observe"`},
		{"type: bond", "typ: bond", `unknown field "spec.steps[2].typ"`},
	} {
		manifest := publishedTopology(t, "full")
		if !strings.Contains(manifest, c.from) {
			t.Fatalf("the manifest has no %q", c.from)
		}
		said := b.refused(t, strings.Replace(manifest, c.from, c.to, 1))
		if !strings.Contains(said, c.want) {
			t.Errorf("%s: said\n%s\nwant %s", c.to, said, c.want)
		}
	}
}

func (b *bench) builtIn(t *testing.T) {
	goldens, err := filepath.Glob("../../../topology/pluginschema/testdata/built-in/*.yaml")
	if err != nil || len(goldens) == 0 {
		t.Fatal(err)
	}
	b.eventually(t, "all built-in types are described", func() error {
		var list v1alpha1.CNIPluginSchemaList
		if err := b.List(t.Context(), &list); err != nil {
			return err
		}
		if len(list.Items) != len(goldens) {
			return fmt.Errorf("%d schemas, want %d", len(list.Items), len(goldens))
		}
		return nil
	})
	for _, file := range goldens {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, got := &v1alpha1.CNIPluginSchema{}, &v1alpha1.CNIPluginSchema{}
		if err := yaml.Unmarshal(raw, want); err != nil {
			t.Fatal(err)
		}
		if err := b.Get(t.Context(), client.ObjectKeyFromObject(want), got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
			t.Errorf("%s comes back as (-want +got):\n%s", file, diff)
		}
	}
	out := b.mustKubectl(t, "", "get", "cnipluginschema", "bond", "-o", "yaml")
	for _, want := range []string{"cniType: bond", "802.3ad", "minItems: 2", "passthrough: true", "appends: 1"} {
		if !strings.Contains(out, want) {
			t.Errorf("kubectl get cnipluginschema bond -o yaml lacks %q:\n%s", want, out)
		}
	}
	b.mustKubectl(t, "", "patch", "cnipluginschema", "bond", "--type=merge", "-p", `{"spec":{"version":"9"}}`)
	b.eventually(t, "an edited schema is rewritten", func() error {
		if v := b.mustKubectl(t, "", "get", "cnipluginschema", "bond", "-o", "jsonpath={.spec.version}"); v != "" {
			return fmt.Errorf("version %q", v)
		}
		return nil
	})
	bond := &v1alpha1.CNIPluginSchema{}
	bond.Name = "bond"
	b.still(t, bond)
}

func (b *bench) ready(t *testing.T, name string, want metav1.ConditionStatus) *topologyv1alpha1.NetworkTopology {
	t.Helper()
	var o *topologyv1alpha1.NetworkTopology
	b.eventually(t, fmt.Sprintf("topology %q is Ready: %s", name, want), func() error {
		o = b.topology(t, name)
		c := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionReady)
		if c == nil || c.Status != want || c.ObservedGeneration != o.Generation {
			return fmt.Errorf("conditions %+v", o.Status.Conditions)
		}
		return nil
	})
	return o
}

func (b *bench) flagship(t *testing.T) {
	began := time.Now()
	b.mustKubectl(t, publishedTopology(t, "full"), "create", "--validate=strict", "-f", "-")
	o := b.ready(t, "ai-bonded-rdma", metav1.ConditionTrue)
	t.Logf("programmed %s after kubectl create began", time.Since(began).Round(time.Millisecond))
	want, err := os.ReadFile("testdata/classes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, step := range []string{"vf0", "vf1"} {
		class := b.class(t, claim.ClassName(o.Name, step))
		if ref := metav1.GetControllerOf(class); ref == nil || ref.UID != o.UID || ref.Name != o.Name {
			t.Errorf("class %q is owned by %+v", class.Name, class.OwnerReferences)
		}
		cfg, err := claim.ParseConfig(class.Spec.Config[0].Opaque.Parameters.Raw)
		if err != nil {
			t.Fatal(err)
		}
		if !cfg.Equal(claim.ConfigOf(o, step)) {
			t.Errorf("class %q has config %+v", class.Name, cfg)
		}
		// Without the pin, and what the API server adds, it is as documented.
		cfg.NetworkTopologyRef = claim.TopologyRef{Name: cfg.NetworkTopologyRef.Name}
		if class.Spec.Config[0].Opaque.Parameters.Raw, err = json.Marshal(cfg); err != nil {
			t.Fatal(err)
		}
		plain := &resourceapi.DeviceClass{
			TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClass"},
			ObjectMeta: metav1.ObjectMeta{Name: class.Name, Labels: class.Labels}, Spec: class.Spec,
		}
		text, err := yaml.Marshal(plain)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(text))
	}
	var wants []string
	for doc := range strings.SplitSeq(string(want), "---\n") {
		var v any
		if err := yaml.Unmarshal([]byte(doc), &v); err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		wants = append(wants, string(text))
	}
	if diff := cmp.Diff(wants, got); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	if o.Status.DeviceClasses != 2 || o.Status.Sandboxes != 0 || o.Status.ObservedGeneration != o.Generation {
		t.Errorf("status %+v", o.Status)
	}
	if table := b.mustKubectl(t, "", "get", "nettopo"); !strings.Contains(table, "READY") || !strings.Contains(table, "True") {
		t.Errorf("kubectl get nettopo:\n%s", table)
	}
	b.still(t, o, b.class(t, "ai-bonded-rdma-vf0"))
	// An edit of the spec replaces the pin, and leaves nothing behind.
	b.mustKubectl(t, "", "patch", "nettopo", o.Name, "--type=merge", "-p", `{"spec":{"driftPolicy":"Observe"}}`)
	b.eventually(t, "the class pins the new generation", func() error {
		cfg, err := claim.ParseConfig(b.class(t, "ai-bonded-rdma-vf0").Spec.Config[0].Opaque.Parameters.Raw)
		if err != nil || cfg.NetworkTopologyRef.Generation != o.Generation+1 {
			return fmt.Errorf("pin %+v, %w", cfg, err)
		}
		return nil
	})
	again := b.ready(t, o.Name, metav1.ConditionTrue)
	for _, c := range o.Status.Conditions {
		if now := meta.FindStatusCondition(again.Status.Conditions, c.Type); !now.LastTransitionTime.Equal(&c.LastTransitionTime) {
			t.Errorf("condition %s was %s already, and its transition time changed", c.Type, c.Status)
		}
	}
}

func (b *bench) handEdits(t *testing.T) {
	const name = "ai-bonded-rdma-vf0"
	want := b.class(t, name)
	for what, edit := range map[string]func(*resourceapi.DeviceClass){
		"labels":    func(c *resourceapi.DeviceClass) { c.Labels = map[string]string{"mine": "stays"} },
		"selectors": func(c *resourceapi.DeviceClass) { c.Spec.Selectors = nil },
		"config":    func(c *resourceapi.DeviceClass) { c.Spec.Config = nil },
		"owner":     func(c *resourceapi.DeviceClass) { c.OwnerReferences = nil },
	} {
		c := b.class(t, name)
		edit(c)
		if err := b.Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		b.eventually(t, what+" are restored", func() error {
			got := b.class(t, name)
			delete(got.Labels, "mine")
			if diff := cmp.Diff([]any{want.Labels, want.OwnerReferences, want.Spec}, []any{got.Labels, got.OwnerReferences, got.Spec}); diff != "" {
				return fmt.Errorf("-want +got:\n%s", diff)
			}
			return nil
		})
	}
	if b.class(t, name).Labels["mine"] != "stays" {
		t.Error("a foreign label was removed")
	}
	if err := b.Delete(t.Context(), b.class(t, name)); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "a deleted class is recreated", func() error {
		c := &resourceapi.DeviceClass{}
		return b.Get(t.Context(), client.ObjectKey{Name: name}, c)
	})
	b.event(t, "ai-bonded-rdma", "Repaired", name)
}

// event waits for an Event about a topology.
func (b *bench) event(t *testing.T, name, reason, words string) {
	t.Helper()
	b.eventually(t, fmt.Sprintf("event %s about %q", reason, name), func() error {
		out, err := b.Kubectl(t.Context(), nil, "get", "events", "-A", "--field-selector", "involvedObject.name="+name, "-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, reason+": ") && strings.Contains(out, words) {
				return nil
			}
		}
		return fmt.Errorf("events:\n%s", out)
	})
}

func (b *bench) clash(t *testing.T) {
	foreign := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "red-vf0"}}
	if err := b.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	b.mustKubectl(t, simple("red", "vf0", "vf1"), "create", "-f", "-")
	o := b.ready(t, "red", metav1.ConditionFalse)
	c := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionProgrammed)
	const said = `DeviceClass "red-vf0" exists and does not belong to this topology: delete it, or rename the topology or the step`
	if c.Reason != "Conflict" || !strings.Contains(c.Message, said) {
		t.Errorf("condition %+v", c)
	}
	if !meta.IsStatusConditionTrue(o.Status.Conditions, topologyv1alpha1.ConditionValid) {
		t.Errorf("conditions %+v", o.Status.Conditions)
	}
	b.event(t, "red", "Conflict", said)
	if now := b.class(t, "red-vf0"); now.ResourceVersion != foreign.ResourceVersion {
		t.Error("the foreign class was touched")
	}
	if err := b.Get(t.Context(), client.ObjectKey{Name: "red-vf1"}, &resourceapi.DeviceClass{}); !apierrors.IsNotFound(err) {
		t.Errorf("one of two classes was made: %v", err)
	}
	if err := b.Delete(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	b.ready(t, "red", metav1.ConditionTrue)

	b.mustKubectl(t, simple("a-b", "c"), "create", "-f", "-")
	b.ready(t, "a-b", metav1.ConditionTrue)
	b.mustKubectl(t, simple("a", "b-c"), "create", "-f", "-")
	o = b.ready(t, "a", metav1.ConditionFalse)
	if c := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionProgrammed); !strings.Contains(c.Message, `DeviceClass "a-b-c" belongs to NetworkTopology "a-b": rename the topology or the step`) {
		t.Errorf("condition %+v", c)
	}
	if ref := metav1.GetControllerOf(b.class(t, "a-b-c")); ref.Name != "a-b" {
		t.Errorf("the class is %q's now", ref.Name)
	}
	b.mustKubectl(t, "", "delete", "nettopo", "a-b", "--timeout=30s")
	b.ready(t, "a", metav1.ConditionTrue)
	b.mustKubectl(t, "", "delete", "nettopo", "a", "red", "--timeout=30s")
	var left resourceapi.DeviceClassList
	if err := b.List(t.Context(), &left); err != nil {
		t.Fatal(err)
	}
	if len(left.Items) != 2 {
		t.Errorf("%d classes are left, want those of one topology", len(left.Items))
	}
}

func (b *bench) invalid(t *testing.T) {
	b.mustKubectl(t, simple("blue", "vf0"), "create", "-f", "-")
	b.ready(t, "blue", metav1.ConditionTrue)
	before := b.class(t, "blue-vf0")
	b.mustKubectl(t, "", "patch", "nettopo", "blue", "--type=merge", "-p", `{"spec":{"steps":[{"name":"vf0","type":"sriov","config":{"vlan":5000}},{"name":"vf1","type":"sriov","selector":{"cel":"device."}}]}}`)
	o := b.ready(t, "blue", metav1.ConditionFalse)
	c := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionValid)
	if c.Reason != "Invalid" || !strings.Contains(c.Message, `step "vf0": config.vlan: `) || !strings.Contains(c.Message, `step "vf1": selector.cel: `) {
		t.Errorf("condition %+v", c)
	}
	if now := b.class(t, "blue-vf0"); now.ResourceVersion != before.ResourceVersion {
		t.Error("the class changed")
	}
	b.event(t, "blue", "Invalid", "selector.cel")
	b.mustKubectl(t, "", "patch", "nettopo", "blue", "--type=merge", "-p", `{"spec":{"steps":[{"name":"vf1","type":"sriov"}]}}`)
	b.ready(t, "blue", metav1.ConditionTrue)
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(before), before); !apierrors.IsNotFound(err) {
		t.Errorf("the class of a step that is gone: %v", err)
	}
	selector := b.class(t, "blue-vf1").Spec.Selectors[0].CEL.Expression
	if want := `(device.attributes["dra.networking"].type == "vf" || `; !strings.Contains(selector, want) {
		t.Errorf("a root step without selector has %s", selector)
	}
	b.mustKubectl(t, "", "delete", "nettopo", "blue", "--timeout=30s")
}

func (b *bench) unknown(t *testing.T) {
	manifest := simple("remote", "vf0")
	b.mustKubectl(t, strings.Replace(manifest, "sriov", "gre", 1), "create", "-f", "-")
	o := b.ready(t, "remote", metav1.ConditionFalse)
	if c := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionValid); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, `unknown step type "gre"`) {
		t.Errorf("without a schema: %+v", c)
	}
	raw, err := os.ReadFile("../../../topology/pluginschema/testdata/published/rdma.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b.mustKubectl(t, strings.NewReplacer("name: rdma\n", "name: gre\n", "cniType: rdma", "cniType: gre").Replace(string(raw)), "create", "-f", "-")
	b.eventually(t, "a schema makes it valid", func() error {
		o = b.topology(t, "remote")
		if !meta.IsStatusConditionTrue(o.Status.Conditions, topologyv1alpha1.ConditionValid) {
			return fmt.Errorf("conditions %+v", o.Status.Conditions)
		}
		return nil
	})
	if c := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionProgrammed); c.Status != metav1.ConditionFalse || c.Reason != "Unsupported" || !strings.Contains(c.Message, `no node can run step "vf0": type "gre"`) {
		t.Errorf("condition %+v", c)
	}
	b.mustKubectl(t, "", "delete", "nettopo", "remote", "--timeout=30s")
}

func (b *bench) inUse(t *testing.T) {
	c := b.allocate(t, "training", "ai-bonded-rdma-vf0", "ai-bonded-rdma-vf1")
	b.eventually(t, "the use is counted", func() error {
		if o := b.topology(t, "ai-bonded-rdma"); o.Status.Sandboxes != 1 || !meta.IsStatusConditionTrue(o.Status.Conditions, topologyv1alpha1.ConditionInUse) {
			return fmt.Errorf("status %+v", o.Status)
		}
		return nil
	})
	b.mustKubectl(t, "", "delete", "nettopo", "ai-bonded-rdma", "--wait=false")
	b.gone(t, "the classes go at once", &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "ai-bonded-rdma-vf0"}})
	var end time.Time
	b.eventually(t, "the topology says what it waits for", func() error {
		o := b.topology(t, "ai-bonded-rdma")
		end = o.DeletionTimestamp.Add(5 * time.Minute)
		used := meta.FindStatusCondition(o.Status.Conditions, topologyv1alpha1.ConditionInUse)
		if want := "1 claim and 1 pod. Pods keep the network they have; 1 claim not prepared yet: the finalizer keeps the topology until " + end.UTC().Format(time.RFC3339); used.Message != want {
			return fmt.Errorf("condition %+v", used)
		}
		return nil
	})
	// The claim stays as it is, for as long as its tenant likes.
	b.agents(t).Runs(claimOf(c), "ai-bonded-rdma", 1, nil)
	b.gone(t, "the topology goes when its claims are prepared", &topologyv1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "ai-bonded-rdma"}})
	if now := time.Now(); !now.Before(end) {
		t.Errorf("it went at %s, when it would have gone anyway", now)
	}
	if err := b.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// gone waits until an object no longer exists.
func (b *bench) gone(t *testing.T, what string, o client.Object) {
	t.Helper()
	b.eventually(t, what, func() error {
		err := b.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
}

// failover kills the replica that leads while a second one stands by.
func (b *bench) failover(t *testing.T) {
	b.mustKubectl(t, simple("handed", "vf0"), "create", "-f", "-")
	b.ready(t, "handed", metav1.ConditionTrue)
	leader, port := b.process, b.port
	b.port = freePort(t)
	b.run(t, shortLived...)
	if err := leader.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = leader.Wait() // says that it was killed
	if err := b.Delete(t.Context(), b.class(t, "handed-vf0")); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "the other replica makes a class again", func() error {
		return b.Get(t.Context(), client.ObjectKey{Name: "handed-vf0"}, &resourceapi.DeviceClass{})
	})
	b.mustKubectl(t, "", "delete", "nettopo", "handed", "--timeout=30s")
	b.stop(t)
	b.port = port
	b.run(t, shortLived...)
}

// absence holds that the leader survives an API server that is away for a while, as during its update, and then goes on.
func (b *bench) absence(t *testing.T) {
	b.mustKubectl(t, simple("survives", "vf0"), "create", "-f", "-")
	b.ready(t, "survives", metav1.ConditionTrue)
	b.StopAPIServer()
	began := time.Now()
	eventually.True(t, time.Minute, "a while passes", func() bool {
		answer, err := http.Get("http://" + b.health + "/healthz")
		if err != nil {
			t.Fatalf("the controller has ended %s after the API server: %v\n%s", time.Since(began).Round(time.Second), err, tail(b.logs))
		}
		_ = answer.Body.Close()
		return time.Since(began) > 25*time.Second
	})
	if err := b.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), b.class(t, "survives-vf0")); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "it makes a class again", func() error {
		return b.Get(t.Context(), client.ObjectKey{Name: "survives-vf0"}, &resourceapi.DeviceClass{})
	})
	b.mustKubectl(t, "", "delete", "nettopo", "survives", "--timeout=30s")
}

func (b *bench) register(t *testing.T) {
	b.mustKubectl(t, b.webhooks, "apply", "-f", "-")
	b.registered(t, false)
	// The API server takes a moment to notice webhooks.
	b.asked(t)
	b.mustKubectl(t, publishedTopology(t, "full"), "create", "-f", "-")
	b.ready(t, "ai-bonded-rdma", metav1.ConditionTrue)
	for _, w := range webhooks(admissionregistrationv1.WebhookClientConfig{}, false) {
		b.eventually(t, w.Name+" is written again", func() error {
			if err := b.Get(t.Context(), client.ObjectKeyFromObject(w), w); err != nil {
				return err
			}
			if want := strconv.FormatInt(w.Generation, 10); w.Annotations[admission.GenerationAnnotation] != want {
				return fmt.Errorf("it has annotations %v, and generation %s", w.Annotations, want)
			}
			return nil
		})
	}
}

// registered holds that the registrations have an authority, and are as webhooks says.
func (b *bench) registered(t *testing.T, networkQoS bool) {
	t.Helper()
	url := fmt.Sprintf("https://localhost:%d", b.port)
	for _, want := range webhooks(admissionregistrationv1.WebhookClientConfig{URL: &url}, networkQoS) {
		got := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		b.eventually(t, "the authority is written into "+want.Name, func() error {
			if err := b.Get(t.Context(), client.ObjectKeyFromObject(want), got); err != nil {
				return err
			}
			if len(got.Webhooks[0].ClientConfig.CABundle) == 0 {
				return fmt.Errorf("caBundle is empty")
			}
			return nil
		})
		// The chart says the same.
		w := &got.Webhooks[0]
		w.ClientConfig.CABundle, w.NamespaceSelector, w.ObjectSelector = nil, nil, nil
		if *want.Webhooks[0].TimeoutSeconds == defaultTimeoutSeconds && *w.TimeoutSeconds == timeoutSeconds {
			*w.TimeoutSeconds = defaultTimeoutSeconds // see served
		}
		if diff := cmp.Diff(want.Webhooks, got.Webhooks); diff != "" {
			t.Errorf("%s in the chart (-test +chart):\n%s", want.Name, diff)
		}
	}
}

// asked waits until the API server calls the webhook.
func (b *bench) asked(t *testing.T) {
	t.Helper()
	b.eventually(t, "the webhook is asked", func() error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(publishedTopology(t, "broken-topology")), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "denied the request") {
			return fmt.Errorf("said: %w", err)
		}
		return nil
	})
}

// denied matches kubectl's text before the message of the webhook.
const denied = `admission webhook "validate.networking.dra.io" denied the request: `

func (b *bench) says(t *testing.T, manifest, want string) {
	t.Helper()
	said := b.refused(t, manifest)
	_, got, found := strings.Cut(said, denied)
	if !found || got != want {
		t.Errorf("said:\n%s\nwant, after the webhook's name:\n%s", said, want)
	}
}

func (b *bench) refusedTopologies(t *testing.T) {
	b.says(t, publishedTopology(t, "broken-topology"), `
  NetworkTopology "broken-topology", step "bond0":
    CNIPluginSchema "bond" requires at least 2 interfaces in prevResult,
    but step "bond0" depends on [vf0] which produces only 1 interface.
    Add another VF step to dependOn.`)
	// The built-in vlan takes vlanId; the sentence is the same for another key.
	b.says(t, strings.Replace(publishedTopology(t, "bad-config"), "vlanId:", "vlanIdd:", 1), `
  NetworkTopology "bad-config", step "vlan100":
    CNIPluginSchema "vlan" does not accept parameter "vlanIdd".
    Did you mean "id"?`)
	b.says(t, publishedTopology(t, "bad-dpdk"), `
  NetworkTopology "bad-dpdk", step "bond0":
    CNIPluginSchema "bond" requires at least 2 interfaces in prevResult,
    but dependency "dpdk-vf" uses plugin "vfio-pci" which produces 0 interfaces.
    VFIO devices cannot be bonded — they are userspace-managed.
  NetworkTopology "bad-dpdk", step "vlan100":
    CNIPluginSchema "vlan" requires at least 1 interface in prevResult,
    but dependency "dpdk-vf" uses plugin "vfio-pci" which produces 0 interfaces.
    VFIO devices have no network interface — they are userspace-managed.
  NetworkTopology "bad-dpdk", step "vlan100": config.master: {{ dpdk-vf.interfaceName }}: step "dpdk-vf" of type "vfio-pci" has no interface: it has pciAddress, iommuGroup, deviceNodes, deviceNodes[N]`)
	b.says(t, simple("ai-bonded", "rdma-vf0"), `NetworkTopology "ai-bonded", step "rdma-vf0": DeviceClass "ai-bonded-rdma-vf0" belongs to NetworkTopology "ai-bonded-rdma": rename the topology or the step`)
	b.says(t, strings.Replace(simple("t", "vf0", "vf1"), "type: sriov}", "type: sriov, selector: {cel: device.}}", 2), `
  NetworkTopology "t", step "vf0": selector.cel: 1:8: Syntax error: no viable alternative at input '.'
  NetworkTopology "t", step "vf1": selector.cel: 1:8: Syntax error: no viable alternative at input '.'`)
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprintf("vf%d", i)
	}
	b.says(t, simple("many", many...), `NetworkTopology "many": spec.steps: 33 root steps take a device, and a ResourceClaim can request 32 at most`)
	// A step of a type that is only described passes, with a warning.
	out, err := b.Kubectl(t.Context(), strings.NewReader(strings.Replace(simple("remote", "vf0"), "sriov", "gre", 1)), "create", "--dry-run=server", "--warnings-as-errors", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), `Warning: no node can run step "vf0": type "gre"`) {
		t.Errorf("said: %v %s", err, out)
	}
	b.says(t, `{apiVersion: cni.networking.k8s.io/v1alpha1, kind: CNIPluginSchema, metadata: {name: x}, spec: {cniType: x, configParameters: {optional: [{name: a, type: string, minimum: 1}]}}}`,
		`CNIPluginSchema "x": contract of type "x": parameter "a": only integers have bounds`)
	// A vendor's own sentences, and keys that its schema does not list.
	b.mustKubectl(t, `{apiVersion: cni.networking.k8s.io/v1alpha1, kind: CNIPluginSchema, metadata: {name: modem}, spec: {cniType: modem, configParameters: {additional: true}, output: {explain: A modem has no interface., explainTo: [{cniType: bond, explain: Modems cannot be bonded.}]}}}`,
		"create", "--validate=strict", "-f", "-")
	b.eventually(t, "the webhook knows the schema", func() error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(`{apiVersion: networking.dra.io/v1alpha1, kind: NetworkTopology, metadata: {name: line}, spec: {steps: [{name: m, type: modem, config: {dial: true}}, {name: bond0, type: bond, dependOn: [m], config: {mode: active-backup}}]}}`), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "produces 0 interfaces.\n    Modems cannot be bonded.") || strings.Contains(err.Error(), "dial") {
			return fmt.Errorf("said: %w", err)
		}
		return nil
	})
	b.mustKubectl(t, "", "delete", "cnipluginschema", "modem")
}

// template is a ResourceClaimTemplate with these requests, as they are written in YAML.
func template(name string, requests ...string) string {
	return "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: " + name + "}\nspec:\n  spec:\n    devices:\n      requests:\n        - " + strings.Join(requests, "\n        - ") + "\n"
}

func (b *bench) refusedClaims(t *testing.T) {
	const (
		gpu = "{name: gpu, exactly: {deviceClassName: nvidia-gpu-h100}}"
		vf0 = "{name: vf0, exactly: {deviceClassName: ai-bonded-rdma-vf0}}"
		vf1 = "{name: vf1, exactly: {deviceClassName: ai-bonded-rdma-vf1}}"
	)
	b.says(t, template("ai-gpu-bonded-rdma", gpu, vf0), `
  NetworkTopology "ai-bonded-rdma" requires root step requests [vf0, vf1],
  but ResourceClaimTemplate "ai-gpu-bonded-rdma" only provides requests [vf0].
  Missing: [vf1]`)
	asClaim := func(manifest string) string {
		manifest = strings.Replace(manifest, "ResourceClaimTemplate", "ResourceClaim", 1)
		return strings.Replace(manifest, "spec:\n  spec:\n", "spec:\n", 1)
	}
	b.says(t, asClaim(template("direct", vf1)), `
  NetworkTopology "ai-bonded-rdma" requires root step requests [vf0, vf1],
  but ResourceClaim "direct" only provides requests [vf1].
  Missing: [vf0]`)
	b.says(t, template("twice", vf0, strings.Replace(vf1, "-vf1", "-vf0", 1), strings.Replace(vf1, "name: vf1,", "name: vf2,", 1)),
		`ResourceClaimTemplate "twice": requests "vf0" and "vf1" are both for root step "vf0" of NetworkTopology "ai-bonded-rdma": a topology takes one device for each of its root steps; request another topology's class for a second network`)
	b.says(t, template("count", strings.Replace(vf0, "rdma-vf0}", "rdma-vf0, allocationMode: ExactCount, count: 2}", 1), vf1),
		`ResourceClaimTemplate "count": request "vf0": it is for 2 devices of DeviceClass "ai-bonded-rdma-vf0", of which NetworkTopology "ai-bonded-rdma" takes 1, for [vf0]: ask for 1`)
	b.says(t, template("any", vf0, "{name: vf1, firstAvailable: [{name: a, deviceClassName: ai-bonded-rdma-vf1}, {name: b, deviceClassName: nvidia-gpu-h100}]}"),
		`ResourceClaimTemplate "any": request "vf1": alternative "vf1/a" is for root step "vf1" of NetworkTopology "ai-bonded-rdma", and others are not: which one would be allocated is open, so the topology could lack a device`)
	b.says(t, template("set", vf0, vf1)+`      config:
        - requests: [vf0]
          opaque: {driver: dra.networking, parameters: {parameters: [{mac: "02:00:00:00:00:01", step: vf0}]}}
`, `ResourceClaimTemplate "set" request "vf0": parameters of step "vf0": mac: NetworkTopology "ai-bonded-rdma" does not let a claim set it: it has no claimParameters`)
	// A tenant's own config, and a missing request: both are said.
	own := template("own", vf0) + `      config:
        - opaque: {driver: dra.networking, parameters: {networkTopologyRef: {name: other}, step: vf0}}
`
	b.says(t, own, `
  ResourceClaimTemplate "own": config[0].opaque: in a claim, config for driver "dra.networking" may have parameters only: the DeviceClass decides which topology and step a device is for: json: unknown field "networkTopologyRef"
  NetworkTopology "ai-bonded-rdma" requires root step requests [vf0, vf1],
  but ResourceClaimTemplate "own" only provides requests [vf0].
  Missing: [vf1]`)

	for _, good := range []string{
		template("good", gpu, vf0, vf1) + "      constraints: [{matchAttribute: device.k8s.io/pcieRoot, requests: [gpu, vf0, vf1]}]\n",
		template("sub", "{name: vf0, firstAvailable: [{name: a, deviceClassName: ai-bonded-rdma-vf0}]}", vf1),
		template("others", gpu),
		asClaim(template("others", gpu)),
	} {
		b.mustKubectl(t, good, "create", "-f", "-")
	}
	// A class by hand for a topology that is not there.
	b.mustKubectl(t, `{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: hand}, spec: {config: [{opaque: {driver: dra.networking, parameters: {networkTopologyRef: {name: nowhere}, step: vf0}}}]}}`, "create", "-f", "-")
	b.eventually(t, "the class is known to the webhook", func() error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(template("hand", "{name: x, exactly: {deviceClassName: hand}}")), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), `ResourceClaimTemplate "hand" request "x": its DeviceClass is for NetworkTopology "nowhere", which does not exist`) {
			return fmt.Errorf("said: %w", err)
		}
		return nil
	})
	// A topology's claims are held against it from the moment the webhook's cache
	// has it, be its classes there or not.
	b.mustKubectl(t, simple("fresh", "vf0", "vf1"), "create", "-f", "-")
	b.eventually(t, "a fresh topology is known to the webhook", func() error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(template("fresh", "{name: vf0, exactly: {deviceClassName: fresh-vf0}}")), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "Missing: [vf1]") {
			return fmt.Errorf("said: %w", err)
		}
		return nil
	})
}

// setParameters holds that what a claim sets is within the bounds of claimParameters, for the webhook of a real API server.
func (b *bench) setParameters(t *testing.T) {
	topology := func(name, bounds string) string {
		return `{apiVersion: networking.dra.io/v1alpha1, kind: NetworkTopology, metadata: {name: ` + name + `}, spec: {steps: [{name: net1, type: macvlan}], claimParameters: [` + bounds + `]}}`
	}
	const bounds = `{step: net1, key: mac, macPrefix: "02:00:5e"}, {step: net1, key: addresses, subnets: [{prefix: 192.0.2.0/24, first: 192.0.2.64, last: 192.0.2.127}]}, {step: net1, key: name, namePattern: "data[0-9]"}`
	b.says(t, topology("bounds", `{step: net2, key: mac, macPrefix: "02:00"}`), `NetworkTopology "bounds": spec.claimParameters[0].step: "net2" is not a step, did you mean "net1"?`)
	b.says(t, topology("bounds", `{step: net1, key: mac, macPrefix: "03:00"}`), `NetworkTopology "bounds": spec.claimParameters[0].macPrefix: "03:00" begins a multicast address, which no interface can have`)
	b.mustKubectl(t, topology("bounds", bounds), "create", "--validate=strict", "-f", "-")
	with := func(parameters string) string {
		return template("bounded", "{name: net1, exactly: {deviceClassName: bounds-net1}}") + `      config:
        - requests: [net1]
          opaque: {driver: dra.networking, parameters: {parameters: [` + parameters + `]}}
`
	}
	b.eventually(t, "the webhook knows the topology", func() error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(with(`{mac: "02:00:5f:00:00:01", step: net1}`)), "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "mac: 02:00:5f:00:00:01 does not begin with 02:00:5e") {
			return fmt.Errorf("said: %w", err)
		}
		return nil
	})
	at := `ResourceClaimTemplate "bounded" request "net1": parameters of step "net1": `
	b.says(t, with(`{addresses: [192.0.2.9], step: net1}`), at+"addresses: 192.0.2.9 is not in 192.0.2.64-192.0.2.127")
	b.says(t, with(`{name: data10, step: net1}`), at+`name: "data10" does not match the pattern "data[0-9]"`)
	b.mustKubectl(t, with(`{addresses: [192.0.2.70], mac: "02:00:5e:00:00:01", name: data1, step: net1}`), "create", "--dry-run=server", "-f", "-")
	b.mustKubectl(t, "", "delete", "networktopology", "bounds")
}

func (b *bench) refusedClasses(t *testing.T) {
	b.says(t, `{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: typo}, spec: {config: [{opaque: {driver: dra.networking, parameters: {networkTopologyRef: {name: x}, stp: vf0}}}]}}`,
		`DeviceClass "typo": spec.config[0].opaque: opaque parameters: json: unknown field "stp"`)
	b.mustKubectl(t, `{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: others}, spec: {config: [{opaque: {driver: gpu.example.com, parameters: {stp: 1}}}]}}`, "create", "-f", "-")
}

// secrets: the controller reads one Secret, and no other of its own namespace.
func (b *bench) secrets(t *testing.T) {
	const other = "others-token"
	b.mustKubectl(t, "", "create", "secret", "generic", "--namespace", cluster.ProductNamespace, other, "--from-literal=token=x")
	as := func(arguments ...string) (string, error) {
		return b.Kubectl(t.Context(), nil, append([]string{"--as", "system:serviceaccount:" + cluster.ProductNamespace + ":plumbline-controller", "--namespace", cluster.ProductNamespace}, arguments...)...)
	}
	for _, forbidden := range [][]string{
		{"get", "secrets"},
		{"get", "secrets", "--all-namespaces"},
		{"get", "secret", other},
		{"get", "secrets", "--field-selector", "metadata.name=" + other},
		{"get", "secrets", "--field-selector", "metadata.name!=" + other},
		{"get", "secrets", "--watch", "--request-timeout=10s", "--field-selector", "metadata.name=" + other},
	} {
		if said, err := as(forbidden...); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%q: %q, %v", forbidden, said, err)
		}
	}
	if said, err := as("get", "secrets", "--field-selector", "metadata.name=plumbline-webhook", "-o", "name"); err != nil || strings.TrimSpace(said) != "secret/plumbline-webhook" {
		t.Errorf("its own: %q, %v", said, err)
	}
}

func (b *bench) renewal(t *testing.T) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: cluster.ProductNamespace, Name: "plumbline-webhook"}
	if err := b.Get(t.Context(), key, secret); err != nil {
		t.Fatal(err)
	}
	before, authority := b.serving(t), secret.Data["ca.crt"]
	// To the next process the certificate is one that ends too soon.
	b.stop(t)
	registration := webhooks(admissionregistrationv1.WebhookClientConfig{}, false)[0].Name
	b.mustKubectl(t, "", "patch", "validatingwebhookconfiguration", registration, "--type=json", "-p", `[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
	b.run(t)
	// A ready replica is called, so the API server must trust it by then.
	if bundle := b.mustKubectl(t, "", "get", "validatingwebhookconfiguration", registration, "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}"); bundle == "" {
		t.Error("the controller is ready, and the API server does not trust it yet")
	}
	b.eventually(t, "another certificate is served", func() error {
		if now := b.serving(t); now.NotAfter.Sub(before.NotAfter) < 24*time.Hour {
			return fmt.Errorf("it ends %s, the old one %s", now.NotAfter, before.NotAfter)
		}
		return nil
	})
	if err := b.Get(t.Context(), key, secret); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(authority, secret.Data["ca.crt"]) {
		t.Error("the authority changed with it")
	}
	said := b.refused(t, template("after", "{name: vf0, exactly: {deviceClassName: ai-bonded-rdma-vf0}}"))
	if !strings.Contains(said, "Missing: [vf1]") {
		t.Errorf("said:\n%s", said)
	}
}

func (b *bench) nobody(t *testing.T) {
	b.stop(t)
	b.mustKubectl(t, template("unanswered", "{name: vf0, exactly: {deviceClassName: ai-bonded-rdma-vf0}}"), "create", "-f", "-")
	if said := b.refused(t, simple("unanswered", "vf0")); !strings.Contains(said, `failed calling webhook "validate.networking.dra.io"`) {
		t.Errorf("said:\n%s", said)
	}
	// An update that leaves the spec as it is needs no answer.
	b.mustKubectl(t, "", "label", "nettopo", "ai-bonded-rdma", "a=b")
}

// ownCertificate brings a certificate as cert-manager would, and then the next.
func (b *bench) ownCertificate(t *testing.T) {
	dir := t.TempDir()
	bring := func() {
		certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, w := range webhooks(admissionregistrationv1.WebhookClientConfig{}, false) {
			patch := fmt.Sprintf(`[{"op":"replace","path":"/webhooks/0/clientConfig/caBundle","value":%q}]`, base64.StdEncoding.EncodeToString(certificate))
			b.mustKubectl(t, "", "patch", "validatingwebhookconfiguration", w.Name, "--type=json", "-p", patch)
		}
	}
	bring()
	b.run(t, "--tls-dir", dir)
	b.asked(t)
	first := b.serving(t)
	bring()
	b.eventually(t, "the next certificate is served", func() error {
		if b.serving(t).Equal(first) {
			return errors.New("it is the first still")
		}
		return nil
	})
	b.asked(t)
}
