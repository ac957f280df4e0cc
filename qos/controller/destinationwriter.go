package controller

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/queue"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/watchstore"
)

const (
	// destinationsManager is the field manager of NetworkQoSDestinations.
	destinationsManager = "plumbline-destinations"
	// destinationsPause is the least time between two writes of one object, and as much again for each
	// destinationsEach addresses that it has: pods may come and go at any rate, and each write is sent
	// to every node with pods of the namespace, which compares the filters of the pods that it covers.
	destinationsPause = time.Second
	destinationsEach  = 128
	// addressesOfNetwork is as how many addresses the name of a network counts: it may be seven times as long.
	addressesOfNetwork = 4
)

// destinationWriter writes the addresses of the pods that objects have as a destination.
type destinationWriter struct {
	*Destinations
	owner *NetworkQoS

	queue  queue.Queue
	wanted sync.Once
	synced chan struct{} // closed when pods, namespaces, topologies and claims are known
	// The same for networks that are selected by labels.
	wantedNetworks sync.Once
	networksSynced chan struct{}
	namespacesOnce sync.Once
	ofNamespaces   *keptStore
	sets           *writtenSets
	listed         chan struct{} // closed when sets are known
	// Of the worker alone: when objects were written.
	written map[types.NamespacedName]lastWrite
	turns   turns
}

