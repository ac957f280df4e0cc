package controller

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// subnets keeps the AddressPools of the networks whose subnets a topology has, and ends its part in others. It returns a message for
// each pool that cannot be as the topology says.
func (c *Controller) subnets(
	ctx context.Context, o *v1alpha1.NetworkTopology, wants []topology.NetworkPool,
) (messages []string, err error) {
	for _, w := range wants {
		have := &v1alpha1.AddressPool{}
		switch err := c.Client.Get(ctx, client.ObjectKey{Name: w.Pool}, have); {
		case apierrors.IsNotFound(err):
			made := addresspool.OfSubnets(w.IPAM)
			made.OwnerReferences = []metav1.OwnerReference{partOwner(o)}
			if err := c.Client.Create(ctx, made); err != nil {
				return nil, fmt.Errorf("create AddressPool %q: %w", w.Pool, err)
			}
			continue
		case err != nil:
			return nil, fmt.Errorf("get AddressPool %q: %w", w.Pool, err)
		}
		before := have.DeepCopy()
		end, message := JoinPool(have, o, w.IPAM)
		if message != "" {
			messages = append(messages, fmt.Sprintf("step %q: config.%s", w.Step, message))
		}
		if err := c.writePool(ctx, before, have, end); err != nil {
			return nil, err
		}
	}
	var own v1alpha1.AddressPoolList
	if err := c.Client.List(ctx, &own, client.MatchingFields{indexUID: string(o.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	for i := range own.Items {
		before := &own.Items[i]
		if slices.ContainsFunc(wants, func(w topology.NetworkPool) bool { return w.Pool == before.Name }) {
			continue
		}
		have := before.DeepCopy()
		leave(have, o)
		if err := c.writePool(ctx, before, have, len(partOwners(have)) == 0); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

// JoinPool has a topology take part in the pool of its network's subnets: as an owner, and with what it excludes. If the pool cannot
// be as the topology says, it returns why, as a message about the step's config. end says that the pool has to be recreated. A topology
// that shares the network, and has other subnets, stops being an owner: the last one that has the pool's is alone when it is edited.
func JoinPool(have *v1alpha1.AddressPool, o *v1alpha1.NetworkTopology, want topology.IPAM) (end bool, message string) {
	if !have.DeletionTimestamp.IsZero() {
		return false, fmt.Sprintf("subnets: %s %q of this network is being deleted: this ends when no pod has an address of it", v1alpha1.AddressPoolKind, have.Name)
	}
	layout, err := addresspool.Of(have)
	if err != nil {
		return false, "subnets: " + err.Error()
	}
	owners := partOwners(have)
	others := slices.DeleteFunc(slices.Clone(owners), func(r metav1.OwnerReference) bool { return r.UID == o.UID })
	alone := want
	alone.ExcludeCIDRs = nil
	switch err := layout.Agrees(alone); {
	case len(owners) == 0: // who made it keeps it
		if err = layout.Agrees(want); err != nil {
			return false, err.Error() + ": plumbline did not create it, and does not change it; write its subnets and exclusions into the step, or edit or delete it"
		}
		return false, ""
	case err != nil && len(others) > 0:
		quoted := make([]string, len(others))
		for i, r := range others {
			quoted[i] = fmt.Sprintf("%q", r.Name)
		}
		leave(have, o)
		return false, fmt.Sprintf("%v: the network is also in NetworkTopology %s: write the same subnets into all, or give this network another name", err, names(quoted))
	case err != nil && have.Status.Used > 0:
		return false, fmt.Sprintf("%v: %d of its addresses are in use; it is recreated when none is. Pods keep the addresses that they have", err, have.Status.Used)
	case err != nil:
		return true, err.Error() + ": it is recreated"
	}
	joined := have.DeepCopy()
	for _, x := range want.ExcludeCIDRs {
		if !slices.Contains(joined.Spec.Exclude, x) {
			joined.Spec.Exclude = append(joined.Spec.Exclude, x)
		}
	}
	if _, err := addresspool.Of(joined); err != nil {
		return false, "excludeSubnets: with those of all topologies of the network: " + err.Error()
	}
	have.Spec.Exclude = joined.Spec.Exclude
	if len(others) == len(owners) {
		have.OwnerReferences = append(have.OwnerReferences, partOwner(o))
	}
	return false, ""
}

// writePool writes what has changed of a pool, or deletes it.
func (c *Controller) writePool(ctx context.Context, before, have *v1alpha1.AddressPool, end bool) error {
	if end {
		err := c.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete AddressPool %q: %w", have.Name, err)
		}
		return nil
	}
	if slices.Equal(before.Spec.Exclude, have.Spec.Exclude) && len(before.OwnerReferences) == len(have.OwnerReferences) {
		return nil
	}
	changes := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Client.Patch(ctx, have, changes); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write AddressPool %q: %w", have.Name, err)
	}
	return nil
}

// partOwner is a topology as one of several owners of a pool: what all have made ends with the last of them.
func partOwner(o *v1alpha1.NetworkTopology) metav1.OwnerReference {
	r := ownerOf(o)
	r.Controller, r.BlockOwnerDeletion = nil, nil
	return r
}

// partOwners are the topologies that have made a pool.
func partOwners(p *v1alpha1.AddressPool) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(p.OwnerReferences), func(r metav1.OwnerReference) bool {
		return r.Kind != v1alpha1.Kind || r.APIVersion != v1alpha1.GroupVersion.String()
	})
}

// leave ends the part of a topology in a pool.
func leave(p *v1alpha1.AddressPool, o *v1alpha1.NetworkTopology) {
	p.OwnerReferences = slices.DeleteFunc(p.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == o.UID })
}

// unused reports whether the last address of a pool is given back.
func unused(before, after client.Object) bool {
	was, ok := before.(*v1alpha1.AddressPool)
	is, ok2 := after.(*v1alpha1.AddressPool)
	return ok && ok2 && was.Status.Used > 0 && is.Status.Used == 0
}

// forPool returns the topologies of the network that a pool is of.
func (c *Controller) forPool(ctx context.Context, o client.Object) []reconcile.Request {
	var using v1alpha1.NetworkTopologyList
	if err := c.Client.List(ctx, &using, client.MatchingFields{indexPool: o.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		c.Log.Error("cannot find the topologies of a changed AddressPool", "pool", o.GetName(), "error", err)
	}
	names := make([]string, len(using.Items))
	for i := range using.Items {
		names[i] = using.Items[i].Name
	}
	return requests(names...)
}
