package addresses

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Literal is an address that a step has in its config, or a MAC address that a claim sets (addresspool.OfMAC). One pod has it at
// a time.
type Literal struct {
	Topology, Step string
	Address        netip.Addr
	// Switch is that on which alone it is (topology.SwitchOf), "" for none.
	Switch string
}

// Literals returns those of a topology of a claim, which has the parameters that the claim sets.
func Literals(t *topology.Topology, set []topology.Parameters) (out []Literal) {
	for i := range t.Steps {
		s := &t.Steps[i]
		for _, a := range topology.Exclusive(s) {
			out = append(out, Literal{t.Name, s.Name, a, topology.SwitchOf(s)})
		}
		j := slices.IndexFunc(set, func(p topology.Parameters) bool { return p.Step == s.Name })
		if j < 0 || s.AllowDuplicate {
			continue
		}
		if mac, err := net.ParseMAC(set[j].MAC); err == nil {
			out = append(out, Literal{t.Name, s.Name, addresspool.OfMAC(mac), ""})
		}
	}
	return out
}

// ErrInUse says that another pod has the literal address, or the MAC address that a claim sets.
var ErrInUse = errors.New("only one pod can have it at a time")

// asking is a claim that waits for leases of literal addresses.
type asking struct {
	claim     Claim
	addresses []netip.Addr // sorted: who waits for one has all before it, so that two never wait for each other
	since     time.Time
}

// holder is the pod elsewhere that has a literal address.
type holder struct{ pod, node string }

func (c *Claim) pod() string { return c.Namespace + "/" + c.Pod }

// takeLiterals records the literal addresses of a claim. If the node has not the lease of
// each, the next pass looks for them.
func (a *Allocator) takeLiterals(h *addresspool.Holdings, c *Claim, now time.Time) (changed bool, err error) {
	if len(c.Literals) == 0 {
		return false, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var all, missing []netip.Addr
	var inUse, allocated error
	for _, l := range slices.SortedFunc(slices.Values(c.Literals), func(x, y Literal) int { return x.Address.Compare(y.Address) }) {
		had := h.WithLiteral(l.Address)
		all = append(all, l.Address)
		if slices.ContainsFunc(had, func(g addresspool.Grant) bool { return g.Claim == string(c.UID) }) {
			continue // also one that it had before addresses were leased
		}
		if pool := a.allocating(l.Address, l.Switch); pool != "" {
			allocated = errors.Join(allocated, fmt.Errorf("step %q of NetworkTopology %q: %s is allocated to other pods by %s %q: "+
				"add it to exclude there, or set allowDuplicate: true on the step if these networks do not reach one another", l.Step,
				l.Topology, l.Address, v1alpha1.AddressPoolKind, pool))
		}
		lease := h.Lease(l.Address)
		switch other, elsewhere := a.holders[l.Address]; {
		case len(had) > 0:
			inUse = errors.Join(inUse, c.inUse(l, holder{had[0].Pod, a.NodeName}))
		case a.checked[addresspool.LeaseName(topology.LiteralPool, netip.PrefixFrom(l.Address, l.Address.BitLen()))].is(lease):
		case elsewhere:
			inUse = errors.Join(inUse, c.inUse(l, other))
			missing = append(missing, l.Address)
		default:
			missing = append(missing, l.Address)
		}
	}
	if allocated != nil {
		return false, fault.New(fault.Conflict, allocated)
	}
	if len(missing) > 0 || inUse != nil {
		a.asking[c.UID] = asking{*c, all, now}
	}
	switch {
	case inUse != nil:
		return false, fault.New(fault.Conflict, inUse)
	case len(missing) > 0:
		return false, fault.New(fault.NotReady,
			fmt.Errorf("%s: still checking whether another pod has it; retrying", addresspool.LiteralText(missing[0])))
	}
	delete(a.asking, c.UID)
	return h.AddLiteral(addresspool.Literal(string(c.UID), c.Namespace+"/"+c.Name, c.pod(), all)), nil
}

// allocating returns the pool, one of those that exist, which allocates an address where it is: on a switch alone, or "" anywhere else.
func (a *Allocator) allocating(address netip.Addr, on string) string {
	for _, name := range slices.Sorted(maps.Keys(a.pools)) {
		if l := a.pools[name].layout; l != nil && (l.Switch == "" || l.Switch == on) {
			if _, ok := l.Gives(netip.PrefixFrom(address, address.BitLen())); ok {
				return name
			}
		}
	}
	return ""
}

// inUse names both pods, unless the other one is in another namespace: tenants must not see
// the pods of others.
func (c *Claim) inUse(l Literal, by holder) error {
	namespace, name, _ := strings.Cut(by.pod, "/")
	who, detail := fmt.Sprintf("pod %q on node %q", name, by.node), ""
	if namespace != c.Namespace || name == "" {
		who, detail = "a pod of another namespace",
			fmt.Sprintf("pod %q on node %q has %s", by.pod, by.node, addresspool.LiteralText(l.Address))
	}
	instead := "use an AddressPool"
	if l.Address.IsMulticast() {
		instead = "have the claim set another one"
	}
	return fault.Detailed(
		fmt.Errorf("step %q of NetworkTopology %q: pod %q would have %s, which %s has: %w: %s, or set allowDuplicate: true on the step",
			l.Step, l.Topology, c.Pod, addresspool.LiteralText(l.Address), who, ErrInUse, instead), detail)
}

// asked returns the claims that wait for leases, without those that do not ask any more.
func (a *Allocator) asked() []asking {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.asking, func(_ types.UID, w asking) bool { return a.Now().Sub(w.since) > waitingTime })
	return slices.SortedFunc(maps.Values(a.asking), func(x, y asking) int { return x.since.Compare(y.since) })
}

