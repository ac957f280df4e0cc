package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// networksAge is the maximum age of our copy of the cluster's networks: they seldom change, and the nodes of a large
// cluster are many megabytes.
const networksAge = 10 * time.Minute

// Network is a network that pods of the cluster reach, or an address of a node or a pod.
type Network struct {
	Prefix netip.Prefix
	// Of says whose it is, such as "Services".
	Of string
}

// readNetworks reads the networks of the cluster, unless they are known.
func (c *Pools) readNetworks(ctx context.Context) error {
	if !c.read.IsZero() && c.Now().Sub(c.read) < networksAge {
		return nil
	}
	var out []Network
	add := func(of string, prefixes ...string) {
		for _, text := range prefixes {
			if p, err := netip.ParsePrefix(text); err == nil {
				out = append(out, Network{p.Masked(), of})
			}
		}
	}
	var services networkingv1.ServiceCIDRList
	switch err := c.Live.List(ctx, &services); {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err): // an API server that has none
	case err != nil:
		return fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	for i := range services.Items {
		add("Services", services.Items[i].Spec.CIDRs...)
	}
	for next := ""; ; {
		var nodes corev1.NodeList
		if err := c.Live.List(ctx, &nodes, client.Limit(500), client.Continue(next)); err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			add(fmt.Sprintf("pods on node %q", n.Name), n.Spec.PodCIDRs...)
			for _, a := range n.Status.Addresses {
				if ip, err := netip.ParseAddr(a.Address); err == nil {
					out = append(out, Network{netip.PrefixFrom(ip, ip.BitLen()), fmt.Sprintf("node %q", n.Name)})
				}
			}
		}
		if next = nodes.Continue; next == "" {
			c.networks, c.read = out, c.Now()
			return nil
		}
	}
}

// literals are the addresses that pods have from their topologies, in a constant order.
func literals(leases []*v1alpha1.AddressLease) []Network {
	var out []Network
	for _, l := range leases {
		if p, err := netip.ParsePrefix(l.Spec.Block); err == nil {
			out = append(out, Network{p, fmt.Sprintf("pod %q", l.Spec.For)})
		}
	}
	slices.SortFunc(out, func(a, b Network) int { return a.Prefix.Addr().Compare(b.Prefix.Addr()) })
	return out
}

// maxOverlaps is how many overlaps a condition names.
const maxOverlaps = 4

// overlaps names the owners of addresses that a pool could allocate. The pool's subnet may be a network of nodes, as
// long as the pool does not allocate their addresses.
func overlaps(l *addresspool.Layout, shared addresspool.Shared, networks []Network) []string {
	var out []string
	if shared.Pool != "" {
		out = append(out, fmt.Sprintf("%s is shared with %s of AddressPool %q: two pods may get the same address, which is right only where these networks do not reach one another", shared.Mine, shared.Theirs, shared.Pool))
	}
	more := 0
	for _, n := range networks {
		mine, ok := l.Gives(n.Prefix)
		switch {
		case !ok:
		case len(out) >= maxOverlaps:
			more++
		case n.Prefix.IsSingleIP():
			out = append(out, fmt.Sprintf("%s is an address of %s, and would be given to a pod of %s: add it to exclude", n.Prefix.Addr(), n.Of, mine))
		default:
			out = append(out, fmt.Sprintf("%s shares addresses with %s of %s: a pod that has such an address may not reach them", mine, n.Prefix, n.Of))
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}
