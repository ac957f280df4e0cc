package controller

import (
	"maps"
	"time"
)

// turns has each namespace wait after its work, in proportion to how long that took: whatever its users write, one
// namespace takes a fifth of a worker that serves all. It has until when each waits.
type turns map[string]time.Time

// turnPause: after its work a namespace waits this many times as long as the work took.
const turnPause = 4

// wait returns for how long a namespace has to wait yet.
func (t turns) wait(namespace string, now time.Time) time.Duration {
	return max(0, t[namespace].Sub(now))
}

// took notes that the work of a namespace has ended, and how long it took.
func (t turns) took(namespace string, work time.Duration, now time.Time) {
	maps.DeleteFunc(t, func(_ string, until time.Time) bool { return until.Before(now) })
	t[namespace] = now.Add(turnPause * work)
}
