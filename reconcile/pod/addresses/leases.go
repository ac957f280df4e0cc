package addresses

import (
	"cmp"
	"context"
	nonce "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Leases is the API server.
type Leases interface {
	table.Source // pools or leases of this node may have changed
	// NodeUID is that of the node's object.
	NodeUID(ctx context.Context) (string, error)
	// Pools are those that there were a moment ago.
	Pools() ([]v1alpha1.AddressPool, error)
	// Own are the leases that this node had a moment ago.
	Own() ([]v1alpha1.AddressLease, error)
	// Get reads a lease as it is now, nil for none.
	Get(ctx context.Context, name string) (*v1alpha1.AddressLease, error)
	// Taken lists the names of all leases of a pool.
	Taken(ctx context.Context, pool string) (map[string]bool, error)
	Create(ctx context.Context, l *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error)
	Update(ctx context.Context, l *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error)
	// KeptFor lists the leases of a pool with the label of an identity.
	KeptFor(ctx context.Context, pool, identity string) ([]v1alpha1.AddressLease, error)
	// Delete deletes a lease unless it was written since it was read.
	Delete(ctx context.Context, l *v1alpha1.AddressLease) error
}

const (
	drops       = 64               // leases of a pool that are deleted in one pass
	tries       = 16               // blocks that are tried before the leases of a pool are listed
	walk        = 1 << 16          // blocks that are searched for a free one, beside those that are taken
	pace        = 30 * time.Second // between passes that nothing triggers
	minPause    = 5 * time.Second  // between writes of what is free, and before a pool that was full is asked again
	waitingTime = time.Minute      // how long a claim that was refused counts as waiting
	lowFor      = time.Minute      // how long a pool counts as Low after it was; else what some give up, others lease ahead of need
	watchLag    = 10 * time.Second // how long the watch may lag behind our own reads and writes
	maxPause    = 8 * time.Second  // between passes that fail; then half as long again
)

// Run keeps the leases of the node until ctx ends.
func (a *Allocator) Run(ctx context.Context) {
	var pause, rest time.Duration
	loop.Loop{
		Every: pace, Wake: a.wake,
		Pass: func(ctx context.Context) (next time.Duration, err error) {
			err = a.Pass(ctx)
			unheard := errors.Is(err, errUnheard) // it has just begun
			if err != nil && !unheard && !errors.Is(err, errFull) {
				// An API server that cannot serve all nodes is asked less often, and not by all at once.
				pause = min(max(2*pause, time.Second), maxPause)
				rest = pause/2 + a.random(pause)
				return time.Nanosecond, err // after the rest
			}
			pause, rest = 0, 0
			if err != nil || a.behind || a.waiting() {
				next = time.Second
			}
			if unheard {
				err = nil
			}
			return next, err
		},
		Rest: func(time.Duration) time.Duration { return rest },
		Warn: func(err error) { a.Log.Warn("address lease pass failed", "error", err) },
	}.Run(ctx)
}

// waiting reports whether a claim waits for a lease.
func (a *Allocator) waiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.waiters(a.Now())) > 0 || len(a.asking) > 0 || len(a.seeks) > 0
}

// Pass compares what the node holds with the API server once, and takes and ends leases.
func (a *Allocator) Pass(ctx context.Context) error {
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		close(a.passed)
		a.passed = make(chan struct{})
	}()
	if err := a.readPools(); err != nil {
		return err
	}
	if err := a.file.change(func(h *addresspool.Holdings) (bool, error) {
		return h.Expire(a.Now().Unix(), a.maxQuarantine),
			nil
	}); err != nil {
		return err
	}
	if idle, err := a.idle(); err != nil || idle {
		return errors.Join(err, a.report(ctx))
	}
	node, err := a.Leases.NodeUID(ctx)
	if err != nil {
		return err
	}
	if err := a.adopt(ctx, node); err != nil {
		return err
	}
	var errs []error
	errs = append(errs, a.endLost(ctx), a.leaseLiterals(ctx, node), a.keep(ctx, node), a.obtain(ctx, node))
	held, err := a.held()
	errs = append(errs, err)
	for _, name := range held {
		errs = append(errs, a.giveUp(ctx, name))
	}
	return errors.Join(append(errs, a.report(ctx))...)
}

