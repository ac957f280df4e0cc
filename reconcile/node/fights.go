package node

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// What makes a fight, and how it is fought.
const (
	// So many repairs of one field within so long are no accident.
	fightRepairs = 5
	fightWithin  = 10 * time.Second
	// The pause after a repair of what is fought over: at first, and at most.
	truceFirst = 500 * time.Millisecond
	truceMost  = 30 * time.Second
	// A field that stays as it is for so long, and the last pause besides, is
	// fought over no more.
	peaceAfter = 10 * time.Second
	// fightsMax bounds how many are named: who deletes a link takes all with it
	// that stands on it, and the link comes first.
	fightsMax = 8
)

// fights knows what somebody else keeps changing back, per sandbox. It is told of
// every pass and says how long to leave the sandbox alone.
type fights struct {
	random func() float64 // in [0, 1)

	mu sync.Mutex
	of map[reconcile.SandboxID]*contest
}

// contest is the repairs of one sandbox that may be, or are, part of a fight.
type contest struct {
	spots map[spot]*repairs
	order []spot        // in which they were seen first
	truce time.Duration // the last one; 0: there is no fight
}

// spot is what can be fought over.
type spot struct {
	step, field string
	object      netstate.Key
	action      netstate.Action
}

// repairs is what is remembered of one spot.
type repairs struct {
	at        []time.Time // the last ones, fightRepairs at most
	converged time.Time   // the last that was seen to hold
	fight     *reconcile.Fight
}

// standing is how things stand after a pass.
type standing struct {
	fights       []reconcile.Fight
	began, ended bool
	// contested is set when the pass repaired what is fought over.
	contested bool
	hold      time.Time // no pass before; zero: whenever there is reason
	look      time.Time // one pass then, if none comes before; zero: none
}

func newFights() *fights {
	return &fights{random: rand.Float64, of: map[reconcile.SandboxID]*contest{}}
}

// passed takes what a pass has repaired. One that wrote and found it changed
// again already has not converged: that is a fight only where a repair was seen
// to hold before, else the kernel or a driver does not take the value.
func (f *fights) passed(id reconcile.SandboxID, repaired []reconcile.Drift, converged bool, now time.Time) standing {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.of[id]
	if c == nil {
		if len(repaired) == 0 {
			return standing{}
		}
		c = &contest{spots: map[spot]*repairs{}}
		f.of[id] = c
	}
	before := c.truce > 0
	s := standing{contested: c.count(repaired, converged, now)}
	if s.contested {
		c.truce = min(max(2*c.truce, truceFirst), truceMost)
		// Between a half and the whole, so that two who repair part ways.
		s.hold = now.Add(c.truce/2 + time.Duration(f.random()*float64(c.truce/2)))
	}
	c.settle(now)
	for _, at := range c.order {
		if r := c.spots[at]; r.fight != nil {
			s.fights = append(s.fights, *r.fight)
			if peace := c.peace(r); s.look.IsZero() || peace.Before(s.look) {
				s.look = peace
			}
		}
	}
	s.fights = s.fights[:min(len(s.fights), fightsMax)]
	if len(s.fights) == 0 {
		c.truce = 0
	}
	s.began, s.ended = !before && c.truce > 0, before && c.truce == 0
	if len(c.spots) == 0 {
		delete(f.of, id)
	}
	return s
}

// count adds the repairs of a pass, and reports whether one of them is part of a
// fight.
func (c *contest) count(repaired []reconcile.Drift, converged bool, now time.Time) (contested bool) {
	seen := map[spot]bool{}
	for _, d := range repaired {
		at := spot{d.Step, d.Field, d.Object, d.Action}
		if seen[at] || d.Object == (netstate.Key{}) { // pending, so nobody's work yet
			continue
		}
		seen[at] = true
		r := c.spots[at]
		if r == nil {
			r = &repairs{}
			c.spots[at] = r
			c.order = append(c.order, at)
		}
		r.at = append(slices.DeleteFunc(r.at, func(t time.Time) bool { return now.Sub(t) > fightWithin }), now)
		r.at = r.at[max(0, len(r.at)-fightRepairs):]
		if converged {
			r.converged = now
		}
		if r.fight == nil && len(r.at) == fightRepairs && !r.converged.Before(r.at[0]) {
			r.fight = &reconcile.Fight{Step: d.Step, Object: d.Object, Field: d.Field, Action: d.Action, Since: r.at[0]}
			if d.Field != "" {
				r.fight.Want, r.fight.Have = netstate.FormatValue(d.Want), netstate.FormatValue(d.Have)
			}
		}
		contested = contested || r.fight != nil
	}
	return contested
}

// peace is when a fight is over if nothing happens until then.
func (c *contest) peace(r *repairs) time.Time {
	return r.at[len(r.at)-1].Add(c.truce + peaceAfter)
}

// settle drops what has been quiet for long enough.
func (c *contest) settle(now time.Time) {
	c.order = slices.DeleteFunc(c.order, func(at spot) bool {
		r := c.spots[at]
		over := now.Sub(r.at[len(r.at)-1]) > fightWithin
		if r.fight != nil {
			over = !now.Before(c.peace(r))
		}
		if over {
			delete(c.spots, at)
		}
		return over
	})
}

// forget drops what is known of a sandbox that is no more.
func (f *fights) forget(id reconcile.SandboxID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, id)
}

// sameFights reports whether two lists name the same. The values may be others
// every time, and are not worth being told of.
func sameFights(a, b []reconcile.Fight) bool {
	order := func(x, y reconcile.Fight) int {
		return cmp.Or(strings.Compare(x.Step, y.Step), strings.Compare(x.Object.String(), y.Object.String()), strings.Compare(x.Field, y.Field), strings.Compare(string(x.Action), string(y.Action)))
	}
	return slices.EqualFunc(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order), reconcile.Fight.SameAs)
}
