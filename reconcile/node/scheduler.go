package node

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/table"
)

// The pace of passes over one sandbox.
const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 30 * time.Second
	// Changes of a sandbox are handled at once up to a burst, then at a fixed rate:
	// another writer cannot keep plumbline busy. A repair takes two notifications, that
	// of the change and that of the repair itself.
	changesPerSecond = 10
	changesBurst     = 50
	// A failed pass makes changes and undoes them, of which the kernel sends notifications, too: some
	// of them as late as this (link state is reported once a second, and a device leaves a namespace
	// a while after it was requested to). Notifications until then do not make the sandbox due before
	// its backoff ends.
	ownChanges = 2 * time.Second
	// A later notification does, since what was changed may be what the sandbox needs, but only so
	// many in a row, and one each wakeEvery: otherwise another writer decides how often it is tried.
	wakeBurst = 5
	wakeEvery = 10 * time.Second
	// forgetFailures ends a series of failures: a sandbox that fails every other time has the
	// backoff of one that always fails. It is longer than a pass and its backoff.
	forgetFailures = 2 * time.Minute
	// inUseRetry is after how long a sandbox is tried that another pass or program has locked.
	inUseRetry = time.Second
	// maxYield is how long a work item is delayed for something urgent.
	maxYield = time.Second
	// resyncYield delays a resync-only item so that sandboxes with real events run
	// first: there may be one for every sandbox of the node at a time.
	resyncYield = 5 * time.Second
)

// verdict decides when a sandbox is checked again after a pass.
type verdict int

const (
	done       verdict = iota // wait for the next event
	retryLater                // with backoff
	refused                   // wait for the next event, of which few are admitted as after a failure
	inUse                     // after inUseRetry: another pass or program has the sandbox
)

// scheduler is the work queue: it decides when a sandbox is reconciled. One worker at a
// time has a sandbox; what is enqueued meanwhile is done once, afterwards.
type scheduler struct {
	now  func() time.Time
	wake table.Wake // holds a token when the result of next may have changed

	mu     sync.Mutex
	items  map[reconcile.SandboxID]*workItem
	busy   int
	urgent *Urgent
}

// workItem is when a sandbox is due, and what is remembered of its last passes.
type workItem struct {
	due        time.Time // zero: none
	held       time.Time // not due before, except when immediate
	immediate  bool      // due without regard to held
	busy       bool
	failures   int       // of one series
	failed     time.Time // the last pass that did
	retry      time.Time // the end of the backoff; notifications make it due before only if admitted
	quietUntil time.Time // until then none is admitted
	dropped    bool

	limiter    *rate.Limiter // of passes that notifications cause
	wakes      *rate.Limiter // of those before the backoff ends
	changed    bool          // due because of a notification
	resyncOnly bool          // due only for a periodic check
	since      time.Time     // of the first notification that no pass has handled
}

// newScheduler returns a scheduler that starts no pass while something is urgent, except for items that
// have been due for maxYield, one at a time. Running passes are not stopped.
func newScheduler(now func() time.Time, urgent *Urgent) *scheduler {
	return &scheduler{now: now, wake: table.Woken(&urgent.ended), urgent: urgent, items: map[reconcile.SandboxID]*workItem{}}
}

