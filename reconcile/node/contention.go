package node

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// When changes count as contention, and how repairs slow down.
const (
	// As many repairs of one field within this time are contention.
	contentionRepairs = 5
	contentionWithin  = 10 * time.Second
	// The pause after a repair of a contended field: at first, and at most.
	pauseFirst = 500 * time.Millisecond
	pauseMax   = 30 * time.Second
	// Contention of a field ends when it stays unchanged for this long after the last
	// pause.
	quietAfter = 10 * time.Second
	// contentionMax bounds how many are reported: deleting a link deletes everything on it,
	// and the link is listed first.
	contentionMax = 8
)

// contentionTracker knows, per sandbox, what another writer keeps changing back. It is
// given the result of every pass and returns how long repairs have to wait.
type contentionTracker struct {
	random func() float64 // in [0, 1)

	mu sync.Mutex
	of map[reconcile.SandboxID]*sandboxContention
}

// sandboxContention are the recent repairs of one sandbox.
type sandboxContention struct {
	targets map[target]*repairs
	order   []target      // by first repair
	pause   time.Duration // the last one; 0: no contention
}

// target is a field or object that writers can contend for.
type target struct {
	step, field string
	object      netstate.Key
	action      netstate.Action
}

// repairs are the repairs of one target.
type repairs struct {
	at         []time.Time // the last ones, contentionRepairs at most
	converged  time.Time   // the last one that was verified
	contention *reconcile.Contention
}

// outcome is the consequence of a pass.
type outcome struct {
	contended    []reconcile.Contention
	began, ended bool
	// contested is set if the pass repaired something contended.
	contested bool
	holdUntil time.Time // no pass before; zero: no restriction
	checkAt   time.Time // a pass then, if none comes before; zero: none
}

func newContentionTracker() *contentionTracker {
	return &contentionTracker{random: rand.Float64, of: map[reconcile.SandboxID]*sandboxContention{}}
}

// record takes what a pass has repaired. A pass that found its own change already
// reverted has not converged: that is contention only if an earlier repair was
// verified, otherwise the kernel or a driver does not accept the value.
func (f *contentionTracker) record(id reconcile.SandboxID, repaired []reconcile.Drift, converged bool, now time.Time) outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.of[id]
	if c == nil {
		if len(repaired) == 0 {
			return outcome{}
		}
		c = &sandboxContention{targets: map[target]*repairs{}}
		f.of[id] = c
	}
	before := c.pause > 0
	s := outcome{contested: c.count(repaired, converged, now)}
	if s.contested {
		c.pause = min(max(2*c.pause, pauseFirst), pauseMax)
		// Between half of it and all of it, so that two programs that repair do not
		// stay in step.
		s.holdUntil = now.Add(c.pause/2 + time.Duration(f.random()*float64(c.pause/2)))
	}
	c.prune(now)
	for _, at := range c.order {
		if r := c.targets[at]; r.contention != nil {
			s.contended = append(s.contended, *r.contention)
			if end := c.endsAt(r); s.checkAt.IsZero() || end.Before(s.checkAt) {
				s.checkAt = end
			}
		}
	}
	s.contended = s.contended[:min(len(s.contended), contentionMax)]
	if len(s.contended) == 0 {
		c.pause = 0
	}
	s.began, s.ended = !before && c.pause > 0, before && c.pause == 0
	if len(c.targets) == 0 {
		delete(f.of, id)
	}
	return s
}

// count adds the repairs of a pass, and reports whether one of them is of a contended
// target.
func (c *sandboxContention) count(repaired []reconcile.Drift, converged bool, now time.Time) (contested bool) {
	seen := map[target]bool{}
	for _, d := range repaired {
		at := target{d.Step, d.Field, d.Object, d.Action}
		if seen[at] || d.Object == (netstate.Key{}) { // pending, so not applied yet
			continue
		}
		seen[at] = true
		r := c.targets[at]
		if r == nil {
			r = &repairs{}
			c.targets[at] = r
			c.order = append(c.order, at)
		}
		r.at = append(slices.DeleteFunc(r.at, func(t time.Time) bool { return now.Sub(t) > contentionWithin }), now)
		r.at = r.at[max(0, len(r.at)-contentionRepairs):]
		if converged {
			r.converged = now
		}
		if r.contention == nil && len(r.at) == contentionRepairs && !r.converged.Before(r.at[0]) {
			r.contention = &reconcile.Contention{Step: d.Step, Object: d.Object, Field: d.Field, Action: d.Action, Since: r.at[0]}
			if d.Field != "" {
				r.contention.Want, r.contention.Have = netstate.FormatValue(d.Want), netstate.FormatValue(d.Have)
			}
		}
		contested = contested || r.contention != nil
	}
	return contested
}

// endsAt is when contention is over if nothing happens until then.
func (c *sandboxContention) endsAt(r *repairs) time.Time {
	return r.at[len(r.at)-1].Add(c.pause + quietAfter)
}

// prune drops targets that were quiet for long enough.
func (c *sandboxContention) prune(now time.Time) {
	c.order = slices.DeleteFunc(c.order, func(at target) bool {
		r := c.targets[at]
		over := now.Sub(r.at[len(r.at)-1]) > contentionWithin
		if r.contention != nil {
			over = !now.Before(c.endsAt(r))
		}
		if over {
			delete(c.targets, at)
		}
		return over
	})
}

// forget drops a sandbox that no longer exists.
func (f *contentionTracker) forget(id reconcile.SandboxID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, id)
}

// sameContention reports whether two lists are of the same targets. The values may
// differ every time, and are not worth a report.
func sameContention(a, b []reconcile.Contention) bool {
	of := func(contended []reconcile.Contention) map[target]bool {
		out := map[target]bool{}
		for _, c := range contended {
			out[target{c.Step, c.Field, c.Object, c.Action}] = true
		}
		return out
	}
	return maps.Equal(of(a), of(b))
}
