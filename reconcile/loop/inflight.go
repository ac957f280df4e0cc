package loop

import (
	"sync"
	"time"
)

// InFlight counts calls in progress. Unlike with a sync.WaitGroup, further calls may begin while several callers
// wait. The zero value is none.
type InFlight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n falls to 0; made when it rises
}

// Begin counts a call, until end is called.
func (f *InFlight) Begin() (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == 0 {
		f.idle = make(chan struct{})
	}
	f.n++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.n--; f.n == 0 {
			close(f.idle)
		}
	}
}

// Wait waits until no call is in progress, and reports whether all have ended within the limit.
func (f *InFlight) Wait(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		f.mu.Lock()
		n, idle := f.n, f.idle
		f.mu.Unlock()
		if n == 0 {
			return true
		}
		select {
		case <-idle:
		case <-timer.C:
			return false
		}
	}
}
