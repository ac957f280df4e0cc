package admission

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/suggest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// pools warns of what a topology and the AddressPools that exist say of each other. A spec that is new is refused if no
// pod could ever have its addresses: how a pool is divided cannot change.
func (w *Webhook) pools(ctx context.Context, t *topology.Topology, edited bool, a *answer) error {
	var pools v1alpha1.AddressPoolList
	if err := w.reader.List(ctx, &pools, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pools: %w", err)
	}
	slices.SortFunc(pools.Items, func(a, b v1alpha1.AddressPool) int { return cmp.Compare(a.Name, b.Name) }) // warnings have one order
	pools.Items = withSubnets(t, pools.Items)
	warnOfPools(t, pools.Items, a)
	if err := w.warnOfNetworks(ctx, t, a); err != nil {
		return err
	}
	for _, problem := range neverEnough(t, pools.Items) {
		if edited {
			a.problems = append(a.problems, problem)
		} else {
			a.warn("%s", problem)
		}
	}
	if !slices.ContainsFunc(t.Steps, func(s topology.Step) bool { return len(topology.Exclusive(&s)) > 0 }) {
		return nil
	}
	var others v1alpha1.NetworkTopologyList
	if err := w.reader.List(ctx, &others, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list topologies: %w", err)
	}
	warnOfLiterals(t, others.Items, a)
	return nil
}

// withSubnets returns pools with those that the controller is about to make of a topology.
func withSubnets(t *topology.Topology, pools []v1alpha1.AddressPool) []v1alpha1.AddressPool {
	for _, of := range t.NetworkPools() {
		if !slices.ContainsFunc(pools, func(p v1alpha1.AddressPool) bool { return p.Name == of.Pool }) {
			pools = append(pools, *addresspool.OfSubnets(of.IPAM))
		}
	}
	return pools
}

// warnOfNetworks warns of steps that have addresses of the pool of their physical network, while no policy names one.
func (w *Webhook) warnOfNetworks(ctx context.Context, t *topology.Topology, a *answer) error {
	steps := slices.DeleteFunc(slices.Clone(t.Steps), func(s topology.Step) bool { return !topology.OfNetwork(&s) })
	if len(steps) == 0 {
		return nil
	}
	var objects v1alpha1.DeviceExposurePolicyList
	if err := w.reader.List(ctx, &objects, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list policies: %w", err)
	}
	if validity.NamesPool(w.policies.Read(objects.Items)) {
		return nil
	}
	for i := range steps {
		a.warn("NetworkTopology %q, step %q: %s", t.Name, steps[i].Name, validity.NoPool)
	}
	return nil
}

// warnOfLiterals warns of addresses that other topologies have, too. Of the thousands that
// there may be only those are decoded that contain an address, however it is spelt.
func warnOfLiterals(t *topology.Topology, others []v1alpha1.NetworkTopology, a *answer) {
	literals := map[netip.Addr]string{}
	for i := range t.Steps {
		for _, address := range topology.Exclusive(&t.Steps[i]) {
			literals[address] = t.Steps[i].Name
		}
	}
	for i := range others {
		o := &others[i]
		if o.Name == t.Name || !slices.ContainsFunc(o.Spec.Steps, func(s v1alpha1.Step) bool {
			return s.Config != nil && contains(s.Config.Raw, literals)
		}) {
			continue
		}
		other, err := topology.FromObject(o)
		if err != nil {
			continue
		}
		for j := range other.Steps {
			for _, address := range topology.Exclusive(&other.Steps[j]) {
				if step, both := literals[address]; both {
					a.warn(
						"NetworkTopology %q, step %q: NetworkTopology %q, step %q has the address %s, too: only one pod can have it at a "+
							"time. Set allowDuplicate: true on both steps for anycast, or where these networks do not reach one another",
						t.Name, step, o.Name, other.Steps[j].Name, address)
				}
			}
		}
	}
}

// contains reports whether a string in JSON is one of the addresses, with a prefix length.
func contains(raw []byte, addresses map[netip.Addr]string) bool {
	for text := range bytes.SplitSeq(raw, []byte{'"'}) {
		if len(text) > len("0000:0000:0000:0000:0000:ffff:255.255.255.255/128") || !bytes.Contains(text, []byte{'/'}) {
			continue
		}
		if p, err := netip.ParsePrefix(string(text)); err == nil {
			if _, is := addresses[p.Addr().Unmap()]; is {
				return true
			}
		}
	}
	return false
}

// layouts has those of the pools that were read: of thousands, a topology has to do with few.
type layouts map[string]*addresspool.Layout

// of returns the layout of a pool, nil if it is not valid.
func (r layouts) of(o *v1alpha1.AddressPool) *addresspool.Layout {
	if _, known := r[o.Name]; !known {
		r[o.Name], _ = addresspool.Of(o)
	}
	return r[o.Name]
}

