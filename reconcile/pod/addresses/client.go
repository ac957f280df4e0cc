package addresses

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// timeout of a request; a pod may wait for it.
const timeout = 10 * time.Second

// nodeAge is the maximum age of our copy of the Node object. Thousands of nodes read theirs, and leases of a node
// that is created again end a multiple of this time later.
const nodeAge = 2 * time.Minute

// Client is a client of the API server, with a cache of pools and of the node's leases. It
// needs these rights: get of nodes, list and watch of addresspools; get, list, watch, create,
// update and delete of addressleases.
type Client struct {
	kube    kubernetes.Interface
	leases  dynamic.ResourceInterface
	node    string
	now     func() time.Time
	pools   cache.SharedIndexInformer
	own     ownLeases
	changed table.Changes

	mu   sync.Mutex
	uid  string
	read time.Time
}

var _ Leases = (*Client)(nil)

// NewClient returns a Client that knows nothing until Run.
func NewClient(kube kubernetes.Interface, dyn dynamic.Interface, node string, now func() time.Time) *Client {
	c := &Client{kube: kube, leases: dyn.Resource(v1alpha1.AddressLeaseResource()), node: node, now: now}
	c.pools = dynamicinformer.NewFilteredDynamicInformer(dyn, v1alpha1.AddressPoolResource(), metav1.NamespaceAll, 0, cache.Indexers{},
		nil).Informer()
	c.own = ownLeases{dynamic: dyn, node: node, heard: c.changed.Changed, named: map[string]*follow{}}
	return c
}

// Run follows pools and leases until ctx ends.
func (c *Client) Run(ctx context.Context) {
	heard := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.changed.Changed() }, DeleteFunc: func(any) { c.changed.Changed() },
		UpdateFunc: func(before, after any) {
			a, _ := before.(*v1alpha1.AddressPool)
			b, _ := after.(*v1alpha1.AddressPool)
			// The controller often writes how many addresses are leased, for all nodes.
			if a == nil || b == nil || !sameButCounts(a, b) {
				c.changed.Changed()
			}
		},
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if c.pools.SetTransform(decoded) != nil {
		return // it runs already, which it does not
	}
	if _, err := c.pools.AddEventHandler(heard); err != nil {
		return // it has been stopped
	}
	wg.Go(func() { c.pools.RunWithContext(ctx) })
	wg.Go(func() { c.own.run(ctx) })
}

// decoded is what the cache has of a pool: it is read more often than it changes. One that cannot be decoded stays as it is.
func decoded(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	p, err := decode[v1alpha1.AddressPool](u)
	if err != nil {
		return o, nil // stored returns the error
	}
	p.ManagedFields = nil
	return p, nil
}

// sameButCounts reports whether two states of a pool differ in nothing that the next regular pass is too
// late for: their counts, and texts that have these.
func sameButCounts(a, b *v1alpha1.AddressPool) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && slices.Equal(a.GetFinalizers(), b.GetFinalizers()) &&
		a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp()) && maps.Equal(conditions(a), conditions(b))
}

// conditions returns the status of each condition, by type.
func conditions(o *v1alpha1.AddressPool) map[string]metav1.ConditionStatus {
	out := map[string]metav1.ConditionStatus{}
	for _, c := range o.Status.Conditions {
		out[c.Type] = c.Status
	}
	return out
}

// Wakes implements Leases.
func (c *Client) Wakes(w table.Wake) (leave func()) { return c.changed.Wakes(w) }

// NodeUID implements Leases. It is read again after a while: a node may be deleted and
// register itself again.
func (c *Client) NodeUID(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.uid != "" && c.now().Sub(c.read) < nodeAge {
		return c.uid, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	n, err := c.kube.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read node %q: %w", c.node, err)
	}
	c.uid, c.read = string(n.UID), c.now()
	return c.uid, nil
}

var errUnheard = errors.New("the pools of the cluster are not known yet")

// Pools implements Leases.
func (c *Client) Pools() ([]v1alpha1.AddressPool, error) {
	return stored[v1alpha1.AddressPool](c.pools)
}

// Own implements Leases.
func (c *Client) Own() ([]v1alpha1.AddressLease, error) {
	return c.own.leases()
}