// idle reports whether the node has no addresses and nobody waits for any. Then a pass sends
// no request: most nodes of a cluster may be like that.
func (a *Allocator) idle() (idle bool, err error) {
	heard, err := a.Leases.Own()
	if err != nil || len(heard) > 0 || a.waiting() || len(a.Recorded()) > 0 {
		return false, err
	}
	h, err := a.file.holdings()
	return err == nil && len(h.Blocks) == 0 && len(h.Grants) == 0, err
}

// held returns the pools of which the node has anything: a cluster may have one for each network of OVN.
func (a *Allocator) held() ([]string, error) {
	h, err := a.file.holdings()
	if err != nil {
		return nil, err
	}
	return h.Pools(), nil
}

func (a *Allocator) pool(name string) *pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pools[name]
}

func (a *Allocator) readPools() error {
	objects, err := a.Leases.Pools()
	if err != nil {
		return err
	}
	// Of literal addresses no lease is kept ahead of need, and none rests: the next pod replaces the one before.
	pools := map[string]*pool{topology.LiteralPool: {layout: addresspool.Literals(), low: true}}
	now := a.Now()
	for i := range objects {
		o := &objects[i]
		p := &pool{quarantine: addresspool.Quarantine(o), reclaim: addresspool.Reclaim(o)}
		p.ending = !o.DeletionTimestamp.IsZero() || !slices.Contains(o.Finalizers, v1alpha1.AddressPoolFinalizer)
		before := cmp.Or(a.pool(o.Name), &pool{})
		p.wasLow = before.wasLow
		if before.of != nil && maps.Equal(before.of.Annotations, o.Annotations) && reflect.DeepEqual(before.of.Spec, o.Spec) {
			p.of, p.layout, p.err = before.of, before.layout, before.err
		} else {
			p.of = o.DeepCopy()
			p.layout, p.err = addresspool.Of(o)
		}
		if slices.ContainsFunc(o.Status.Conditions,
			func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionLow && c.Status == "True" }) {
			p.wasLow = now
		}
		p.low = now.Sub(p.wasLow) < lowFor
		p.nodes = o.Status.Nodes
		p.ample = !p.low && (ample(o.Status.Size, o.Status.Leased) || o.Status.Size == math.MaxInt64) // it has too many to count
		pools[o.Name] = p
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pools = pools
	return nil
}

// ample reports whether a pool has enough addresses for leases ahead of need. The bound is below that of the
// condition Low: a lease that made the pool Low would be given up at once, and taken again as soon as the pool is no
// longer Low.
func ample(size, leased int64) bool { return leased < size-max(size/5, 1) }

// adopt brings the file into line with the API server: leases of this node that the file lacks are added, as after a
// crash, and blocks whose lease is gone, or is another one, are lost. The watch may lag, so what it tells is only the
// reason to query.
func (a *Allocator) adopt(ctx context.Context, node string) error {
	heard, err := a.Leases.Own()
	if err != nil {
		return err
	}
	names, told, uids := map[string]bool{}, map[string]bool{}, map[string]string{}
	for i := range heard {
		names[heard[i].Name], told[heard[i].Name] = true, true
		if heard[i].Spec.NodeUID == node {
			uids[heard[i].Name] = string(heard[i].UID)
		}
	}
	a.mu.Lock()
	for name := range names {
		if l := a.checked[name]; l != nil && l.uid == uids[name] {
			l.heard = true
		}
	}
	a.mu.Unlock()
	held := map[string]string{}
	h, err := a.file.holdings()
	if err != nil {
		return err
	}
	for _, b := range h.Blocks {
		if name := addresspool.LeaseName(b.Pool, b.Block); !b.Lost {
			names[name], held[name] = true, b.Lease
		}
	}
	a.mu.Lock()
	maps.DeleteFunc(a.checked, func(name string, _ *known) bool { return !names[name] }) // those that were given up
	a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a.upToDate(name, held[name], uids[name], told[name]) {
			continue
		}
		l, err := a.Leases.Get(ctx, name)
		if err != nil {
			return err
		}
		if l != nil {
			if p := a.pool(l.Spec.Pool); p == nil || p.layout == nil {
				continue // nothing is given from it until it can be read
			}
		}
		if _, err := a.hold(ctx, node, name, l, false); err != nil {
			return err
		}
	}
	return nil
}

