package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Pools writes the status of AddressPools, and deletes the leases of nodes that no longer
// exist, and the pools of subnets that no topology has. Its permissions:
//
//	networking.dra.io addresspools         get list watch delete patch (finalizers)
//	networking.dra.io addresspools/status  update
//	networking.dra.io addressleases        get list watch delete
//	networking.dra.io networktopologies    get list watch
//	networking.k8s.io servicecidrs         list
//	                  nodes                get list watch
//
// All pools are counted in one pass over the leases, at most once in an Interval.
type Pools struct {
	Client   client.Client
	Live     client.Reader // reads from the API server
	Log      *slog.Logger
	Now      func() time.Time
	Interval time.Duration
	// Grace is how long after a node was deleted its leases are deleted.
	Grace time.Duration

	// Used by the only worker:
	gone     map[types.UID]time.Time // leases whose node no longer exists, and since when
	unwanted map[types.UID]time.Time // pools of subnets that no topology has, and since when
	// unreported is for how long a node may have given an address without a report.
	unreported time.Duration
	late       map[keptLease]time.Time // leases kept for longer than their pool says, and since when
	networks   []*around               // of the cluster
	read       time.Time               // when they were
}

// Setup registers the controller with a manager.
func (c *Pools) Setup(mgr manager.Manager) error {
	one := requests("all")[0]
	return builder.ControllerManagedBy(mgr).Named("addresspool").
		Watches(&v1alpha1.AddressPool{}, enqueue(one, 0, edited)).
		Watches(&v1alpha1.AddressLease{}, enqueue(one, c.Interval, nil)).
		Watches(&v1alpha1.NetworkTopology{}, onSubnets(one, min(prompt, c.Interval))).
		WatchesMetadata(&corev1.Node{}, enqueue(one, c.Interval, func(before, now client.Object) bool {
			return before.GetUID() != now.GetUID()
		})).
		Complete(c)
}

// Reconcile writes the status of all pools, and deletes leases.
func (c *Pools) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var pools v1alpha1.AddressPoolList
	if err := c.Client.List(ctx, &pools, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list pools: %w", err)
	}
	var leases v1alpha1.AddressLeaseList
	if err := c.Client.List(ctx, &leases, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list leases: %w", err)
	}
	left := maxEnds
	again, errs := c.endOrphans(ctx, leases.Items, &left)
	later, more := c.endKept(ctx, leases.Items, pools.Items, &left)
	if errs = append(errs, more...); later > 0 {
		again = shorter(again, later)
	}
	byPool, nodes := map[string][]*v1alpha1.AddressLease{}, map[string]bool{}
	for i := range leases.Items {
		l := &leases.Items[i]
		byPool[l.Spec.Pool], nodes[l.Spec.Node] = append(byPool[l.Spec.Pool], l), true
	}
	c.unreported = time.Duration(addresspool.ReportSeconds(len(nodes))) * time.Second * 3 / 2
	if len(pools.Items) > 0 {
		again = shorter(again, networksAge)
		if err := c.readNetworks(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	layouts := map[string]*addresspool.Layout{}
	for i := range pools.Items {
		if l, err := addresspool.Of(&pools.Items[i]); err == nil {
			layouts[pools.Items[i].Name] = l
		}
	}
	shared := addresspool.SharedAmong(layouts)
	networks := append(slices.Clone(c.networks), newAround(literals(byPool[topology.LiteralPool])))
	unwanted := c.unwanted
	c.unwanted = map[types.UID]time.Time{}
	for i := range pools.Items {
		o := pools.Items[i].DeepCopy() // objects of the cache must not be changed
		soon, err := c.one(ctx, o, byPool[o.Name], unwanted, func() v1alpha1.AddressPoolStatus {
			s := PoolStatus(o, layouts[o.Name], shared[o.Name], byPool[o.Name], networks)
			if c.networks == nil {
				keepOverlap(&s, o.Status.Conditions)
			}
			return s
		})
		if apierrors.IsConflict(err) {
			soon, err = goOn, nil // the cache lags behind
		}
		if errs = append(errs, err); soon > 0 {
			again = shorter(again, soon)
		}
	}
	return reconcile.Result{RequeueAfter: again}, errors.Join(errs...)
}

// keepOverlap leaves the condition Overlap of a status as it was: the networks of the cluster are not known yet, as when a controller
// begins while the API server is overloaded.
func keepOverlap(s *v1alpha1.AddressPoolStatus, before []metav1.Condition) {
	i := slices.IndexFunc(s.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionOverlap })
	switch was := meta.FindStatusCondition(before, v1alpha1.ConditionOverlap); {
	case i < 0:
	case was != nil:
		s.Conditions[i] = *was
	default:
		s.Conditions = slices.Delete(s.Conditions, i, i+1)
	}
}