// with runs f on the work item of a sandbox, and wakes run.
func (s *scheduler) with(id reconcile.SandboxID, f func(*workItem, time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.items[id]
	if t == nil {
		t = &workItem{limiter: rate.NewLimiter(changesPerSecond, changesBurst), wakes: rate.NewLimiter(rate.Every(wakeEvery), wakeBurst)}
		s.items[id] = t
	}
	f(t, s.now())
	s.wake.Now()
}

func (t *workItem) setDue(due time.Time) {
	t.dropped = false
	if t.due.IsZero() || due.Before(t.due) {
		t.due = due
	}
}

// setDueAfterHold is setDue, but not before the end of a hold.
func (t *workItem) setDueAfterHold(due time.Time) {
	if due.Before(t.held) {
		due = t.held
	}
	t.setDue(due)
}

// enqueue makes a sandbox due now, and resets its backoff: something has changed.
func (s *scheduler) enqueue(id reconcile.SandboxID) {
	s.with(id, func(t *workItem, now time.Time) {
		t.failures, t.immediate, t.resyncOnly = 0, true, false
		t.setDue(now)
	})
}

// holdUntil makes a sandbox due at a time, and not before except by enqueue.
func (s *scheduler) holdUntil(id reconcile.SandboxID, until time.Time) {
	s.with(id, func(t *workItem, _ time.Time) {
		t.held = until
		if !t.immediate {
			t.due = time.Time{} // set by notifications meanwhile
		}
		t.setDue(until)
	})
}

// enqueueAt makes a sandbox due at a time if it is not due before.
func (s *scheduler) enqueueAt(id reconcile.SandboxID, due time.Time) {
	s.with(id, func(t *workItem, _ time.Time) { t.setDueAfterHold(due) })
}

// enqueueCheck makes a sandbox due for a periodic check.
func (s *scheduler) enqueueCheck(id reconcile.SandboxID) {
	s.with(id, func(t *workItem, now time.Time) {
		if !now.Before(t.retry) { // otherwise it is due when its backoff ends
			t.resyncOnly = t.resyncOnly || t.due.IsZero()
			t.setDueAfterHold(now)
		}
	})
}

// enqueueHostChange makes a sandbox due because a device of the host was changed, which
// may affect it.
func (s *scheduler) enqueueHostChange(id reconcile.SandboxID) {
	s.with(id, func(t *workItem, now time.Time) {
		t.resyncOnly = t.resyncOnly || t.due.IsZero()
		t.notified(now)
	})
}

// notified makes an item due because of a notification, within the bounds.
func (t *workItem) notified(now time.Time) {
	if t.since.IsZero() {
		t.since = now
	}
	if !t.changed && t.admits(now) {
		t.changed = true
		t.setDueAfterHold(now.Add(t.limiter.ReserveN(now, 1).DelayFrom(now)))
	}
}

// admits reports whether a notification makes the item due.
func (t *workItem) admits(now time.Time) bool {
	switch {
	case t.busy || !now.Before(t.retry):
		return true
	case now.Before(t.quietUntil):
		return false
	default:
		return t.wakes.AllowN(now, 1)
	}
}

// backOff makes an item due at a time. A notification during the pass that has ended,
// or until quietUntil, is taken for one of the pass's own changes.
func (t *workItem) backOff(retry, quietUntil time.Time) {
	t.retry, t.quietUntil = retry, quietUntil
	if !t.immediate {
		t.due, t.changed = time.Time{}, false
	}
	t.setDueAfterHold(retry)
}

// before orders work items: those that are due first, and of these the changed ones
// before the resync-only ones.
func (t *workItem) before(o *workItem, now time.Time) bool {
	if a, b := t.due.After(now), o.due.After(now); a || b {
		return t.due.Before(o.due)
	}
	rank := func(t *workItem) time.Time {
		if t.resyncOnly {
			return t.due.Add(resyncYield)
		}
		return t.due
	}
	return rank(t).Before(rank(o))
}

// enqueueChange makes a sandbox due because of a notification.
func (s *scheduler) enqueueChange(id reconcile.SandboxID) {
	s.with(id, func(t *workItem, now time.Time) {
		t.resyncOnly = false
		t.notified(now)
	})
}

// changedSince returns the time of the first notification that no pass has handled;
// zero if there is none.
func (s *scheduler) changedSince(id reconcile.SandboxID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.items[id]; t != nil {
		return t.since
	}
	return time.Time{}
}

// handled records that a pass has dealt with all changes until begun.
func (s *scheduler) handled(id reconcile.SandboxID, begun time.Time) {
	s.with(id, func(t *workItem, _ time.Time) {
		t.since = time.Time{}
		if t.changed { // a notification was received during the pass
			t.since = begun
		}
	})
}

// forget drops what is remembered of a sandbox that no longer exists.
func (s *scheduler) forget(id reconcile.SandboxID) {
	s.with(id, func(t *workItem, _ time.Time) {
		t.due, t.dropped = time.Time{}, true
		if !t.busy {
			delete(s.items, id)
		}
	})
}

// run starts passes until ctx ends, and returns when the last worker is done.
func (s *scheduler) run(ctx context.Context, workers int, pass func(context.Context, reconcile.SandboxID) verdict) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for ctx.Err() == nil {
		if id, wait := s.next(workers); id != "" {
			wg.Go(func() { s.done(id, pass(ctx, id)) })
		} else {
			loop.Wait(ctx, cmp.Or(wait, loop.Forever), s.wake)
		}
	}
}

// next returns the sandbox to reconcile, or else how long to wait; 0 is until a wake.
func (s *scheduler) next(workers int) (reconcile.SandboxID, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy >= workers {
		return "", 0
	}
	now := s.now()
	var first reconcile.SandboxID
	for id, t := range s.items { // one node has hundreds of sandboxes at most
		if t.busy || t.due.IsZero() {
			continue
		}
		if o := s.items[first]; first == "" || t.before(o, now) || id < first && !o.before(t, now) {
			first = id
		}
	}
	if first == "" {
		return "", 0
	}
	t := s.items[first]
	begin := t.due
	if s.urgent.any() {
		if s.busy > 0 {
			return "", 0
		}
		begin = begin.Add(maxYield)
	}
	if wait := begin.Sub(now); wait > 0 {
		return "", wait
	}
	t.busy, t.changed, t.immediate, t.resyncOnly, t.due = true, false, false, false, time.Time{}
	s.busy++
	return first, 0
}

func (s *scheduler) done(id reconcile.SandboxID, v verdict) {
	s.with(id, func(t *workItem, now time.Time) {
		s.busy--
		t.busy = false
		switch {
		case t.dropped:
			delete(s.items, id)
		case v == retryLater, v == refused:
			if now.Sub(t.failed) > forgetFailures {
				t.failures = 0
			}
			t.backOff(now.Add(backoff(t.failures)), now.Add(ownChanges))
			t.failures, t.failed = t.failures+1, now
			if v == refused && !t.immediate {
				t.due = time.Time{}
			}
		case v == inUse:
			t.backOff(now.Add(inUseRetry), now.Add(inUseRetry))
		default:
			t.retry = time.Time{}
		}
	})
}

// backoff doubles from backoffFirst to backoffMax.
func backoff(failures int) time.Duration {
	return min(backoffFirst<<min(failures, 16), backoffMax)
}

// load returns how many work items are due and wait for a worker, how many workers are
// busy, and since when the first of those that wait has been due.
func (s *scheduler) load() (waiting, busy int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, t := range s.items {
		if t.busy || t.due.IsZero() || t.due.After(now) {
			continue
		}
		waiting++
		if since.IsZero() || t.due.Before(since) {
			since = t.due
		}
	}
	return waiting, s.busy, since
}
