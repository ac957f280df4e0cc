package filters

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestEndedMeanwhile: nothing is kept of a claim that ends while its filters are updated: pods may come and go at any rate.
func TestEndedMeanwhile(t *testing.T) {
	for _, result := range []error{nil, errors.New("broken"), fault.New(fault.Gone, errors.New("it is no longer prepared"))} {
		entries := []claims.Entry{{Claim: claims.Claim{UID: "u1", Namespace: "ns", Name: "c"}}}
		f := New(Options{Claims: func() []claims.Entry { return entries }, Reporter: nobody{}, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		var running sync.WaitGroup
		f.follow(t.Context(), &running)
		u := f.Updates(func(context.Context, types.UID) (bool, error) {
			entries = nil
			f.follow(t.Context(), &running)
			return result == nil, result
		})
		if !u.next(t.Context()) {
			t.Fatal("no update")
		}
		if n := len(f.updated) + len(f.failures) + len(f.behind) + len(f.updating) + len(f.claims); n > 0 {
			t.Errorf("after %v: %v, %v, %v, %v, %v", result, f.updated, f.failures, f.behind, f.updating, f.claims)
		}
		f.queue.ShutDown()
	}
}
