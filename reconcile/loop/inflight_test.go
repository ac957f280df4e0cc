package loop

import (
	"sync"
	"testing"
	"time"
)

// TestInFlight holds that calls may begin while several wait for the earlier ones,
// as hooks do when the plugin is to stop; a sync.WaitGroup panics then.
func TestInFlight(t *testing.T) {
	var f InFlight
	var waiting sync.WaitGroup
	for range 4 {
		waiting.Go(func() {
			for range 5000 {
				if !f.Wait(time.Minute) {
					t.Error("calls that have ended are waited for")
					return
				}
			}
		})
	}
	for range 20000 {
		go f.Begin()()
	}
	waiting.Wait()

	end := f.Begin()
	if f.Wait(time.Millisecond) {
		t.Error("a call in progress is not waited for")
	}
	end()
	if !f.Wait(time.Minute) {
		t.Error("a call that has ended is waited for")
	}
}
