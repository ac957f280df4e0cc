package nriplugin

import (
	"sync"
	"testing"
	"time"
)

// TestInFlight holds that hooks may begin while several wait for the earlier ones,
// as they do when the plugin is to stop; a sync.WaitGroup panics then.
func TestInFlight(t *testing.T) {
	var f inFlight
	var waiting sync.WaitGroup
	for range 4 {
		waiting.Go(func() {
			for range 5000 {
				if !f.wait(time.Minute) {
					t.Error("hooks that have ended are waited for")
					return
				}
			}
		})
	}
	for range 20000 {
		f.run(func() {})
	}
	waiting.Wait()

	end := make(chan struct{})
	f.run(func() { <-end })
	if f.wait(time.Millisecond) {
		t.Error("a hook at work is not waited for")
	}
	close(end)
	if !f.wait(time.Minute) {
		t.Error("a hook that has ended is waited for")
	}
}
