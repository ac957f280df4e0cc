//go:build cluster

package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestScheduled lets a real scheduler give devices to pods: what it makes of their
// requests are the claims that admission and the driver decide on. The node is a name, and
// no pod runs.
func TestScheduled(t *testing.T) { testScheduled(t, cluster.Options{}) }

func testScheduled(t *testing.T, options cluster.Options) {
	t.Helper()
	b := startOf(t, options)
	b.run(t)
	b.mustKubectl(t, b.webhooks, "apply", "-f", "-")
	b.asked(t)
	b.furnish(t)
	for _, part := range []struct {
		name string
		test func(*testing.T)
	}{
		{"a pod without a claim", b.claimless},
		{"a pod without a claim that asks for too little or too much", b.claimlessRefused},
		{"a pod written for a device plugin", b.plugged},
		{"names that others have", b.named},
		{"functions by their physical network", b.networked},
		{"the template of a topology", b.template},
		{"a quota keeps a namespace out", b.quota},
		{"devices that are shared", b.shared},
		{"devices by the network of their address", b.addressed},
	} {
		t.Run(part.name, part.test)
	}
}

// wires are the physical networks of the physical functions of the node: one network has
// two of them, and one of them has two networks.
var wires = [][]inventory.PhysicalNetwork{
	{{Name: "physnet2", VLAN: 102}},
	{{Name: "physnet3", VLAN: 103}, {Name: "physnet4", VLAN: 104}},
	{{Name: "physnet2", VLAN: 102}},
}

// furnish makes a node with four virtual functions of each of three physical functions.
func (b *bench) furnish(t *testing.T) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if err := b.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	b.speakFor(t)
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: claim.Driver, NodeName: new("n1"), Pool: resourceapi.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
	}}
	for pf, networks := range wires {
		for vf := range 4 {
			d := inventory.Device{
				ID: fmt.Sprintf("0000:%02x:10.%d", 3+pf, vf), Kind: inventory.KindVF, IfName: fmt.Sprintf("pf%dv%d", pf, vf), PCIeRoot: "pci0000:00",
				PF:              &inventory.PF{PCIAddress: fmt.Sprintf("0000:%02x:00.0", 3+pf), IfName: fmt.Sprintf("pf%d", pf), VFIndex: vf},
				PhysicalNetwork: networks[0].Name, PhysicalNetworks: networks,
			}
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("pf%d-vf%d", pf, vf), Attributes: inventory.Attributes(d)})
		}
	}
	if err := b.Create(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
}

