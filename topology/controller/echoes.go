package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// echoes recognizes the events of objects whose only change is one that this process has written itself.
// One object is written at a time. It is safe for concurrent use.
type echoes struct {
	// others is called with an object that has changed otherwise.
	others func(types.NamespacedName)

	mu      sync.Mutex
	writing types.NamespacedName // zero: none
	early   []string             // versions of events of that object meanwhile
	written map[types.NamespacedName]string
}

func newEchoes(others func(types.NamespacedName)) *echoes {
	return &echoes{others: others, written: map[types.NamespacedName]string{}}
}

// begin is called before an object is written, and end after it, with the version that it has then, or "" if
// that is not known.
func (e *echoes) begin(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writing, e.early = key, nil
}

func (e *echoes) end(version string) {
	e.mu.Lock()
	key, came, other := e.writing, false, false
	for _, v := range e.early {
		if v == version {
			came = true
		} else {
			other = true
		}
	}
	e.writing, e.early = types.NamespacedName{}, nil
	if version != "" && !came {
		e.written[key] = version
	}
	e.mu.Unlock()
	if other {
		e.others(key)
	}
}

// forget is called with an object that no longer exists.
func (e *echoes) forget(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.written, key)
}

// event is called with each event, and calls others unless it is that of a write.
func (e *echoes) event(key types.NamespacedName, version string) {
	e.mu.Lock()
	if e.writing == key { // the answer may come after its event
		e.early = append(e.early, version)
		e.mu.Unlock()
		return
	}
	ours := e.written[key] == version
	if ours {
		delete(e.written, key)
	}
	e.mu.Unlock()
	if !ours {
		e.others(key)
	}
}
