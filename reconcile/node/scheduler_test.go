package node

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/reconcile"
)

// testScheduler runs a scheduler in a synctest bubble and keeps the times of its passes.
type testScheduler struct {
	*scheduler
	begun time.Time

	mu sync.Mutex
	at map[reconcile.SandboxID][]time.Duration
}

func inBubble(t *testing.T, workers int, pass func(id reconcile.SandboxID, nth int) verdict, f func(s *testScheduler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &testScheduler{scheduler: newScheduler(time.Now, &Urgent{}), begun: time.Now(), at: map[reconcile.SandboxID][]time.Duration{}}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			s.run(ctx, workers, func(_ context.Context, id reconcile.SandboxID) verdict {
				s.mu.Lock()
				s.at[id] = append(s.at[id], time.Since(s.begun))
				nth := len(s.at[id])
				s.mu.Unlock()
				return pass(id, nth)
			})
		})
		f(s)
		cancel()
		wg.Wait()
	})
}

// after waits and returns when a sandbox had a pass meanwhile, to 10 ms.
func (s *testScheduler) after(d time.Duration, id reconcile.SandboxID) []time.Duration {
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []time.Duration
	for _, t := range s.at[id] {
		out = append(out, t.Round(10*time.Millisecond))
	}
	return out
}

func TestFailuresAreRetriedLaterEachTime(t *testing.T) {
	fails := 12
	inBubble(t, 1, func(_ reconcile.SandboxID, nth int) verdict {
		if nth <= fails {
			return retryLater
		}
		return done
	}, func(s *testScheduler) {
		s.enqueue("a")
		got := s.after(5*time.Minute, "a")
		var waits []time.Duration
		for i := 1; i < len(got); i++ {
			waits = append(waits, (got[i] - got[i-1]).Round(100*time.Millisecond))
		}
		ms := time.Millisecond
		want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 12800 * ms, 25600 * ms, 30000 * ms, 30000 * ms, 30000 * ms}
		if diff := cmp.Diff(want, waits); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
	})
}

func TestEnqueueResetsBackoff(t *testing.T) {
	inBubble(t, 1, func(reconcile.SandboxID, int) verdict { return retryLater }, func(s *testScheduler) {
		s.enqueue("a")
		before := len(s.after(20*time.Second, "a")) // the next wait is 12.8 s or more
		s.enqueue("a")
		got := s.after(350*time.Millisecond, "a")[before:]
		if len(got) != 3 { // at once, after 100 ms, after 200 ms more
			t.Errorf("passes after enqueue: %v, want 3", got)
		}
	})
}

// Changes of a sandbox are handled at once a few times, then at a fixed rate; other
// sandboxes are not affected.
func TestChangesAreRateLimitedPerSandbox(t *testing.T) {
	inBubble(t, 2, func(reconcile.SandboxID, int) verdict { return done }, func(s *testScheduler) {
		for range 1000 {
			s.enqueueChange("noisy")
			time.Sleep(10 * time.Millisecond)
		}
		s.enqueueChange("calm")
		got := s.after(0, "noisy")
		if want := changesBurst + 10*changesPerSecond; len(got) < want-2 || len(got) > want+2 {
			t.Errorf("%d passes in 10 s, want about %d", len(got), want)
		}
		if got := s.after(0, "calm"); len(got) != 1 {
			t.Errorf("calm had %d passes, want 1 at once", len(got))
		}
	})
}

// Changes while a pass runs cause one pass, afterwards, by one worker.
func TestOneWorkerPerSandbox(t *testing.T) {
	var mu sync.Mutex
	busy := map[reconcile.SandboxID]bool{}
	inBubble(t, 4, func(id reconcile.SandboxID, _ int) verdict {
		mu.Lock()
		if busy[id] {
			t.Error("two workers on one sandbox")
		}
		busy[id] = true
		mu.Unlock()
		time.Sleep(time.Second)
		mu.Lock()
		busy[id] = false
		mu.Unlock()
		return done
	}, func(s *testScheduler) {
		s.enqueue("a")
		s.enqueue("b")
		for range 5 {
			time.Sleep(100 * time.Millisecond)
			s.enqueue("a")
		}
		want := []time.Duration{0, time.Second}
		if got := s.after(10*time.Second, "a"); !slices.Equal(got, want) {
			t.Errorf("passes of a: %v, want %v", got, want)
		}
		if got := s.after(0, "b"); !slices.Equal(got, want[:1]) {
			t.Errorf("passes of b: %v, want %v", got, want[:1])
		}
	})
}

func TestChangedSince(t *testing.T) {
	inBubble(t, 1, func(reconcile.SandboxID, int) verdict {
		time.Sleep(time.Second)
		return done
	}, func(s *testScheduler) {
		s.enqueueChange("a")
		first := time.Now()
		time.Sleep(100 * time.Millisecond)
		s.enqueueChange("a") // while the pass runs
		if got := s.changedSince("a"); !got.Equal(first) {
			t.Errorf("changed since %v, want %v: the first one counts", got, first)
		}
		s.handled("a", first)
		if got := s.changedSince("a"); got.IsZero() {
			t.Error("the change during the pass is forgotten")
		}
		s.after(10*time.Second, "a")
		s.handled("a", first)
		if got := s.changedSince("a"); !got.IsZero() {
			t.Errorf("changed since %v after handled", got)
		}
	})
}

