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
	followed map[string]*following[v1alpha1.AddressLease] // by pool
}

var _ Leases = (*Client)(nil)

// Pools implements Leases.
func (c *Client) Pools() ([]v1alpha1.AddressPool, error) { return c.Listed() }

// Of implements Leases.
func (c *Client) Of(pool string) ([]*v1alpha1.AddressLease, bool) {
	c.mu.Lock()
	f := c.followed[pool]
	c.mu.Unlock()
	return f.all()
}

// Follow implements Leases.
func (c *Client) Follow(ctx context.Context, pools []string, changed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.followed == nil {
		c.followed = map[string]*following[v1alpha1.AddressLease]{}
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
		if f := follow(ctx, i, trim, samePublished, changed); f != nil {
			c.followed[name] = f
		}
	}
}

// samePublished reports whether two states of a lease have the same routes. Nodes often write how many addresses are used.
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
