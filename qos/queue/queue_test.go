package queue

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestTurns: while a hundred objects of one namespace wait, and come back at once, one of another namespace waits for one of them. Objects
// of a namespace keep their order, and nothing is left of namespaces without any.
func TestTurns(t *testing.T) {
	q := New(time.Second, time.Minute)
	defer q.ShutDown()
	object := func(namespace string, i int) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(i)}
	}
	for i := range 100 {
		q.Add(object("evil", i))
	}
	next := func() types.NamespacedName {
		key, _ := q.Get()
		q.Done(key)
		if key.Namespace == "evil" {
			q.Add(key) // edited again
		}
		return key
	}
	for i := range 150 {
		if have := next(); have != object("evil", i%100) {
			t.Fatalf("%v is the next, want object %d", have, i%100)
		}
	}
	q.Add(object("good", 1))
	q.Add(object("good", 2))
	for _, n := range []int{1, 2} {
		if first, second := next(), next(); first != object("good", n) && second != object("good", n) {
			t.Errorf("%v and %v come before object %d of another namespace", first, second, n)
		}
	}
	turns := newTurns()
	for i := range 10 {
		turns.Push(object(fmt.Sprint("ns", i%3), i))
	}
	for i := range 10 {
		if have := turns.Len(); have != 10-i {
			t.Fatalf("%d objects wait, want %d", have, 10-i)
		}
		turns.Pop()
	}
	if len(turns.waiting)+len(turns.next) > 0 {
		t.Errorf("kept: %v, %v", turns.waiting, turns.next)
	}
}