// run writes until ctx ends. The function that it returns waits for that.
func (w *destinationWriter) run(ctx context.Context) (wait func()) {
	w.queue = queue.New(time.Second, time.Minute)
	w.networksSynced = make(chan struct{})
	w.synced, w.written, w.turns = make(chan struct{}), map[types.NamespacedName]lastWrite{}, turns{}
	w.OnChange(w.queue.Add)
	w.sets = &writtenSets{objects: w.owner.Objects, by: map[types.UID]types.NamespacedName{}}
	store := w.sets.store(w.Edited)
	w.listed = store.synced
	var running sync.WaitGroup
	running.Go(func() { store.run(ctx, w.owner.Metadata) })
	running.Go(func() {
		<-ctx.Done()
		w.queue.ShutDown()
	})
	running.Go(func() {
		for {
			select {
			case <-w.wake:
				w.lock()
				w.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	})
	running.Go(func() {
		for {
			key, stopped := w.queue.Get()
			if stopped {
				return
			}
			again, err := w.reconcile(ctx, key)
			switch {
			case err != nil && ctx.Err() == nil:
				w.owner.Log.Warn("the destinations of a NetworkQoS could not be written: retrying", "networkqos", key, "error", err)
				w.queue.AddRateLimited(key)
			case again > 0:
				w.queue.AddAfter(key, again)
			default:
				w.queue.Forget(key)
			}
			w.queue.Done(key)
		}
	})
	return running.Wait
}

// reconcile reads an object if it was edited, and writes its destinations if they differ. It
// returns after how long to call it again, if it is too early to write.
func (w *destinationWriter) reconcile(ctx context.Context, key types.NamespacedName) (again time.Duration, err error) {
	select {
	case <-w.listed:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if w.take(key) {
		if err := w.read(ctx, key); err != nil {
			w.untake(key)
			return 0, err
		}
	}
	// To put the addresses together takes a while if there are many, and if they were too many.
	if wait := w.written[key].at.Add(destinationsPause).Sub(w.owner.Now()); wait > 0 {
		return wait, nil
	}
	began := w.owner.Now()
	if wait := w.turns.wait(key.Namespace, began); wait > 0 {
		return wait, nil
	}
	uid, status := w.Status(key)
	w.turns.took(key.Namespace, w.owner.Now().Sub(began), w.owner.Now())
	if status != nil {
		if again, err := w.know(ctx, key); err != nil || again > 0 {
			return again, err
		}
		uid, status = w.Status(key)
	}
	there := w.sets.all(key)
	for other := range there {
		if status == nil || other != uid { // nobody needs it, or it is of an earlier object of the name
			if err := w.sets.delete(ctx, other); err != nil {
				return 0, err
			}
		}
	}
	if status == nil {
		return 0, nil
	}
	if now := digest(status); there[uid] != now {
		if wait := w.written[key].pause(status).Sub(w.owner.Now()); wait > 0 {
			return wait, nil
		}
		if err := w.sets.write(ctx, key, uid, status, now); err != nil {
			return 0, err
		}
		w.written[key] = lastWrite{w.owner.Now(), status.ObservedGeneration}
	}
	if w.decide(key, status) {
		w.room(key.Namespace) // a condition says so
	}
	return 0, nil
}

// know waits until all is known that the destinations of an object depend on. Networks of others do not hold up all objects: it returns
// after how long to ask for them again.
func (w *destinationWriter) know(ctx context.Context, key types.NamespacedName) (again time.Duration, err error) {
	toPods, byLabels := w.needs(key)
	if toPods {
		w.wanted.Do(func() { go w.follow(ctx) })
		select {
		case <-w.synced:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if byLabels {
		w.wantedNetworks.Do(func() { go w.followNetworks(ctx) })
		select {
		case <-w.networksSynced:
		default:
			return destinationsPause, nil
		}
	}
	return 0, nil
}

// lastWrite is when the destinations of an object were written, and of which generation.
type lastWrite struct {
	at         time.Time
	generation int64
}

// pause returns until when an object is not written again. A new generation waits no longer than that of few
// addresses: pods that start wait for it.
func (l lastWrite) pause(next *v1alpha1.Destinations) time.Time {
	n := 0
	if next.ObservedGeneration == l.generation {
		n = addressesOfNetwork * len(next.Networks)
		for _, s := range next.Sets {
			n += len(s.Addresses)
		}
	}
	return l.at.Add(destinationsPause + time.Duration(n/destinationsEach)*destinationsPause)
}

// read reads one object. Its name is a field selector, so that no right is needed but to list.
func (w *destinationWriter) read(ctx context.Context, key types.NamespacedName) error {
	list, err := w.owner.Objects.Resource(qosv1alpha1.Resource()).Namespace(key.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", key.Name).String(), Limit: 1,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read %q: %w", key, err)
	}
	if err != nil || len(list.Items) == 0 {
		w.DeletePolicy(key)
		delete(w.written, key)
		return nil
	}
	policy, _ := qos.Read(&list.Items[0])
	w.SetPolicy(policy)
	return nil
}

// follow follows what the addresses of pods depend on, from the first object that needs them.
func (w *destinationWriter) follow(ctx context.Context) {
	running := fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", "Succeeded"),
		fields.OneTermNotEqualSelector("status.phase", "Failed")).String()
	stores := []*keptStore{
		{
			resource: v1alpha1.Resource(),
			set:      func(_ types.NamespacedName, o *cachedMeta) { w.setTopology(o.Name, qos.TopologyLabels(&o.ObjectMeta)) },
			remove:   func(key types.NamespacedName) { w.deleteTopology(key.Name) },
		}, {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, selector: running,
			set: func(key types.NamespacedName, o *cachedMeta) { w.SetPod(key, o.UID, o.Labels, o.addresses) }, remove: w.DeletePod,
		},
	}
	if w.PodNetwork {
		stores[len(stores)-1].whole, stores[len(stores)-1].of = w.owner.Objects, addressedOf
	}
	for _, s := range stores {
		s.synced = make(chan struct{})
		go s.run(ctx, w.owner.Metadata)
	}
	if !allSynced(ctx, append(stores, w.namespaces(ctx))) {
		return
	}
	if w.owner.Claims != nil {
		if w.owner.Claims.WaitForSync(ctx) != nil {
			return
		}
		w.owner.Claims.OnHeld(w.SetClaim)
	}
	close(w.synced)
}

// namespaces follows the labels of namespaces, once.
func (w *destinationWriter) namespaces(ctx context.Context) *keptStore {
	w.namespacesOnce.Do(func() {
		w.ofNamespaces = &keptStore{
			resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, synced: make(chan struct{}),
			set:    func(_ types.NamespacedName, o *cachedMeta) { w.SetNamespace(o.Name, o.Labels) },
			remove: func(key types.NamespacedName) { w.DeleteNamespace(key.Name) },
		}
		go w.ofNamespaces.run(ctx, w.owner.Metadata)
	})
	return w.ofNamespaces
}

// allSynced waits until all stores have been filled once, and reports false if ctx ends before.
func allSynced(ctx context.Context, stores []*keptStore) bool {
	for _, s := range stores {
		select {
		case <-s.synced:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// cachedMeta is the metadata of an object that the cache keeps.
type cachedMeta struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	addresses []netip.Addr // of a pod, see podAddresses
	primary   *bool        // of a UserDefinedNetwork, see qos.Definition
}

// DeepCopyObject is for the interface runtime.Object. Objects are not changed.
func (k *cachedMeta) DeepCopyObject() runtime.Object { return new(*k) }

// cachedMetaOf returns what is kept of an object.
func (s *keptStore) cachedMetaOf(o *metav1.PartialObjectMetadata) *cachedMeta {
	out := labelledOf(o)
	if s.again > 0 { // a kind of others
		out.OwnerReferences = o.OwnerReferences
	}
	if s.annotated {
		out.Annotations = o.Annotations
	} else if d, ok := o.Annotations[v1alpha1.AnnotationDefinition]; ok {
		out.Annotations = map[string]string{v1alpha1.AnnotationDefinition: d}
	}
	return out
}

// labelledOf returns what is kept of any object.
func labelledOf(o metav1.Object) *cachedMeta {
	out := &cachedMeta{ObjectMeta: watchstore.Meta(o)}
	out.Labels = o.GetLabels()
	return out
}

// addressedOf returns what is kept of a pod.
func addressedOf(o *unstructured.Unstructured) *cachedMeta {
	out := labelledOf(o)
	out.addresses = podAddresses(o.Object)
	return out
}

// podAddresses are the addresses of a pod on its primary network, sorted: none while it has none, or if they are those of its node.
func podAddresses(pod map[string]any) []netip.Addr {
	if host, _, _ := unstructured.NestedBool(pod, "spec", "hostNetwork"); host {
		return nil
	}
	all, _, _ := unstructured.NestedFieldNoCopy(pod, "status", "podIPs")
	entries, _ := all.([]any)
	var out []netip.Addr
	for _, e := range entries[:min(len(entries), maxPodIPs)] {
		if ip, ok := e.(map[string]any); ok {
			text, _ := ip["ip"].(string)
			if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
				out = append(out, a.Unmap())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// maxPodIPs is one of each family, as many as an API server accepts.
const maxPodIPs = 2

// keptStore gives the metadata of all objects of a resource to functions.
type keptStore struct {
	resource schema.GroupVersionResource
	selector string // of fields
	// annotated has annotations kept, too.
	annotated bool
	// whole, unless it is nil, has whole objects read, of which of returns what is kept, instead of their metadata.
	whole  dynamic.Interface
	of     func(*unstructured.Unstructured) *cachedMeta
	again  time.Duration // unless it is 0, after how long an API server is asked again that does not serve the resource
	set    func(types.NamespacedName, *cachedMeta)
	remove func(types.NamespacedName)
	synced chan struct{} // closed when all have been read once
}

// wholePage bounds an answer of the API server with whole pods, some ten kilobytes each.
const wholePage = 100

// run follows the objects until ctx ends.
func (s *keptStore) run(ctx context.Context, client metadata.Interface) {
	if s.whole != nil {
		follow(ctx, s, "whole ", watchstore.Pages[*unstructured.UnstructuredList, *unstructured.Unstructured, *cachedMeta]{
			API: s.whole.Resource(s.resource), Of: s.of, Limit: wholePage,
		})
		return
	}
	follow(ctx, s, "", watchstore.Pages[*metav1.PartialObjectMetadataList, *metav1.PartialObjectMetadata, *cachedMeta]{
		API: client.Resource(s.resource), Of: s.cachedMetaOf, Limit: pageSize,
	})
}

func follow[L watchstore.List, T runtime.Object](ctx context.Context, s *keptStore, what string, p watchstore.Pages[L, T, *cachedMeta]) {
	p.Fields, p.Again = s.selector, s.again
	s.store().Follow(ctx, "destinations of NetworkQoS: "+what+s.resource.Resource, s.resource.Resource, p.List, p.Watch)
}

// store returns the store through which a reflector fills it.
func (s *keptStore) store() *watchstore.Store[types.NamespacedName, *cachedMeta] {
	there := map[types.NamespacedName]bool{}
	return &watchstore.Store[types.NamespacedName, *cachedMeta]{
		What: "metadata of " + s.resource.Resource,
		Name: func(o *cachedMeta) types.NamespacedName {
			return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		},
		Put: func(key types.NamespacedName, o *cachedMeta) {
			there[key] = true
			s.set(key, o)
		},
		Remove: func(key types.NamespacedName) {
			delete(there, key)
			s.remove(key)
		},
		Known:  func() iter.Seq[types.NamespacedName] { return maps.Keys(there) },
		Synced: s.synced,
	}
}