// upToDate reports whether what we have of a lease can be used without a read: the watch shows the same, or it may lag behind
// our own read.
func (a *Allocator) upToDate(name, held, heard string, told bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.checked[name]
	return l.is(held) && (held == heard || !told && !l.heard && a.Now().Sub(l.at) < watchLag)
}

// hold records what was read of a lease, and reports whether it is one that this node can give from. One that the file lacks is
// written first, unless it was written just now: it may be that it was given up, and that the request to delete it comes late.
func (a *Allocator) hold(ctx context.Context, node, name string, l *v1alpha1.AddressLease, written bool) (bool, error) {
	own, err := a.own(ctx, node, l, false)
	if err != nil {
		return false, err
	}
	settled, err := a.settle(name, own, written)
	if err == nil && !settled {
		if own, err = a.own(ctx, node, own, true); err == nil {
			_, err = a.settle(name, own, true)
		}
	}
	return own != nil, err
}

// own returns a lease if it is one that this node can give from, else nil. One of an
// earlier Node object of this name is taken over: whoever ends the leases of nodes that
// are gone would end it, and one of both writes is refused. With write it is written in any case.
func (a *Allocator) own(ctx context.Context, node string, l *v1alpha1.AddressLease, write bool) (*v1alpha1.AddressLease, error) {
	if l == nil || l.Spec.Node != a.NodeName || l.Spec.KeptUntil != nil || !l.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	block, err := netip.ParsePrefix(l.Spec.Block)
	if err != nil || l.Name != addresspool.LeaseName(l.Spec.Pool, block) || a.pool(l.Spec.Pool).layout.Holds(block) != nil {
		return nil, nil
	}
	if l.Spec.NodeUID == node && !write {
		return l, nil
	}
	if l.Spec.NodeUID = node; write {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, v1alpha1.AnnotationRegained, nonce.Text()) // without a change nothing is written
	}
	changed, err := a.Leases.Update(ctx, l)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil, nil // somebody was faster
	}
	return changed, err
}

// settle records what was read of a lease: that it is the node's, or is not. It does nothing, and says so, with one that the file
// lacks and that was not written.
func (a *Allocator) settle(name string, l *v1alpha1.AddressLease, written bool) (settled bool, err error) {
	err = a.file.change(func(h *addresspool.Holdings) (changed bool, err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		settled = true
		delete(a.checked, name)
		i := slices.IndexFunc(h.Blocks, func(b addresspool.Held) bool { return addresspool.LeaseName(b.Pool, b.Block) == name })
		if l == nil {
			if i < 0 || h.Blocks[i].Lost {
				return false, nil
			}
			a.Log.Warn("lost a lease of addresses", "lease", name)
			h.Lose(h.Blocks[i].Pool, h.Blocks[i].Block)
			return true, nil
		}
		held := i >= 0 && !h.Blocks[i].Lost && h.Blocks[i].Lease == string(l.UID)
		if settled = held || written; !settled {
			return false, nil
		}
		if a.checked[name] = (&known{uid: string(l.UID), at: a.Now()}); held {
			return false, nil
		}
		layout, block := a.pools[l.Spec.Pool].layout, netip.MustParsePrefix(l.Spec.Block)
		if l.Spec.For != "" && l.Spec.Pool != topology.LiteralPool { // taken over for it by a process that has not recorded it
			h.GainFor(layout, block, string(l.UID), l.Spec.For, a.Now().Unix())
		} else {
			h.Gain(layout, block, string(l.UID))
		}
		return true, nil
	})
	return settled, err
}

