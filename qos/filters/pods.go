package filters

import (
	"cmp"
	"context"
	"iter"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/topology/watchstore"
)

// podLabels is the part of a pod that is kept.
type podLabels struct {
	uid    types.UID
	labels map[string]string
}

// annotationMirror is on the API server's object of a static pod: the UID by which the kubelet and the runtime know the pod.
const annotationMirror = "kubernetes.io/config.mirror"

// uidOf is the UID of a pod for its container runtime.
func uidOf(o *metav1.PartialObjectMetadata) types.UID {
	return cmp.Or(types.UID(o.Annotations[annotationMirror]), o.UID)
}

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// followPods follows the labels of this node's pods until ctx ends. Pods that have ended,
// or were refused by the kubelet, are of no interest: users may create any number.
func (f *Follower) followPods(ctx context.Context) {
	api := f.Pods.Resource(podResource)
	running := fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", f.NodeName),
		fields.OneTermNotEqualSelector("status.phase", "Succeeded"),
		fields.OneTermNotEqualSelector("status.phase", "Failed"),
	).String()
	all := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = running
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = running
			return api.Watch(ctx, o)
		},
	}
	cache.NewReflectorWithOptions(all, nil, f.podStore(),
		cache.ReflectorOptions{Name: "labels of pods", TypeDescription: "Pod"}).RunWithContext(ctx)
}

// podStore returns the store through which the reflector of pods fills a Follower. The sandbox of a pod that is deleted, if it
// still has one, keeps what it has.
func (f *Follower) podStore() *watchstore.Store[types.NamespacedName, *metav1.PartialObjectMetadata] {
	return &watchstore.Store[types.NamespacedName, *metav1.PartialObjectMetadata]{
		What: "metadata of a pod",
		Name: func(o *metav1.PartialObjectMetadata) types.NamespacedName {
			return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		},
		Put: func(key types.NamespacedName, o *metav1.PartialObjectMetadata) {
			f.putPod(key, podLabels{uidOf(o), o.Labels})
		},
		Remove: func(key types.NamespacedName) {
			delete(f.pods, key)
			f.reports.Changed()
		},
		Known: func() iter.Seq[types.NamespacedName] { return maps.Keys(f.pods) },
		Around: func(listed bool, change func()) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.podsRead = f.podsRead || listed
			change()
			f.Learned.Changed()
			if listed {
				f.reports.Changed()
			}
		},
	}
}

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
				f.add(keyOf(c), 0)
			}
		}
	}
}