// Stopping drops what is due and returns when the running passes are done.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(time.Now, &Urgent{})
		ctx, cancel := context.WithCancel(t.Context())
		var done []reconcile.SandboxID
		s.enqueue("a")
		s.enqueue("b")
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.run(ctx, 1, func(_ context.Context, id reconcile.SandboxID) verdict {
				time.Sleep(time.Second)
				done = append(done, id)
				return retryLater
			})
		}()
		time.Sleep(100 * time.Millisecond)
		cancel()
		<-stopped
		if want := []reconcile.SandboxID{"a"}; !slices.Equal(done, want) {
			t.Errorf("passes: %v, want %v", done, want)
		}
	})
}

// Something urgent waits at most for the running passes, however many sandboxes are
// due. Where it never ends, repairs go on slowly.
func TestYield(t *testing.T) {
	const took = 50 * time.Millisecond
	var mu sync.Mutex
	running, most := 0, 0
	inBubble(t, 2, func(reconcile.SandboxID, int) verdict {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		time.Sleep(took)
		mu.Lock()
		running--
		mu.Unlock()
		return done
	}, func(s *testScheduler) {
		begun := func() int { return begunOf(s) }
		for i := range 500 {
			s.enqueueChange(reconcile.SandboxID(string(rune('a' + i))))
		}
		time.Sleep(3*took + took/2) // in the middle of the fourth pass
		done := s.urgent.Begin()
		second := s.urgent.Begin()
		before := begun()
		time.Sleep(took)
		synctest.Wait()
		mu.Lock()
		if running != 0 {
			t.Errorf("%d passes are still under way after the time of one", running)
		}
		mu.Unlock()
		time.Sleep(maxYield / 2)
		if n := begun() - before; n != 0 {
			t.Errorf("%d passes began while something was urgent", n)
		}
		second()
		second() // once is enough
		time.Sleep(took)
		if n := begun() - before; n != 0 {
			t.Errorf("%d passes began while one of two was urgent still", n)
		}
		done()
		synctest.Wait()
		if n := begun() - before; n != 2 {
			t.Errorf("%d passes began at the end, want as many as there are workers", n)
		}

		time.Sleep(maxYield)
		defer s.urgent.Begin()()
		before = begun()
		time.Sleep(2 * took)
		mu.Lock()
		most = 0
		mu.Unlock()
		time.Sleep(10 * took)
		mu.Lock()
		defer mu.Unlock()
		if n := begun() - before; most != 1 || n < 10 || n > 14 {
			t.Errorf("%d passes, %d at a time, among those that are overdue, want one after the other", n, most)
		}
	})
}

func begunOf(s *testScheduler) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.at {
		n += len(at)
	}
	return n
}

func TestHold(t *testing.T) {
	inBubble(t, 1, func(reconcile.SandboxID, int) verdict { return done }, func(s *testScheduler) {
		s.enqueueChange("a")
		s.after(0, "a")
		s.enqueueChange("a")
		s.holdUntil("a", time.Now().Add(10*time.Second)) // also earlier changes
		time.Sleep(time.Second)
		s.enqueueChange("a")
		s.enqueueCheck("a")
		s.enqueueAt("a", time.Now())
		if got := s.after(0, "a"); len(got) > 2 {
			t.Errorf("passes while it is held: %v", got)
		}
		s.enqueue("a")
		if got := s.after(0, "a"); len(got) < 2 || got[len(got)-1] != time.Second {
			t.Errorf("passes: %v, want one after enqueue", got)
		}
		s.enqueueChange("a")
		if got := s.after(time.Minute, "a"); got[len(got)-1] != 10*time.Second {
			t.Errorf("passes: %v, want the last when the hold ends", got)
		}
	})
}

func TestLoadOfTheScheduler(t *testing.T) {
	var hold chan struct{}
	pass := func(reconcile.SandboxID, int) verdict { <-hold; return done }
	inBubble(t, 1, pass, func(s *testScheduler) {
		hold = make(chan struct{}) // made in the bubble, so that waiting for it counts as idle
		load := func(when string, waiting, busy int, delay time.Duration) {
			t.Helper()
			synctest.Wait()
			w, b, since := s.load()
			late := time.Duration(0)
			if !since.IsZero() {
				late = time.Since(since)
			}
			if w != waiting || b != busy || late != delay {
				t.Errorf("%s: %d wait, %d are busy, the first for %s; want %d, %d, %s", when, w, b, late, waiting, busy, delay)
			}
		}
		load("at first", 0, 0, 0)
		s.enqueue("a")
		load("one was enqueued", 0, 1, 0)
		s.enqueue("b")
		time.Sleep(2 * time.Second)
		s.enqueue("c")
		s.enqueueAt("d", time.Now().Add(time.Hour)) // is not due
		load("one works, two wait", 2, 1, 2*time.Second)
		close(hold)
		load("all are done", 0, 0, 0)
	})
}
