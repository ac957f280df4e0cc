package watchstore_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plumbline/plumbline/topology/watchstore"
)

func shorter(o *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
}

// TestWatched: objects of events are converted, but for those that are no objects of the kind.
func TestWatched(t *testing.T) {
	full := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "7"}}
	events := watch.NewFakeWithChanSize(5, false)
	events.Add(full)
	events.Modify(full)
	events.Delete(full)
	events.Action(watch.Bookmark, full)
	events.Error(&metav1.Status{Message: "too old"})
	w, err := watchstore.Watched(events, nil, 0, shorter, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		e := <-w.ResultChan()
		if o, ok := e.Object.(*metav1.PartialObjectMetadata); !ok || e.Type != want || o.Name != "a" || o.ResourceVersion != "" {
			t.Errorf("%s: %s %+v", want, e.Type, e.Object)
		}
	}
	if e := <-w.ResultChan(); e.Object != full { // its version is where the next watch begins
		t.Errorf("bookmark %+v", e.Object)
	}
	if e := <-w.ResultChan(); e.Type != watch.Error {
		t.Errorf("event %s, want an error", e.Type)
	}
	w.Stop()
}

// TestUnserved: a watch of a kind that is not served ends after a time.
func TestUnserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := apierrors.NewNotFound(schema.GroupResource{Resource: "networkqoses"}, "")
		began := time.Now()
		w, err := watchstore.Watched(nil, missing, time.Minute, shorter, nil)
		if err != nil {
			t.Fatal(err)
		}
		if e, open := <-w.ResultChan(); open {
			t.Errorf("event %+v", e)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it ends after %s", took)
		}
		if _, err := watchstore.Watched(nil, missing, 0, shorter, nil); !apierrors.IsNotFound(err) {
			t.Errorf("error %v", err)
		}
		other := errors.New("no connection")
		if _, err := watchstore.Watched(nil, other, time.Minute, shorter, nil); err != other { //nolint:errorlint // it must not be wrapped
			t.Errorf("error %v", err)
		}
	})
}

// TestWatchedEnds: a watch that is stopped while it has an event leaves no goroutine: the bubble fails for one.
func TestWatchedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := watch.NewFake()
		w, err := watchstore.Watched(source, nil, 0, shorter, nil)
		if err != nil {
			t.Fatal(err)
		}
		source.Add(&metav1.PartialObjectMetadata{})
		w.Stop()
		synctest.Wait()
	})
}
