package watch

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestRelay holds that events reach a loop while it takes them and block no caller
// otherwise, that every event about the host is reported, and that Run ends.
func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, host := make(chan Event), 0
		r := NewRelay(in, func() { host++ })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() { r.Run(ctx); ended <- true }()

		in <- Event{ID: "dropped"}
		in <- Event{Host: true}
		synctest.Wait()
		if host != 1 {
			t.Errorf("%d events about the host were reported without a loop, want 1", host)
		}
		leave := r.Take()
		in <- Event{ID: "blue/ai"}
		if e := <-r.Events(); e.ID != "blue/ai" {
			t.Errorf("the loop gets %+v", e)
		}
		in <- Event{Host: true}
		if e := <-r.Events(); !e.Host || host != 2 {
			t.Errorf("the loop gets %+v of the host, %d were reported", e, host)
		}
		in <- Event{ID: "blue/ai", Reason: Overflow}
		if <-r.Events(); r.Overflows() != 1 {
			t.Errorf("%d events of lost notifications, want 1", r.Overflows())
		}
		leave()
		in <- Event{ID: "dropped"}
		in <- Event{ID: "dropped too"}
		synctest.Wait()
		select {
		case e := <-r.Events():
			t.Errorf("without a loop %+v was passed on", e)
		default:
		}
		r.Take()
		in <- Event{ID: "stopped while the loop does not listen"}
		stop()
		<-ended

		go func() { r.Run(t.Context()); ended <- true }()
		close(in)
		<-ended
	})
}
