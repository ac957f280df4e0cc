package filters

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestTurns: while a hundred claims of one namespace wait, and come back at once, one of another namespace waits for one of them. Claims of
// a namespace keep their order, and nothing is left of namespaces without any.
func TestTurns(t *testing.T) {
	f := New(Options{})
	claim := func(namespace string, i int) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}
	}
	for i := range 100 {
		f.queue.Add(claim("evil", i))
	}
	next := func() types.NamespacedName {
		key, _ := f.queue.Get()
		f.queue.Done(key)
		if key.Namespace == "evil" {
			f.queue.Add(key) // edited again
		}
		return key
	}
	for i := range 150 {
		if have := next(); have != claim("evil", i%100) {
			t.Fatalf("%v is the next, want claim %d", have, i%100)
		}
	}
	f.queue.Add(claim("good", 1))
	f.queue.Add(claim("good", 2))
	for _, n := range []int{1, 2} {
		if first, second := next(), next(); first != claim("good", n) && second != claim("good", n) {
			t.Errorf("%v and %v come before claim %d of another namespace", first, second, n)
		}
	}
	turns := newTurns()
	for i := range 10 {
		turns.Push(claim(fmt.Sprint("ns", i%3), i))
	}
	for i := range 10 {
		if have := turns.Len(); have != 10-i {
			t.Fatalf("%d claims wait, want %d", have, 10-i)
		}
		turns.Pop()
	}
	if len(turns.waiting)+len(turns.next) > 0 {
		t.Errorf("kept: %v, %v", turns.waiting, turns.next)
	}
}
