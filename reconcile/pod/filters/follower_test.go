package filters_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/filters"
	"github.com/plumbline/plumbline/topology/fault"
)

// reports are those of a Follower.
type reports struct {
	mu   sync.Mutex
	said []string
}

// Filtered implements filters.Reporter.
func (r *reports) Filtered(c claims.Claim) { r.say("filtered " + c.Name) }

// FilterFailed implements filters.Reporter.
func (r *reports) FilterFailed(c claims.Claim, err error) {
	r.say("failed " + c.Name + ": " + err.Error())
}

func (r *reports) say(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, what)
}

// TestNotEnforced holds that without NetworkQoS the filters of an earlier agent are removed
// from pods that run, that this is tried again if it fails for now, and that pods are attached
// without filters.
func TestNotEnforced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var mu sync.Mutex
		entries := []claims.Entry{{Claim: claims.Claim{UID: "a", Namespace: "ns", Name: "a"}}, {Claim: claims.Claim{UID: "b", Namespace: "ns", Name: "b"}}}
		var applied []types.UID
		heard := &reports{}
		f := filters.New(filters.Options{
			Claims: func() []claims.Entry {
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(entries)
			},
			Apply: func(_ context.Context, uid types.UID) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				applied = append(applied, uid)
				if uid == "b" && len(applied) < 5 {
					return false, fault.New(fault.NotReady, errors.New("the disk is full"))
				}
				return true, nil
			},
			Reporter: heard, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
		})
		go f.Run(ctx)
		time.Sleep(time.Minute)
		mu.Lock()
		slices.Sort(applied)
		if want := []types.UID{"a", "b", "b", "b", "b"}; !slices.Equal(applied, want) {
			t.Errorf("applied %q, want %q", applied, want)
		}
		applied, entries = nil, append(entries, claims.Entry{Claim: claims.Claim{UID: "c", Namespace: "ns", Name: "c"}})
		mu.Unlock()
		heard.mu.Lock()
		slices.Sort(heard.said)
		if want := []string{"failed b: the disk is full", "filtered a", "filtered b"}; !slices.Equal(heard.said, want) {
			t.Errorf("reported %q, want %q", heard.said, want)
		}
		heard.mu.Unlock()
		f.Changed()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(applied) > 0 {
			t.Errorf("applied %q to a pod that is new", applied)
		}
		if err := f.Known("ns", claims.Pod{Name: "p"}); err != nil {
			t.Errorf("error %v", err)
		}
		if out, err := f.Of(&entries[2].Claim, &claims.Topology{}); len(out) > 0 || err != nil {
			t.Errorf("%d filters, error %v", len(out), err)
		}
	})
}
