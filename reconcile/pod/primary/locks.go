package primary

import (
	"context"
	"sync"
)

// locks serializes calls for one owner.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	free  chan struct{} // holds a token
	users int
}

// take waits for the lock of an owner until ctx ends.
func (l *locks) take(ctx context.Context, owner string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	k := l.held[owner]
	if k == nil {
		k = &lock{free: make(chan struct{}, 1)}
		k.free <- struct{}{}
		l.held[owner] = k
	}
	k.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, owner)
		}
	}
	select {
	case <-k.free:
		return func() { k.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// busy reports whether a call for an owner is in progress, or waits.
func (l *locks) busy(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[owner] != nil
}
