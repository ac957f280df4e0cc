package primary

import (
	"context"
	"slices"
	"sync"
)

// slots bounds the calls that are worked on at a time. A namespace has three quarters of them at most, so that its pods, however
// slow, do not keep those of others from starting; a free one goes to the namespace that has the fewest.
type slots struct {
	most int

	mu      sync.Mutex
	taken   int
	of      map[string]int // by namespace
	waiting []*waiter
}

type waiter struct {
	namespace string
	granted   chan struct{}
}

func newSlots(most int) *slots { return &slots{most: most, of: map[string]int{}} }

// take waits for a slot until ctx ends.
func (s *slots) take(ctx context.Context, namespace string) (free func(), err error) {
	w := &waiter{namespace, make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.grant()
	s.mu.Unlock()
	select {
	case <-w.granted:
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.Index(s.waiting, w)
		if i >= 0 {
			s.waiting = slices.Delete(s.waiting, i, i+1)
			return nil, context.Cause(ctx)
		} // it was granted at the same moment
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
		if s.of[namespace]--; s.of[namespace] == 0 {
			delete(s.of, namespace)
		}
		s.grant()
	}, nil
}

// grant gives free slots to those who wait. The caller has the lock.
func (s *slots) grant() {
	for s.taken < s.most {
		next := -1
		for i, w := range s.waiting {
			if has := s.of[w.namespace]; has < s.most-s.most/4 && (next < 0 || has < s.of[s.waiting[next].namespace]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := s.waiting[next]
		s.waiting = slices.Delete(s.waiting, next, next+1)
		s.taken++
		s.of[w.namespace]++
		close(w.granted)
	}
}
