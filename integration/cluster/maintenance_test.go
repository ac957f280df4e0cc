//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/inventory/maintenance"
	"github.com/plumbline/plumbline/topology/claim"
)

// maintenance takes the functions of a PF out of service, with a pod on one of them: who
// would be evicted is seen before, and the real controller evicts it.
func (b *bench) maintenance(t *testing.T) {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "maintained"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: claim.Driver, NodeName: new("n1"), Pool: resourceapi.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{
				{Name: "pci-0000-01-10-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"ifName": text("enp1s0f0v0"), "pfName": text("enp1s0f0")}},
				{Name: "pci-0000-02-10-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"ifName": text("enp1s0f0v1"), "pfName": text("enp1s0f0")}},
				{Name: "pci-0000-03-10-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"ifName": text("other"), "pfName": text("")}},
			},
		},
	}
	slices := b.admin.ResourceV1().ResourceSlices()
	_, err := slices.Create(t.Context(), slice, metav1.CreateOptions{})
	check(t, err)
	t.Cleanup(func() { check(t, slices.Delete(context.Background(), slice.Name, metav1.DeleteOptions{})) })

	const extendedResource = "deviceclass.resource.kubernetes.io/maintained"
	pods := b.admin.CoreV1().Pods("default")
	claims := b.admin.ResourceV1().ResourceClaims("default")
	for _, name := range []string{"evicted", "unclaimed"} {
		c := b.allocate(t, "of-"+name, "n1")
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: "n1", TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "pod", Image: "x"}},
		}}
		if name == "unclaimed" {
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{extendedResource: resource.MustParse("1")}
		} else {
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "net", ResourceClaimName: &c.Name}}
		}
		pod, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
		check(t, err)
		if name == "unclaimed" { // as the scheduler writes it
			pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
				ResourceClaimName: c.Name,
				RequestMappings:   []corev1.ContainerExtendedResourceRequest{{ContainerName: "pod", ResourceName: extendedResource, RequestName: "container-0-request-0"}},
			}
			pod, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
			check(t, err)
			check(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
				c, err := claims.Get(t.Context(), c.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				c.Annotations = map[string]string{"resource.kubernetes.io/extended-resource-claim": "true"}
				c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}}
				_, err = claims.Update(t.Context(), c, metav1.UpdateOptions{})
				return err
			}))
		}
		t.Cleanup(func() {
			_ = pods.Delete(context.Background(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
			_ = claims.Delete(context.Background(), c.Name, metav1.DeleteOptions{})
		})
		// The controllers write to it, too.
		check(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			c, err := claims.Get(t.Context(), c.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
			_, err = claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
			return err
		}))
	}

	for _, word := range []string{"n1", "n1/", "/x", "n1/none", "n9/enp1s0f0"} {
		if _, err := maintenance.Find(t.Context(), b.admin, word); err == nil {
			t.Errorf("%q means a device", word)
		}
	}
	const word = "n1/enp1s0f0"
	devices, err := maintenance.Find(t.Context(), b.admin, word)
	check(t, err)
	if want := []maintenance.Device{{Node: "n1", Name: "pci-0000-01-10-0"}, {Node: "n1", Name: "pci-0000-02-10-0"}}; !reflect.DeepEqual(devices, want) {
		t.Fatalf("%v, want %v", devices, want)
	}
	using, err := maintenance.Users(t.Context(), b.admin, devices)
	check(t, err)
	said := ""
	for _, u := range using {
		said += fmt.Sprintf("%s %s %q; ", u.Pod, u.Device.Name, u.Stays)
	}
	if !strings.Contains(said, `evicted pci-0000-01-10-0 ""; evicted pci-0000-02-10-0 ""; `) ||
		!strings.Contains(said, `unclaimed pci-0000-01-10-0 ""; unclaimed pci-0000-02-10-0 ""`) {
		t.Errorf("users: %s", said)
	}

	check(t, maintenance.Begin(t.Context(), b.admin, word, devices, false))
	rules := b.admin.ResourceV1().DeviceTaintRules()
	const name = "plumbline-maintain-n1-pci-0000-01-10-0"
	eventually.Holds(t, 30*time.Second, "the rule says who would go", func() string {
		r, err := rules.Get(t.Context(), name, metav1.GetOptions{})
		check(t, err)
		if s := r.Spec.DeviceSelector; s == nil || *s.Driver != claim.Driver || *s.Pool != "n1" || *s.Device != "pci-0000-01-10-0" {
			t.Fatalf("selector %+v: one that is empty is for all devices", s)
		}
		c := meta.FindStatusCondition(r.Status.Conditions, resourceapi.DeviceTaintConditionEvictionInProgress)
		if c == nil || c.Reason != "NoEffect" {
			return fmt.Sprintf("condition %+v", c)
		}
		t.Logf("%s: %s", c.Reason, c.Message)
		return ""
	})
	for _, name := range []string{"evicted", "unclaimed"} {
		if pod, err := pods.Get(t.Context(), name, metav1.GetOptions{}); err != nil || pod.DeletionTimestamp != nil {
			t.Errorf("%s without --evict: %v, %v", name, pod, err)
		}
	}
	check(t, maintenance.Begin(t.Context(), b.admin, word, devices, true))
	for _, name := range []string{"evicted", "unclaimed"} {
		eventually.Holds(t, 30*time.Second, "the eviction of "+name, func() string {
			pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && pod.DeletionTimestamp == nil {
				return "the pod is there"
			}
			return ""
		})
	}
	removed, err := maintenance.End(t.Context(), b.admin, word)
	check(t, err)
	if len(removed) != 2 {
		t.Errorf("removed %v", removed)
	}
	if _, err := maintenance.End(t.Context(), b.admin, word); err == nil {
		t.Error("ended twice")
	}
	if left, err := rules.List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