// speakFor reports the nodes as ready: a node without reports is soon considered lost.
func (b *bench) speakFor(t *testing.T) {
	t.Helper()
	status := `{"status":{"capacity":{"cpu":"4","memory":"4Gi","pods":"50"},"allocatable":{"cpu":"4","memory":"4Gi","pods":"50"},"conditions":[{"type":"Ready","status":"True","reason":"Test","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	var nodes corev1.NodeList
	if err := b.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		if err := b.Client.Status().Patch(t.Context(), &nodes.Items[i], client.RawPatch(types.StrategicMergePatchType, []byte(status))); err != nil {
			t.Fatal(err)
		}
	}
}

// choosing is a topology of sriov steps, each with the physical function its devices
// are of, as in "vf0=pf0".
func choosing(name string, steps ...string) string {
	out := "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: " + name + "}\nspec:\n  steps:\n"
	for _, s := range steps {
		step, pf, _ := strings.Cut(s, "=")
		out += fmt.Sprintf("    - name: %s\n      type: sriov\n      selector: {cel: 'device.driver == \"dra.networking\" && device.attributes[\"dra.networking\"].pfName == %q'}\n", step, pf)
	}
	return out
}

// asking makes a pod in whose containers each of these limits is one, as in
// "example.com/vf: 2", and forgets it when the test ends.
func (b *bench) asking(t *testing.T, name string, limits ...string) {
	t.Helper()
	manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: default}\nspec:\n  tolerations: [{operator: Exists}]\n  containers:\n"
	for i, l := range limits {
		manifest += fmt.Sprintf("  - {name: c%d, image: %s, resources: {requests: {cpu: 1m}, limits: {%s}}}\n", i, cluster.PodImage, l)
	}
	b.speakFor(t)
	b.pod(t, manifest)
}

// pod makes a pod and deletes it when the test ends: there is no kubelet to do so.
func (b *bench) pod(t *testing.T, manifest string) {
	t.Helper()
	b.mustKubectl(t, manifest, "create", "-f", "-")
	t.Cleanup(func() {
		out, err := b.Kubectl(context.WithoutCancel(t.Context()), strings.NewReader(manifest), "delete", "--force", "--grace-period=0", "-f", "-")
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// placed waits until a pod is on the node and returns the claims that it has devices by.
func (b *bench) placed(t *testing.T, name string) []resourceapi.ResourceClaim {
	t.Helper()
	pod := &corev1.Pod{}
	b.eventually(t, fmt.Sprintf("pod %q is given a node", name), func() error {
		if err := b.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, pod); err != nil {
			return err
		}
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("conditions %+v", pod.Status.Conditions)
		}
		return nil
	})
	var all resourceapi.ResourceClaimList
	if err := b.List(t.Context(), &all, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all.Items, func(c resourceapi.ResourceClaim) bool {
		return !slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
	})
}

// unplaced waits until the scheduler says why a pod gets no node.
func (b *bench) unplaced(t *testing.T, name, words string) {
	t.Helper()
	b.event(t, name, "FailedScheduling", words)
	pod := &corev1.Pod{}
	if err := b.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, pod); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.NodeName != "" {
		t.Errorf("pod %q is on a node", name)
	}
}

// given is the device that the driver will use for a claim: the physical function of the device
// that each step gets, as in "vf0=pf0". The driver's own check has to pass.
func (b *bench) given(t *testing.T, c *resourceapi.ResourceClaim) []string {
	t.Helper()
	assigned, err := claim.Allocated(c)
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range assigned {
		topo, err := topology.FromObject(b.topology(t, a.Topology.Name))
		if err == nil {
			err = claim.Incomplete(topo, registry, a, claim.SourceOf("ResourceClaim", c))
		}
		if err != nil {
			t.Error(err)
		}
		for _, d := range a.Devices {
			pf, _, _ := strings.Cut(d.Name, "-")
			out = append(out, d.Step+"="+pf)
		}
	}
	slices.Sort(out)
	return out
}

// has fails the test unless a pod has one claim, with these devices.
func (b *bench) has(t *testing.T, pod string, want ...string) {
	t.Helper()
	claims := b.placed(t, pod)
	if len(claims) != 1 {
		t.Fatalf("pod %q has %d claims", pod, len(claims))
	}
	if diff := cmp.Diff(want, b.given(t, &claims[0])); diff != "" {
		t.Errorf("pod %q (-want +got):\n%s", pod, diff)
	}
}

// claimless runs pods that request the classes of topologies in the limits of their containers.
func (b *bench) claimless(t *testing.T) {
	b.mustKubectl(t, choosing("single", "vf0=pf0"), "create", "-f", "-")
	b.mustKubectl(t, choosing("double", "vf0=pf0", "vf1=pf1"), "create", "-f", "-")
	b.ready(t, "single", metav1.ConditionTrue)
	b.ready(t, "double", metav1.ConditionTrue)
	const single, double0, double1 = "deviceclass.resource.kubernetes.io/single-vf0: 1", "deviceclass.resource.kubernetes.io/double-vf0: 1", "deviceclass.resource.kubernetes.io/double-vf1: 1"
	for _, c := range []struct {
		pod    string
		limits []string
		want   []string
	}{
		{"one-root", []string{single}, []string{"vf0=pf0"}},
		{"two-roots", []string{double0 + ", " + double1}, []string{"vf0=pf0", "vf1=pf1"}},
		{"two-containers", []string{double1, double0}, []string{"vf0=pf0", "vf1=pf1"}},
		{"two-topologies", []string{double1 + ", " + single, double0}, []string{"vf0=pf0", "vf0=pf0", "vf1=pf1"}},
	} {
		t.Run(c.pod, func(t *testing.T) {
			b.asking(t, c.pod, c.limits...)
			b.has(t, c.pod, c.want...)
		})
	}
}

// claimlessRefused holds what is said to the author of a pod who has never written a claim.
func (b *bench) claimlessRefused(t *testing.T) {
	b.asking(t, "lacking", "deviceclass.resource.kubernetes.io/double-vf0: 1")
	b.unplaced(t, "lacking", `but Pod "lacking" only requests those of [vf0].`)
	b.unplaced(t, "lacking", "Missing: [vf1]. The limits of its containers must have, taken together, deviceclass.resource.kubernetes.io/double-vf0: 1, deviceclass.resource.kubernetes.io/double-vf1: 1.")
	b.asking(t, "greedy", "deviceclass.resource.kubernetes.io/single-vf0: 2")
	b.unplaced(t, "greedy", `extended resources of Pod "greedy": request "container-0-request-1": it is for 2 devices of DeviceClass "single-vf0", of which NetworkTopology "single" takes 1, for [vf0]: ask for 1`)
	var claims resourceapi.ResourceClaimList
	if err := b.List(t.Context(), &claims, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	for _, c := range claims.Items {
		if owner := metav1.GetControllerOf(&c); owner != nil && (owner.Name == "lacking" || owner.Name == "greedy") {
			t.Error(errors.New("a claim that is refused exists: " + c.Name))
		}
	}
}

// plugged runs pods that were written for a device plugin: under a name of its own, a
// number of devices alike.
func (b *bench) plugged(t *testing.T) {
	named := func(manifest, name string) string {
		return strings.ReplaceAll(manifest, "type: sriov\n", "type: sriov\n      extendedResourceName: "+name+"\n")
	}
	b.mustKubectl(t, named(choosing("plugged", "vf0=pf0", "vf1=pf0"), "openshift.io/sriov_a"), "create", "-f", "-")
	b.mustKubectl(t, named(choosing("lonely", "vf0=pf1"), "openshift.io/sriov_b"), "create", "-f", "-")
	b.ready(t, "plugged", metav1.ConditionTrue)
	b.ready(t, "lonely", metav1.ConditionTrue)
	for step, want := range map[string]string{"vf0": "openshift.io/sriov_a", "vf1": ""} {
		got := ""
		if name := b.class(t, "plugged-"+step).Spec.ExtendedResourceName; name != nil {
			got = *name
		}
		if got != want {
			t.Errorf("the class of step %q has extended resource name %q, want %q", step, got, want)
		}
	}
	for _, c := range []struct {
		pod    string
		limits []string
		want   []string
	}{
		{"both-at-once", []string{"openshift.io/sriov_a: 2"}, []string{"vf0=pf0", "vf1=pf0"}},
		{"one-each", []string{"openshift.io/sriov_a: 1", "openshift.io/sriov_a: 1"}, []string{"vf0=pf0", "vf1=pf0"}},
		{"both-names", []string{"openshift.io/sriov_a: 1, deviceclass.resource.kubernetes.io/plugged-vf1: 1"}, []string{"vf0=pf0", "vf1=pf0"}},
		{"implicit", []string{"deviceclass.resource.kubernetes.io/plugged-vf0: 2"}, []string{"vf0=pf0", "vf1=pf0"}},
		{"two-plugins", []string{"openshift.io/sriov_b: 1, openshift.io/sriov_a: 2"}, []string{"vf0=pf0", "vf0=pf1", "vf1=pf0"}},
	} {
		t.Run(c.pod, func(t *testing.T) {
			b.asking(t, c.pod, c.limits...)
			b.has(t, c.pod, c.want...)
		})
	}
	b.asking(t, "half", "openshift.io/sriov_a: 1")
	b.unplaced(t, "half", "Missing: [vf1]. The limits of its containers must have, taken together, openshift.io/sriov_a: 2.")
	b.asking(t, "too-many", "openshift.io/sriov_a: 3")
	b.unplaced(t, "too-many", `it is for 3 devices of DeviceClass "plugged-vf0", of which NetworkTopology "plugged" takes 2, for [vf0, vf1]: ask for 2`)
}

// physnets has two functions of one physical network and one of another, each under the
// resource that pods know of the network.
const physnets = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: physnets}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
    - {name: a, type: sriov, extendedResourceName: example.com/sriov-vf-physnet2, selector: {cel: 'device.attributes["dra.networking"].physicalNetworkName == "physnet2"'}}
    - {name: b, type: sriov, extendedResourceName: example.com/sriov-vf-physnet2, selector: {cel: 'device.attributes["dra.networking"].physicalNetworkName == "physnet2"'}}
    - {name: c, type: sriov, extendedResourceName: example.com/sriov-vf-physnet3, selector: {cel: 'device.attributes["dra.networking"].physicalNetworkName == "physnet3"'}}
`

// networked gives pods functions of physical networks: the requests of a pod's containers
// are added up, and those of its init containers are not added to that. When the functions
// of one physical function are allocated, those of the other that is wired to the network
// follow, and then pods wait.
func (b *bench) networked(t *testing.T) {
	b.mustKubectl(t, physnets, "create", "-f", "-")
	b.ready(t, "physnets", metav1.ConditionTrue)
	const two, three = "example.com/sriov-vf-physnet2", "example.com/sriov-vf-physnet3"
	b.speakFor(t)
	b.pod(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: summed, namespace: default}
spec:
  tolerations: [{operator: Exists}]
  initContainers:
  - {name: one, image: %[1]s, resources: {limits: {%[2]s: 2}}}
  - {name: two, image: %[1]s, resources: {limits: {%[2]s: 1, %[3]s: 1}}}
  containers:
  - {name: vf-container, image: %[1]s, resources: {limits: {%[2]s: 1}}}
  - {name: vf-other-container, image: %[1]s, resources: {limits: {%[2]s: 1, %[3]s: 1}}}
`, cluster.PodImage, two, three))
	b.has(t, "summed", "a=pf0", "b=pf0", "c=pf1")

	b.templates(t, "the topology has its template", "physnets", "default")
	b.network(t, "default", "claimed", "physnets")
	b.has(t, "claimed", "a=pf0", "b=pf0", "c=pf1")
	b.network(t, "default", "of-the-other-pf", "physnets")
	b.has(t, "of-the-other-pf", "a=pf2", "b=pf2", "c=pf1")

	// A network that is not the first of its PF; its function is the last of that PF.
	b.mustKubectl(t, `{apiVersion: networking.dra.io/v1alpha1, kind: NetworkTopology, metadata: {name: second}, spec: {claimTemplate: {namespaces: [default]}, steps: [{name: vf, type: sriov,
  selector: {cel: '"physnet4" in device.attributes["dra.networking"].physicalNetworks.split(",")'}}]}}`, "create", "-f", "-")
	b.templates(t, "the topology has its template", "second", "default")
	b.network(t, "default", "of-the-second-network", "second")
	b.has(t, "of-the-second-network", "vf=pf1")
	b.network(t, "default", "waiting", "physnets")
	b.unplaced(t, "waiting", "cannot allocate all claims")
}

// named lets two topologies, and a foreign class, have the name of one that exists.
func (b *bench) named(t *testing.T) {
	named := strings.ReplaceAll(choosing("later", "vf0=pf1"), "type: sriov\n", "type: sriov\n      extendedResourceName: openshift.io/sriov_b\n")
	b.says(t, named, `NetworkTopology "later", step "vf0": extendedResourceName "openshift.io/sriov_b" is taken by DeviceClass "lonely-vf0" of NetworkTopology "lonely", and the scheduler uses one class for a name: choose another, or remove it`)

	// Somebody's class takes the name: the scheduler follows the later one.
	b.mustKubectl(t, `{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: theirs}, spec: {extendedResourceName: openshift.io/sriov_b}}`, "create", "-f", "-")
	o := b.ready(t, "lonely", metav1.ConditionFalse)
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProgrammed); c.Reason != "Conflict" || !strings.Contains(c.Message, `step "vf0": extendedResourceName "openshift.io/sriov_b" is taken by DeviceClass "theirs"`) {
		t.Errorf("condition %+v", c)
	}
	if name := b.class(t, "lonely-vf0").Spec.ExtendedResourceName; name != nil {
		t.Errorf("the class has the name %q still", *name)
	}
	t.Run("the implicit name stays", func(t *testing.T) {
		b.asking(t, "implicit-again", "deviceclass.resource.kubernetes.io/lonely-vf0: 1")
		b.has(t, "implicit-again", "vf0=pf1")
	})
	b.mustKubectl(t, "", "delete", "deviceclass", "theirs")
	b.ready(t, "lonely", metav1.ConditionTrue)
	if name := b.class(t, "lonely-vf0").Spec.ExtendedResourceName; name == nil {
		t.Error("the class did not get its name back")
	}

	// Without a webhook two topologies may have a name. The earlier one keeps it.
	b.mustKubectl(t, b.webhooks, "delete", "-f", "-")
	b.eventually(t, "the API server does not ask", func() error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(named), "create", "--dry-run=server", "-f", "-")
		return err
	})
	b.mustKubectl(t, named, "create", "-f", "-")
	o = b.ready(t, "later", metav1.ConditionFalse)
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionProgrammed); !strings.Contains(c.Message, `is taken by DeviceClass "lonely-vf0" of NetworkTopology "lonely"`) {
		t.Errorf("condition %+v", c)
	}
	b.ready(t, "lonely", metav1.ConditionTrue)
	b.mustKubectl(t, "", "delete", "nettopo", "lonely", "--timeout=30s")
	b.ready(t, "later", metav1.ConditionTrue)
	b.mustKubectl(t, b.webhooks, "apply", "-f", "-")
	b.asked(t)
}

// network makes a pod with one claim by a template.
func (b *bench) network(t *testing.T, namespace, name, template string) {
	t.Helper()
	b.speakFor(t)
	b.pod(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s}, spec: {tolerations: [{operator: Exists}], resourceClaims: [{name: net, resourceClaimTemplateName: %s}], containers: [{name: c, image: %s, resources: {claims: [{name: net}]}}]}}`,
		name, namespace, template, cluster.PodImage))
}

