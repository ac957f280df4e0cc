package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Fields by which caches are indexed, so that no event needs a scan of all objects.
const (
	indexUID      = "uid"      // of classes and claim templates: the UIDs of their topologies
	indexClass    = "class"    // of topologies: the classes their root steps would have
	indexType     = "type"     // of topologies: the types of their steps
	indexResource = "resource" // of classes and topologies: extended resource names
	indexTemplate = "template" // of topologies: "true" if they have a claim template
	indexRole     = "role"     // of topologies: their role
	indexPool     = "pool"     // of topologies: the AddressPools of their networks, alone and with the subnets (topology.IPAM.Network)
)

// Index adds to a cache the indexes that Controller and Wanting use.
func Index(ctx context.Context, cache client.FieldIndexer) error {
	for _, i := range []struct {
		object client.Object
		field  string
		values client.IndexerFunc
	}{
		{&resourceapi.DeviceClass{}, indexUID, indexer(uidsOfClass)},
		{&v1alpha1.NetworkTopology{}, indexClass, indexer(classesOfTopology)},
		{&v1alpha1.NetworkTopology{}, indexType, indexer(typesOfTopology)},
		{&resourceapi.DeviceClass{}, indexResource, resourcesOf},
		{&v1alpha1.NetworkTopology{}, indexResource, resourcesOf},
		{&v1alpha1.NetworkTopology{}, indexTemplate, hasTemplate},
		{&v1alpha1.NetworkTopology{}, indexRole, roleOf},
		{&v1alpha1.NetworkTopology{}, indexPool, indexer(poolsOfSubnets)},
		{&resourceapi.ResourceClaimTemplate{}, indexUID, uidOfTemplate},
	} {
		if err := cache.IndexField(ctx, i.object, i.field, i.values); err != nil {
			return fmt.Errorf("index %T by %q: %w", i.object, i.field, err)
		}
	}
	return nil
}

// indexer has values called with the objects of its type.
func indexer[O client.Object](values func(O) []string) client.IndexerFunc {
	return func(o client.Object) []string {
		if of, ok := o.(O); ok {
			return values(of)
		}
		return nil
	}
}

func uidsOfClass(class *resourceapi.DeviceClass) []string {
	if ref := metav1.GetControllerOf(class); ref != nil {
		return []string{string(ref.UID)}
	}
	var uids []string
	for _, r := range refsOfClass(class) {
		uids = append(uids, string(r.UID))
	}
	return uids
}

func classesOfTopology(t *v1alpha1.NetworkTopology) []string {
	var names []string
	roots, _ := topology.StepNames(t)
	for _, step := range roots {
		names = append(names, claim.ClassName(t.Name, step))
	}
	return names
}

func typesOfTopology(t *v1alpha1.NetworkTopology) []string {
	var types []string
	for i := range t.Spec.Steps {
		if typ := t.Spec.Steps[i].Type; !slices.Contains(types, typ) {
			types = append(types, typ)
		}
	}
	return types
}

func hasTemplate(o client.Object) []string {
	if t, ok := o.(*v1alpha1.NetworkTopology); ok && t.Spec.ClaimTemplate != nil {
		return []string{"true"}
	}
	return nil
}

func uidOfTemplate(o client.Object) []string {
	if ref := metav1.GetControllerOf(o); ref != nil {
		return []string{string(ref.UID)}
	}
	return nil
}

// resourcesOf returns the extended resource names of a class, or of the steps of a
// topology.
func resourcesOf(o client.Object) []string {
	var names []string
	switch o := o.(type) {
	case *resourceapi.DeviceClass:
		if name := o.Spec.ExtendedResourceName; name != nil {
			names = append(names, *name)
		}
	case *v1alpha1.NetworkTopology:
		for _, s := range topology.StepResources(o) {
			if !slices.Contains(names, s.Resource) {
				names = append(names, s.Resource)
			}
		}
	}
	return names
}

