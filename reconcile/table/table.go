package table

import (
	"sync"
)

// Wake is a channel of one part that changes of what it reads write to. It has room for one: what
// changes before the part reads is one change.
type Wake chan struct{}

// Woken returns a Wake that each of these sources writes to. One that is nil never changes.
func Woken(by ...Source) Wake {
	w := make(Wake, 1)
	for _, s := range by {
		if s != nil {
			s.Wakes(w)
		}
	}
	return w
}

// Now wakes the part.
func (w Wake) Now() {
	select {
	case w <- struct{}{}:
	default: // it has not read yet, and will see this change too
	}
}

// Source is data that wakes those that read it.
type Source interface {
	// Wakes wakes w at each change from now on, until leave is called.
	Wakes(w Wake) (leave func())
}

// Changes is a Source. The zero value is ready for use, and safe for concurrent use.
type Changes struct {
	mu    sync.Mutex
	wakes map[Wake]bool
}

// Wakes implements Source.
func (c *Changes) Wakes(w Wake) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wakes == nil {
		c.wakes = map[Wake]bool{}
	}
	c.wakes[w] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.wakes, w)
	}
}

// Changed wakes all that read. It does not block.
func (c *Changes) Changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.wakes {
		w.Now()
	}
}

// Value is one value. The zero Value is not known yet.
type Value[T any] struct {
	Changes
	mu    sync.Mutex
	value T
	known bool
}

// Get returns the value; false while it is not known.
func (v *Value[T]) Get() (value T, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value, v.known
}

// Set sets the value.
func (v *Value[T]) Set(value T) {
	v.mu.Lock()
	v.value, v.known = value, true
	v.mu.Unlock()
	v.Changed()
}

// Table is rows by key. The zero Table is empty.
type Table[K comparable, V any] struct {
	Changes
	mu   sync.Mutex
	rows map[K]V
}

// Get returns a row; false if there is none.
func (t *Table[K, V]) Get(key K) (row V, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	row, ok = t.rows[key]
	return row, ok
}

// Put writes a row.
func (t *Table[K, V]) Put(key K, row V) {
	t.mu.Lock()
	if t.rows == nil {
		t.rows = map[K]V{}
	}
	t.rows[key] = row
	t.mu.Unlock()
	t.Changed()
}

// Delete deletes a row.
func (t *Table[K, V]) Delete(key K) {
	t.mu.Lock()
	delete(t.rows, key)
	t.mu.Unlock()
	t.Changed()
}
