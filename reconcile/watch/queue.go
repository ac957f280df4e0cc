package watch

import (
	"container/heap"
	"context"
	"encoding/binary"
	"hash/fnv"
	"sync"
	"time"

	"github.com/plumbline/plumbline/reconcile"
)

// queue holds what is to be told and when. Notes of one sandbox coalesce, so it
// never holds more than one item per sandbox.
type queue struct {
	opts   Options
	events chan Event
	// gone looks whether a sandbox's namespace is gone.
	gone func(reconcile.SandboxID) bool
	wake chan struct{} // holds a token when next may answer differently

	mu    sync.Mutex
	items map[reconcile.SandboxID]*item // "" is the host
	order itemHeap                      // by due
}

// item is what there is to do about one sandbox. A zero time is no cause.
type item struct {
	id       reconcile.SandboxID
	noticeAt time.Time // tell of notices
	// overflowAt tells of lost ones, resyncAt of nothing.
	overflowAt, resyncAt time.Time
	checkAt              time.Time // look whether the namespace is gone
	gone                 bool      // it is: tell at once, and nothing else

	first      time.Time     // notice that has not been told of
	overflowed time.Time     // the last overflow was told
	checkEvery time.Duration // 0: at resync only
	noted      uint64        // counts what came in, to see what came in between
	rounds     uint64        // of resyncing
	resyncFrom time.Time     // when resyncAt was set
	period     time.Duration // of resyncs, at that time

	due   time.Time
	index int // in the heap
}

func newQueue(opts Options, gone func(reconcile.SandboxID) bool) *queue {
	return &queue{
		opts:   opts,
		gone:   gone,
		events: make(chan Event),
		wake:   make(chan struct{}, 1),
		items:  map[reconcile.SandboxID]*item{},
	}
}

// add begins to keep an item, anew if there is one.
func (q *queue) add(id reconcile.SandboxID, checkEvery time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop(id)
	it := &item{id: id, checkEvery: checkEvery}
	q.items[id] = it
	now := q.opts.Now()
	q.resync(it, now, true)
	it.arm(now)
	it.schedule()
	heap.Push(&q.order, it)
	q.signal()
}

// remove ends it. An event that Run is handing over may still be told.
func (q *queue) remove(id reconcile.SandboxID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop(id)
	q.signal()
}

func (q *queue) drop(id reconcile.SandboxID) {
	if it := q.items[id]; it != nil {
		heap.Remove(&q.order, it.index)
		delete(q.items, id)
	}
}

// notice says that the kernel gave notice of a change.
func (q *queue) notice(id reconcile.SandboxID) {
	q.note(id, func(it *item, now time.Time) {
		if it.noticeAt.IsZero() {
			it.first = now
		}
		it.noticeAt = earliest(now.Add(q.opts.Debounce), it.first.Add(q.opts.MaxDelay))
	})
}

// overflow says that notices may have been lost.
func (q *queue) overflow(id reconcile.SandboxID) {
	q.note(id, func(it *item, now time.Time) {
		if !it.overflowAt.IsZero() {
			return
		}
		it.overflowAt = now.Add(q.opts.Debounce)
		every := max(overflowEvery, time.Duration(len(q.items))*overflowPace)
		if free := it.overflowed.Add(every); !it.overflowed.IsZero() && free.After(it.overflowAt) {
			it.overflowAt = free
		}
		it.checkAt = earliest(it.checkAt, it.overflowAt)
	})
}

// suspect says that the sandbox's namespace may be gone.
func (q *queue) suspect(id reconcile.SandboxID) {
	q.note(id, func(it *item, now time.Time) { it.checkAt = now })
}

func (q *queue) note(id reconcile.SandboxID, f func(*item, time.Time)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[id]
	if it == nil || it.gone {
		return
	}
	it.noted++
	before, now := it.due, q.opts.Now()
	f(it, now)
	q.fix(it)
	// Earlier than what run waits for, or on offer: the offer then covers it.
	if it.index == 0 && (it.due.Before(before) || !it.due.After(now)) {
		q.signal()
	}
}

func (q *queue) fix(it *item) {
	it.schedule()
	heap.Fix(&q.order, it.index)
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// offer is what next has found to do about an item.
type offer struct {
	*item
	event Event
	check bool
	noted uint64
}

// next returns what is due, or how long nothing will be.
func (q *queue) next() (o offer, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return offer{}, -1
	}
	it, now := q.order[0], q.opts.Now()
	for due(it.resyncAt, now) && q.putOff(it) {
		q.fix(it)
		it = q.order[0]
	}
	if it.due.After(now) {
		return offer{}, it.due.Sub(now)
	}
	o = offer{item: it, noted: it.noted, event: Event{ID: it.id, Host: it.id == "", Reason: Resync, Gone: it.gone}}
	switch {
	case it.gone:
		o.event.Reason = Changed
	case due(it.checkAt, now):
		o.check = true
	case !it.overflowAt.IsZero():
		o.event.Reason = Overflow
	case due(it.noticeAt, now):
		o.event.Reason = Changed
	}
	return o, 0
}

