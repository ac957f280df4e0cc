package controller

import (
	"maps"
	"time"
)

// turns has each namespace wait after its work, in proportion to how long that took: whatever its users write, one
// namespace takes a fifth of a worker that serves all. Its zero value is not usable: see newTurns.
type turns struct {
	until map[string]time.Time
}

// turnPause: after its work a namespace waits this many times as long as the work took.
const turnPause = 4

func newTurns() *turns { return &turns{until: map[string]time.Time{}} }

// wait returns for how long a namespace has to wait yet.
func (t *turns) wait(namespace string, now time.Time) time.Duration {
	return max(0, t.until[namespace].Sub(now))
}

// took notes that the work of a namespace has ended, and how long it took.
func (t *turns) took(namespace string, work time.Duration, now time.Time) {
	maps.DeleteFunc(t.until, func(_ string, until time.Time) bool { return until.Before(now) })
	t.until[namespace] = now.Add(turnPause * work)
}
