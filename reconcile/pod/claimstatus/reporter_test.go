package claimstatus

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// Contention is one Event, however often it stops and starts again, and a condition
// each time.
func TestContentionIsOneEvent(t *testing.T) {
	now := monday
	r := New(Options{Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	defer r.events.broadcaster.Shutdown()
	defer r.queue.ShutDown()
	who := claims.Claim{Namespace: "ns", Name: "claim", UID: "c1", Pod: claims.Pod{Name: "pod", UID: "p1"}}
	contended := []reconcile.Contention{{Step: "tune", Object: netstate.LinkKey("data0"), Field: "mtu", Action: netstate.Update, Want: "4000", Have: "1400"}}
	events := func() int { return len(r.events.early) } // two each: of the pod and of the claim
	for range 5 {
		r.Contended(who, "t", contended)
	}
	if events() != 2 {
		t.Errorf("%d Events for five reports, want 2", events())
	}
	const message = `topology "t": step "tune": link data0: mtu is set to 1400 by another writer each time it is set to 4000; repairs are slowed down`
	if c := r.pending["c1"].verdicts["t"].inSync; c == nil || c.status != "False" || c.reason != "Fighting" || c.message != message {
		t.Errorf("condition: %+v", c)
	}
	who.UID = "c2"
	r.Contended(who, "t", contended)
	if events() != 4 {
		t.Errorf("%d Events after another claim's report, want 4", events())
	}
	now = now.Add(contentionEvery)
	who.UID = "c1"
	r.Contended(who, "t", contended)
	if events() != 6 || len(r.contentionAt) != 1 {
		t.Errorf("%d Events after ten minutes, want 6; %d claims remembered, want 1", events(), len(r.contentionAt))
	}
}

// TestLimit reports on more claims than may wait, while nothing is written.
func TestLimit(t *testing.T) {
	r := New(Options{Limit: 2, Log: slog.New(slog.DiscardHandler)})
	defer r.events.broadcaster.Shutdown()
	defer r.queue.ShutDown()
	r.Failed(claims.Claim{Namespace: "ns", Pod: claims.Pod{Name: "pod", UID: "p1"}}, "", errors.New("a pod without a claim"))
	for _, uid := range []types.UID{"a", "b", "a", "c", "b", "d"} {
		r.Attached(claims.Claim{Namespace: "ns", Name: "claim", UID: uid}, "t", nil)
	}
	if waiting, dropped := r.Waiting(); waiting != 2 || dropped != 2 {
		t.Errorf("%d wait and %d were dropped, want 2 and 2", waiting, dropped)
	}
}

// TestAttaching holds what is reported of a claim while its pod waits, and afterwards.
func TestAttaching(t *testing.T) {
	r := New(Options{Log: slog.New(slog.DiscardHandler)})
	defer r.events.broadcaster.Shutdown()
	defer r.queue.ShutDown()
	who := claims.Claim{Namespace: "ns", Name: "claim", UID: "c1", Pod: claims.Pod{Name: "pod", UID: "p1"}}
	ready := func() condition { return *r.pending["c1"].verdicts["t"].ready }
	r.Attaching(who, "t", `at step "vf3"`)
	if have, want := ready(), (condition{"False", "Attaching", `at step "vf3"`}); have != want {
		t.Errorf("condition %+v, want %+v", have, want)
	}
	if len(r.events.early) != 2 {
		t.Errorf("%d Events, want one of the pod and one of the claim", len(r.events.early))
	}
	r.Attached(who, "t", nil)
	if have := ready(); have.status != "True" {
		t.Errorf("condition %+v", have)
	}
}
