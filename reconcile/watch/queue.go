package watch

import (
	"container/heap"
	"context"
	"encoding/binary"
	"hash/fnv"
	"sync"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/table"
)

// queue holds which events are to be delivered, and when. Causes of one sandbox
// coalesce: there is never more than one item per sandbox.
type queue struct {
	opts   Options
	events chan Event
	// gone checks whether a sandbox's namespace no longer exists.
	gone func(reconcile.SandboxID) bool
	wake table.Wake // holds a token when the result of next may have changed

	mu    sync.Mutex
	items map[reconcile.SandboxID]*item // "" is the host
	order itemHeap                      // by due
}

// item holds the due times of one sandbox. A zero time: nothing of that kind is
// due.
type item struct {
	id        reconcile.SandboxID
	changedAt time.Time // a notification was received
	device    bool      // of the host: one was about more than links of pods
	// overflowAt: notifications were lost; resyncAt: periodic.
	overflowAt, resyncAt time.Time
	checkAt              time.Time // check whether the namespace still exists
	suspected            bool      // its end was reported, or that was lost, and no check has begun since
	gone                 bool      // it does not: deliver only that, at once

	firstChange      time.Time     // the first one since the last delivery
	overflowReported time.Time     // the last Overflow event was delivered
	checkEvery       time.Duration // 0: at resync only
	updates          uint64        // counts causes, to detect those during a delivery
	rounds           uint64        // of resync; seeds its spread
	resyncFrom       time.Time     // when resyncAt was set
	period           time.Duration // of resyncs, at that time

	due   time.Time
	index int // in the heap
}

func newQueue(opts Options, gone func(reconcile.SandboxID) bool) *queue {
	return &queue{
		opts:   opts,
		gone:   gone,
		events: make(chan Event),
		wake:   table.Woken(),
		items:  map[reconcile.SandboxID]*item{},
	}
}

// add adds an item. One that exists is replaced.
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
	q.wake.Now()
}

// remove removes it. An event that Run is just delivering may still be received.
func (q *queue) remove(id reconcile.SandboxID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drop(id)
	q.wake.Now()
}

func (q *queue) drop(id reconcile.SandboxID) {
	if it := q.items[id]; it != nil {
		heap.Remove(&q.order, it.index)
		delete(q.items, id)
	}
}

// changed records a notification about a change.
func (q *queue) changed(id reconcile.SandboxID) {
	q.update(id, func(it *item, now time.Time) {
		it.device = true
		q.change(it, now)
	})
}

// podLinkChanged records a notification about a link of the host that a pod is connected by.
func (q *queue) podLinkChanged() { q.update("", q.change) }

func (q *queue) change(it *item, now time.Time) {
	if it.changedAt.IsZero() {
		it.firstChange = now
	}
	it.changedAt = earliest(now.Add(q.opts.Debounce), it.firstChange.Add(q.opts.MaxDelay))
}

// overflow records that notifications may have been lost.
func (q *queue) overflow(id reconcile.SandboxID) {
	q.update(id, func(it *item, now time.Time) {
		if !it.overflowAt.IsZero() {
			return
		}
		it.overflowAt = now.Add(q.opts.Debounce)
		every := max(overflowEvery, time.Duration(len(q.items))*overflowPace)
		if free := it.overflowReported.Add(every); !it.overflowReported.IsZero() && free.After(it.overflowAt) {
			it.overflowAt = free
		}
		it.checkAt, it.suspected = earliest(it.checkAt, it.overflowAt), true
	})
}

// suspect records that the sandbox's namespace may no longer exist.
func (q *queue) suspect(id reconcile.SandboxID) {
	q.update(id, func(it *item, now time.Time) { it.checkAt, it.suspected = now, true })
}

func (q *queue) update(id reconcile.SandboxID, f func(*item, time.Time)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[id]
	if it == nil || it.gone {
		return
	}
	it.updates++
	before, now := it.due, q.opts.Now()
	f(it, now)
	q.fix(it)
	// Due earlier than what run waits for, or already offered: the offer then covers
	// it.
	if it.index == 0 && (it.due.Before(before) || !it.due.After(now)) {
		q.wake.Now()
	}
}

func (q *queue) fix(it *item) {
	it.schedule()
	heap.Fix(&q.order, it.index)
}

// offer is the work that next has found for an item.
type offer struct {
	*item
	event   Event
	check   bool
	updates uint64
}

// next returns what is due, or the time until something will be.
func (q *queue) next() (o offer, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) == 0 {
		return offer{}, -1
	}
	it, now := q.order[0], q.opts.Now()
	for due(it.resyncAt, now) && q.postpone(it) {
		q.fix(it)
		it = q.order[0]
	}
	if it.due.After(now) {
		return offer{}, it.due.Sub(now)
	}
	o = offer{item: it, updates: it.updates, event: Event{ID: it.id, Host: it.id == "", Reason: Resync, Gone: it.gone}}
	switch {
	case it.gone:
		o.event.Reason = Changed
	case due(it.checkAt, now):
		o.check, it.suspected = true, false
	case !it.overflowAt.IsZero():
		o.event.Reason = Overflow
	case due(it.changedAt, now):
		o.event.Reason = Changed
		o.event.PodLinks = o.event.Host && !it.device
	}
	return o, 0
}

// checked records the result of a check.
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

// delivered records that an event was received. Causes that came since it was offered
// stay due: the receiver may have observed the sandbox before them.
func (q *queue) delivered(o offer) {
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
		it.overflowReported = now
	}
	if it.updates == o.updates {
		it.changedAt, it.overflowAt, it.device = time.Time{}, time.Time{}, false
	} else if !it.changedAt.IsZero() {
		it.firstChange, it.changedAt = now, now.Add(q.opts.Debounce)
	}
	it.rounds++
	q.resync(it, now, o.event.Reason == Overflow)
	it.arm(now)
	q.fix(it)
}

// run delivers events until ctx or stop ends it.
func (q *queue) run(ctx context.Context, stop <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select { // a storm of checks must not delay the end
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
			q.delivered(o)
		case <-alarm:
		case <-q.wake:
		case <-ctx.Done():
		case <-stop:
		}
	}
}

// resync sets the next periodic check. Checks are spread by a tenth of the period to
// both sides. After an event of all sandboxes at one time, such as a start or an
// overflow, they are spread over the whole period; otherwise all would be checked at
// one time for many periods.
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

// period is the time between two periodic checks of a sandbox.
func (q *queue) period() time.Duration {
	return max(q.opts.Resync, time.Duration(len(q.items))*resyncPace)
}

// postpone delays a periodic check by as much as the period has grown since it was set:
// sandboxes are added one after the other, and the first ones were set for a short
// period.
func (q *queue) postpone(it *item) bool {
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

// arm sets the next check of the namespace: at once where its end may have come while an event was received
// or a check looked at its path, else with the next event that no notification caused, and every checkEvery
// where that is set.
func (it *item) arm(now time.Time) {
	it.checkAt = time.Time{}
	if it.suspected {
		it.checkAt = now
	}
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
	it.due = earliest(earliest(it.changedAt, it.overflowAt), earliest(it.resyncAt, it.checkAt))
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
