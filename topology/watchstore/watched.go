package watchstore

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Watched makes of the result of a call that watches objects of type T what a reflector is given: events
// with what of makes of their objects. If the API server does not serve the kind, that is a watch without events,
// which ends after the time again; the next one is sent all objects that there are then. 0: that is an error,
// too. Errors are not wrapped, since a reflector checks their type. keep is Pages.Keep.
func Watched[T, O runtime.Object](w watch.Interface, err error, again time.Duration, of func(T) O,
	keep func(O) bool,
) (watch.Interface, error) {
	if again > 0 && apierrors.IsNotFound(err) {
		idle := watch.NewFake()
		time.AfterFunc(again, idle.Stop)
		return idle, nil
	}
	if err != nil {
		return nil, err
	}
	return drained{watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		o, ok := e.Object.(T)
		if !ok || e.Type == watch.Bookmark || e.Type == watch.Error {
			return e, true
		}
		made := of(o)
		e.Object = made
		return e, keep == nil || e.Type != watch.Added || keep(made)
	})}, nil
}

// drained is a filtered watch whose goroutine ends with it, also while it holds an event that nobody takes any more.
type drained struct{ watch.Interface }

// Stop implements watch.Interface.
func (d drained) Stop() {
	d.Interface.Stop()
	go func() {
		for range d.ResultChan() {
		}
	}()
}
