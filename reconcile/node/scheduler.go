package node

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/plumbline/plumbline/reconcile"
)

// The pace of passes over one sandbox.
const (
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 30 * time.Second
	// Whoever keeps changing a sandbox is answered at once for a while, and then
	// at a fixed pace: plumbline never fights at full speed. A repair takes two
	// notices, that of the change and that of the repair itself.
	noticesPerSecond = 10
	noticesBurst     = 50
	// urgentMost is how long a turn is put off for what is urgent.
	urgentMost = time.Second
	// patience is by how much a turn that nothing but a look is the reason of
	// stands back behind those of sandboxes that were changed: there may be one
	// for every sandbox of the node at a time.
	patience = 5 * time.Second
)

// verdict is what becomes of a sandbox after a pass.
type verdict int

const (
	settled verdict = iota // wait for the next event
	again                  // try again, later each time
)

// scheduler decides when a sandbox has its turn. A sandbox is in the hands of
// one worker at a time; what is asked for meanwhile is done once, afterwards.
type scheduler struct {
	now  func() time.Time
	wake chan struct{} // holds a token when next may answer differently

	mu    sync.Mutex
	turns map[reconcile.SandboxID]*turn
	busy  int
	// urgent is how many things go on outside that are to have the machine.
	urgent int
}

// turn is when a sandbox has its next one, and what is remembered of the last.
type turn struct {
	due      time.Time // zero: none
	held     time.Time // no turn before, unless it is asked for
	asked    bool      // due because it was asked for
	busy     bool
	failures int // in a row
	dropped  bool

	notices *rate.Limiter
	told    bool      // due because of a notice
	patient bool      // due for a look alone
	since   time.Time // of the first notice that no pass has answered
}

func newScheduler(now func() time.Time) *scheduler {
	return &scheduler{now: now, wake: make(chan struct{}, 1), turns: map[reconcile.SandboxID]*turn{}}
}

// with runs f on the turn of a sandbox, and lets run see what has become of it.
func (s *scheduler) with(id reconcile.SandboxID, f func(*turn, time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns[id]
	if t == nil {
		t = &turn{notices: rate.NewLimiter(noticesPerSecond, noticesBurst)}
		s.turns[id] = t
	}
	f(t, s.now())
	s.rouse()
}

// rouse lets run look anew whose turn it is.
func (s *scheduler) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (t *turn) at(due time.Time) {
	t.dropped = false
	if t.due.IsZero() || due.Before(t.due) {
		t.due = due
	}
}

// later is at, but not while the sandbox is held.
func (t *turn) later(due time.Time) {
	if due.Before(t.held) {
		due = t.held
	}
	t.at(due)
}

// ask gives a sandbox a turn as soon as a worker is free, and forgets that it
// failed before: something is different now.
func (s *scheduler) ask(id reconcile.SandboxID) {
	s.with(id, func(t *turn, now time.Time) {
		t.failures, t.asked, t.patient = 0, true, false
		t.at(now)
	})
}

// hold gives a sandbox its next turn at a time, and none before it unless one is
// asked for.
func (s *scheduler) hold(id reconcile.SandboxID, until time.Time) {
	s.with(id, func(t *turn, _ time.Time) {
		t.held = until
		if !t.asked {
			t.due = time.Time{} // of what was noticed meanwhile
		}
		t.at(until)
	})
}

// expect gives a sandbox a turn at a time if it has none before.
func (s *scheduler) expect(id reconcile.SandboxID, due time.Time) {
	s.with(id, func(t *turn, _ time.Time) { t.later(due) })
}

// yield lets no turn begin until done is called, but for those that have been due
// for urgentMost, one at a time. Those that have begun are not stopped.
func (s *scheduler) yield() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urgent++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.urgent--
		s.mu.Unlock()
		s.rouse()
	})
}

// look gives a sandbox a turn although nothing was heard of it.
func (s *scheduler) look(id reconcile.SandboxID) {
	s.with(id, func(t *turn, now time.Time) {
		if t.failures == 0 { // else it has its turn when its time has come
			t.patient = t.patient || t.due.IsZero()
			t.later(now)
		}
	})
}

