package primary

import (
	"context"
	"sync"
)

// locks serializes what is done for one owner: calls, and searches for what has ended.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	free  chan struct{} // holds a token
	users int
	calls int // of these
}

// take waits for the lock of an owner until ctx ends.
func (l *locks) take(ctx context.Context, owner string) (unlock func(), err error) {
	return l.enter(ctx, owner, 0)
}

// call is take for a call of the runtime.
func (l *locks) call(ctx context.Context, owner string) (unlock func(), err error) {
	return l.enter(ctx, owner, 1)
}

func (l *locks) enter(ctx context.Context, owner string, calls int) (unlock func(), err error) {
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
	k.users, k.calls = k.users+1, k.calls+calls
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users, k.calls = k.users-1, k.calls-calls; k.users == 0 {
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
	k := l.held[owner]
	return k != nil && k.calls > 0
}