// Named returns the DeviceClasses, and the topologies with a step, that have an
// extended resource name. They belong to the cache and must not be changed.
func Named(ctx context.Context, cache client.Reader, resource string) ([]resourceapi.DeviceClass, []v1alpha1.NetworkTopology, error) {
	by := client.MatchingFields{indexResource: resource}
	var classes resourceapi.DeviceClassList
	if err := cache.List(ctx, &classes, by, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list classes with extended resource name %q: %w", resource, err)
	}
	named, err := topologies(ctx, cache, fmt.Sprintf("with extended resource name %q", resource), by)
	return classes.Items, named, err
}

// topologies returns those of a list. They belong to the cache and must not be changed.
func topologies(ctx context.Context, cache client.Reader, what string, of ...client.ListOption) ([]v1alpha1.NetworkTopology, error) {
	var list v1alpha1.NetworkTopologyList
	if err := cache.List(ctx, &list, append(of, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("list topologies %s: %w", what, err)
	}
	return list.Items, nil
}

func roleOf(o client.Object) []string {
	if t, ok := o.(*v1alpha1.NetworkTopology); ok && t.Spec.Role != "" {
		return []string{string(t.Spec.Role)}
	}
	return nil
}

// OfRole returns the topologies of a role. They belong to the cache and must not be changed.
func OfRole(ctx context.Context, cache client.Reader, role v1alpha1.Role) ([]v1alpha1.NetworkTopology, error) {
	return topologies(ctx, cache, fmt.Sprintf("of role %q", role), client.MatchingFields{indexRole: string(role)})
}

// Wanting returns the topologies with a root step that would have a DeviceClass of
// a name. They belong to the cache and must not be changed.
func Wanting(ctx context.Context, cache client.Reader, class string) ([]v1alpha1.NetworkTopology, error) {
	return topologies(ctx, cache, fmt.Sprintf("with a step of DeviceClass %q", class), client.MatchingFields{indexClass: class})
}

// Cached returns what a manager's cache keeps of the objects that this package reads.
func Cached() map[client.Object]cache.ByObject {
	ours, _ := labels.Parse(claim.LabelTopology) // a constant
	return map[client.Object]cache.ByObject{
		&resourceapi.DeviceClass{}:           {Transform: stripClass},
		&resourceapi.ResourceClaimTemplate{}: {Label: ours},
		&corev1.Namespace{}:                  {Transform: stripNamespace},
		&corev1.Node{}:                       {Transform: stripNode},
	}
}

// stripNode reduces a node to its name and whether it is ready, or its metadata to the name.
func stripNode(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
		m.SetAnnotations(nil)
		m.SetLabels(nil)
	}
	if n, ok := o.(*corev1.Node); ok {
		n.Spec = corev1.NodeSpec{}
		n.Status = corev1.NodeStatus{Conditions: slices.DeleteFunc(n.Status.Conditions,
			func(c corev1.NodeCondition) bool { return c.Type != corev1.NodeReady })}
	}
	return o, nil
}

// stripNamespace reduces a namespace to its name and labels.
func stripNamespace(o any) (any, error) {
	if n, ok := o.(*corev1.Namespace); ok {
		n.ManagedFields, n.Annotations, n.OwnerReferences = nil, nil, nil
	}
	return o, nil
}

// stripClass reduces a DeviceClass that belongs to no topology to its names and owner, for
// a cache: a cluster has classes of all drivers.
func stripClass(o any) (any, error) {
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
	class.Labels, class.Annotations = nil, nil
	class.Spec = resourceapi.DeviceClassSpec{ExtendedResourceName: class.Spec.ExtendedResourceName}
	return class, nil
}

// poolsOfSubnets decodes only topologies with a network of OVN.
func poolsOfSubnets(o *v1alpha1.NetworkTopology) (out []string) {
	if !slices.Contains(typesOfTopology(o), topology.TypeOVN) {
		return nil
	}
	t, err := topology.FromObject(o)
	if err != nil {
		return nil
	}
	for _, of := range t.NetworkPools() {
		out = append(out, of.Pool, of.Network())
	}
	return out
}
