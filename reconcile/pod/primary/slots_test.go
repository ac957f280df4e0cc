package primary

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
)

// TestSlots: pods of one namespace, however many and slow, leave slots to others, who do not wait behind them; no more
// slots are taken than there are, and all are free again.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(8)
		var mu sync.Mutex
		frees := map[string][]func(){}
		var wg sync.WaitGroup
		take := func(ctx context.Context, namespace string) {
			wg.Go(func() {
				free, err := s.take(ctx, namespace)
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				frees[namespace] = append(frees[namespace], free)
			})
			synctest.Wait()
		}
		has := func(when string, want ...int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			for i, n := range want {
				if name := fmt.Sprint(i); len(frees[name]) != n {
					t.Errorf("%s: namespace %s has %d slots, want %d", when, name, len(frees[name]), n)
				}
			}
		}
		free := func(namespace string) {
			mu.Lock()
			f := frees[namespace][0]
			frees[namespace] = frees[namespace][1:]
			mu.Unlock()
			f()
			synctest.Wait()
		}
		for range 20 {
			take(t.Context(), "0")
		}
		has("one namespace", 6)
		take(t.Context(), "1")
		has("another one beside it", 6, 1)
		for range 20 {
			take(t.Context(), "1")
		}
		has("two namespaces", 6, 2)
		gone, cancel := context.WithCancelCause(t.Context())
		take(gone, "2") // does not wait until it gets one
		take(t.Context(), "3")
		cancel(errors.New("the runtime has left"))
		synctest.Wait()
		free("0")
		has("a slot is free", 5, 2, 0, 1)
		for len(frees["0"])+len(frees["1"])+len(frees["3"]) > 0 {
			for _, n := range []string{"0", "1", "3"} {
				if len(frees[n]) > 0 {
					free(n)
				}
			}
			if s.taken > 8 {
				t.Fatalf("%d slots of 8 are taken", s.taken)
			}
		}
		wg.Wait()
		if s.taken != 0 || len(s.of) != 0 || len(s.waiting) != 0 {
			t.Errorf("all have ended: %d slots are taken, of %v, and %d wait", s.taken, s.of, len(s.waiting))
		}
	})
}
