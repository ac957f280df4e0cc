package filters

import (
	"context"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// podLabels is what is kept of a pod.
type podLabels struct {
	uid    types.UID
	labels map[string]string
}

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// followPods follows the labels of this node's pods until ctx ends. Pods that have ended,
// or were refused by the kubelet, are of no interest: users may create any number.
func (f *Follower) followPods(ctx context.Context) {
	api := f.Pods.Resource(podResource)
	narrow := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.AndSelectors(
			fields.OneTermEqualSelector("spec.nodeName", f.NodeName),
			fields.OneTermNotEqualSelector("status.phase", "Succeeded"),
			fields.OneTermNotEqualSelector("status.phase", "Failed"),
		).String()
	}
	all := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			narrow(&o)
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			narrow(&o)
			return api.Watch(ctx, o)
		},
	}
	cache.NewReflectorWithOptions(all, nil, (*podStore)(f), cache.ReflectorOptions{Name: "labels of pods", TypeDescription: "Pod"}).RunWithContext(ctx)
}

// podStore is a Follower as the reflector of pods fills it.
type podStore Follower

func readPod(v any) (types.NamespacedName, podLabels, error) {
	o, ok := v.(*metav1.PartialObjectMetadata)
	if !ok {
		return types.NamespacedName{}, podLabels{}, fmt.Errorf("%T is no metadata of a pod", v)
	}
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, podLabels{o.UID, o.Labels}, nil
}

// Add implements cache.ReflectorStore.
func (s *podStore) Add(v any) error { return s.Update(v) }

// Update implements cache.ReflectorStore.
func (s *podStore) Update(v any) error {
	key, p, err := readPod(v)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		(*Follower)(s).putPod(key, p)
	}
	return err
}

// Delete implements cache.ReflectorStore. The sandbox of the pod, if it still has one, keeps
// what it has.
func (s *podStore) Delete(v any) error {
	key, _, err := readPod(v)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.pods, key)
		s.reports.Changed()
	}
	return err
}

// Replace implements cache.ReflectorStore.
func (s *podStore) Replace(all []any, _ string) error {
	now := map[types.NamespacedName]podLabels{}
	for _, v := range all {
		key, p, err := readPod(v)
		if err != nil {
			return err
		}
		now[key] = p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.podsRead = true
	defer s.reports.Changed()
	maps.DeleteFunc(s.pods, func(key types.NamespacedName, _ podLabels) bool {
		_, is := now[key]
		return !is
	})
	for key, p := range now {
		(*Follower)(s).putPod(key, p)
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (*podStore) Resync() error { return nil }

// putPod takes the labels of a pod into account. The caller holds mu.
func (f *Follower) putPod(key types.NamespacedName, p podLabels) {
	old, known := f.pods[key]
	f.pods[key] = p
	if known && old.uid == p.uid && maps.Equal(old.labels, p.labels) {
		return
	}
	for _, c := range f.claims {
		if c.Namespace == key.Namespace && c.Pod.Name == key.Name {
			f.place(c)
			if !known || old.uid != p.uid {
				f.add(c.UID, 0)
			}
		}
	}
}
