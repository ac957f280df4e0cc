package kernel

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRDMAAsk: drivers that do not answer hold up each read for a short time only, and so do many of
// them. A late answer is not lost. A long silence is counted.
func TestRDMAAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRDMALinks()
		answer := make(chan struct{})
		var answered atomic.Int32
		took := func(cookie uint64, f func(context.Context)) (time.Duration, bool) {
			began, called := time.Now(), make(chan struct{})
			r.ask(t.Context(), reconcile.NetnsID{Cookie: cookie}, func(ctx context.Context) {
				close(called)
				f(ctx)
			})
			synctest.Wait()
			select {
			case <-called:
				return time.Since(began), true
			default:
				return time.Since(began), false
			}
		}
		late := func(ctx context.Context) {
			<-answer
			if ctx.Err() == nil {
				answered.Add(1)
			}
		}
		prompt := func(context.Context) {}
		for range 2 {
			if d, called := took(1, prompt); d != 0 || !called {
				t.Errorf("a driver that answers: %v, %v", d, called)
			}
		}
		if d, called := took(1, late); d != rdmaPatience || !called {
			t.Errorf("a driver that does not: waited for %v, %v", d, called)
		}
		if d, called := took(1, late); d != 0 || called {
			t.Errorf("while it has not answered: waited for %v, asked again: %v", d, called)
		}
		if d, called := took(2, prompt); d != 0 || !called {
			t.Errorf("another namespace meanwhile: waited for %v, %v", d, called)
		}
		for i := range uint64(2 * rdmaAsking) {
			took(10+i, late)
		}
		if n := len(r.asking); n != rdmaAsking {
			t.Errorf("%d are asked at the same time, want %d", n, rdmaAsking)
		}
		if n := r.silence(); n != 0 {
			t.Errorf("%d are silent at once, want 0", n)
		}
		time.Sleep(rdmaSilence)
		synctest.Wait()
		if n := r.silence(); n != rdmaAsking {
			t.Errorf("%d are silent after %s, want %d", n, rdmaSilence, rdmaAsking)
		}
		close(answer)
		synctest.Wait()
		if n := r.silence(); n != 0 {
			t.Errorf("%d are silent after they have answered, want 0", n)
		}
		if n := answered.Load(); n != rdmaAsking || len(r.asking) > 0 {
			t.Errorf("%d late answers, want %d; %d are still asked", n, rdmaAsking, len(r.asking))
		}
		if d, called := took(1, prompt); d != 0 || !called {
			t.Errorf("after a late answer: waited for %v, %v", d, called)
		}
		slow := func(context.Context) { time.Sleep(time.Second) }
		for i, want := range []time.Duration{rdmaPatience, 0, 0} {
			if d, called := took(5, slow); d != want || !called {
				t.Errorf("call %d of a driver that takes a second: waited for %v, want %v; %v", i, d, want, called)
			}
			time.Sleep(time.Minute)
		}
		took(5, prompt)
		if d, called := took(5, slow); d != rdmaPatience || !called {
			t.Errorf("once it has answered in time: waited for %v, %v", d, called)
		}
		time.Sleep(time.Minute)
		for i := range 2 * rdmaKnown {
			r.put(rdmaLink{netns: reconcile.NetnsID{Cookie: 3}, index: i + 1}, knownRDMAPort{})
		}
		if len(r.of) > rdmaKnown {
			t.Errorf("%d links are remembered", len(r.of))
		}
	})
}

// TestRDMAReads: a driver that does not answer holds up the reads of its device for a short time each, in one goroutine, and no read of
// another device. Once it has answered, it is asked again.
func TestRDMAReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rdmaReads
		answer := make(chan struct{})
		var calls atomic.Int32
		hung := func() {
			calls.Add(1)
			<-answer
		}
		for range 3 {
			began := time.Now()
			if err := r.read(t.Context(), "mlx5_2", hung); fault.Of(err) != fault.NotReady || err.Error() != "the driver of mlx5_2 does not answer" || time.Since(began) != rdmaPortPatience {
				t.Errorf("a driver that does not answer: %v after %s", err, time.Since(began))
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("it was asked %d times, want once", n)
		}
		if err := r.read(t.Context(), "mlx5_3", func() { calls.Add(1) }); err != nil || calls.Load() != 2 {
			t.Errorf("another device meanwhile: %v", err)
		}
		close(answer)
		if err := r.read(t.Context(), "mlx5_2", func() { calls.Add(1) }); err != nil || calls.Load() != 3 || len(r.running) != 0 {
			t.Errorf("after an answer: %v; %d are running", err, len(r.running))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		forever := make(chan struct{})
		if err := r.read(ended, "mlx5_2", func() { <-forever }); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of the caller: %v", err)
		}
		close(forever)
	})
}