// poolNamed returns the pool of a name, or nil.
func poolNamed(pools []v1alpha1.AddressPool, name string) *v1alpha1.AddressPool {
	for i := range pools {
		if pools[i].Name == name {
			return &pools[i]
		}
	}
	return nil
}

// warnOfPools warns of addresses that a pod of the topology and one with an address of a
// pool would have both, and of pools that do not exist.
func warnOfPools(t *topology.Topology, pools []v1alpha1.AddressPool, a *answer) {
	layouts := layouts{}
	for i := range t.Steps {
		s := &t.Steps[i]
		if pool, _, ok := topology.FromPool(s); ok && pool != topology.LocalPool && pool != "" {
			switch o := poolNamed(pools, pool); {
			case o == nil:
				names := excerpt.Texts(pools, func(p v1alpha1.AddressPool) string { return p.Name })
				a.warn("NetworkTopology %q, step %q: there is no %s %q%s: pods wait until there is one", t.Name, s.Name,
					v1alpha1.AddressPoolKind, pool, suggest.Hint(pool, names))
			case layouts.of(o) != nil && disagrees(layouts.of(o), s) != nil:
				a.warn("NetworkTopology %q, step %q: %v: pods wait until step and pool agree", t.Name, s.Name, disagrees(layouts.of(o), s))
			}
		}
		own := topology.SwitchOf(s)
		for _, literal := range topology.Exclusive(s) {
			for i := range pools {
				if on := pools[i].Annotations[v1alpha1.AnnotationSwitch]; on != "" && on != own {
					continue
				}
				if l := layouts.of(&pools[i]); l != nil {
					if _, given := l.Gives(netip.PrefixFrom(literal, literal.BitLen())); given {
						a.warn("NetworkTopology %q, step %q: %s is allocated to other pods by %s %q, so no pod gets it: add it to "+
							"exclude there, or set allowDuplicate: true on the step if these networks do not reach one another", t.Name,
							s.Name, literal, v1alpha1.AddressPoolKind, l.Name)
					}
				}
			}
		}
	}
}

// neverEnough describes the steps for which a pool never has an address, as it has no such part, or has fewer addresses for a
// node than the topology has steps of it.
func neverEnough(t *topology.Topology, pools []v1alpha1.AddressPool) (problems []string) {
	layouts, ifaces := layouts{}, map[string][]int{}
	for i := range t.Steps {
		s := &t.Steps[i]
		pool, iface, ok := topology.FromPool(s)
		o := poolNamed(pools, pool)
		if !ok || o == nil || !o.DeletionTimestamp.IsZero() {
			continue
		}
		if l := layouts.of(o); l != nil && disagrees(l, s) == nil {
			with := append(slices.Clone(ifaces[pool]), iface)
			if err := l.Enough(with); err != nil {
				problems = append(problems, fmt.Sprintf(
					"NetworkTopology %q, step %q: ipam: %v: no pod would get an address. Name another pool, or another interface", t.Name,
					s.Name, err))
				continue
			}
			ifaces[pool] = with
		}
	}
	return problems
}

// disagrees returns the difference between a pool and the demands of a step.
func disagrees(l *addresspool.Layout, s *topology.Step) error {
	c, ok := topology.Division(s)
	if !ok {
		return nil
	}
	return l.Agrees(c)
}

// pool decides on an AddressPool. Pools that share addresses cause a warning: networks that
// do not reach one another may use the same ones.
func (w *Webhook) pool(ctx context.Context, r admission.Request) (a answer, err error) {
	o, err := decode[v1alpha1.AddressPool](r)
	if err != nil {
		return a, err
	}
	if !o.DeletionTimestamp.IsZero() {
		return a, nil
	}
	l, err := addresspool.Of(o)
	if err != nil {
		a.refuse(err)
		return a, nil
	}
	if r.Operation == admissionv1.Update {
		return a, nil // what could overlap is immutable
	}
	var others v1alpha1.AddressPoolList
	if err := w.reader.List(ctx, &others, client.UnsafeDisableDeepCopy); err != nil {
		return a, fmt.Errorf("list pools: %w", err)
	}
	for i := range others.Items {
		if others.Items[i].Name == o.Name || others.Items[i].Annotations[v1alpha1.AnnotationSwitch] != l.Switch {
			continue
		}
		other, err := addresspool.Of(&others.Items[i])
		if err != nil {
			continue // it was refused, or its condition says so
		}
		if mine, theirs, ok := l.Overlaps(other); ok {
			a.warn("%s %q shares addresses with %q (%s and %s): "+
				"two pods may get the same one, which is right only where these networks do not reach one another",
				v1alpha1.AddressPoolKind, o.Name, other.Name, mine, theirs)
		}
	}
	return a, nil
}
