package reconcile

import "time"

// Age is how old something is.
func Age(t time.Time) time.Duration {
	time.Sleep(1)                // want forbidigo
	return time.Now().Sub(t) + 0 // want forbidigo
}
