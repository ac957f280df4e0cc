package node

import (
	"sync"
	"time"

	"github.com/plumbline/plumbline/reconcile/table"
)

// Urgent counts what is more urgent than the passes of a Loop, such as the start of a pod. The zero
// value is nothing.
type Urgent struct {
	ended table.Changes

	mu sync.Mutex
	n  int
}

// urgentFor is how long one thing may hold back passes: an attachment in the background may take minutes.
const urgentFor = 2 * time.Second

// Begin keeps the loop from starting passes until done is called, but no longer than urgentFor. Running passes finish, and items
// that have been due for a second still run, one at a time.
func (u *Urgent) Begin() (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n++
	end := sync.OnceFunc(func() {
		u.mu.Lock()
		u.n--
		u.mu.Unlock()
		u.ended.Changed()
	})
	limit := time.AfterFunc(urgentFor, end)
	return func() {
		limit.Stop()
		end()
	}
}

func (u *Urgent) any() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.n > 0
}