// one writes the finalizer and the status of a pool, or deletes it.
func (c *Pools) one(ctx context.Context, o *v1alpha1.AddressPool, leases []*v1alpha1.AddressLease, unwanted map[types.UID]time.Time,
	status func() v1alpha1.AddressPoolStatus,
) (again time.Duration, err error) {
	ended, again, err := c.endSubnets(ctx, o, leases, unwanted)
	if err != nil || ended {
		return again, err
	}
	if err := c.keep(ctx, o, len(leases) > 0); err != nil {
		return again, err
	}
	if !o.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(o, v1alpha1.AddressPoolFinalizer) {
		return again, nil
	}
	if s := status(); !equality.Semantic.DeepEqual(s, o.Status) {
		o.Status = s
		if err := c.Client.Status().Update(ctx, o); client.IgnoreNotFound(err) != nil {
			return again, fmt.Errorf("write status of AddressPool %q: %w", o.Name, err)
		}
	}
	return again, nil
}

func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// keep holds a pool's finalizer while the pool has leases. Before it is removed the API
// server is queried: the cache may lack the newest lease.
func (c *Pools) keep(ctx context.Context, o *v1alpha1.AddressPool, leased bool) error {
	before := o.DeepCopy()
	if o.DeletionTimestamp.IsZero() {
		if !controllerutil.AddFinalizer(o, v1alpha1.AddressPoolFinalizer) {
			return nil
		}
	} else {
		if leased || !controllerutil.ContainsFinalizer(o, v1alpha1.AddressPoolFinalizer) {
			return nil
		}
		var live v1alpha1.AddressLeaseList
		if err := c.Live.List(ctx, &live, client.MatchingFields{"spec.pool": o.Name}, client.Limit(1)); err != nil {
			return fmt.Errorf("list leases of AddressPool %q: %w", o.Name, err)
		}
		if len(live.Items) > 0 {
			return nil // its event will follow
		}
		controllerutil.RemoveFinalizer(o, v1alpha1.AddressPoolFinalizer)
	}
	err := c.Client.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write finalizer of AddressPool %q: %w", o.Name, err)
	}
	return nil
}

// maxEnds is how many leases one pass ends, each with one or two requests: nodes wait meanwhile to be given addresses of a pool that is
// new, which is not protected yet. The next pass follows after goOn.
const (
	maxEnds = 100
	goOn    = 50 * time.Millisecond
)

// endOrphans deletes leases of nodes that have not existed for Grace, as many as are left. A node that was
// created again takes over its lease, which changes the lease, so that the deletion is
// refused.
func (c *Pools) endOrphans(ctx context.Context, leases []v1alpha1.AddressLease, left *int) (again time.Duration, errs []error) {
	gone := map[types.UID]time.Time{}
	for i := range leases {
		l := &leases[i]
		if l.Spec.KeptUntil != nil || !l.DeletionTimestamp.IsZero() {
			continue // it is no node's, or ends
		}
		n := &metav1.PartialObjectMetadata{}
		n.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		switch err := c.Client.Get(ctx, client.ObjectKey{Name: l.Spec.Node}, n); {
		case err == nil && string(n.UID) == l.Spec.NodeUID:
			continue
		case apierrors.IsNotFound(err):
			n = nil
		case err != nil:
			errs = append(errs, fmt.Errorf("read node %q: %w", l.Spec.Node, err))
			continue
		}
		since, known := c.gone[l.UID]
		if !known {
			since = c.Now()
		}
		gone[l.UID] = since
		if wait := graceLeft(n, since, c.Now(), c.Grace); wait > 0 {
			again = shorter(again, wait)
			continue
		}
		if *left--; *left < 0 {
			again = shorter(again, goOn)
			continue
		}
		if err := c.end(ctx, l, since); err != nil {
			errs = append(errs, err)
		}
	}
	c.gone = gone
	return again, errs
}

