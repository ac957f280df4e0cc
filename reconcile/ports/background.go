package ports

import (
	"context"
	"sync"
	"time"

	"github.com/plumbline/plumbline/reconcile/loop"
)

// staleAfter is how much older than intended the values of a reading that has not ended may be. Without values a counter is missing, while
// one that stays says that nothing happens.
const staleAfter = time.Minute

// background holds the result of a slow reading: a driver asks its firmware, and nothing interrupts that. A scrape waits for
// it no longer than scrapeTimeout, and then has the values of the last one, until they are too old.
type background[V any] struct {
	mu      sync.Mutex
	read    time.Time
	reading chan struct{} // closed when the reading in progress is over; nil: none
	values  V
}

// current calls f, unless a reading is in progress or the last one is younger than maxAge, and returns the values.
func (b *background[V]) current(now func() time.Time, maxAge time.Duration, f func() V) V {
	b.mu.Lock()
	if b.reading == nil && (b.read.IsZero() || now().Sub(b.read) >= maxAge) {
		done := make(chan struct{})
		b.reading = done
		go func() {
			values := f()
			b.mu.Lock()
			defer b.mu.Unlock()
			b.values, b.read, b.reading = values, now(), nil
			close(done)
		}()
	}
	reading := b.reading
	b.mu.Unlock()
	if reading != nil {
		loop.Wait(context.Background(), scrapeTimeout, reading)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reading != nil && now().Sub(b.read) > maxAge+staleAfter {
		var none V
		return none
	}
	return b.values
}