// endLost gives back what a claim has that nobody will ever unprepare: the agent died
// between giving it and recording the claim.
func (a *Allocator) endLost(ctx context.Context) error {
	recorded := map[string]bool{}
	for _, g := range a.Recorded() {
		recorded[g.Claim] = true
	}
	h, err := a.file.holdings()
	if err != nil {
		return err
	}
	for _, g := range h.Grants {
		if recorded[g.Claim] {
			continue
		}
		ended, err := a.Ended(ctx, g)
		if err != nil {
			return err
		}
		if !ended {
			continue
		}
		if err := a.file.change(func(h *addresspool.Holdings) (bool, error) {
			return h.GiveBack(g.Claim, a.Now().Unix(), a.quarantine), nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// errFull: every block of the pool is leased.
var errFull = errors.New("all blocks are leased: name a larger pool, or see kubectl get addressleases for nodes that have many")

// create makes the lease of a free block.
func (a *Allocator) create(ctx context.Context, node string, l *addresspool.Layout, g addresspool.Group) error {
	usable := g.Usable()
	n, start := usable.Len(), uint64(0)
	if l.Flat() {
		held, err := a.highest(l, g)
		if err != nil {
			return err
		}
		for i, index := range probes(fmt.Sprint(a.NodeName, "/", l.Name, "/", held), n) {
			if i == tries {
				break
			}
			if done, err := a.try(ctx, node, l, g, usable.At(index)); done || err != nil {
				return err
			}
			start = index
		}
	}
	taken, err := a.Leases.Taken(ctx, l.Name)
	if err != nil {
		return err
	}
	free := func(index uint64) bool {
		block, gives := g.At(usable.At(index))
		return gives && !taken[addresspool.LeaseName(l.Name, block)]
	}
	conflicts := 0
	for index := range freeBlocks(start, n, uint64(len(taken)), free, a.Random) {
		if done, err := a.try(ctx, node, l, g, usable.At(index)); done || err != nil {
			return err
		}
		if conflicts++; conflicts == tries {
			break // so many were leased since they were listed
		}
	}
	if conflicts > 0 {
		return errContended
	}
	return errFull
}

// errContended: other nodes have leased the blocks that were free.
var errContended = errors.New("other nodes are leasing blocks of this pool right now: retrying in a few seconds")

// freeBlocks yields the free numbers below n, from start on. Each that the caller asks for after the first means that another
// node has taken the one before. So that nodes which collided once do not collide again, each then skips a random number of
// free ones (below 1, 2, 4 and so on); what was skipped is yielded last.
func freeBlocks(start, n, taken uint64, free func(uint64) bool, random func(uint64) uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		skip, below := uint64(0), uint64(1)
		tried := map[uint64]bool{}
		for i := range min(walk+taken, 2*n) {
			index := (start + i) % n
			if tried[index] || !free(index) {
				continue
			}
			if skip > 0 {
				skip--
				continue
			}
			if tried[index] = true; !yield(index) {
				return
			}
			skip = random(below)
			below = min(2*below, max(n-min(n, taken+uint64(len(tried))), 1))
		}
	}
}

// probes returns the numbers below n in an order that differs from seed to seed, so that
// nodes seldom try the same blocks, and a block that is taken says nothing about the next
// one. Trying neighbours would make runs of taken blocks, which each lease makes longer.
func probes(seed string, n uint64) iter.Seq2[int, uint64] {
	hash := sha256.Sum256([]byte(seed))
	at, step := binary.BigEndian.Uint64(hash[:])%max(n, 1), binary.BigEndian.Uint64(hash[8:])%max(n, 1)
	for gcd(step, n) > 1 { // it would not come to each number
		step++
	}
	return func(yield func(int, uint64) bool) {
		for i := 0; uint64(i) < n && yield(i, at); i++ {
			at = (at + step) % n
		}
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// highest returns the number behind the last block that the node has, 0 for none.
func (a *Allocator) highest(l *addresspool.Layout, g addresspool.Group) (next uint64, err error) {
	h, err := a.file.holdings()
	if err != nil {
		return 0, err
	}
	for _, b := range h.Blocks {
		if b.Pool != l.Name || b.Block.Addr().Is4() != g.IPv4() {
			continue
		}
		if i, err := l.Number(b.Block); err == nil {
			next = max(next, i+1)
		}
	}
	return next, nil
}

// try creates the lease of a block; not done if it is another's or has nothing to give.
func (a *Allocator) try(ctx context.Context, node string, l *addresspool.Layout, g addresspool.Group, index uint64) (done bool, err error) {
	block, usable := g.At(index)
	if !usable {
		return false, nil
	}
	lease := &v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{Pool: l.Name, Block: block.String(), Node: a.NodeName, NodeUID: node}}
	lease.Name = addresspool.LeaseName(l.Name, block)
	made, err := a.Leases.Create(ctx, lease)
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	a.Log.Info("addresses leased", "pool", l.Name, "block", block)
	return true, a.file.change(func(h *addresspool.Holdings) (bool, error) {
		h.Gain(l, block, string(made.UID))
		a.check(made)
		return true, nil
	})
}

// check records that the API server has a lease.
func (a *Allocator) check(l *v1alpha1.AddressLease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checked[l.Name] = &known{uid: string(l.UID), at: a.Now()}
}

// giveUp ends leases of idle blocks: all of a pool that is deleted; else, of a flat pool,
// those beyond one that is kept ahead of need, and that one too when others need it.
func (a *Allocator) giveUp(ctx context.Context, name string) error {
	p := a.pool(name)
	if p == nil || p.layout == nil || !p.ending && !p.layout.Flat() {
		return nil
	}
	asked := a.asked()
	idle := func(h *addresspool.Holdings) (out []addresspool.Held) {
		keep := map[bool]int{}
		if !p.ending && !p.low {
			keep[true], keep[false] = 1, 1
		}
		for _, b := range slices.Backward(a.unreserved(h, name)) { // the oldest is kept
			if slices.ContainsFunc(asked, func(w asking) bool {
				return name == topology.LiteralPool && slices.Contains(w.addresses, b.Block.Addr())
			}) {
				continue
			}
			if is4 := b.Block.Addr().Is4(); keep[is4] > 0 {
				keep[is4]--
				continue
			}
			out = append(out, b)
		}
		return out[:min(len(out), drops)]
	}
	h, err := a.file.holdings()
	if err != nil {
		return err
	}
	// They are deleted as they are before the file lacks them: whoever finds one afterwards writes it (hold).
	read := map[string]*v1alpha1.AddressLease{}
	for _, b := range idle(h) {
		l, err := a.Leases.Get(ctx, addresspool.LeaseName(b.Pool, b.Block))
		if err != nil {
			return err
		}
		if l != nil && string(l.UID) == b.Lease {
			read[l.Name] = l
		}
	}
	var dropped []*v1alpha1.AddressLease
	if err := a.file.change(func(h *addresspool.Holdings) (bool, error) {
		for _, b := range idle(h) {
			if l := read[addresspool.LeaseName(b.Pool, b.Block)]; l != nil && string(l.UID) == b.Lease &&
				h.Drop(name, b.Block, a.Now().Unix()) {
				dropped = append(dropped, l)
			}
		}
		return len(dropped) > 0, nil
	}); err != nil {
		return err
	}
	for _, l := range dropped {
		if err := a.Leases.Delete(ctx, l); err != nil {
			return err // the next pass finds the lease, and that it is this node's
		}
	}
	return nil
}

// unreserved returns the blocks of a pool that are idle and that no claim waits for. Blocks leased for a claim that got
// too few, since the pool is full, are given up after most tries (see [fullness.holds]). A block with a gateway of a claim that
// waits counts as one that the claim waits for: if it were given up, it would be leased for the claim again.
func (a *Allocator) unreserved(h *addresspool.Holdings, name string) []addresspool.Held {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, rest := a.Now(), a.usable(h)
	gaveUp := func(l lack) bool {
		f := a.full[l]
		return f != nil && !f.until.IsZero() && !f.holds()
	}
	a.reserve(rest, "", now, gaveUp)
	waiters := a.waiters(now)
	return slices.DeleteFunc(rest.Idle(name, now.Unix()), func(b addresspool.Held) bool {
		return !gaveUp(lack{name, b.Block.Addr().Is4()}) && slices.ContainsFunc(waiters, func(c *waiting) bool {
			wants := slices.ContainsFunc(c.wants, func(w Want) bool { return w.Pool == name })
			return wants && slices.ContainsFunc(c.claim.Gateways, b.Block.Contains)
		})
	})
}

// Count counts the addresses of a pool that the node has.
type Count struct {
	Pool   string
	Family string
	addresspool.Count
}

// Counts returns what the node has of each pool, as of the last pass.
func (a *Allocator) Counts() []Count {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.counts)
}

// due reports whether the node writes now how many addresses are used. The times are spread, since nodes may start
// together, as after a power failure.
func (a *Allocator) due() bool {
	now, every := a.Now(), a.reportEvery()
	if a.reportAt.IsZero() {
		a.reportAt = now.Add(a.random(every - pace + 1))
	}
	if now.Before(a.reportAt) {
		return false
	}
	a.reportAt = now.Add(every/2 + a.random(every))
	return true
}

// reportEvery is how often the node writes into its leases how many addresses are used. Each
// write is sent to all that follow the pool, so that the nodes of a large one write less often.
func (a *Allocator) reportEvery() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	var most int32
	for _, p := range a.pools {
		most = max(most, p.nodes)
	}
	return time.Duration(addresspool.ReportSeconds(int(most))) * time.Second
}

// report writes into leases how many of their addresses are used, where that has changed.
func (a *Allocator) report(ctx context.Context) error {
	used, pods := map[string]int32{}, map[string]string{}
	var counts []Count
	h, err := a.file.holdings()
	if err != nil {
		return err
	}
	usage := h.Usage(a.Now().Unix())
	for i, b := range h.Blocks {
		if !b.Lost {
			name := addresspool.LeaseName(b.Pool, b.Block)
			if used[name] = int32(usage[i].Used); b.Pool == topology.LiteralPool {
				having := h.WithLiteral(b.Block.Addr())
				if len(having) == 0 { // its pod is about to record it, or to release it
					delete(used, name)
					continue
				}
				pods[name] = having[0].Pod
			}
			if id := usage[i].For; id != "" && len(id) <= maxFor { // a longer one is from an earlier version
				pods[name] = id
			}
		}
	}
	for _, name := range h.Pools() {
		p := a.pool(name)
		if p == nil || p.layout == nil {
			continue
		}
		for _, is4 := range p.layout.Families() {
			c := Count{Pool: name, Family: "ipv6", Count: h.Count(p.layout, is4, a.Now().Unix())}
			if is4 {
				c.Family = "ipv4"
			}
			counts = append(counts, c)
		}
	}
	a.mu.Lock()
	a.counts = counts
	a.mu.Unlock()
	due := a.due() // pods that start together are one write
	// Other nodes wait for the addresses of the host, but an interface may come and go.
	moved := a.Now().Sub(a.published) >= minPause
	a.behind = false
	own, err := a.Leases.Own()
	if err != nil {
		return err
	}
	var errs []error
	for i := range own {
		l := &own[i]
		n, held := used[l.Name]
		hosts, move := a.hosts(l)
		a.behind = a.behind || held && move && !moved
		move = move && moved
		// The next pod of the name, on any node, is to find at once who has the address.
		sameFor := pods[l.Name] == l.Spec.For
		if !held || !move && sameFor && (n == l.Spec.Used || !due && l.Spec.Pool != topology.LiteralPool) {
			continue
		}
		if move {
			l.Spec.HostAddresses, a.published = hosts, a.Now()
		}
		l.Spec.Used, l.Spec.For = n, pods[l.Name]
		if _, err := a.Leases.Update(ctx, l); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			if errs = append(errs, err); !refused(err) {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// refused reports whether the API server has refused a request for what it contains, which says nothing about the
// next one. A server that does not answer, or is overloaded, need not be sent more.
func refused(err error) bool {
	var s apierrors.APIStatus
	return errors.As(err, &s) && s.Status().Code/100 == 4 && !apierrors.IsTooManyRequests(err)
}

// hosts returns the addresses of the host that a lease should have, and whether it has others.
func (a *Allocator) hosts(l *v1alpha1.AddressLease) ([]v1alpha1.HostAddress, bool) {
	if a.HostAddresses == nil {
		return nil, false
	}
	now, known := a.HostAddresses(l.Spec.Pool)
	return now, known && !slices.Equal(now, l.Spec.HostAddresses)
}
