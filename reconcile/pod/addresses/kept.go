package addresses

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// An address of a pool with reclaimAfter is kept for the next pod of the same name. In a
// block of several addresses that is known on this node alone: the address rests, and only
// that pod gets it. A block of one address is kept for all nodes: when the claim has
// ended, the node writes into the lease for whom and until when it is kept, and does not hold
// it any more. Who wants it, also on the same node, takes the lease over. One of two writes
// is refused, so it is never given twice.

// identity names who gets an address again: a step of a claim of a pod, by their names.
func identity(c *Claim, w Want) string {
	return strings.Join([]string{c.Namespace, c.Pod, c.InPod, w.Topology, w.Step}, "/")
}

// maxFor is the length of spec.for of a lease that the API server accepts.
const maxFor = 1024

// labelFor is the value of the label by which leases of an identity are found.
func labelFor(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(sum[:16])
}

// seek is a search for an address that is kept for an identity.
type seek struct {
	pool, identity string
	since          time.Time
	done           bool
	elsewhere      string // the node that has not released it yet
}

// keptElsewhere returns an error while an earlier pod has the address that is kept for an identity, and until it is
// known whether another node has it. The caller holds a.mu.
func (a *Allocator) keptElsewhere(h *addresspool.Holdings, c *Claim, pool, identity string, single bool, o *offer) error {
	if h.HeldFor(pool, identity, string(c.UID), string(c.PodUID)) {
		o.stuck = true
		return inUseOn(pool, a.NodeName)
	}
	if !single {
		return nil
	}
	o.seeks[identity] = pool
	switch s := a.seeks[identity]; {
	case s == nil || s.pool != pool || !s.done:
		o.asks = true
		return fault.New(fault.NotReady, fmt.Errorf("still checking whether AddressPool %q keeps an address for the pod; retrying", pool))
	case s.elsewhere != "":
		o.stuck = true
		return inUseOn(pool, s.elsewhere)
	}
	return nil
}

// seek looks up whether an address is kept for an identity, also once more if another node had it. The caller holds a.mu.
func (a *Allocator) seek(pool, identity string, now time.Time) {
	s := a.seeks[identity]
	if s == nil || s.pool != pool {
		s = &seek{pool: pool, identity: identity}
		a.seeks[identity] = s
	}
	s.since, s.done = now, s.done && s.elsewhere == ""
}

// inUseOn: the previous pod of the name has not released its address.
func inUseOn(pool, node string) error {
	return fault.New(fault.NotReady, fmt.Errorf("the address of AddressPool %q that is kept for the pod is still in use on node %q: "+
		"it is released when the pod's previous claim has ended there, or 10 minutes after the Node object was deleted", pool, node))
}

// searches returns the searches of claims that still wait.
func (a *Allocator) searches() []seek {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.seeks, func(_ string, s *seek) bool { return a.Now().Sub(s.since) > waitingTime })
	var out []seek
	for _, id := range slices.Sorted(maps.Keys(a.seeks)) {
		out = append(out, *a.seeks[id])
	}
	return out
}

// keep writes into leases for whom they are kept, and takes over those of claims that wait.
func (a *Allocator) keep(ctx context.Context, node string) error {
	searches := a.searches()
	wanted := func(identity string) bool {
		return slices.ContainsFunc(searches, func(s seek) bool { return s.identity == identity })
	}
	held, err := a.held()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range held {
		p := a.pool(name)
		if p == nil || p.layout == nil {
			continue
		}
		var blocks []addresspool.Held
		if err := a.file.change(func(h *addresspool.Holdings) (changed bool, err error) {
			if p.ending {
				changed = h.KeepNothing(name, a.Now().Unix()+p.quarantine)
			} else {
				now := a.Now().Unix()
				changed = h.Abandon(name, now, now+p.reclaim, int64(waitingTime/time.Second), wanted)
			}
			blocks = h.ToKeep(name)
			return changed, nil
		}); err != nil {
			return err
		}
		for _, b := range blocks {
			errs = append(errs, a.part(ctx, b))
		}
	}
	for _, s := range searches {
		if s.done {
			continue
		}
		elsewhere, err := a.search(ctx, node, s)
		if err != nil {
			if errs = append(errs, err); !refused(err) {
				break
			}
			continue
		}
		a.mu.Lock()
		if now := a.seeks[s.identity]; now != nil {
			now.done, now.elsewhere = true, elsewhere
		}
		a.mu.Unlock()
	}
	return errors.Join(errs...)
}

// part ends that the node holds a block, whose lease is kept from then on.
func (a *Allocator) part(ctx context.Context, b addresspool.Held) error {
	l, err := a.Leases.Get(ctx, addresspool.LeaseName(b.Pool, b.Block))
	if err != nil {
		return err
	}
	if l != nil && string(l.UID) == b.Lease && l.Spec.Node == a.NodeName && l.Spec.KeptUntil == nil {
		l.Spec.For, l.Spec.Used, l.Spec.Node, l.Spec.NodeUID = b.Kept.For, 0, v1alpha1.KeptNode, ""
		l.Spec.KeptUntil = new(metav1.Unix(b.Kept.Until, 0))
		if _, err := a.Leases.Update(ctx, l); apierrors.IsInvalid(err) {
			a.Log.Warn("the API server refused to record an address that is kept for a pod: it is kept on this node only", "lease", l.Name,
				"error", err)
			return a.file.change(func(h *addresspool.Holdings) (bool, error) { return h.KeepHere(b), nil })
		} else if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return a.file.change(func(h *addresspool.Holdings) (bool, error) { h.Part(b); return true, nil })
}

// search takes over the leases that are kept for an identity, one of each family, or returns
// the node that has not released one.
func (a *Allocator) search(ctx context.Context, node string, s seek) (elsewhere string, err error) {
	p := a.pool(s.pool)
	if p == nil || p.layout == nil || p.ending {
		return "", nil
	}
	leases, err := a.Leases.KeptFor(ctx, s.pool, s.identity)
	if err != nil {
		return "", err
	}
	has := map[bool]bool{}
	for i := range leases {
		l := &leases[i]
		block, err := netip.ParsePrefix(l.Spec.Block)
		if err != nil || l.Spec.For != s.identity || l.Name != addresspool.LeaseName(s.pool, block) || p.layout.Holds(block) != nil ||
			!l.DeletionTimestamp.IsZero() {
			continue
		}
		is4 := block.Addr().Is4()
		switch {
		case l.Spec.KeptUntil == nil && l.Spec.Node != a.NodeName:
			elsewhere = l.Spec.Node
			continue
		case l.Spec.KeptUntil == nil || has[is4]:
			continue
		}
		l.Spec.Node, l.Spec.NodeUID, l.Spec.KeptUntil = a.NodeName, node, nil
		taken, err := a.Leases.Update(ctx, l)
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue // another node has taken it, or its time has passed
		}
		if err != nil {
			return "", err
		}
		has[is4] = true
		if err := a.file.change(func(h *addresspool.Holdings) (bool, error) {
			h.GainFor(p.layout, block, string(taken.UID), s.identity, a.Now().Unix())
			a.check(taken)
			return true, nil
		}); err != nil {
			return "", err
		}
	}
	return elsewhere, nil
}
