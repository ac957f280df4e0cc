package addresses

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// A claim has all of its addresses or none. So what is leased follows from all that a claim that waits lacks, and
// what the node holds is reserved for those that have waited longer: otherwise one address at a time would be leased, and
// given to another claim.

// waiting is a claim that was refused as its node has too few addresses of a pool, or has not looked up what is kept for it.
type waiting struct {
	claim Claim
	wants []Want
	since time.Time // of the first try
	last  time.Time
}

// waitingMost bounds the claims whose wants are leased for at once: more than a node has pods.
const waitingMost = 512

// key is the same for each try to start a pod: the next one may be of another sandbox, and leave nothing of this one.
func (c *Claim) key() string {
	if c.Pod == "" {
		return string(c.UID)
	}
	return c.pod() + "/" + c.InPod
}

// soon is for how long TakeSoon waits: two requests to an API server that is not overloaded.
const soon = 2 * time.Second

// TakeSoon is Take for a caller that has no patience of its own, such as a runtime whose retry is a new sandbox and an Event:
// while the address is searched or leased it waits a moment, but not for a pool that is full.
func (a *Allocator) TakeSoon(ctx context.Context, claim Claim, wants []Want) (map[Want]ops.Given, error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for {
		a.mu.Lock()
		passed := a.passed
		a.mu.Unlock()
		got, err := a.Take(claim, wants)
		if err == nil || !a.comes(&claim) {
			return got, err
		}
		if !loop.Wait(ctx, loop.Forever, passed) {
			return got, err
		}
	}
}

// comes reports whether the next pass may lease what a claim waits for.
func (a *Allocator) comes(c *Claim) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	w, full := a.waits[c.key()], a.isFull(a.Now())
	return w != nil && !slices.ContainsFunc(w.wants, func(want Want) bool {
		return full(lack{want.Pool, true}) || full(lack{want.Pool, false})
	})
}

// offer holds the addresses that a claim would get from the node's leases.
type offer struct {
	given map[Want]ops.Given
	short []*addresspool.Short // leases are missing
	seeks map[string]string    // pools by the identities for which an address may be kept
	asks  bool                 // whether one is has to be looked up
	stuck bool                 // no lease of this node would help
	err   error                // why it gets nothing: the first reason, and before all one that does not pass
}

// offer takes of h what a claim gets. The caller holds a.mu.
func (a *Allocator) offer(h *addresspool.Holdings, c *Claim, wants []Want, now time.Time) (o offer) {
	o.given, o.seeks = map[Want]ops.Given{}, map[string]string{}
	if o.err = a.enough(h, c, wants); o.err != nil {
		o.stuck = true
		return o
	}
	for _, w := range wants {
		got, err := a.take(h, c, w, now, &o)
		if err == nil {
			o.given[w] = got
			continue
		}
		if err = fmt.Errorf("step %q: %w", w.Step, err); o.err == nil || fault.Of(err) != fault.NotReady {
			o.err = err
		}
		if fault.Of(err) != fault.NotReady {
			o.stuck = true
			return o
		}
	}
	return o
}

// enough returns an error if no pool of a claim could ever give it all that its steps take. The caller holds a.mu.
func (a *Allocator) enough(h *addresspool.Holdings, c *Claim, wants []Want) error {
	ifaces := map[*addresspool.Layout][]int{}
	for _, w := range wants {
		l := w.Local
		if p := a.pools[w.Pool]; l == nil && p != nil {
			l = p.layout
		}
		if l == nil || h.Has(addresspool.Owner{Claim: string(c.UID), Topology: w.Topology, Step: w.Step}) {
			continue
		}
		if ifaces[l] = append(ifaces[l], w.Interface); l.Enough(ifaces[l]) != nil {
			return fault.New(fault.Invalid, fmt.Errorf("step %q: %w", w.Step, l.Enough(ifaces[l])))
		}
	}
	return nil
}

