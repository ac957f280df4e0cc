package controller

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/plumbline/plumbline/topology/nested"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// writtenSets are the NetworkQoSDestinations that exist. An owner reference cannot have the API server delete them, since
// their owners have a namespace: so they are followed from the first moment, and those of no object are deleted, also
// if an earlier controller has left them. It is safe for concurrent use.
type writtenSets struct {
	objects dynamic.Interface

	mu sync.Mutex
	of nested.Map[types.NamespacedName, types.UID, uint64] // hashes of what they have, by NetworkQoS
	by map[types.UID]types.NamespacedName
}

// put notes what an object has, and reports whether it was not known.
func (s *writtenSets) put(uid types.UID, key types.NamespacedName, hash uint64) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.by[uid]
	s.by[uid] = key
	s.of.Set(key, uid, hash)
	return !known
}

// remove forgets an object, and returns the NetworkQoS that it is of, if it was known.
func (s *writtenSets) remove(uid types.UID) (key types.NamespacedName, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, known = s.by[uid]
	delete(s.by, uid)
	s.of.Delete(key, uid)
	return key, known
}

// all returns the objects of a NetworkQoS, with hashes of what they have.
func (s *writtenSets) all(key types.NamespacedName) map[types.UID]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.of[key])
}

// write creates or changes the object of a NetworkQoS.
func (s *writtenSets) write(ctx context.Context, key types.NamespacedName, uid types.UID, has *v1alpha1.Destinations, hash uint64) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(has)
	if err != nil {
		return err
	}
	s.put(uid, key, 0) // before the event of the write comes
	_, err = s.objects.Resource(v1alpha1.QoSDestinationsResource()).Apply(ctx, string(uid),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.QoSDestinationsKind,
			"metadata": map[string]any{
				"name": string(uid), "labels": map[string]any{v1alpha1.LabelQoSNamespace: key.Namespace},
				"annotations": map[string]any{
					v1alpha1.AnnotationQoSName: key.Name,
					v1alpha1.AnnotationQoSHash: strconv.FormatUint(hash, 16),
				},
			},
			"destinations": content,
		}}, metav1.ApplyOptions{FieldManager: destinationsManager, Force: true})
	if err != nil {
		return fmt.Errorf("write %s %q of %q: %w", v1alpha1.QoSDestinationsKind, uid, key, err)
	}
	s.put(uid, key, hash)
	return nil
}

// delete deletes an object.
func (s *writtenSets) delete(ctx context.Context, uid types.UID) error {
	err := s.objects.Resource(v1alpha1.QoSDestinationsResource()).Delete(ctx, string(uid), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s %q: %w", v1alpha1.QoSDestinationsKind, uid, err)
	}
	s.remove(uid)
	return nil
}

// store follows the objects. edited is called with a NetworkQoS of which one has come that is not known, or has gone.
func (s *writtenSets) store(edited func(types.NamespacedName)) *keptStore {
	return &keptStore{
		resource: v1alpha1.QoSDestinationsResource(), annotated: true,
		set: func(name types.NamespacedName, o *cachedMeta) {
			key := types.NamespacedName{Namespace: o.Labels[v1alpha1.LabelQoSNamespace], Name: o.Annotations[v1alpha1.AnnotationQoSName]}
			if key.Namespace == "" || key.Name == "" {
				return // not one that a controller has written
			}
			hash, _ := strconv.ParseUint(o.Annotations[v1alpha1.AnnotationQoSHash], 16, 64) // 0 is written again
			if s.put(types.UID(name.Name), key, hash) {
				edited(key)
			}
		},
		remove: func(name types.NamespacedName) {
			if key, known := s.remove(types.UID(name.Name)); known {
				edited(key)
			}
		},
		synced: make(chan struct{}),
	}
}
