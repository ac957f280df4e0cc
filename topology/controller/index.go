package controller

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Fields that caches are indexed by, so that no object makes anybody walk through
// all others.
const (
	indexUID   = "uid"   // of classes: the UIDs of the topologies they are of
	indexClass = "class" // of topologies: the classes their root steps would have
	indexType  = "type"  // of topologies: the types of their steps
)

// Index adds to a cache the indexes that Controller and Wanting look things up by.
func Index(ctx context.Context, cache client.FieldIndexer) error {
	for _, i := range []struct {
		object client.Object
		field  string
		values client.IndexerFunc
	}{
		{&resourceapi.DeviceClass{}, indexUID, uidsOfClass},
		{&v1alpha1.NetworkTopology{}, indexClass, classesOfTopology},
		{&v1alpha1.NetworkTopology{}, indexType, typesOfTopology},
	} {
		if err := cache.IndexField(ctx, i.object, i.field, i.values); err != nil {
			return fmt.Errorf("index %T by %q: %w", i.object, i.field, err)
		}
	}
	return nil
}

func uidsOfClass(o client.Object) []string {
	class, ok := o.(*resourceapi.DeviceClass)
	if !ok {
		return nil
	}
	if ref := metav1.GetControllerOf(class); ref != nil {
		return []string{string(ref.UID)}
	}
	var uids []string
	for _, r := range refsOfClass(class) {
		uids = append(uids, string(r.UID))
	}
	return uids
}

func classesOfTopology(o client.Object) []string {
	t, ok := o.(*v1alpha1.NetworkTopology)
	if !ok {
		return nil
	}
	var names []string
	for i := range t.Spec.Steps {
		if s := &t.Spec.Steps[i]; len(s.DependOn) == 0 {
			names = append(names, claim.ClassName(t.Name, s.Name))
		}
	}
	return names
}

func typesOfTopology(o client.Object) []string {
	t, ok := o.(*v1alpha1.NetworkTopology)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	var types []string
	for i := range t.Spec.Steps {
		if typ := t.Spec.Steps[i].Type; !seen[typ] {
			seen[typ] = true
			types = append(types, typ)
		}
	}
	return types
}

// Wanting returns the topologies with a root step that would have a DeviceClass of
// a name. They are the cache's own: not to be changed.
func Wanting(ctx context.Context, cache client.Reader, class string) ([]v1alpha1.NetworkTopology, error) {
	var list v1alpha1.NetworkTopologyList
	if err := cache.List(ctx, &list, client.MatchingFields{indexClass: class}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list topologies with a step of DeviceClass %q: %w", class, err)
	}
	return list.Items, nil
}

// Cached says what a manager's cache keeps of the objects that this package reads.
func Cached() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&resourceapi.DeviceClass{}: {Transform: StripClass}}
}

// StripClass reduces a DeviceClass that is no topology's to its name and owner, for
// a cache: a cluster has those of all drivers.
func StripClass(o any) (any, error) {
	class, ok := o.(*resourceapi.DeviceClass)
	if !ok {
		return o, nil
	}
	class.ManagedFields = nil
	ref := metav1.GetControllerOf(class)
	if ref != nil && ref.Kind == v1alpha1.Kind || slices.ContainsFunc(class.Spec.Config, func(c resourceapi.DeviceClassConfiguration) bool {
		return c.Opaque != nil && c.Opaque.Driver == claim.Driver
	}) {
		return class, nil
	}
	class.Labels, class.Annotations, class.Spec = nil, nil, resourceapi.DeviceClassSpec{}
	return class, nil
}