func stored[T any](i cache.SharedIndexInformer) ([]T, error) {
	if !i.HasSynced() {
		return nil, errUnheard
	}
	var out []T
	for _, v := range i.GetStore().List() {
		switch v := v.(type) {
		case *T:
			out = append(out, *v)
		case *unstructured.Unstructured:
			o, err := decode[T](v)
			if err != nil {
				return nil, err
			}
			out = append(out, *o)
		}
	}
	return out, nil
}

func decode[T any](u *unstructured.Unstructured) (*T, error) {
	o := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return nil, fmt.Errorf("%s %q: %w", u.GetKind(), u.GetName(), err)
	}
	return o, nil
}

// Get implements Leases.
func (c *Client) Get(ctx context.Context, name string) (*v1alpha1.AddressLease, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	u, err := c.leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read lease %q: %w", name, err)
	}
	return c.decodeLease(u)
}

// Taken implements Leases.
func (c *Client) Taken(ctx context.Context, pool string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*timeout)
	defer cancel()
	out := map[string]bool{}
	options := metav1.ListOptions{Limit: 500, FieldSelector: fields.OneTermEqualSelector("spec.pool", pool).String()}
	for {
		list, err := c.leases.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list leases of AddressPool %q: %w", pool, err)
		}
		for i := range list.Items {
			out[list.Items[i].GetName()] = true
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return out, nil
		}
	}
}

// KeptFor implements Leases.
func (c *Client) KeptFor(ctx context.Context, pool, identity string) ([]v1alpha1.AddressLease, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := c.leases.List(ctx, metav1.ListOptions{
		LabelSelector: v1alpha1.LabelFor + "=" + labelFor(identity), FieldSelector: fields.OneTermEqualSelector("spec.pool", pool).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list leases of AddressPool %q that are kept: %w", pool, err)
	}
	var out []v1alpha1.AddressLease
	for i := range list.Items {
		l, err := decode[v1alpha1.AddressLease](&list.Items[i])
		if err != nil {
			return nil, err
		}
		out = append(out, *l)
	}
	return out, nil
}

// Create implements Leases.
func (c *Client) Create(ctx context.Context, l *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error) {
	return c.write(ctx, l, func(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return c.leases.Create(ctx, u, metav1.CreateOptions{})
	})
}

// Update implements Leases.
func (c *Client) Update(ctx context.Context, l *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error) {
	return c.write(ctx, l, func(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return c.leases.Update(ctx, u, metav1.UpdateOptions{})
	})
}

func (c *Client) write(ctx context.Context, l *v1alpha1.AddressLease,
	f func(context.Context, *unstructured.Unstructured) (*unstructured.Unstructured, error),
) (*v1alpha1.AddressLease, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l.APIVersion, l.Kind = v1alpha1.GroupVersion.String(), v1alpha1.AddressLeaseKind
	if l.Spec.For != "" {
		if l.Labels == nil {
			l.Labels = map[string]string{}
		}
		l.Labels[v1alpha1.LabelFor] = labelFor(l.Spec.For)
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(l)
	if err != nil {
		return nil, err
	}
	u, err := f(ctx, &unstructured.Unstructured{Object: object})
	if err != nil {
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && l.Spec.Node == c.node {
			c.own.follow(l.Name) // it may have been written all the same
		}
		return nil, fmt.Errorf("write lease %q: %w", l.Name, err)
	}
	return c.decodeLease(u)
}

// decodeLease decodes a lease that was read or written, and follows it if it is the node's.
func (c *Client) decodeLease(u *unstructured.Unstructured) (*v1alpha1.AddressLease, error) {
	l, err := decode[v1alpha1.AddressLease](u)
	if err == nil && l.Spec.Node == c.node {
		c.own.follow(l.Name)
	}
	return l, err
}

// Delete implements Leases.
func (c *Client) Delete(ctx context.Context, l *v1alpha1.AddressLease) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := c.leases.Delete(ctx, l.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another lease has the name already, or it is needed again
	}
	if err != nil {
		return fmt.Errorf("end lease %q: %w", l.Name, err)
	}
	c.own.unfollow(l.Name, nil)
	return nil
}
