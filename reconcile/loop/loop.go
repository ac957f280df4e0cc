// Package loop repeats what a part of the agent does: when what it reads has changed, at intervals, and
// later each time that it fails. It also waits for calls in progress to end.
package loop

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/plumbline/plumbline/topology/fault"
)

// Loop is a pass that is repeated.
type Loop struct {
	// Pass returns the time until the next pass, which a wake shortens; 0 is Every.
	Pass func(ctx context.Context) (next time.Duration, err error)
	// Every is the time between the end of a pass and the next one.
	Every time.Duration
	// Wake begins a pass before its time; nil: nothing does.
	Wake <-chan struct{}
	// Rest is a pause after each pass of the given duration, which no wake shortens: several wakes in it are one. nil: none.
	Rest func(took time.Duration) time.Duration
	// Retry is the time until the next pass after one that failed. It doubles with each in succession, up to
	// Every. 0: Every.
	Retry time.Duration
	// Warn is called with an error that the passes before did not have, judged by its text. nil: nobody is told.
	Warn func(err error)
	// Doubt is how many passes in succession have to fail in one way before Warn is called, in addition to the first.
	Doubt int
}

// Run repeats the pass until ctx ends. The first one begins at once.
func (l Loop) Run(ctx context.Context) {
	var before error
	failures, alike := 0, 0
	for {
		began := time.Now() //nolint:forbidigo // a duration for Rest, which is measured on the monotonic clock
		next, err := l.Pass(ctx)
		if ctx.Err() != nil {
			return
		}
		next = cmp.Or(next, l.Every)
		if err == nil {
			failures = 0
		} else if failures++; l.Retry > 0 {
			next = min(l.Retry<<min(failures-1, 16), l.Every)
		}
		if alike++; !fault.SameText(err, before) {
			before, alike = err, 0
		}
		if err != nil && alike == l.Doubt && l.Warn != nil {
			l.Warn(err)
		}
		if l.Rest != nil && !Wait(ctx, l.Rest(time.Since(began)), nil) { //nolint:forbidigo // as above
			return
		}
		if !Wait(ctx, next, l.Wake) {
			return
		}
	}
}

// Forever is for waits that only a wake ends.
const Forever = time.Duration(math.MaxInt64)

// Wait waits for a time, or until it is woken; a nil wake never does. It reports false once ctx has ended.
func Wait(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
	return ctx.Err() == nil
}
