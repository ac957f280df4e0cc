//go:build cluster

package controlplane_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/networkstatus"
)

// podWithClaim creates a pod, and a claim for it that its node reports on.
func (b *bench) podWithClaim(t *testing.T, name, class, address string, annotations map[string]string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x"}}}}
	if err := b.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := b.allocate(t, name, class)
	c.Status.ReservedFor[0].UID = p.UID
	b.reports(t, c, address)
	return p
}

func (b *bench) reports(t *testing.T, c *resourceapi.ResourceClaim, address string) {
	t.Helper()
	r := c.Status.Allocation.Devices.Results[0]
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: claim.Driver, Pool: r.Pool, Device: r.Device, Data: &runtime.RawExtension{Raw: []byte(`{"topology":"office","step":"net1","mtu":1500}`)},
		NetworkData: &resourceapi.NetworkDeviceData{InterfaceName: "net1", HardwareAddress: "02:00:00:00:00:01", IPs: []string{address + "/24"}},
	}}
	if err := b.Client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// TestNetworkStatus writes the annotation with the rights that the chart gives, follows the claims, leaves what Multus writes alone, and
// may write nothing else.
func TestNetworkStatus(t *testing.T) {
	b := start(t)
	manifest, err := b.Chart(t.Context(), "networkStatus.enabled=true")
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		if kind := field(doc, "kind: "); kind == "ClusterRole" || strings.HasPrefix(kind, "ValidatingAdmissionPolicy") && strings.Contains(doc, "plumbline-controller-pods\n") {
			b.mustKubectl(t, doc, "apply", "-f", "-")
		}
	}
	b.mustKubectl(t, "", "create", "serviceaccount", "default", "-n", "default")
	b.run(t, "--network-status")
	b.mustKubectl(t, `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: office, annotations: {networking.dra.io/net-attach-def: shop/office-net}}
spec:
  steps: [{name: net1, type: macvlan, config: {name: net1}}]
`, "create", "-f", "-")
	b.ready(t, "office", metav1.ConditionTrue)
	wait := func(name, want string) {
		t.Helper()
		b.eventually(t, fmt.Sprintf("pod %s has %q", name, want), func() error {
			p := &corev1.Pod{}
			if err := b.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, p); err != nil {
				return err
			}
			if have := p.Annotations[networkstatus.Annotation]; have != want {
				return fmt.Errorf("it has %q", have)
			}
			return nil
		})
	}
	const entry = `[{"name":"shop/office-net","interface":"net1","ips":["%s"],"mac":"02:00:00:00:00:01","mtu":1500,"dns":{}}]`
	const theirs = `[{"name":"cluster-net","interface":"eth0","default":true,"dns":{}}]`
	b.podWithClaim(t, "multus", "office-net1", "192.0.2.2", map[string]string{networkstatus.Annotation: theirs})
	b.podWithClaim(t, "asks", "office-net1", "192.0.2.3", map[string]string{"k8s.v1.cni.cncf.io/networks": "a"})
	pod := b.podWithClaim(t, "ours", "office-net1", "192.0.2.4", map[string]string{"kept": "yes"})
	wait("ours", fmt.Sprintf(entry, "192.0.2.4"))

	// The address changes, then the network is gone.
	c := &resourceapi.ResourceClaim{}
	if err := b.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "ours"}, c); err != nil {
		t.Fatal(err)
	}
	b.reports(t, c, "192.0.2.9")
	wait("ours", fmt.Sprintf(entry, "192.0.2.9"))
	c.Status.Devices = nil
	if err := b.Client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	wait("ours", "")
	b.reports(t, c, "192.0.2.4")
	wait("ours", fmt.Sprintf(entry, "192.0.2.4"))
	// By now the pods of before were decided on, since they came first.
	wait("multus", theirs)
	wait("asks", "")

	b.onlyTheAnnotation(t, pod)
}

// onlyTheAnnotation has the controller's account write other things of a pod.
func (b *bench) onlyTheAnnotation(t *testing.T, pod *corev1.Pod) {
	config, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, "plumbline-controller", cluster.TokenFor{})
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, patch any, subresources ...string) error {
		text, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		_, err = api.CoreV1().Pods("default").Patch(ctx, pod.Name, types.MergePatchType, text, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, subresources...)
		return err
	}
	metadata := func(key string, value any) any { return map[string]any{"metadata": map[string]any{key: value}} }
	if err := write(t.Context(), metadata("annotations", map[string]any{networkstatus.Annotation: "x"}), "status"); err != nil {
		t.Errorf("the annotation: %v", err)
	}
	for what, patch := range map[string]any{
		"a label":               metadata("labels", map[string]any{"a": "b"}),
		"another annotation":    metadata("annotations", map[string]any{"a": "b"}),
		"the end of another":    metadata("annotations", map[string]any{"kept": nil}),
		"a change of another":   metadata("annotations", map[string]any{"kept": "no"}),
		"a finalizer":           metadata("finalizers", []string{"example.com/a"}),
		"the phase":             map[string]any{"status": map[string]any{"phase": "Failed"}},
		"a condition of itself": map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}},
	} {
		err := write(t.Context(), patch, "status")
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(fmt.Sprint(errors.Unwrap(err), err), "the controller may") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := write(t.Context(), metadata("annotations", map[string]any{networkstatus.Annotation: "x"})); !apierrors.IsForbidden(err) {
		t.Errorf("the pod itself: %v", err)
	}
}
