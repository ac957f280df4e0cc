package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// subnets keeps the AddressPools of the networks whose subnets a topology has; Pools ends them. It returns a message for each pool
// that is not as the topology says.
func (c *Controller) subnets(ctx context.Context, wants []topology.NetworkPool) (messages []string, err error) {
	for _, w := range wants {
		have := &v1alpha1.AddressPool{}
		switch err := c.Client.Get(ctx, client.ObjectKey{Name: w.Pool}, have); {
		case apierrors.IsNotFound(err):
			if err := c.Client.Create(ctx, addresspool.OfSubnets(w.IPAM)); err != nil {
				return nil, fmt.Errorf("create AddressPool %q: %w", w.Pool, err)
			}
			continue
		case err != nil:
			return nil, fmt.Errorf("get AddressPool %q: %w", w.Pool, err)
		}
		before := have.DeepCopy()
		message, err := JoinPool(have, w.IPAM, func() ([]string, error) { return having(ctx, c.Client, addresspool.IPAM(have)) })
		if err != nil {
			return nil, err
		}
		if message != "" {
			messages = append(messages, fmt.Sprintf("step %q: config.%s", w.Step, message))
		}
		if slices.Equal(before.Spec.Exclude, have.Spec.Exclude) {
			continue
		}
		changes := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := c.Client.Patch(ctx, have, changes); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("write AddressPool %q: %w", have.Name, err)
		}
	}
	return messages, nil
}

// JoinPool adds to the pool of a network's subnets what a step excludes. If the pool cannot be as the step says, it returns why, as a
// message about the step's config. sharing returns the topologies that have the network with the pool's subnets.
func JoinPool(have *v1alpha1.AddressPool, want topology.IPAM, sharing func() ([]string, error)) (message string, err error) {
	if !have.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("subnets: %s %q of this network is being deleted: this ends once no pod has an address from it",
			v1alpha1.AddressPoolKind, have.Name), nil
	}
	layout, err := addresspool.Of(have)
	if err != nil {
		return "subnets: " + err.Error(), nil
	}
	if !made(have) { // who made it keeps it
		if err = layout.Agrees(want); err != nil {
			return err.Error() + ": plumbline did not create it, and does not change it; " +
				"write its subnets and exclusions into the step, or edit or delete it", nil
		}
		return "", nil
	}
	alone := want
	alone.ExcludeCIDRs = nil
	if differs := layout.Agrees(alone); differs != nil {
		others, err := sharing()
		if err != nil {
			return "", err
		}
		if len(others) > 0 {
			return fmt.Sprintf(
				"%v: the network is also in NetworkTopology %s: write the same subnets into all, or give this network another name",
				differs, names(others)), nil
		}
		return fmt.Sprintf("%v: it is recreated once no pod has an address from it. Pods keep their addresses", differs), nil
	}
	joined := have.DeepCopy()
	for _, x := range want.ExcludeCIDRs {
		if !slices.Contains(joined.Spec.Exclude, x) {
			joined.Spec.Exclude = append(joined.Spec.Exclude, x)
		}
	}
	if _, err := addresspool.Of(joined); err != nil {
		return "excludeSubnets: together with those of other topologies on the network: " + err.Error(), nil
	}
	have.Spec.Exclude = joined.Spec.Exclude
	return "", nil
}

// made reports whether the controller has made a pool. A copy of another name is whoever's made that.
func made(p *v1alpha1.AddressPool) bool { return p.Labels[v1alpha1.LabelSubnets] == p.Name }

// having returns the quoted names of the topologies that have a network with the same subnets.
func having(ctx context.Context, cache client.Reader, c topology.IPAM, opts ...client.ListOption) (quoted []string, err error) {
	what := fmt.Sprintf("with the network of AddressPool %q", c.Pool)
	found, err := topologies(ctx, cache, what, append(opts, client.MatchingFields{indexPool: c.Network()})...)
	for i := range found {
		quoted = append(quoted, fmt.Sprintf("%q", found[i].Name))
	}
	slices.Sort(quoted)
	return quoted, err
}

// endSubnets deletes a pool of ours when no topology has its network with its subnets, and no pod has an address of it: from then on
// topologies with other subnets get theirs. Pods may have addresses that their nodes have not reported yet. It remembers nothing but
// since when a pool is of no topology, so that another controller goes on.
func (c *Pools) endSubnets(ctx context.Context, o *v1alpha1.AddressPool, leases []*v1alpha1.AddressLease,
	unwanted map[types.UID]time.Time,
) (ended bool, again time.Duration, err error) {
	if !made(o) || !o.DeletionTimestamp.IsZero() {
		return false, 0, nil
	}
	if with, err := having(ctx, c.Client, addresspool.IPAM(o), client.Limit(1)); err != nil || len(with) > 0 {
		return false, 0, err
	}
	since, known := unwanted[o.UID]
	if !known {
		since = c.Now()
	}
	c.unwanted[o.UID] = since
	used := slices.ContainsFunc(leases, func(l *v1alpha1.AddressLease) bool { return l.Spec.Used > 0 })
	if left := c.unreported - c.Now().Sub(since); used || len(leases) > 0 && left > 0 {
		return false, max(left, 0), nil // if one is used, the change of its lease will follow
	}
	err = c.Client.Delete(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return false, 0, fmt.Errorf("delete AddressPool %q: %w", o.Name, err)
	}
	c.Log.Info("pool deleted: no topology has a network with its subnets", "pool", o.Name)
	return true, 0, nil
}

// onSubnets enqueues a request when pools of subnets may be of no topology any more. Edits of many topologies are one pass.
func onSubnets(r reconcile.Request, after time.Duration) handler.Funcs {
	pools := indexer(poolsOfSubnets)
	return handler.Funcs{
		DeleteFunc: func(_ context.Context, d event.DeleteEvent, q queue) {
			if len(pools(d.Object)) > 0 {
				q.AddAfter(r, after)
			}
		},
		UpdateFunc: func(_ context.Context, u event.UpdateEvent, q queue) {
			if edited(u.ObjectOld, u.ObjectNew) && !slices.Equal(pools(u.ObjectOld), pools(u.ObjectNew)) {
				q.AddAfter(r, after)
			}
		},
	}
}

// forPool returns the topologies of the network that a pool is of.
func (c *Controller) forPool(ctx context.Context, o client.Object) []reconcile.Request {
	return c.requestsFor(ctx, c.Log.With("pool", o.GetName()), "cannot find the topologies of a changed AddressPool", nil,
		client.MatchingFields{indexPool: o.GetName()})
}
