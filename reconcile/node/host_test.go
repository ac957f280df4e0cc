package node

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/watch"
)

// loopOnHost has a number of sandboxes that depend on the devices of the host, whose changes it
// receives.
func loopOnHost(sandboxes int) (*Loop, chan<- watch.Event) {
	events := make(chan watch.Event)
	l := New(Options{Watcher: &watched{events: events}, Now: time.Now})
	for i := range sandboxes {
		id := reconcile.SandboxID(fmt.Sprint("s", i))
		l.paths[id], l.onHost[id] = "/n", true
	}
	return l, events
}

// TestHostChangesAreRateLimited holds that after a change of the host's devices every
// sandbox that may be affected is checked, at once after a single change and soon after
// one of many, and that many changes do not cause a pass of every sandbox each.
func TestHostChangesAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		l, events := loopOnHost(n)
		var mu sync.Mutex
		last, passes := map[reconcile.SandboxID]time.Time{}, 0
		since := func(when time.Time) (checked, passed int) {
			mu.Lock()
			defer mu.Unlock()
			for _, at := range last {
				if !at.Before(when) {
					checked++
				}
			}
			passed, passes = passes, 0
			return checked, passed
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.listen(ctx) })
		wg.Go(func() {
			l.sched.run(ctx, 2, func(_ context.Context, id reconcile.SandboxID) verdict {
				mu.Lock()
				defer mu.Unlock()
				last[id] = time.Now()
				passes++
				return done
			})
		})

		began := time.Now()
		events <- watch.Event{Host: true}
		synctest.Wait()
		if checked, passed := since(began); checked != n || passed != n {
			t.Errorf("after one change %d are checked, in %d passes", checked, passed)
		}
		var changed time.Time
		for range 100 { // ten seconds of pods that start
			changed = time.Now()
			events <- watch.Event{Host: true}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(n*hostPace + time.Millisecond)
		checked, passed := since(changed)
		if checked != n {
			t.Errorf("after the last change %d of %d were checked", checked, n)
		}
		if most := int(12*time.Second/hostPace) + n; passed > most {
			t.Errorf("%d passes in twelve seconds, want %d at most", passed, most)
		}
		time.Sleep(time.Minute)
		if _, passed := since(changed); passed != 0 {
			t.Errorf("%d passes for nothing", passed)
		}
		cancel()
		wg.Wait()
	})
}

// TestBusyNode: where a check takes long, changes of the host's devices cause fewer of them, but a last one for each
// sandbox before its periodic check.
func TestBusyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, took = 40, 300 * time.Millisecond
		l, events := loopOnHost(n)
		var mu sync.Mutex
		passes := 0
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.listen(ctx) })
		wg.Go(func() {
			l.sched.run(ctx, 4, func(_ context.Context, id reconcile.SandboxID) verdict {
				time.Sleep(took)
				l.checked(id, took)
				mu.Lock()
				defer mu.Unlock()
				passes++
				return done
			})
		})
		passed := func() int {
			mu.Lock()
			defer mu.Unlock()
			return passes
		}
		const storm = 10 * time.Minute
		for began := time.Now(); time.Since(began) < storm; time.Sleep(time.Second) {
			events <- watch.Event{Host: true}
		}
		// The second one is early, since nothing was known before the first.
		if got, most := passed(), n*(2+int(storm/time.Minute)); got > most {
			t.Errorf("%d passes in %s, want %d at most", got, storm, most)
		}
		before := passed()
		events <- watch.Event{Host: true}
		time.Sleep(l.Resync + n*took)
		if got := passed() - before; got < n {
			t.Errorf("%d passes after the last change, want one of each of %d sandboxes", got, n)
		}
		cancel()
		wg.Wait()
	})
}

