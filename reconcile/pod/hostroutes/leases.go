package hostroutes

import (
	"context"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Client reads the leases of pools. It needs: list and watch on addressleases.
type Client struct {
	Dynamic dynamic.Interface
	// Listed are the pools.
	Listed func() ([]v1alpha1.AddressPool, error)

	mu       sync.Mutex
	followed map[string]*followed
}

// followed is a pool whose leases are followed.
type followed struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

var _ Leases = (*Client)(nil)

// Pools implements Leases.
func (c *Client) Pools() ([]v1alpha1.AddressPool, error) { return c.Listed() }

// Of implements Leases.
func (c *Client) Of(pool string) ([]*v1alpha1.AddressLease, bool) {
	c.mu.Lock()
	f := c.followed[pool]
	c.mu.Unlock()
	if f == nil || !f.informer.HasSynced() {
		return nil, false
	}
	var out []*v1alpha1.AddressLease
	for _, v := range f.informer.GetStore().List() {
		if l, ok := v.(*v1alpha1.AddressLease); ok {
			out = append(out, l)
		}
	}
	return out, true
}

// Follow implements Leases.
func (c *Client) Follow(ctx context.Context, pools []string, changed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.followed == nil {
		c.followed = map[string]*followed{}
	}
	for name, f := range c.followed {
		if !slices.Contains(pools, name) {
			f.stop()
			delete(c.followed, name)
		}
	}
	for _, name := range pools {
		if c.followed[name] != nil {
			continue
		}
		i := dynamicinformer.NewFilteredDynamicInformer(c.Dynamic, v1alpha1.AddressLeaseResource(), metav1.NamespaceAll, 0,
			cache.Indexers{}, func(l *metav1.ListOptions) {
				l.FieldSelector = fields.OneTermEqualSelector("spec.pool", name).String()
			}).Informer()
		if i.SetTransform(trim) != nil {
			continue // it has been started
		}
		heard, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
			UpdateFunc: func(before, after any) {
				a, _ := before.(*v1alpha1.AddressLease)
				b, _ := after.(*v1alpha1.AddressLease)
				// Nodes often write how many addresses are used.
				if a == nil || b == nil || !samePublished(a, b) {
					changed()
				}
			},
		})
		if err != nil {
			continue
		}
		within, stop := context.WithCancel(ctx)
		c.followed[name] = &followed{i, stop}
		go i.RunWithContext(within)
		go func() {
			if cache.WaitForCacheSync(within.Done(), heard.HasSynced) {
				changed()
			}
		}()
	}
}

func samePublished(a, b *v1alpha1.AddressLease) bool {
	return a.Spec.Node == b.Spec.Node && a.Spec.Block == b.Spec.Block && (a.Spec.KeptUntil == nil) == (b.Spec.KeptUntil == nil) &&
		slices.Equal(a.Spec.HostAddresses, b.Spec.HostAddresses)
}

// trim keeps of a lease what routes follow from: there is one for each node.
func trim(v any) (any, error) {
	u, ok := v.(*unstructured.Unstructured)
	if !ok {
		return v, nil
	}
	l := &v1alpha1.AddressLease{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, l); err != nil {
		l = &v1alpha1.AddressLease{} // none of this version: it leads nowhere
	}
	out := &v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{
		Pool: l.Spec.Pool, Block: l.Spec.Block, Node: l.Spec.Node, KeptUntil: l.Spec.KeptUntil, HostAddresses: l.Spec.HostAddresses,
	}}
	out.Name, out.ResourceVersion = u.GetName(), u.GetResourceVersion()
	return out, nil
}
