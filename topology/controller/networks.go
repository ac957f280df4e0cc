package controller

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sort"
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
	var out [2][]Network // those of Services, and of nodes
	add := func(i int, of string, prefixes ...string) {
		for _, text := range prefixes {
			if p, err := netip.ParsePrefix(text); err == nil {
				out[i] = append(out[i], Network{p.Masked(), of})
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
		add(0, "Services", services.Items[i].Spec.CIDRs...)
	}
	for next := ""; ; {
		var nodes corev1.NodeList
		if err := c.Live.List(ctx, &nodes, client.Limit(500), client.Continue(next)); err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			add(1, fmt.Sprintf("pods on node %q", n.Name), n.Spec.PodCIDRs...)
			for _, a := range n.Status.Addresses {
				if ip, err := netip.ParseAddr(a.Address); err == nil {
					out[1] = append(out[1], Network{netip.PrefixFrom(ip, ip.BitLen()), fmt.Sprintf("node %q", n.Name)})
				}
			}
		}
		if next = nodes.Continue; next == "" {
			c.networks, c.read = []*around{newAround(out[0]), newAround(out[1])}, c.Now()
			return nil
		}
	}
}

// literals are the addresses that pods have from their topologies.
func literals(leases []*v1alpha1.AddressLease) []Network {
	var out []Network
	for _, l := range leases {
		if p, err := netip.ParsePrefix(l.Spec.Block); err == nil {
			out = append(out, Network{p.Masked(), fmt.Sprintf("pod %q", l.Spec.For)})
		}
	}
	return out
}

// around is an index of networks. No two are partly in one another, as they are prefixes.
type around struct {
	all      []Network // sorted, each before those in it
	within   []int     // of each the smallest other one around it, or -1
	compared int       // how many were looked at
}

func newAround(all []Network) *around {
	slices.SortStableFunc(all, func(a, b Network) int { return a.Prefix.Compare(b.Prefix) })
	all = slices.CompactFunc(all, func(a, b Network) bool { return a.Prefix == b.Prefix })
	r := &around{all: all, within: make([]int, len(all))}
	for i := range all {
		p := i - 1
		for p >= 0 && !all[p].Prefix.Contains(all[i].Prefix.Addr()) {
			p = r.within[p]
		}
		r.within[i] = p
	}
	return r
}

// of returns the networks of which a pool gives an address, with the subnet of the pool. It goes from address to address: the
// networks around one, then the first address that is given from the begin of the next network on.
func (r *around) of(l *addresspool.Layout) iter.Seq2[Network, netip.Prefix] {
	return func(yield func(Network, netip.Prefix) bool) {
		for _, from := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			var before netip.Addr
			for a, mine := l.From(from); a.IsValid(); a, mine = l.From(from) {
				next := sort.Search(len(r.all), func(i int) bool { return a.Less(r.all[i].Prefix.Addr()) })
				for i := next - 1; i >= 0 && !r.all[i].Prefix.Contains(before); i = r.within[i] {
					if r.compared++; r.all[i].Prefix.Contains(a) && !yield(r.all[i], mine) {
						return
					}
				}
				if next == len(r.all) || r.all[next].Prefix.Addr().Is4() != a.Is4() {
					break
				}
				before, from = a, r.all[next].Prefix.Addr()
			}
		}
	}
}

// maxOverlaps is how many overlaps a condition names.
const maxOverlaps = 4

// overlaps names the owners of addresses that a pool could allocate. The pool's subnet may be a network of nodes, as
// long as the pool does not allocate their addresses.
func overlaps(l *addresspool.Layout, shared addresspool.Shared, networks []*around) []string {
	var out []string
	if shared.Pool != "" {
		out = append(out, fmt.Sprintf("%s is shared with %s of AddressPool %q: "+
			"two pods may get the same address, which is right only where these networks do not reach one another", shared.Mine,
			shared.Theirs, shared.Pool))
	}
	for _, r := range networks {
		for n, mine := range r.of(l) {
			switch {
			case len(out) >= maxOverlaps:
				return append(out, "and more")
			case n.Prefix.IsSingleIP():
				out = append(out, fmt.Sprintf("%s is an address of %s, and would be given to a pod of %s: add it to exclude",
					n.Prefix.Addr(), n.Of, mine))
			default:
				out = append(out, fmt.Sprintf(
					"%[1]s and %[2]s of %[3]s share addresses: a pod with one of these may not reach %[3]s: add them to exclude", mine,
					n.Prefix, n.Of))
			}
		}
	}
	return out
}
