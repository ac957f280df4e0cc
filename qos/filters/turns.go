package filters

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// newQueue is a queue with retries, in which namespaces take turns.
func newQueue() workqueue.TypedRateLimitingInterface[types.NamespacedName] {
	fair := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[types.NamespacedName]{Queue: newTurns()})
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryFirst, retryMost),
		workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Queue: fair}),
		})
}

// turns is a queue of claims in which namespaces take turns: one whose users edit objects without a pause, each edit of
// which replaces thousands of filters in a hundred pods, has others wait for one of these pods, and not for all. A
// workqueue calls it under a lock of its own.
type turns struct {
	waiting map[string][]types.NamespacedName // by namespace, never empty
	next    []string                          // the namespaces in the order of their turns
	n       int
}

func newTurns() *turns { return &turns{waiting: map[string][]types.NamespacedName{}} }

// Touch is called for a claim that waits already: it keeps its place.
func (*turns) Touch(types.NamespacedName) {}

// Push adds a claim behind those of its namespace.
func (t *turns) Push(claim types.NamespacedName) {
	t.n++
	if t.waiting[claim.Namespace] == nil {
		t.next = append(t.next, claim.Namespace)
	}
	t.waiting[claim.Namespace] = append(t.waiting[claim.Namespace], claim)
}

// Len is how many claims wait.
func (t *turns) Len() int { return t.n }

// Pop removes the first claim of the namespace whose turn it is. There is one.
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