// usable returns the holdings that can be given: without blocks whose lease this process has not verified, which may
// have been lost while no agent ran. The caller holds a.mu.
func (a *Allocator) usable(h *addresspool.Holdings) *addresspool.Holdings {
	out := h.Clone()
	out.Blocks = slices.DeleteFunc(out.Blocks, func(b addresspool.Held) bool {
		return !b.Lost && !a.checked[addresspool.LeaseName(b.Pool, b.Block)].is(b.Lease)
	})
	return out
}

// wait records that a claim has been refused, if a pass may change that. The caller holds a.mu.
func (a *Allocator) wait(c Claim, wants []Want, o offer, now time.Time) {
	for identity, pool := range o.seeks {
		a.seek(pool, identity, now)
	}
	if len(o.short) == 0 && !o.asks {
		return
	}
	w := a.waits[c.key()]
	if w == nil {
		if len(a.waits) >= waitingMost {
			return
		}
		w = &waiting{since: now}
		a.waits[c.key()] = w
	}
	w.claim, w.wants, w.last = c, wants, now
}

// waiters returns the claims that wait, those that have waited longest first. The caller holds a.mu.
func (a *Allocator) waiters(now time.Time) []*waiting {
	maps.DeleteFunc(a.waits, func(_ string, w *waiting) bool { return now.Sub(w.last) > waitingTime })
	return slices.SortedFunc(maps.Values(a.waits), func(x, y *waiting) int {
		return cmp.Or(x.since.Compare(y.since), cmp.Compare(x.claim.key(), y.claim.key()))
	})
}

// reserve removes from h the addresses for which claims wait, up to the claim with the key until, and returns how
// many leases these claims lack. Nothing is reserved for a claim that gets no lease of this node: what it holds is
// for others. The caller holds a.mu.
func (a *Allocator) reserve(h *addresspool.Holdings, until string, now time.Time, blocked func(lack) bool) map[lack]int {
	lacks := map[lack]int{}
	for _, w := range a.waiters(now) {
		if w.claim.key() == until {
			break
		}
		trial := h.Clone()
		o := a.offer(trial, &w.claim, w.wants, now)
		missing := o.lacks()
		if o.stuck || slices.ContainsFunc(missing, blocked) {
			continue
		}
		*h = *trial
		for _, l := range missing {
			lacks[l]++
		}
	}
	return lacks
}

// lack is an address of a pool and a family that a claim waits for.
type lack struct {
	pool string
	is4  bool
}

func (o *offer) lacks() (out []lack) {
	for _, s := range o.short {
		for _, is4 := range s.Families {
			out = append(out, lack{s.Pool, is4})
		}
	}
	return out
}

// fullness is that all blocks of a pool with addresses of a family were leased, while a claim waits for more.
type fullness struct {
	until time.Time // when it is tried again, zero if the last try found a block
	times int       // also if some tries between found one: those of a claim that gets too few do, each time
}

// holds reports whether claims keep the leases that were too few: after one try of four. While a node holds them, the
// pool is Low, and others end the leases that they keep ahead of need. While it does not, a try of another node that
// needs no more than there is has all of it. If nodes held them half of the time, they would seldom all be without.
func (f *fullness) holds() bool { return f.times%4 == 1 }

// isFull returns whether a pool was found to be full a short while ago. The caller holds a.mu.
func (a *Allocator) isFull(now time.Time) func(lack) bool {
	return func(l lack) bool { return a.full[l] != nil && now.Before(a.full[l].until) }
}

// filled records whether a pool is full. Retries of nodes that found it full together are spread at random.
func (a *Allocator) filled(l lack, full bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.full[l]
	switch {
	case !full && f != nil:
		f.until = time.Time{}
	case full && f == nil:
		a.full[l] = &fullness{a.Now().Add(minPause + a.random(minPause/2)), 1}
	case full:
		f.until, f.times = a.Now().Add(minPause+a.random(minPause/2)), f.times+1
	}
}

