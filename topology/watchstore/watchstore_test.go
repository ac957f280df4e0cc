package watchstore_test

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/topology/watchstore"
)

type object struct{ name, value string }

// kept are the objects of a caller, and its calls in order.
type kept struct {
	values map[string]string
	calls  []string
	within bool
}

func (k *kept) said(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(k.calls, want) {
		t.Errorf("calls %q, want %q", k.calls, want)
	}
	k.calls = nil
}

func newStore(t *testing.T) (*watchstore.Store[string, object], *kept) {
	k := &kept{values: map[string]string{}}
	call := func(format string, args ...any) {
		if !k.within {
			t.Errorf("%s: not within Around", fmt.Sprintf(format, args...))
		}
		k.calls = append(k.calls, fmt.Sprintf(format, args...))
	}
	return &watchstore.Store[string, object]{
		What: "object", Name: func(o object) string { return o.name },
		Put: func(name string, o object) {
			call("put %s=%s", name, o.value)
			k.values[name] = o.value
		},
		Remove: func(name string) {
			call("remove %s", name)
			delete(k.values, name)
		},
		Known: func() iter.Seq[string] { return maps.Keys(k.values) },
		Around: func(listed bool, change func()) {
			k.within = true
			change()
			k.within = false
			if listed {
				k.calls = append(k.calls, "listed")
			}
		},
	}, k
}

var _ cache.ReflectorStore = (*watchstore.Store[string, object])(nil)

func TestStore(t *testing.T) {
	s, k := newStore(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	ok(s.Add(object{"a", "1"}))
	ok(s.Update(object{"a", "2"}))
	ok(s.Add(object{"b", "1"}))
	k.said(t, "put a=1", "put a=2", "put b=1")

	ok(s.Replace([]any{object{"b", "3"}}, "7")) // what is gone is removed first
	k.said(t, "remove a", "put b=3", "listed")

	ok(s.Delete(object{"b", "3"}))
	ok(s.Delete(object{"unknown", ""}))
	ok(s.Resync())
	k.said(t, "remove b", "remove unknown")

	ok(s.Replace(nil, "8"))
	k.said(t, "listed")
}

// TestSynced: the channel is closed after the first list, not after an event.
func TestSynced(t *testing.T) {
	s, _ := newStore(t)
	s.Synced = make(chan struct{})
	closed := func() bool {
		select {
		case <-s.Synced:
			return true
		default:
			return false
		}
	}
	for i, err := range []error{s.Add(object{"a", "1"}), s.Replace([]any{1}, "")} {
		if (err != nil) != (i == 1) || closed() {
			t.Errorf("error %v, closed %v", err, closed())
		}
	}
	for range 2 {
		if err := s.Replace([]any{object{"b", "3"}}, "7"); err != nil || !closed() {
			t.Errorf("error %v, closed %v", err, closed())
		}
	}
}

// TestAnotherType: nothing changes if an object of a list cannot be read.
func TestAnotherType(t *testing.T) {
	s, k := newStore(t)
	for _, err := range []error{s.Add("text"), s.Update(7), s.Delete(nil), s.Replace([]any{object{"a", "1"}, metav1.Status{}}, "")} {
		if err == nil || !strings.HasSuffix(err.Error(), " instead of object") {
			t.Errorf("error %v", err)
		}
	}
	k.said(t)
}

// TestWithoutHooks: a store whose caller keeps no names, and needs no lock.
func TestWithoutHooks(t *testing.T) {
	s, k := newStore(t)
	k.within = true
	s.Known, s.Around = nil, nil
	if err := errors.Join(s.Add(object{"a", "1"}), s.Replace([]any{object{"b", "1"}}, "")); err != nil {
		t.Error(err)
	}
	k.said(t, "put a=1", "put b=1")
}
