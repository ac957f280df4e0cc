package ports

import (
	"math"
	"time"
)

// The times for which a port has to keep its state before that is reported. A link that is
// set up, or whose driver resets, has no carrier for some seconds.
const (
	downAfter = 3 * time.Second
	upAfter   = 5 * time.Second
	// flapping is the number of carrier changes, of which those of half a minute ago
	// count half, from which on a port is reported as flapping; until steadyTime has passed
	// without one. So a port whose carrier keeps changing is reported once, and
	// each of the others can cause two reports in ten seconds at most.
	flapping   = 10
	steadyTime = 30 * time.Second
)

// debouncer delays the report of a port's state until the state is stable. Its size does
// not depend on how often the port changes.
type debouncer struct {
	reported  Verdict // zero: nothing yet
	candidate Verdict
	since     time.Time // of the candidate

	seen    bool
	last    time.Time // of the last observation
	changes uint32
	changed time.Time // when changes last differed
	score   float64
	flaps   bool
}

// observe takes an observation. It returns whether there is something new to report, and
// the time after which to read the port again without a notification; 0 is never.
func (d *debouncer) observe(now time.Time, v Verdict, changes uint32) (changed bool, again time.Duration) {
	if d.seen {
		d.score *= math.Exp2(-now.Sub(d.last).Seconds() / steadyTime.Seconds())
		if n := changes - d.changes; n != 0 {
			d.score += float64(min(n, 2*flapping)) // or it would take long to forget
			d.changed = now
			d.candidate = Verdict{} // it was something else meanwhile
		}
	}
	d.seen, d.last, d.changes = true, now, changes
	switch {
	case now.Sub(d.changed) >= steadyTime:
		d.flaps, d.score = false, 0
	case d.score >= flapping:
		d.flaps = true
	}
	if d.flaps {
		v = Verdict{Down, Flapping}
	}
	if v != d.candidate {
		d.candidate, d.since = v, now
	}
	if d.flaps {
		again = max(steadyTime-now.Sub(d.changed), time.Second)
	}
	if v == d.reported {
		return false, again
	}
	wait := downAfter
	switch {
	case d.reported == Verdict{} && v.Status == Up, v.Status == Down && d.reported.Status == Down, v.Reason == Flapping:
		wait = 0
	case v.Status == Up:
		wait = upAfter
	}
	if left := wait - now.Sub(d.since); left > 0 {
		if again == 0 || left < again {
			again = left
		}
		return false, again
	}
	d.reported = v
	return true, again
}