// endKept deletes leases that were kept for long enough, and all that are kept of a pool which
// ends, as many as are left. A lease that a node takes over meanwhile has changed, so that the deletion is refused.
func (c *Pools) endKept(ctx context.Context, leases []v1alpha1.AddressLease,
	pools []v1alpha1.AddressPool, left *int,
) (again time.Duration, errs []error) {
	stays := map[string]bool{}
	for i := range pools {
		stays[pools[i].Name] = pools[i].DeletionTimestamp.IsZero()
	}
	ends := c.ends(leases, pools)
	tooMany := beyond(leases, ends)
	for i := range leases {
		l := &leases[i]
		if l.Spec.KeptUntil == nil || !l.DeletionTimestamp.IsZero() {
			continue
		}
		if wait := ends[l.Name].Sub(c.Now()); wait > 0 && stays[l.Spec.Pool] && !tooMany[l.Name] {
			again = shorter(again, wait)
			continue
		}
		if *left--; *left < 0 {
			again = shorter(again, goOn)
			continue
		}
		err := c.Client.Delete(ctx, l.DeepCopy(), client.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion})
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("end lease %q: %w", l.Name, err))
		}
	}
	return again, errs
}

type keptLease struct {
	lease types.UID
	until int64
}

// ends returns when kept leases end, by name: at the time that they have, and no later than one that is kept from the moment at
// which that time was seen to be too late. The clock of the node that wrote it was ahead, or the pool keeps addresses for less
// time now.
func (c *Pools) ends(leases []v1alpha1.AddressLease, pools []v1alpha1.AddressPool) map[string]time.Time {
	most := map[string]time.Duration{}
	for i := range pools {
		most[pools[i].Name] = time.Duration(max(addresspool.Reclaim(&pools[i]), addresspool.Quarantine(&pools[i]))) * time.Second
	}
	out, late := map[string]time.Time{}, map[keptLease]time.Time{}
	for i := range leases {
		l := &leases[i]
		if l.Spec.KeptUntil == nil {
			continue
		}
		end, most := l.Spec.KeptUntil.Time, most[l.Spec.Pool]
		k := keptLease{l.UID, end.Unix()}
		since, known := c.late[k]
		if !known && end.After(c.Now().Add(most)) {
			since, known = c.Now(), true
		}
		if known {
			late[k] = since
			if latest := since.Add(most); latest.Before(end) {
				end = latest
			}
		}
		out[l.Name] = end
	}
	c.late = late
	return out
}

// beyond returns the leases kept for pods of a namespace that exceed the pool's limit for one namespace: those that
// end first. So a tenant that creates pods with ever new names does not take the pool from others.
func beyond(leases []v1alpha1.AddressLease, ends map[string]time.Time) map[string]bool {
	type key struct{ pool, namespace string }
	kept := map[key][]*v1alpha1.AddressLease{}
	for i := range leases {
		if l := &leases[i]; l.Spec.KeptUntil != nil {
			k := key{l.Spec.Pool, addresspool.Namespace(l.Spec.For)}
			kept[k] = append(kept[k], l)
		}
	}
	out := map[string]bool{}
	for _, of := range kept {
		slices.SortFunc(of, func(x, y *v1alpha1.AddressLease) int {
			return cmp.Or(ends[x.Name].Compare(ends[y.Name]), cmp.Compare(x.Name, y.Name))
		})
		for _, l := range of[:max(len(of)-addresspool.MaxKept, 0)] {
			out[l.Name] = true
		}
	}
	return out
}

