package node

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestUrgent holds that each thing that is urgent ends once: when it is done, or after two seconds.
func TestUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u Urgent
		count := func() int {
			u.mu.Lock()
			defer u.mu.Unlock()
			return u.n
		}
		short, long := u.Begin(), u.Begin()
		time.Sleep(urgentFor - time.Millisecond)
		short()
		short()
		if n := count(); n != 1 {
			t.Errorf("%d are urgent after one of two was done, want 1", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if u.any() {
			t.Errorf("passes do not begin %s after something urgent began that does not end", urgentFor)
		}
		long()
		if n := count(); n != 0 {
			t.Errorf("%d are urgent after all have ended, want 0", n)
		}
	})
}