// checked says what a check has found.
func (q *queue) checked(o offer, gone bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.items[o.id] != o.item {
		return
	}
	now := q.opts.Now()
	if gone {
		o.gone = true
	} else {
		o.arm(now)
	}
	q.fix(o.item)
}

// told says that an event was handed over. What came in since it was offered
// stays to be told: its receiver may have looked before.
func (q *queue) told(o offer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := o.item
	if q.items[it.id] != it {
		return
	}
	if o.event.Gone {
		q.drop(it.id)
		return
	}
	now := q.opts.Now()
	if o.event.Reason == Overflow {
		it.overflowed = now
	}
	if it.noted == o.noted {
		it.noticeAt, it.overflowAt = time.Time{}, time.Time{}
	} else if !it.noticeAt.IsZero() {
		it.first, it.noticeAt = now, now.Add(q.opts.Debounce)
	}
	it.rounds++
	q.resync(it, now, o.event.Reason == Overflow)
	it.arm(now)
	q.fix(it)
}

// run tells events until ctx or stop ends it.
func (q *queue) run(ctx context.Context, stop <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select { // a storm of suspicion must not keep us from it
		case <-ctx.Done():
			return
		case <-stop:
			return
		default:
		}
		o, wait := q.next()
		if o.check {
			q.checked(o, q.gone(o.id))
			continue
		}
		var out chan<- Event
		var alarm <-chan time.Time
		switch {
		case o.item != nil:
			out = q.events
		case wait >= 0:
			timer.Reset(wait)
			alarm = timer.C
		}
		select {
		case out <- o.event:
			q.told(o)
		case <-alarm:
		case <-q.wake:
		case <-ctx.Done():
		case <-stop:
		}
	}
}

// resync sets the next look without notice. Looks are spread by a tenth of the period
// to both sides. What comes to all at one time, as a start and an overflow do, is
// followed by looks all over the period, or they would be looked at all at one time
// for many periods.
func (q *queue) resync(it *item, now time.Time, all bool) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(it.id))
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, it.rounds))
	const steps = 1 << 10
	part := func(of time.Duration) time.Duration { return time.Duration(h.Sum64()>>20%steps) * of / steps }
	it.resyncFrom, it.period = now, q.period()
	after := it.period - it.period/10 + part(it.period/5)
	if all {
		after = it.period/10 + part(it.period)
	}
	it.resyncAt = now.Add(after)
}

// period is the time from one look without notice to the next.
func (q *queue) period() time.Duration {
	return max(q.opts.Resync, time.Duration(len(q.items))*resyncPace)
}

// putOff puts a look without notice off by as much as the period has grown since it
// was set: sandboxes come one after the other, and the first do not know how many
// there will be.
func (q *queue) putOff(it *item) bool {
	grown := float64(q.period()) / float64(it.period)
	if grown <= 1 {
		return false
	}
	at := it.resyncFrom.Add(time.Duration(grown * float64(it.resyncAt.Sub(it.resyncFrom))))
	if it.checkAt.Equal(it.resyncAt) {
		it.checkAt = at
	}
	it.resyncAt, it.period = at, q.period()
	return true
}

// arm sets the next check, with the next event that has not been noticed, and
// now and then besides where that is asked for.
func (it *item) arm(now time.Time) {
	it.checkAt = time.Time{}
	for _, t := range []time.Time{it.overflowAt, it.resyncAt} {
		if t.After(now) {
			it.checkAt = earliest(it.checkAt, t)
		}
	}
	if it.checkEvery > 0 {
		it.checkAt = earliest(it.checkAt, now.Add(it.checkEvery))
	}
}

func (it *item) schedule() {
	if it.gone {
		it.due = time.Time{} // before everything else
		return
	}
	it.due = earliest(earliest(it.noticeAt, it.overflowAt), earliest(it.resyncAt, it.checkAt))
}

// earliest returns the earlier of two times, of which one may be unset.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func due(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// itemHeap is a heap.Interface.
type itemHeap []*item

func (h itemHeap) Len() int           { return len(h) }
func (h itemHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h itemHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is for package heap.
func (h *itemHeap) Push(x any) {
	it := x.(*item)
	it.index = len(*h)
	*h = append(*h, it)
}

// Pop is for package heap.
func (h *itemHeap) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return it
}