// graceLeft returns how long the lease of a node stays whose Node object was deleted at since. n is a newer Node
// object of the same name, or nil: its agent reads it up to minutes later, so the grace begins again when that object
// was created.
func graceLeft(n *metav1.PartialObjectMetadata, since, now time.Time, grace time.Duration) time.Duration {
	if n != nil && n.CreationTimestamp.After(since) {
		since = n.CreationTimestamp.Time
	}
	return grace - now.Sub(since)
}

func (c *Pools) end(ctx context.Context, l *v1alpha1.AddressLease, since time.Time) error {
	var n corev1.Node
	switch err := c.Live.Get(ctx, client.ObjectKey{Name: l.Spec.Node}, &n); {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read node %q: %w", l.Spec.Node, err)
	case err == nil && (string(n.UID) == l.Spec.NodeUID ||
		graceLeft(&metav1.PartialObjectMetadata{ObjectMeta: n.ObjectMeta}, since, c.Now(), c.Grace) > 0):
		return nil // the cache lags behind; the event of the node will follow
	}
	err := c.Client.Delete(ctx, l.DeepCopy(), client.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // its node is back, or it is deleted
	}
	if err != nil {
		return fmt.Errorf("end lease %q: %w", l.Name, err)
	}
	c.Log.Info("lease deleted, as its node no longer exists", "lease", l.Name, "node", l.Spec.Node, "used", l.Spec.Used)
	return nil
}

// PoolStatus returns the status of a pool. layout is nil of one that is not valid, networks are those of the cluster.
func PoolStatus(o *v1alpha1.AddressPool, layout *addresspool.Layout, shared addresspool.Shared, leases []*v1alpha1.AddressLease,
	networks []*around,
) v1alpha1.AddressPoolStatus {
	s := *o.Status.DeepCopy()
	s.ObservedGeneration = o.Generation
	s.Size, s.Leased, s.Used, s.Nodes = 0, 0, 0, 0
	nodes := map[string]bool{}
	for _, l := range leases {
		nodes[l.Spec.Node] = true
		s.Used += int64(l.Spec.Used)
	}
	delete(nodes, v1alpha1.KeptNode)
	s.Nodes = int32(len(nodes))
	set := func(kind string, status bool, reason, message string) {
		c := metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, ObservedGeneration: o.Generation, Reason: reason,
			Message: excerpt.Lines(message, maxMessage),
		}
		if status {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, c)
	}
	if layout == nil {
		_, err := addresspool.Of(o)
		set(v1alpha1.ConditionValid, false, string(fault.Invalid), fmt.Sprint(err))
		return s
	}
	set(v1alpha1.ConditionValid, true, reasonSucceeded, "the pool is valid")
	var blocks []netip.Prefix
	for _, l := range leases {
		if b, err := netip.ParsePrefix(l.Spec.Block); err == nil {
			blocks = append(blocks, b)
		}
	}
	var fewer, fuller addresspool.Leased // a claim needs an address of each family
	for i, is4 := range layout.Families() {
		of := layout.Leased(is4, blocks)
		if i == 0 || of.Size < fewer.Size {
			fewer = of
		}
		if i == 0 || of.Low && !fuller.Low || of.Exhausted && !fuller.Exhausted || of.Size < fuller.Size && !fuller.Low {
			fuller = of
		}
	}
	s.Size, s.Leased = int64(fewer.Size), int64(fewer.Leased)
	if overlaps := overlaps(layout, shared, networks); len(overlaps) > 0 {
		set(v1alpha1.ConditionOverlap, true, string(fault.Conflict), strings.Join(overlaps, "; "))
	} else {
		set(v1alpha1.ConditionOverlap, false, reasonSucceeded, "no overlap with other pools, Services, pods or nodes")
	}
	text := "nodes have leased " + fuller.Text
	set(v1alpha1.ConditionExhausted, fuller.Exhausted, "Leased", text)
	set(v1alpha1.ConditionLow, fuller.Low, "Leased", text)
	return s
}
