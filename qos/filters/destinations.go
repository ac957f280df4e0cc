package filters

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/watchstore"
)

// destinations are the controller's addresses for one NetworkQoS, whose UID is their name.
type destinations struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	of       int64 // the generation of the NetworkQoS
	tooMany  bool  // destinations or networks
	sets     map[qos.SetID][]netip.Addr
	networks []string // that the object selects by labels
}

// DeepCopyObject is for the interface runtime.Object. Objects are not changed.
func (d *destinations) DeepCopyObject() runtime.Object { return new(*d) }

// same reports whether two say the same.
func (d *destinations) same(o *destinations) bool {
	return d.of == o.of && d.tooMany == o.tooMany && slices.Equal(d.networks, o.networks) && reflect.DeepEqual(d.sets, o.sets)
}

// destinationsOf reads a NetworkQoSDestinations of a namespace. One that cannot be read is of no generation.
func destinationsOf(namespace string, u *unstructured.Unstructured) *destinations {
	out := &destinations{ObjectMeta: watchstore.Meta(u)}
	var o v1alpha1.NetworkQoSDestinations
	if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o) != nil {
		return out
	}
	out.of, out.tooMany = o.Destinations.ObservedGeneration, o.Destinations.TooMany > 0 || o.Destinations.TooManyNetworks
	out.networks = o.Destinations.Networks[:min(len(o.Destinations.Networks), v1alpha1.MaxQoSNetworks)]
	out.sets = qos.ReadSets(types.NamespacedName{Namespace: namespace, Name: o.Annotations[v1alpha1.AnnotationQoSName]}, &o.Destinations)
	return out
}

// followDestinations follows what the controller has written, from the first object of which it writes something, until
// ctx ends.
func (n *namespace) followDestinations(ctx context.Context) {
	if !loop.Wait(ctx, loop.Forever, n.wanted) {
		return
	}
	pages := watchstore.Pages[*unstructured.UnstructuredList, *unstructured.Unstructured, *destinations]{
		API:    n.f.Client.Resource(v1alpha1.QoSDestinationsResource()),
		Of:     func(u *unstructured.Unstructured) *destinations { return destinationsOf(n.name, u) },
		Labels: labels.SelectorFromSet(labels.Set{v1alpha1.LabelQoSNamespace: n.name}).String(), Limit: pageSize, Again: n.f.Again,
	}
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		n.f.reading.Lock() // one page at a time, of all namespaces
		defer n.f.reading.Unlock()
		return pages.List(ctx, o)
	}
	n.writtenStore().Follow(ctx, v1alpha1.QoSDestinationsKind+" of "+n.name, v1alpha1.QoSDestinationsKind, list, pages.Watch)
}

// writtenStore returns the store that a reflector fills with the controller's objects.
func (n *namespace) writtenStore() *watchstore.Store[types.UID, *destinations] {
	return &watchstore.Store[types.UID, *destinations]{
		What: v1alpha1.QoSDestinationsKind, Name: func(d *destinations) types.UID { return types.UID(d.Name) },
		Put:    n.write,
		Remove: func(uid types.UID) { n.write(uid, nil) },
		Known:  func() iter.Seq[types.UID] { return maps.Keys(n.written) },
		Around: func(listed bool, change func()) {
			n.f.mu.Lock()
			defer n.f.mu.Unlock()
			change()
			if listed && !n.writtenRead {
				n.writtenRead = true
				n.f.reports.Changed()
			}
		},
	}
}

// covering reports whether the pods that the objects cover are known: after a start not until the controller's result for an
// object that selects networks by labels has been read. The caller holds Follower.mu.
func (n *namespace) covering() bool {
	if errors.Is(n.err, errUnread) {
		return false
	}
	for _, o := range n.known {
		if !n.writtenRead && n.written[o.UID] == nil && o.policy.ByLabels() {
			return false
		}
	}
	return true
}

// write takes into account what is written of an object, nil for nothing any more. The caller holds Follower.mu.
func (n *namespace) write(uid types.UID, d *destinations) {
	if n.f.namespaces[n.name] != n {
		return // it is no longer followed
	}
	old := n.written[uid]
	if d == nil {
		delete(n.written, uid)
	} else {
		n.written[uid] = d
	}
	if old != nil && d != nil && old.same(d) {
		return
	}
	for _, o := range n.known {
		if o.UID != uid {
			continue
		}
		n.compile(o)
		if o.policy.ByLabels() { // pods that waited for its networks may be on none of them
			n.f.enqueueBehind(n.name)
		}
	}
}

// networked returns an object's policy with the networks that it selects by labels. While those of its generation are not known, they
// are those of an earlier one: pods are then left alone, and are reported as covered. The caller holds Follower.mu.
func (n *namespace) networked(o *object) *qos.Policy {
	if d := n.written[o.UID]; d != nil {
		return o.policy.WithNetworks(d.networks)
	}
	return o.policy.WithNetworks(nil)
}

// networksKnown returns an error while the networks of an object are not known that selects some by labels and covers a pod of a namespace
// whose interfaces are on networks that have a name. The caller holds mu.
func (f *Follower) networksKnown(c *claims.Claim) error {
	n := f.namespaces[c.Namespace]
	if n == nil || isPodNetwork(c) {
		return nil
	}
	of := f.pods[types.NamespacedName{Namespace: c.Namespace, Name: c.Pod.Name}].labels
	for _, name := range slices.Sorted(maps.Keys(n.known)) {
		o := n.known[name]
		if d := n.written[o.UID]; !o.policy.ByLabels() || !o.policy.SelectsLabels(of) || d != nil && d.of == o.Generation {
			continue
		}
		if !slices.ContainsFunc(f.attachments(c), func(a attached) bool { return a.Network.Labels[v1alpha1.AnnotationDefinition] != "" }) {
			return nil
		}
		return fault.New(fault.NotReady,
			fmt.Errorf("the networks that NetworkQoS %q selects by labels are not known yet: the controller has to write them to %s %q",
				o.policy.Name(), v1alpha1.QoSDestinationsKind, o.UID))
	}
	return nil
}

// over reports whether the pods of an object's destinations are more than are enforced. Then the object has no effect:
// others decide how many of their pods it selects, and are not to stop the pods that it covers. The caller holds Follower.mu.
func (n *namespace) over(o *object) bool {
	d := n.written[o.UID]
	return d != nil && d.of == o.Generation && d.tooMany && o.policy.Written()
}

// settled returns an error while the addresses of an object's destinations are not known. Those of
// an earlier generation may be of other rules. The caller holds Follower.mu.
func (n *namespace) settled(o *object) error {
	if d := n.written[o.UID]; o.policy.ToPods() && (d == nil || d.of != o.Generation) {
		return fault.New(fault.NotReady,
			fmt.Errorf("the addresses of destination pods of NetworkQoS %q are not known yet: the controller has to write them to %s %q",
				o.policy.Name(), v1alpha1.QoSDestinationsKind, o.UID))
	}
	return nil
}
