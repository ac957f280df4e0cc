package filters

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/watchstore"
)

const (
	// pageSize bounds an answer of the API server; an object may have over a megabyte.
	pageSize = 16
	// leaseFor is how long a namespace is followed for a claim that is not recorded yet.
	leaseFor = 5 * time.Minute
)

var errUnread = errors.New("they have not been read yet")

// namespace follows the objects of one namespace.
type namespace struct {
	f     *Follower
	name  string
	until time.Time // it is followed at least until then
	stop  context.CancelFunc
	// again ends the reflector, which is then started again. Under Follower.mu, as the
	// following.
	again context.CancelFunc
	err   error // why the objects are not known; nil when they are
	// known are the objects that are enforced, those of share.
	known map[string]*object
	share *qos.Share
	// listed is the share of the last list, from which known is filled.
	listed *qos.Share
	// written are the controller's NetworkQoSDestinations of objects, by their UID. They are followed when wanted is closed, as
	// few namespaces have objects that need it: the API server compares its label with each event for each watch.
	written          map[types.UID]*destinations
	writtenRead      bool // they have been listed once
	wanted           chan struct{}
	wantDestinations func() // closes wanted
}

func newNamespace(f *Follower, name string) *namespace {
	wanted := make(chan struct{})
	return &namespace{
		f: f, name: name, err: errUnread, known: map[string]*object{}, share: &qos.Share{},
		written: map[types.UID]*destinations{}, wanted: wanted, wantDestinations: sync.OnceFunc(func() { close(wanted) }),
	}
}

// object is the part of a NetworkQoS that is kept.
type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	policy *qos.Policy
}

// DeepCopyObject is for the interface runtime.Object. Objects are not changed.
func (o *object) DeepCopyObject() runtime.Object { return new(*o) }

// objectOf reads a NetworkQoS. One that cannot be read is kept with its error.
func objectOf(u *unstructured.Unstructured) *object {
	policy, _ := qos.Read(u)
	return &object{ObjectMeta: watchstore.Meta(u), policy: policy.Slim()}
}

// enforceable reports whether an object is one of those of which the oldest are enforced.
func (f *Follower) enforceable(o *object) bool {
	return o.policy.Err == nil && o.policy.Selects(f.PodTopology != nil)
}

// list lists the objects in pages, so that there are never more in memory than a qos.Share and a page. An API server without the kind
// has no objects; the watch asks again.
func (n *namespace) list(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	out, share, kept := &internalversion.List{}, &qos.Share{}, map[*qos.Policy]*object{}
	for {
		err := n.page(ctx, out, share, kept)
		if apierrors.IsNotFound(err) {
			return &internalversion.List{}, nil
		}
		if err != nil {
			n.f.mu.Lock()
			if n.err != nil { // known objects stay: after an error of the API server they are the best there is
				n.err = err
			}
			n.f.mu.Unlock()
			return nil, err // not wrapped: the reflector checks its type
		}
		if out.Continue == "" {
			break
		}
	}
	for _, p := range share.Policies() {
		out.Items = append(out.Items, kept[p])
	}
	n.f.mu.Lock()
	n.listed = share
	n.f.mu.Unlock()
	return out, nil
}

// page adds the next page of a list to the share, and keeps the objects of that. One page of all namespaces is read at a time; others
// read one before the next, as users may create any number of objects.
func (n *namespace) page(ctx context.Context, list *internalversion.List, share *qos.Share, kept map[*qos.Policy]*object) error {
	n.f.reading.Lock()
	defer n.f.reading.Unlock()
	page, err := n.f.Client.Resource(qosv1alpha1.Resource()).Namespace(n.name).List(ctx,
		metav1.ListOptions{Limit: pageSize, Continue: list.Continue})
	if err != nil {
		return err
	}
	list.ResourceVersion, list.Continue = page.GetResourceVersion(), page.GetContinue()
	for i := range page.Items {
		o := objectOf(&page.Items[i])
		if !n.f.enforceable(o) {
			o.warn(n.f.Log)
			continue
		}
		kept[o.policy] = o
		for _, left := range share.Put(o.policy) {
			delete(kept, left)
		}
	}
	return nil
}