// obtain leases what claims wait for, and a block of each group ahead of need where the node uses the pool and others have
// enough.
func (a *Allocator) obtain(ctx context.Context, node string) error {
	var errs []error
	failed := map[lack]bool{}
	for {
		next, more, err := a.nextLack(failed)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if !more {
			break
		}
		if err := a.create(ctx, node, a.pool(next.pool).layout, addresspool.GroupOf(a.pool(next.pool).layout, next.is4)); err != nil {
			failed[next] = true
			errs = append(errs, fmt.Errorf("AddressPool %q: %w", next.pool, err))
			a.filled(next, errors.Is(err, errFull))
			if !errors.Is(err, errFull) && !errors.Is(err, errContended) && !refused(err) {
				return errors.Join(errs...)
			}
			continue
		}
		a.filled(next, false)
	}
	errs = append(errs, a.stillFull(failed)...)
	held, err := a.held()
	errs = append(errs, err)
	for _, name := range held {
		if err := a.ahead(ctx, node, name); err != nil {
			errs = append(errs, fmt.Errorf("AddressPool %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// nextLack returns what is leased next for claims that wait. Pools that were full come first: if they still are, nothing is
// leased for the claims that need them.
func (a *Allocator) nextLack(failed map[lack]bool) (next lack, more bool, err error) {
	var lacks map[lack]int
	err = a.file.change(func(h *addresspool.Holdings) (bool, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		now := a.Now()
		full := a.isFull(now)
		lacks = a.reserve(a.usable(h), "", now, func(l lack) bool { return failed[l] || full(l) })
		return false, nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range lacks {
		if !more || a.before(l, next) {
			next, more = l, true
		}
	}
	return next, more, err
}

func (a *Allocator) before(x, y lack) bool {
	if full := a.full[x] != nil; full != (a.full[y] != nil) {
		return full
	}
	return cmp.Or(cmp.Compare(x.pool, y.pool), map[bool]int{true: -1, false: 1}[x.is4]) < 0
}

// stillFull returns that pools are full which were tried a while ago, and forgets pools that nobody waits for.
func (a *Allocator) stillFull(failed map[lack]bool) (errs []error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := map[string]bool{}
	for _, w := range a.waits {
		for _, want := range w.wants {
			wanted[want.Pool] = true
		}
	}
	maps.DeleteFunc(a.full, func(l lack, _ *fullness) bool { return !wanted[l.pool] })
	for _, l := range slices.SortedFunc(maps.Keys(a.full), func(x, y lack) int { return cmp.Compare(x.pool, y.pool) }) {
		if !failed[l] && !a.full[l].until.IsZero() {
			errs = append(errs, fmt.Errorf("AddressPool %q: %w", l.pool, errFull))
		}
	}
	return errs
}

// ahead leases a block of each group in which the node has nothing to give.
func (a *Allocator) ahead(ctx context.Context, node, name string) error {
	p := a.pool(name)
	if p == nil || p.layout == nil || p.ending || !p.ample {
		return nil
	}
	for _, g := range p.layout.Groups() {
		h, err := a.file.holdings()
		if err != nil {
			return err
		}
		if count := h.Count(p.layout, g.IPv4(), a.Now().Unix()); count.Free > 0 || count.Used == 0 || !p.layout.Flat() && h.Holds(name) {
			continue
		}
		if err := a.create(ctx, node, p.layout, g); err != nil {
			return err
		}
	}
	return nil
}

// tooFew is why a step gets nothing of a pool of which the node has no address left.
func (a *Allocator) tooFew(h *addresspool.Holdings, p *pool, w Want, short *addresspool.Short, o *offer) error {
	switch {
	case w.Local != nil:
		o.stuck = true
		return fmt.Errorf("%w: other pods have all addresses of its ranges", short)
	case p.ending:
		o.stuck = true
		return fmt.Errorf("%s %q is being deleted, or new: nothing is given from it", v1alpha1.AddressPoolKind, w.Pool)
	case !p.layout.Flat() && h.Holds(w.Pool):
		o.stuck = true
		return fmt.Errorf("%w: its block of the pool is full, and a node gets one block of a pool with hostBlock: "+
			"delete pods, or use a pool with a smaller hostBlock", short)
	}
	o.short = append(o.short, short)
	if p.low {
		return fmt.Errorf("%w, and few of its %d addresses are left on all nodes: see kubectl get addresspool %s; requesting another lease",
			short, p.layout.Size(p.layout.Families()[0]), w.Pool)
	}
	return fmt.Errorf("%w; requesting another lease", short)
}
