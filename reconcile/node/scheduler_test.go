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

// turns runs a scheduler in a bubble and keeps the times of its turns.
type turns struct {
	*scheduler
	begun time.Time

	mu sync.Mutex
	at map[reconcile.SandboxID][]time.Duration
}

func inBubble(t *testing.T, workers int, pass func(id reconcile.SandboxID, turn int) verdict, f func(s *turns)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &turns{scheduler: newScheduler(time.Now), begun: time.Now(), at: map[reconcile.SandboxID][]time.Duration{}}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			s.run(ctx, workers, func(_ context.Context, id reconcile.SandboxID) verdict {
				s.mu.Lock()
				s.at[id] = append(s.at[id], time.Since(s.begun))
				turn := len(s.at[id])
				s.mu.Unlock()
				return pass(id, turn)
			})
		})
		f(s)
		cancel()
		wg.Wait()
	})
}

// after lets time pass and returns the turns a sandbox has had, to 10 ms.
func (s *turns) after(d time.Duration, id reconcile.SandboxID) []time.Duration {
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
	inBubble(t, 1, func(_ reconcile.SandboxID, turn int) verdict {
		if turn <= fails {
			return again
		}
		return settled
	}, func(s *turns) {
		s.ask("a")
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

func TestAskingForgetsFailures(t *testing.T) {
	inBubble(t, 1, func(reconcile.SandboxID, int) verdict { return again }, func(s *turns) {
		s.ask("a")
		before := len(s.after(20*time.Second, "a")) // the next wait is 12.8 s or more
		s.ask("a")
		got := s.after(350*time.Millisecond, "a")[before:]
		if len(got) != 3 { // at once, after 100 ms, after 200 ms more
			t.Errorf("turns after asking: %v, want 3", got)
		}
	})
}

// Whoever keeps changing a sandbox is answered at once a few times, then at a
// fixed pace; other sandboxes do not feel it.
func TestNoticesAreLimitedPerSandbox(t *testing.T) {
	inBubble(t, 2, func(reconcile.SandboxID, int) verdict { return settled }, func(s *turns) {
		for range 1000 {
			s.notice("noisy")
			time.Sleep(10 * time.Millisecond)
		}
		s.notice("calm")
		got := s.after(0, "noisy")
		if want := noticesBurst + 10*noticesPerSecond; len(got) < want-2 || len(got) > want+2 {
			t.Errorf("%d turns in 10 s, want about %d", len(got), want)
		}
		if got := s.after(0, "calm"); len(got) != 1 {
			t.Errorf("calm had %d turns, want 1 at once", len(got))
		}
	})
}

// What is noticed while a pass runs is looked at once, afterwards, by one worker.
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
		return settled
	}, func(s *turns) {
		s.ask("a")
		s.ask("b")
		for range 5 {
			time.Sleep(100 * time.Millisecond)
			s.ask("a")
		}
		want := []time.Duration{0, time.Second}
		if got := s.after(10*time.Second, "a"); !slices.Equal(got, want) {
			t.Errorf("turns of a: %v, want %v", got, want)
		}
		if got := s.after(0, "b"); !slices.Equal(got, want[:1]) {
			t.Errorf("turns of b: %v, want %v", got, want[:1])
		}
	})
}

func TestNoticedSince(t *testing.T) {
	inBubble(t, 1, func(reconcile.SandboxID, int) verdict {
		time.Sleep(time.Second)
		return settled
	}, func(s *turns) {
		s.notice("a")
		first := time.Now()
		time.Sleep(100 * time.Millisecond)
		s.notice("a") // while the pass runs
		if got := s.noticed("a"); !got.Equal(first) {
			t.Errorf("noticed at %v, want %v: the first one counts", got, first)
		}
		s.answered("a", first)
		if got := s.noticed("a"); got.IsZero() {
			t.Error("what was noticed during the pass is forgotten")
		}
		s.after(10*time.Second, "a")
		s.answered("a", first)
		if got := s.noticed("a"); !got.IsZero() {
			t.Errorf("noticed at %v after an answer", got)
		}
	})
}

// Stopping drops what waits and returns when the running passes are done.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		var done []reconcile.SandboxID
		s.ask("a")
		s.ask("b")
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			s.run(ctx, 1, func(_ context.Context, id reconcile.SandboxID) verdict {
				time.Sleep(time.Second)
				done = append(done, id)
				return again
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

// What is urgent waits for the passes under way at most, however many sandboxes
// are to be repaired, and repairs go on slowly where it never ends.
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
		return settled
	}, func(s *turns) {
		begun := func() int { return begunOf(s) }
		for i := range 500 {
			s.notice(reconcile.SandboxID(string(rune('a' + i))))
		}
		time.Sleep(3*took + took/2) // in the middle of the fourth pass
		done := s.yield()
		second := s.yield()
		before := begun()
		time.Sleep(took)
		synctest.Wait()
		mu.Lock()
		if running != 0 {
			t.Errorf("%d passes are still under way after the time of one", running)
		}
		mu.Unlock()
		time.Sleep(urgentMost / 2)
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

		time.Sleep(urgentMost)
		defer s.yield()()
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

func begunOf(s *turns) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.at {
		n += len(at)
	}
	return n
}

func TestHold(t *testing.T) {
	inBubble(t, 1, func(reconcile.SandboxID, int) verdict { return settled }, func(s *turns) {
		s.notice("a")
		s.after(0, "a")
		s.notice("a")
		s.hold("a", time.Now().Add(10*time.Second)) // also what was noticed before
		time.Sleep(time.Second)
		s.notice("a")
		s.look("a")
		s.expect("a", time.Now())
		if got := s.after(0, "a"); len(got) > 2 {
			t.Errorf("turns while it is held: %v", got)
		}
		s.ask("a")
		if got := s.after(0, "a"); len(got) < 2 || got[len(got)-1] != time.Second {
			t.Errorf("turns: %v, want one when it was asked for", got)
		}
		s.notice("a")
		if got := s.after(time.Minute, "a"); got[len(got)-1] != 10*time.Second {
			t.Errorf("turns: %v, want the last when the hold ends", got)
		}
	})
}

func TestLoadOfTheScheduler(t *testing.T) {
	var hold chan struct{}
	pass := func(reconcile.SandboxID, int) verdict { <-hold; return settled }
	inBubble(t, 1, pass, func(s *turns) {
		hold = make(chan struct{}) // of the bubble, so that it knows of who waits
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
		s.ask("a")
		load("one was asked for", 0, 1, 0)
		s.ask("b")
		time.Sleep(2 * time.Second)
		s.ask("c")
		s.expect("d", time.Now().Add(time.Hour)) // is not due
		load("one works, two wait", 2, 1, 2*time.Second)
		close(hold)
		load("all had their turn", 0, 0, 0)
	})
}