func (n *namespace) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := n.f.Client.Resource(qosv1alpha1.Resource()).Namespace(n.name).Watch(ctx, options)
	return watchstore.Watched(w, err, n.f.Again, objectOf, nil)
}

// run follows the objects until ctx ends.
func (n *namespace) run(ctx context.Context) {
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { n.followDestinations(ctx) })
	for ctx.Err() == nil {
		within, again := context.WithCancel(ctx)
		n.f.mu.Lock()
		n.again = again
		n.f.mu.Unlock()
		n.store().Follow(within, "NetworkQoS of "+n.name, qosv1alpha1.Kind, n.list, n.watch)
		again()
		loop.Wait(ctx, n.f.Again, nil)
	}
}

// store lets a reflector fill a namespace.
func (n *namespace) store() *watchstore.Store[string, *object] {
	return &watchstore.Store[string, *object]{
		What: qosv1alpha1.Kind, Name: func(o *object) string { return o.Name },
		Put:    func(_ string, o *object) { n.put(o) },
		Remove: n.remove,
		Known:  func() iter.Seq[string] { return maps.Keys(n.known) },
		Around: func(listed bool, change func()) {
			n.f.mu.Lock()
			defer n.f.mu.Unlock()
			if listed && n.listed != nil {
				n.share, n.listed = n.listed, nil
			}
			change()
			if n.share.Stale() {
				n.again() // to list them: one that was left out may be enforced now
			}
			if listed && n.err != nil {
				n.err = nil
				n.f.Learned.Changed()
				n.f.reports.Changed() // nothing was reported before
				for _, c := range n.f.claims {
					if c.Namespace == n.name {
						n.f.add(keyOf(c), 0)
					}
				}
			}
		},
	}
}

// put takes an object into account. The caller holds Follower.mu.
func (n *namespace) put(o *object) {
	if n.f.namespaces[n.name] != n {
		return // it is no longer followed
	}
	if !n.f.enforceable(o) {
		o.warn(n.f.Log)
		n.remove(o.Name)
		return
	}
	old := n.known[o.Name]
	if old != nil && old.UID == o.UID && old.Generation == o.Generation {
		n.known[o.Name] = o
		return // its status has changed
	}
	left := n.share.Put(o.policy)
	for _, p := range left {
		n.drop(p.Key.Name)
	}
	if slices.Contains(left, o.policy) {
		return
	}
	n.known[o.Name] = o
	if o.policy.Written() {
		n.wantDestinations()
	}
	n.compile(o)
}

// compile gives the compiler an object that is known, if it has an effect. The caller holds Follower.mu.
func (n *namespace) compile(o *object) {
	if n.over(o) {
		n.f.enqueue(n.f.compiler.DeletePolicy(o.policy.Key))
	} else {
		n.f.enqueue(n.f.compiler.SetPolicy(n.networked(o)))
	}
}

// warn logs why an object has no effect.
func (o *object) warn(log *slog.Logger) {
	if o.policy.Err != nil {
		log.Warn("a NetworkQoS has no effect", "networkqos", o.policy.Name(), "reason", o.policy.Reason())
	}
}

// remove forgets an object that no longer exists, or is not enforced. The caller holds Follower.mu.
func (n *namespace) remove(name string) {
	n.share.Delete(types.NamespacedName{Namespace: n.name, Name: name})
	n.drop(name)
}

// drop forgets an object that is not in the share. The caller holds Follower.mu.
func (n *namespace) drop(name string) {
	delete(n.known, name)
	if n.f.namespaces[n.name] != n {
		return
	}
	n.f.enqueue(n.f.compiler.DeletePolicy(types.NamespacedName{Namespace: n.name, Name: name}))
}
