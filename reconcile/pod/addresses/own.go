package addresses

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// namedWatches is how many leases of a node are watched by their names, at most.
const namedWatches = 16

// wanted is for how long a lease is watched that the node may or may not have.
const wanted = time.Minute

// ownLeases follows the leases of a node. Each is watched by its name: of the watches of a custom resource,
// the API server finds those of an object by its name, and all others receive each event of the resource, and drop
// what they do not select (k8s.io/apiserver, storage/cacher). So a write costs no more where thousands of nodes
// watch. A node with many leases has one watch for all of them.
type ownLeases struct {
	dynamic dynamic.Interface
	node    string
	heard   func() // a lease may have changed

	running sync.WaitGroup // of informers

	mu    sync.Mutex
	ctx   context.Context // of the informers, nil before and after they run
	known bool
	named map[string]*follow
	all   *follow // of many, nil for few
}

// follow is a watch.
type follow struct {
	cache.SharedIndexInformer
	ctx  context.Context
	stop context.CancelFunc
}

// settled reports whether it knows what there is, or has ended.
func (f *follow) settled() bool { return f.HasSynced() || f.ctx.Err() != nil }

// run follows leases until ctx ends.
func (o *ownLeases) run(ctx context.Context) {
	o.mu.Lock()
	o.ctx = ctx
	o.mu.Unlock()
	if synced := o.list(ctx); cache.WaitForCacheSync(ctx.Done(), synced...) {
		o.mu.Lock()
		o.known = true
		o.mu.Unlock()
		o.heard()
	}
	<-ctx.Done()
	o.mu.Lock()
	o.ctx = nil
	o.mu.Unlock()
	o.running.Wait()
}

// list begins to follow the leases that there are, and returns what says that they are known.
func (o *ownLeases) list(ctx context.Context) []cache.InformerSynced {
	for pause := time.Second; ; pause = min(2*pause, maxPause) {
		within, cancel := context.WithTimeout(ctx, 3*timeout)
		// Those of a moment ago will do: they are watched from now on.
		list, err := o.dynamic.Resource(v1alpha1.AddressLeaseResource()).List(within,
			metav1.ListOptions{FieldSelector: o.selector().String(), ResourceVersion: "0"})
		cancel()
		if err == nil {
			var synced []cache.InformerSynced
			for i := range list.Items {
				if f := o.follow(list.Items[i].GetName()); f != nil {
					synced = append(synced, f.settled)
				}
			}
			return synced
		}
		utilruntime.HandleErrorWithContext(ctx, err, "Failed to list the leases of this node") // as a watch that fails does
		if !loop.Wait(ctx, pause/2+rand.N(pause), nil) {
			return nil
		}
	}
}

func (o *ownLeases) selector() fields.Selector {
	return fields.OneTermEqualSelector("spec.node", o.node)
}

// follow watches the lease of a name as long as it is the node's, and returns the watch, nil for none.
func (o *ownLeases) follow(name string) *follow {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch f := o.named[name]; {
	case o.ctx == nil:
		return nil
	case o.all != nil:
		return o.all
	case f != nil:
		return f
	case len(o.named) == namedWatches:
		if o.all = o.watch(o.selector(), func(*follow) {}); o.all != nil {
			o.after(o.all, o.unfollowNamed)
		}
		return o.all
	}
	f := o.watch(fields.AndSelectors(fields.OneTermEqualSelector("metadata.name", name), o.selector()),
		func(f *follow) { o.unfollow(name, f) })
	if f == nil {
		return nil
	}
	o.named[name] = f
	o.after(f, func() { // it may be gone already, or be written later than its writer has waited for
		loop.Wait(f.ctx, wanted, nil)
		if len(f.GetStore().ListKeys()) == 0 {
			o.unfollow(name, f)
		}
	})
	return f
}

// watch starts a watch; deleted is called when a lease is gone. The caller has the lock.
func (o *ownLeases) watch(selector fields.Selector, deleted func(*follow)) *follow {
	f := &follow{SharedIndexInformer: dynamicinformer.NewFilteredDynamicInformer(o.dynamic, v1alpha1.AddressLeaseResource(),
		metav1.NamespaceAll, 0, cache.Indexers{}, func(l *metav1.ListOptions) {
			l.FieldSelector = selector.String()
		}).Informer()}
	if _, err := f.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { o.heard() }, UpdateFunc: func(_, _ any) { o.heard() }, DeleteFunc: func(any) { deleted(f); o.heard() },
	}); err != nil {
		return nil // it has been stopped
	}
	f.ctx, f.stop = context.WithCancel(o.ctx)
	o.running.Go(func() { f.RunWithContext(f.ctx) })
	return f
}

// after calls then when a watch knows what there is.
func (o *ownLeases) after(f *follow, then func()) {
	o.running.Go(func() {
		if cache.WaitForCacheSync(f.ctx.Done(), f.HasSynced) {
			then()
		}
	})
}

// unfollow ends the watch of a name, unless it is another one by now; nil is any.
func (o *ownLeases) unfollow(name string, f *follow) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if is := o.named[name]; is != nil && (f == nil || f == is) {
		is.stop()
		delete(o.named, name)
	}
}

func (o *ownLeases) unfollowNamed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.named {
		f.stop()
	}
	clear(o.named)
}

// leases are those of a moment ago.
func (o *ownLeases) leases() ([]v1alpha1.AddressLease, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known {
		return nil, errUnheard
	}
	if o.all != nil && o.all.HasSynced() {
		return stored[v1alpha1.AddressLease](o.all)
	}
	var out []v1alpha1.AddressLease
	for _, f := range o.named {
		if !f.HasSynced() {
			continue
		}
		some, err := stored[v1alpha1.AddressLease](f)
		if err != nil {
			return nil, err
		}
		out = slices.Concat(out, some)
	}
	return out, nil
}
