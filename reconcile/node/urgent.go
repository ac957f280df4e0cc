package node

import (
	"sync"

	"github.com/plumbline/plumbline/reconcile/table"
)

// Urgent counts what is more urgent than the passes of a Loop, such as the start of a pod. The zero
// value is nothing.
type Urgent struct {
	ended table.Changes

	mu sync.Mutex
	n  int
}

// Begin keeps the loop from starting passes until done is called. Running passes finish, and items
// that have been due for a second still run, one at a time.
func (u *Urgent) Begin() (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n++
	return sync.OnceFunc(func() {
		u.mu.Lock()
		u.n--
		u.mu.Unlock()
		u.ended.Changed()
	})
}

func (u *Urgent) any() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.n > 0
}
