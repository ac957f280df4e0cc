package claimstatus

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/excerpt"
)

// component is the source of our Events.
const component = "plumbline"

// events creates Events. The library counts those that repeat, joins similar ones, and
// limits their rate per object; what cannot be delivered in time is dropped. Nothing
// waits for it.
type events struct {
	client      kubernetes.Interface
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder

	mu      sync.Mutex
	started bool
	early   []func() // from before start, when the library does not receive
}

// earlyMax is how many Events wait for start: what the library holds afterwards.
const earlyMax = 1000

func newEvents(client kubernetes.Interface, node string) *events {
	b := record.NewBroadcaster()
	return &events{
		client: client, broadcaster: b,
		recorder: b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: node}),
	}
}

func (e *events) start() (stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: e.client.CoreV1().Events("")})
	for _, emit := range e.early {
		emit()
	}
	e.started, e.early = true, nil
	return e.broadcaster.Shutdown
}

func (e *events) normal(c claims.Claim, reason, message string) {
	e.event(c, corev1.EventTypeNormal, reason, message)
}

func (e *events) warning(c claims.Claim, reason, message string) {
	e.event(c, corev1.EventTypeWarning, reason, message)
}

func (e *events) event(c claims.Claim, eventType, reason, message string) {
	message = excerpt.Of(message, messageMax)
	for _, of := range []corev1.ObjectReference{
		{APIVersion: "v1", Kind: "Pod", Namespace: c.Namespace, Name: c.Pod.Name, UID: c.Pod.UID},
		{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID},
	} {
		if of.UID != "" {
			e.emit(func() { e.recorder.Event(&of, eventType, reason, message) })
		}
	}
}

func (e *events) emit(event func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.started:
		event() // does not block
	case len(e.early) < earlyMax:
		e.early = append(e.early, event)
	}
}
