// Package queue has a queue of objects in which namespaces take turns: users may write any number of objects in theirs, at any rate.
package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// Queue is a queue with retries.
type Queue = workqueue.TypedRateLimitingInterface[types.NamespacedName]

// New returns a queue. The first retry of an object comes after first; that time doubles with each one, up to most.
func New(first, most time.Duration) Queue {
	fair := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[types.NamespacedName]{Queue: newTurns()})
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](first, most),
		workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Queue: fair}),
		})
}

// turns is a queue of objects in which namespaces take turns: one whose users edit objects without a pause has others wait for one of
// these, and not for all. A workqueue calls it under a lock of its own.
type turns struct {
	waiting map[string][]types.NamespacedName // by namespace, never empty
	next    []string                          // the namespaces in the order of their turns
	n       int
}

func newTurns() *turns { return &turns{waiting: map[string][]types.NamespacedName{}} }

// Touch is called for an object that waits already: it keeps its place.
func (*turns) Touch(types.NamespacedName) {}

// Push adds an object behind those of its namespace.
func (t *turns) Push(o types.NamespacedName) {
	t.n++
	if t.waiting[o.Namespace] == nil {
		t.next = append(t.next, o.Namespace)
	}
	t.waiting[o.Namespace] = append(t.waiting[o.Namespace], o)
}

// Len is how many objects wait.
func (t *turns) Len() int { return t.n }

// Pop removes the first object of the namespace whose turn it is. There is one.
func (t *turns) Pop() types.NamespacedName {
	namespace := t.next[0]
	t.next = t.next[1:]
	all := t.waiting[namespace]
	if t.n--; len(all) == 1 {
		delete(t.waiting, namespace)
	} else {
		t.waiting[namespace] = all[1:]
		t.next = append(t.next, namespace)
	}
	return all[0]
}