// TestSlowPod: a pod whose check takes long delays the checks of others after a change of the host only
// until that is known, as often as it becomes slow. A sandbox of no pod is always checked.
func TestSlowPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, took, slow = 40, 5 * time.Millisecond, 10 * time.Second
		l, events := loopOnHost(n)
		l.paths["s1"] = ""
		var mu sync.Mutex
		last, passes := map[reconcile.SandboxID]time.Time{}, map[reconcile.SandboxID]int{}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.listen(ctx) })
		wg.Go(func() {
			l.sched.run(ctx, 4, func(_ context.Context, id reconcile.SandboxID) verdict {
				takes := took
				if id == "s0" || id == "s1" {
					takes = slow
				}
				time.Sleep(takes)
				l.checked(id, takes)
				mu.Lock()
				defer mu.Unlock()
				last[id], passes[id] = time.Now(), passes[id]+1
				return done
			})
		})
		events <- watch.Event{Host: true}
		time.Sleep(time.Minute)
		l.mu.Lock()
		delete(l.paths, "s1")
		l.mu.Unlock()
		for range 10 { // minutes
			events <- watch.Event{Host: true}
			time.Sleep(time.Minute)
			changed := time.Now()
			events <- watch.Event{Host: true}
			time.Sleep(n*hostPace + hostShare*n*took)
			mu.Lock()
			for i := 2; i < n; i++ {
				if at := last[reconcile.SandboxID(fmt.Sprint("s", i))]; at.Before(changed) {
					t.Errorf("sandbox %d was not checked after %s", i, time.Since(changed))
				}
			}
			mu.Unlock()
		}
		mu.Lock()
		if passes["s0"] != 1 {
			t.Errorf("the slow one was checked %d times after changes of the host, want 1", passes["s0"])
		}
		mu.Unlock()
		l.mu.Lock()
		l.paths["s1"] = ""
		l.mu.Unlock()
		events <- watch.Event{Host: true}
		time.Sleep(2 * slow)
		mu.Lock()
		if passes["s1"] != 2 {
			t.Errorf("what is of no pod was checked %d times, want 2", passes["s1"])
		}
		mu.Unlock()
		cancel()
		wg.Wait()
	})
}

// TestPodLinks: a pod that sets its own link up and down all the time has the sandboxes of others
// checked now and then, and does not delay the checks after the change of a device.
func TestPodLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, seconds = 200, 100
		l, events := loopOnHost(n)
		var mu sync.Mutex
		passes := 0
		passed := func() int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			defer func() { passes = 0 }()
			return passes
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { l.listen(ctx) })
		wg.Go(func() {
			l.sched.run(ctx, 2, func(context.Context, reconcile.SandboxID) verdict {
				mu.Lock()
				defer mu.Unlock()
				passes++
				return done
			})
		})
		storm := func(seconds int) {
			for range 20 * seconds {
				events <- watch.Event{Host: true, PodLinks: true}
				time.Sleep(50 * time.Millisecond)
			}
		}
		storm(seconds)
		if got, most := passed(), n+int(seconds*time.Second/podLinkPace); got < n || got > most {
			t.Errorf("%d passes in %d seconds of changes of a pod's link, want %d to %d", got, seconds, n, most)
		}
		for range 3 {
			storm(int(n*hostPace/time.Second) + 1)
			passed()
			events <- watch.Event{Host: true}
			if got := passed(); got != n {
				t.Errorf("after the change of a device, %d of %d sandboxes were checked at once", got, n)
			}
		}
		time.Sleep(n * podLinkPace)
		passed()
		time.Sleep(time.Hour)
		if got := passed(); got != 0 {
			t.Errorf("%d passes for nothing", got)
		}
		cancel()
		wg.Wait()
	})
}

// TestChangesComeBeforeResyncs holds that a sandbox that was changed does not wait for
// others that are due for a periodic check only, and that those are checked in the end.
func TestChangesComeBeforeResyncs(t *testing.T) {
	now := time.Unix(0, 0)
	s := newScheduler(func() time.Time { return now }, &Urgent{})
	for i := range 100 {
		id := reconcile.SandboxID(fmt.Sprintf("checked%02d", i))
		if i%2 == 0 {
			s.enqueueHostChange(id)
		} else {
			s.enqueueCheck(id)
		}
	}
	now = now.Add(time.Second)
	s.enqueueChange("changed")
	s.enqueue("called")
	s.enqueueChange("checked50")
	for _, want := range []reconcile.SandboxID{"checked50", "called", "changed"} { // by the time they are due
		if id, _ := s.next(200); id != want {
			t.Errorf("next is %q, want %q", id, want)
		}
	}
	now = now.Add(resyncYield)
	s.enqueueChange("later")
	for i := range 100 {
		if id, _ := s.next(200); id == "later" && i != 99 || id == "" {
			t.Errorf("%q comes after %d of 99 that have waited for longer", id, i)
		}
	}
}