// leaseLiterals takes the leases of literal addresses that claims wait for, or have without
// a lease: those of claims that were prepared by an earlier version, and those that an
// edit of their topology has given them. The latter keep an address that another pod has,
// too: nothing is taken from a pod that runs.
func (a *Allocator) leaseLiterals(ctx context.Context, node string) error {
	var unleased []netip.Addr
	var h *addresspool.Holdings
	if err := a.file.change(func(now *addresspool.Holdings) (changed bool, err error) {
		// A claim that ends loses its record first, and what it has second: records that were read before the lock
		// was taken may be of a claim that has ended since, which would have its address until its object is deleted.
		for _, g := range a.Recorded() {
			if g.Pool == topology.LiteralPool {
				changed = now.AddLiteral(g) || changed
			}
		}
		unleased, h = now.Unleased(), now.Clone()
		return changed, nil
	}); err != nil {
		return err
	}
	shared := map[netip.Addr]holder{}
	for _, address := range unleased {
		by, err := a.leaseLiteral(ctx, node, address, h.WithLiteral(address)[0].Pod)
		if err != nil {
			return err
		}
		if by != nil {
			shared[address] = *by
		}
	}
	a.warnOfShared(h, shared)
	holders := map[netip.Addr]holder{}
	for _, w := range a.asked() {
		for _, address := range w.addresses {
			if h.Lease(address) != "" || slices.Contains(unleased, address) {
				continue
			}
			by, err := a.leaseLiteral(ctx, node, address, w.claim.pod())
			if err != nil {
				return err
			}
			if by != nil {
				holders[address] = *by
				break
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holders = holders
	return nil
}

// leaseLiteral takes the lease of an address, or returns who has it.
func (a *Allocator) leaseLiteral(ctx context.Context, node string, address netip.Addr, pod string) (*holder, error) {
	block := netip.PrefixFrom(address, address.BitLen())
	name := addresspool.LeaseName(topology.LiteralPool, block)
	l, err := a.Leases.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	created := l == nil
	if created {
		lease := &v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{
			Pool: topology.LiteralPool, Block: block.String(), Node: a.NodeName, NodeUID: node, Used: 1, For: pod,
		}}
		lease.Name = name
		if l, err = a.Leases.Create(ctx, lease); apierrors.IsAlreadyExists(err) {
			return &holder{}, nil // the next pass reads whose it is
		}
		if err != nil {
			return nil, err
		}
	}
	by := &holder{l.Spec.For, l.Spec.Node}
	held, err := a.hold(ctx, node, name, l, created)
	if err != nil || !held {
		return by, err
	}
	return nil, nil
}

// warnOfShared logs once which addresses several pods have: they had them before it was
// refused.
func (a *Allocator) warnOfShared(h *addresspool.Holdings, elsewhere map[netip.Addr]holder) {
	shared := map[netip.Addr]string{}
	for address, by := range elsewhere {
		shared[address] = fmt.Sprintf("%s on node %s", by.pod, by.node)
	}
	for _, g := range h.Grants {
		for _, p := range g.Addresses {
			if others := h.WithLiteral(p.Addr()); g.Pool == topology.LiteralPool && len(others) > 1 {
				shared[p.Addr()] = others[1].Pod
			}
		}
	}
	for address, with := range shared {
		if a.shared[address] != with {
			a.Log.Warn("two pods have the same IP or MAC address: both keep it, and the next pod that requests it waits", "literal",
				addresspool.LiteralText(address), "pod", h.WithLiteral(address)[0].Pod, "other", with)
		}
	}
	a.shared = shared
}
