package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestTurnsOfEdits: an object that is edited is read before all but one of those that users of another namespace have edited before.
// Pods that it covers wait for its destinations.
func TestTurnsOfEdits(t *testing.T) {
	const edits = 100
	ctx, cancel := context.WithCancel(t.Context())
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		qosv1alpha1.Resource(): "NetworkQoSList", v1alpha1.QoSDestinationsResource(): "NetworkQoSDestinationsList",
	})
	queued, begun, read := make(chan struct{}), make(chan struct{}, edits+1), make(chan string, edits+1)
	objects.PrependReactor("list", "networkqoses", func(a clienttesting.Action) (bool, runtime.Object, error) {
		begun <- struct{}{}
		<-queued
		read <- a.GetNamespace()
		return false, nil, nil
	})
	w := &destinationWriter{
		Destinations: NewDestinations(),
		owner: &NetworkQoS{
			Objects: objects, Metadata: metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		},
	}
	wait := w.run(ctx)
	for n := range edits {
		w.Edited(types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(n)})
		if n == 0 {
			<-begun
		}
	}
	w.Edited(types.NamespacedName{Namespace: "good", Name: "q"})
	close(queued)
	var order []string
	for range edits + 1 {
		order = append(order, <-read)
	}
	cancel()
	wait()
	if place := slices.Index(order, "good"); place > 2 {
		t.Errorf("it is read after %d objects of another namespace", place)
	}
}

// TestTurnsOfPasses: users of a namespace may have any number of objects without effect. One pass writes the status of a bounded number,
// so that another namespace waits for these only, and later passes write the rest.
func TestTurnsOfPasses(t *testing.T) {
	const many = 2*maxWithout + 100
	var all []runtime.Object
	for n := range many + 1 {
		key := types.NamespacedName{Namespace: "evil", Name: fmt.Sprintf("%04d", n)}
		if n == many {
			key = types.NamespacedName{Namespace: "good", Name: "q"}
		}
		all = append(all, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": qosv1alpha1.GroupVersion.String(), "kind": qosv1alpha1.Kind,
			"metadata": map[string]any{"name": key.Name, "namespace": key.Namespace, "generation": int64(1)},
			"spec":     map[string]any{"priority": int64(-1), "egress": []any{map[string]any{"dscp": int64(1)}}}, // invalid
		}})
	}
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		qosv1alpha1.Resource(): "NetworkQoSList",
	}, all...)
	status := map[string]any{}
	objects.PrependReactor("patch", "networkqoses", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch := a.(clienttesting.PatchAction)
		got := &unstructured.Unstructured{}
		if err := got.UnmarshalJSON(patch.GetPatch()); err != nil {
			return true, nil, err
		}
		status[a.GetNamespace()+"/"+patch.GetName()] = got.Object["status"]
		return true, got, nil
	})
	objects.PrependReactor("list", "networkqoses", func(a clienttesting.Action) (bool, runtime.Object, error) {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": qosv1alpha1.GroupVersion.String(), "kind": "NetworkQoSList"}}
		for _, o := range all {
			o := o.(*unstructured.Unstructured).DeepCopy()
			if has := status[o.GetNamespace()+"/"+o.GetName()]; has != nil {
				o.Object["status"] = has
			}
			if o.GetNamespace() == a.GetNamespace() {
				list.Items = append(list.Items, *o)
			}
		}
		return true, list, nil
	})
	c := &NetworkQoS{Objects: objects, Ours: true, Now: time.Now, reports: NewReports(func(map[string]bool) {}), destinations: NewDestinations()}
	pass := func(namespace string, want int, wantRest bool) {
		t.Helper()
		before := len(status)
		rest, err := c.reconcile(t.Context(), namespace)
		if wrote := len(status) - before; err != nil || rest != wantRest || wrote != want {
			t.Errorf("the pass of %s has written %d, and more are left %t, %v: want %d, %t", namespace, wrote, rest, err, want, wantRest)
		}
	}
	pass("evil", maxWithout, true)
	pass("good", 1, false)
	pass("evil", maxWithout, true)
	pass("evil", 100, false)
	pass("evil", 0, false)
}
