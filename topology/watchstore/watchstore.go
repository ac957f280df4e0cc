// Package watchstore hands the objects that a reflector of client-go lists and watches to functions. What
// is kept of them is the caller's.
package watchstore

import (
	"fmt"
	"iter"
	"sync"
)

// Store is a cache.ReflectorStore of objects of type O, which have names of type K. Another object is an
// error. A reflector calls one method at a time.
type Store[K comparable, O any] struct {
	// What names the kind of the objects, for errors.
	What string
	// Name returns the name of an object.
	Name func(O) K
	// Put takes an object into account that is new, or may have changed.
	Put func(K, O)
	// Remove forgets an object. It may be called for one that is not known.
	Remove func(K)
	// Known are the names of the objects that were put and not removed. Those that a list lacks are
	// removed before its objects are put. nil: a list removes none.
	Known func() iter.Seq[K]
	// Around calls change, which calls the functions above, and so can hold a lock meanwhile. listed says
	// that change is a list of all objects. nil: change is called.
	Around func(listed bool, change func())
	// Synced, unless it is nil, is closed after the first list.
	Synced chan struct{}
	once   sync.Once
}

// Add implements cache.ReflectorStore.
func (s *Store[K, O]) Add(v any) error { return s.Update(v) }

// Update implements cache.ReflectorStore.
func (s *Store[K, O]) Update(v any) error {
	o, err := s.object(v)
	if err == nil {
		s.around(false, func() { s.Put(s.Name(o), o) })
	}
	return err
}

// Delete implements cache.ReflectorStore.
func (s *Store[K, O]) Delete(v any) error {
	o, err := s.object(v)
	if err == nil {
		s.around(false, func() { s.Remove(s.Name(o)) })
	}
	return err
}

// Replace implements cache.ReflectorStore. If one of the objects is of another type, nothing changes.
func (s *Store[K, O]) Replace(all []any, _ string) error {
	now := make(map[K]O, len(all))
	for _, v := range all {
		o, err := s.object(v)
		if err != nil {
			return err
		}
		now[s.Name(o)] = o
	}
	s.around(true, func() {
		for _, name := range s.gone(now) {
			s.Remove(name)
		}
		for name, o := range now {
			s.Put(name, o)
		}
	})
	if s.Synced != nil {
		s.once.Do(func() { close(s.Synced) })
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (*Store[K, O]) Resync() error { return nil }

func (s *Store[K, O]) object(v any) (O, error) {
	o, ok := v.(O)
	if !ok {
		return o, fmt.Errorf("got %T instead of %s", v, s.What)
	}
	return o, nil
}

// gone are the known objects that are not among those of a list.
func (s *Store[K, O]) gone(now map[K]O) (out []K) {
	if s.Known == nil {
		return nil
	}
	for name := range s.Known() {
		if _, is := now[name]; !is {
			out = append(out, name)
		}
	}
	return out
}

func (s *Store[K, O]) around(listed bool, change func()) {
	if s.Around == nil {
		change()
		return
	}
	s.Around(listed, change)
}
