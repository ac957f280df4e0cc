package filters_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/qos/filters"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
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
		var recorded table.Changes
		f := filters.New(filters.Options{
			Claims: func() []claims.Entry {
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(entries)
			},
			WokenBy:  []table.Source{&recorded},
			Reporter: heard, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
		})
		go f.Run(ctx)
		go f.Updates(func(_ context.Context, uid types.UID) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			applied = append(applied, uid)
			if uid == "b" && len(applied) < 5 {
				return false, fault.New(fault.NotReady, errors.New("the disk is full"))
			}
			return true, nil
		}).Run(ctx)
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
		recorded.Changed()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(applied) > 0 {
			t.Errorf("applied %q to a pod that is new", applied)
		}
		if err := f.Known("ns", claims.Pod{Name: "p"}); err != nil {
			t.Errorf("error %v", err)
		}
		if out, err := f.Of(&entries[2].Claim, &claims.Topology{}); len(out.Filters)+len(out.LogicalRules) > 0 || err != nil {
			t.Errorf("%+v, error %v", out, err)
		}
	})
}

// TestSwitchedOffOnNode holds that a label of the Node removes the filters of running pods and lets pods start
// without, whatever the API server says of objects, and that nothing is decided before the labels are known.
func TestSwitchedOffOnNode(t *testing.T) {
	nowhere := &rest.Config{Host: "http://127.0.0.1:1"} // no API server answers
	objects, err := dynamic.NewForConfig(nowhere)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := metadata.NewForConfig(nowhere)
	if err != nil {
		t.Fatal(err)
	}
	var node atomic.Pointer[map[string]string]
	var labels table.Changes
	applied := make(chan types.UID, 100)
	entry := claims.Entry{Claim: claims.Claim{UID: "a", Namespace: "ns", Name: "a", Topologies: []claims.Topology{{}}}}
	f := filters.New(filters.Options{
		Client: objects, Pods: pods, NodeName: "n1",
		Node: func() (map[string]string, bool) {
			if labels := node.Load(); labels != nil {
				return *labels, true
			}
			return nil, false
		},
		Claims:   func() []claims.Entry { return []claims.Entry{entry} },
		WokenBy:  []table.Source{&labels},
		Reporter: &reports{}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
	})
	refused := func(why string) {
		t.Helper()
		for _, err := range []error{f.Known("ns", claims.Pod{Name: "p"}), func() error { _, err := f.Of(&entry.Claim, &entry.Topologies[0]); return err }()} {
			if fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), why) {
				t.Errorf("error %v, want that %s", err, why)
			}
		}
	}
	refused(`the labels of node "n1" are not known yet`)
	node.Store(&map[string]string{filters.LabelNode: "enabled"})
	labels.Changed()
	refused(`the NetworkQoS objects of namespace "ns" are not known`)

	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	node.Store(&map[string]string{filters.LabelNode: filters.Disabled})
	labels.Changed()
	running.Go(func() { f.Run(ctx) })
	running.Go(func() {
		f.Updates(func(_ context.Context, uid types.UID) (bool, error) { applied <- uid; return true, nil }).Run(ctx)
	})
	select {
	case uid := <-applied:
		if uid != "a" {
			t.Errorf("applied %q", uid)
		}
	case <-time.After(time.Minute):
		t.Fatal("the filters of a running pod are not removed")
	}
	if out, err := f.Of(&entry.Claim, &entry.Topologies[0]); len(out.Filters)+len(out.LogicalRules) > 0 || err != nil {
		t.Errorf("switched off: %+v, error %v", out, err)
	}
	if err := f.Known("ns", claims.Pod{Name: "p"}); err != nil {
		t.Errorf("switched off: %v", err)
	}
	node.Store(&map[string]string{})
	labels.Changed()
	refused(`the NetworkQoS objects of namespace "ns" are not known`)
}

// TestUpdatesEnd: updates end with their context, whichever of its parts learns of that first.
func TestUpdatesEnd(t *testing.T) {
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		for range 50 { // which are told one after the other
			context.AfterFunc(ctx, func() {})
		}
		updates := filters.New(filters.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now}).Updates(nil)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			updates.Run(ctx)
		}()
		for range 50 {
			context.AfterFunc(ctx, func() {})
		}
		runtime.Gosched()
		cancel()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the updates do not end")
		}
	}
}
