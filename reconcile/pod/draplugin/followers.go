package draplugin

import "sync"

// followers are notified of changes; a slow one gets one notification for several.
type followers struct {
	mu  sync.Mutex
	all map[chan struct{}]bool
}

func (f *followers) follow() (changed <-chan struct{}, leave func()) {
	c := make(chan struct{}, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[chan struct{}]bool{}
	}
	f.all[c] = true
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.all, c)
	}
}

func (f *followers) notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.all {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}
