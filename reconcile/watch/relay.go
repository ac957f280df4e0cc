package watch

import (
	"context"
	"sync/atomic"
)

// Relay passes events on to a loop while one takes them, and drops them otherwise: a
// loop that begins observes everything. In any case each event about the host is
// reported, to callers without a loop.
type Relay struct {
	in    <-chan Event
	out   chan Event
	host  func()
	taken atomic.Bool
	lost  atomic.Int64
}

// NewRelay returns a Relay of a Watcher's events, which calls host for each event
// about the host.
func NewRelay(in <-chan Event, host func()) *Relay {
	return &Relay{in: in, out: make(chan Event), host: host}
}

// Events returns the events that are passed on.
func (r *Relay) Events() <-chan Event { return r.out }

// Overflows returns how many events said that notifications were lost.
func (r *Relay) Overflows() int64 { return r.lost.Load() }

// Take passes events on until leave is called.
func (r *Relay) Take() (leave func()) {
	r.taken.Store(true)
	return func() { r.taken.Store(false) }
}

// Run relays until ctx ends or the events do.
func (r *Relay) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-r.in:
			if !ok {
				return
			}
			if e.Host {
				r.host()
			}
			if e.Reason == Overflow {
				r.lost.Add(1)
			}
			if !r.taken.Load() {
				continue
			}
			select {
			case r.out <- e:
			case <-ctx.Done():
				return
			}
		}
	}
}