// bonded is a topology with a bond of two virtual functions, whichever they are.
const bonded = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: bonded}
spec:
  claimTemplate:
    namespaces: [default, late]
    namespaceSelector: {matchLabels: {network: fast}}
  steps:
    - {name: vf0, type: sriov}
    - {name: vf1, type: sriov}
    - {name: bond0, type: bond, dependOn: [vf0, vf1], config: {mode: active-backup}}
`

// templates waits until these namespaces, and no others, have the template of a topology,
// and the topology's condition says so.
func (b *bench) templates(t *testing.T, when, topology string, namespaces ...string) {
	t.Helper()
	b.eventually(t, when, func() error {
		var all resourceapi.ResourceClaimTemplateList
		if err := b.List(t.Context(), &all, client.MatchingLabels{claim.LabelTopology: topology}); err != nil {
			return err
		}
		var in []string
		for _, o := range all.Items {
			in = append(in, o.Namespace)
		}
		slices.Sort(in)
		if !slices.Equal(in, namespaces) {
			return fmt.Errorf("templates in %v, want %v", in, namespaces)
		}
		return nil
	})
}

func (b *bench) templatesSay(t *testing.T, topology, reason, words string) {
	t.Helper()
	b.eventually(t, fmt.Sprintf("topology %q says %s of its templates", topology, reason), func() error {
		c := meta.FindStatusCondition(b.topology(t, topology).Status.Conditions, v1alpha1.ConditionClaimTemplates)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, words) {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
}

func (b *bench) template(t *testing.T) {
	b.mustKubectl(t, bonded, "create", "-f", "-")
	b.ready(t, "bonded", metav1.ConditionTrue)
	b.templates(t, "the template is where it was asked for", "bonded", "default")
	b.templatesSay(t, "bonded", "Succeeded", `ResourceClaimTemplate "bonded" is in 1 namespace`)

	t.Run("ports of two cards", func(t *testing.T) {
		b.network(t, "default", "apart", "bonded")
		b.has(t, "apart", "vf0=pf0", "vf1=pf1")
	})
	t.Run("limits know no constraint", func(t *testing.T) {
		b.asking(t, "together", "deviceclass.resource.kubernetes.io/bonded-vf0: 1, deviceclass.resource.kubernetes.io/bonded-vf1: 1")
		b.has(t, "together", "vf0=pf0", "vf1=pf0")
	})

	b.mustKubectl(t, "{apiVersion: v1, kind: Namespace, metadata: {name: late}}", "create", "-f", "-")
	b.mustKubectl(t, "{apiVersion: v1, kind: Namespace, metadata: {name: chosen, labels: {network: fast}}}", "create", "-f", "-")
	b.templates(t, "namespaces that come", "bonded", "chosen", "default", "late")
	b.mustKubectl(t, "", "label", "namespace", "chosen", "network=slow", "--overwrite")
	b.templates(t, "a namespace that is not chosen any more", "bonded", "default", "late")
	b.mustKubectl(t, "", "label", "namespace", "chosen", "network=fast", "--overwrite")
	b.templates(t, "a namespace that is chosen again", "bonded", "chosen", "default", "late")
	b.mustKubectl(t, "", "-n", "late", "delete", "resourceclaimtemplate", "bonded")
	b.templates(t, "a template that was deleted", "bonded", "chosen", "default", "late")
	b.mustKubectl(t, "", "-n", "late", "label", "resourceclaimtemplate", "bonded", claim.LabelTopology+"-")
	b.templates(t, "a template without its label", "bonded", "chosen", "default", "late")
	b.mustKubectl(t, "", "delete", "namespace", "late", "--timeout=60s")
	b.templates(t, "a namespace that goes", "bonded", "chosen", "default")
	still := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bonded"}}
	b.still(t, still)

	// A user has a template of this name.
	b.mustKubectl(t, "{apiVersion: v1, kind: Namespace, metadata: {name: taken}}", "create", "-f", "-")
	b.mustKubectl(t, "{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: bonded, namespace: taken}, spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}}}", "create", "-f", "-")
	b.mustKubectl(t, "", "label", "namespace", "taken", "network=fast")
	b.templatesSay(t, "bonded", "Conflict", `ResourceClaimTemplate "bonded" is in 2 namespaces; in 1 namespace, another ResourceClaimTemplate has the name, or a finalizer keeps the earlier one: delete it, or set spec.claimTemplate.name.`)
	if c := meta.FindStatusCondition(b.topology(t, "bonded").Status.Conditions, v1alpha1.ConditionClaimTemplates); strings.Contains(c.Message, "taken") {
		t.Errorf("all who use the topology are given the name of a namespace: %s", c.Message)
	}
	if class := b.mustKubectl(t, "", "-n", "taken", "get", "resourceclaimtemplate", "bonded", "-o", "jsonpath={.spec.spec.devices.requests[0].exactly.deviceClassName}"); class != "gpu" {
		t.Errorf("the user's template requests %q now", class)
	}
	b.ready(t, "bonded", metav1.ConditionTrue) // pods can use it

	// A template is immutable: an edit of the topology replaces it.
	b.mustKubectl(t, "", "-n", "taken", "delete", "resourceclaimtemplate", "bonded")
	b.mustKubectl(t, "", "patch", "nettopo", "bonded", "--type=merge", "-p", `{"spec":{"claimTemplate":{"bondPorts":"Any","constraints":[{"matchAttribute":"dra.networking/pfName"}]}}}`)
	b.templates(t, "the name is free", "bonded", "chosen", "default", "taken")
	b.eventually(t, "the constraint is another", func() error {
		constraints, err := b.Kubectl(t.Context(), nil, "-n", "default", "get", "resourceclaimtemplate", "bonded", "-o", "jsonpath={.spec.spec.devices.constraints}")
		if err == nil && constraints != `[{"matchAttribute":"dra.networking/pfName"}]` {
			err = errors.New(constraints)
		}
		return err // NotFound between its deletion and its creation
	})
	b.mustKubectl(t, "", "patch", "nettopo", "bonded", "--type=merge", "-p", `{"spec":{"claimTemplate":{"name":"fast","namespaces":["nowhere"],"namespaceSelector":null}}}`)
	b.templates(t, "no namespace is there", "bonded")
	b.templatesSay(t, "bonded", "NoNamespace", "none of the namespaces")
	b.mustKubectl(t, "", "patch", "nettopo", "bonded", "--type=merge", "-p", `{"spec":{"claimTemplate":{"namespaces":["default"]}}}`)
	b.templates(t, "another name", "bonded", "default")
	b.mustKubectl(t, "", "-n", "default", "get", "resourceclaimtemplate", "fast")
	b.mustKubectl(t, "", "patch", "nettopo", "bonded", "--type=json", "-p", `[{"op":"remove","path":"/spec/claimTemplate"}]`)
	b.templates(t, "no template is wanted", "bonded")
	b.eventually(t, "nothing is said of templates", func() error {
		if c := meta.FindStatusCondition(b.topology(t, "bonded").Status.Conditions, v1alpha1.ConditionClaimTemplates); c != nil {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
	b.mustKubectl(t, "", "patch", "nettopo", "bonded", "--type=merge", "-p", `{"spec":{"claimTemplate":{"namespaces":["default"]}}}`)
	b.templates(t, "a template is wanted again", "bonded", "default")
	b.mustKubectl(t, "", "delete", "nettopo", "bonded", "--timeout=30s")
	b.templates(t, "the topology is gone", "bonded")
}

// quota holds by which names a ResourceQuota limits who may use a topology.
func (b *bench) quota(t *testing.T) {
	limited := func(namespace string, hard string) {
		t.Helper()
		b.mustKubectl(t, fmt.Sprintf(`{apiVersion: v1, kind: List, items: [
  {apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}},
  {apiVersion: v1, kind: ResourceQuota, metadata: {name: network, namespace: %[1]s}, spec: {hard: {%[2]s}}},
  {apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: single, namespace: %[1]s}, spec: {spec: {devices: {requests: [{name: vf0, exactly: {deviceClassName: single-vf0}}]}}}}]}`, namespace, hard), "create", "-f", "-")
		b.eventually(t, "the quota is counted", func() error {
			if hard := b.mustKubectl(t, "", "-n", namespace, "get", "resourcequota", "network", "-o", "jsonpath={.status.hard}"); hard == "" {
				return errors.New("no status")
			}
			return nil
		})
		t.Cleanup(func() {
			_, _ = b.Kubectl(context.WithoutCancel(t.Context()), nil, "delete", "namespace", namespace, "--wait=false")
		})
	}
	const (
		claims = "single-vf0.deviceclass.resource.k8s.io/devices"
		pods   = "requests.deviceclass.resource.kubernetes.io/single-vf0"
	)
	// The API server may count by an older copy of a quota.
	exceeded := func(t *testing.T, manifest, want string) {
		t.Helper()
		b.eventually(t, "the quota is exceeded", func() error {
			_, err := b.Kubectl(t.Context(), strings.NewReader(manifest), "create", "--dry-run=server", "-f", "-")
			if err == nil {
				return errors.New("accepted:\n" + manifest)
			}
			return nil
		})
		if said := b.refused(t, manifest); !strings.Contains(said, "exceeded quota: network, "+want) {
			t.Errorf("said %s", said)
		}
	}
	claim := func(namespace, name string) string {
		return fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: %s, namespace: %s}, spec: {devices: {requests: [{name: vf0, exactly: {deviceClassName: single-vf0}}]}}}", name, namespace)
	}
	pod := func(namespace, name string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s}, spec: {tolerations: [{operator: Exists}], containers: [{name: c, image: %s, resources: {limits: {deviceclass.resource.kubernetes.io/single-vf0: 1}}}]}}`, name, namespace, cluster.PodImage)
	}
	// Devices of claims: a pod without a claim is accepted, and still gets none.
	limited("no-claims", `"`+claims+`": 0`)
	exceeded(t, claim("no-claims", "c"), "requested: "+claims+"=1, used: "+claims+"=0, limited: "+claims+"=0")
	b.speakFor(t)
	b.pod(t, pod("no-claims", "unclaimed"))
	b.event(t, "unclaimed", "FailedScheduling", "exceeded quota: network, requested: "+claims+"=1")

	// The class as an extended resource: both at once.
	limited("neither", `"`+pods+`": 0`)
	for _, manifest := range []string{claim("neither", "c"), pod("neither", "p")} {
		exceeded(t, manifest, "requested: "+pods+"=1, used: "+pods+"=0, limited: "+pods+"=0")
	}

	// Under a name of the topology's own, and the class when the claim is made.
	plugged := func(namespace, name string) string {
		return strings.ReplaceAll(pod(namespace, name), "deviceclass.resource.kubernetes.io/single-vf0: 1", "openshift.io/sriov_a: 2")
	}
	limited("no-name", "requests.openshift.io/sriov_a: 1")
	exceeded(t, plugged("no-name", "p"), "requested: requests.openshift.io/sriov_a=2, used: requests.openshift.io/sriov_a=0, limited: requests.openshift.io/sriov_a=1")
	limited("no-class", "requests.deviceclass.resource.kubernetes.io/plugged-vf0: 1")
	b.pod(t, plugged("no-class", "renamed"))
	b.event(t, "renamed", "FailedScheduling", "exceeded quota: network, requested: requests.deviceclass.resource.kubernetes.io/plugged-vf0=2")

	// A number of both together.
	limited("two", `"`+pods+`": 2`)
	b.mustKubectl(t, claim("two", "c"), "create", "-f", "-")
	b.pod(t, pod("two", "second"))
	b.eventually(t, "both count", func() error {
		if said := b.mustKubectl(t, "", "-n", "two", "get", "resourcequota", "network", "-o", "jsonpath={.status.used}"); said != `{"`+pods+`":"2"}` {
			return errors.New(said)
		}
		return nil
	})
	exceeded(t, claim("two", "third"), "requested: ")
	exceeded(t, pod("two", "third"), "requested: ")
}