// host gives a sandbox a turn because the host was changed, and the sandbox may be.
func (s *scheduler) host(id reconcile.SandboxID) {
	s.with(id, func(t *turn, now time.Time) {
		if t.since.IsZero() {
			t.since = now
		}
		t.patient = t.patient || t.due.IsZero()
		t.later(now)
	})
}

// before reports whether a turn comes before another: what is due before what is
// not, and of what is due that which was changed before what is only looked at.
func (t *turn) before(o *turn, now time.Time) bool {
	if a, b := t.due.After(now), o.due.After(now); a || b {
		return t.due.Before(o.due)
	}
	rank := func(t *turn) time.Time {
		if t.patient {
			return t.due.Add(patience)
		}
		return t.due
	}
	return rank(t).Before(rank(o))
}

// notice gives a sandbox a turn because it seems to have been changed.
func (s *scheduler) notice(id reconcile.SandboxID) {
	s.with(id, func(t *turn, now time.Time) {
		t.patient = false
		if t.since.IsZero() {
			t.since = now
		}
		if !t.told {
			t.told = true
			t.later(now.Add(t.notices.ReserveN(now, 1).DelayFrom(now)))
		}
	})
}

// noticed returns since when a change of the sandbox is known; zero if it is not.
func (s *scheduler) noticed(id reconcile.SandboxID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.turns[id]; t != nil {
		return t.since
	}
	return time.Time{}
}

// answered says that the changes noticed until begun have been dealt with.
func (s *scheduler) answered(id reconcile.SandboxID, begun time.Time) {
	s.with(id, func(t *turn, _ time.Time) {
		t.since = time.Time{}
		if t.told { // noticed while the pass ran
			t.since = begun
		}
	})
}

// forget drops what is remembered of a sandbox that is no more.
func (s *scheduler) forget(id reconcile.SandboxID) {
	s.with(id, func(t *turn, _ time.Time) {
		t.due, t.dropped = time.Time{}, true
		if !t.busy {
			delete(s.turns, id)
		}
	})
}

// run gives turns until ctx ends, and returns when the last worker is done.
func (s *scheduler) run(ctx context.Context, workers int, pass func(context.Context, reconcile.SandboxID) verdict) {
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		id, wait := s.next(workers)
		if id != "" {
			wg.Go(func() { s.done(id, pass(ctx, id)) })
			continue
		}
		var alarm <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			alarm = timer.C
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-alarm:
		}
	}
}

// next takes the sandbox whose turn it is, or says how long it is nobody's; 0 is
// until something happens.
func (s *scheduler) next(workers int) (reconcile.SandboxID, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy >= workers {
		return "", 0
	}
	now := s.now()
	var first reconcile.SandboxID
	for id, t := range s.turns { // one node has hundreds of sandboxes at most
		if t.busy || t.due.IsZero() {
			continue
		}
		if o := s.turns[first]; first == "" || t.before(o, now) || id < first && !o.before(t, now) {
			first = id
		}
	}
	if first == "" {
		return "", 0
	}
	t := s.turns[first]
	begin := t.due
	if s.urgent > 0 {
		if s.busy > 0 {
			return "", 0
		}
		begin = begin.Add(urgentMost)
	}
	if wait := begin.Sub(now); wait > 0 {
		return "", wait
	}
	t.busy, t.told, t.asked, t.patient, t.due = true, false, false, false, time.Time{}
	s.busy++
	return first, 0
}

func (s *scheduler) done(id reconcile.SandboxID, v verdict) {
	s.with(id, func(t *turn, now time.Time) {
		s.busy--
		t.busy = false
		switch {
		case t.dropped:
			delete(s.turns, id)
		case v == again:
			t.later(now.Add(backoff(t.failures)))
			t.failures++
		default:
			t.failures = 0
		}
	})
}

// backoff doubles from backoffFirst to backoffMost.
func backoff(failures int) time.Duration {
	return min(backoffFirst<<min(failures, 16), backoffMost)
}

// load returns how many turns have come that no worker has taken, how many are
// being had, and since when the first of those that wait has been due.
func (s *scheduler) load() (waiting, busy int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, t := range s.turns {
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
