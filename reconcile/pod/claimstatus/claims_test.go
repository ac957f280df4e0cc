package claimstatus

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
)

// TestClaims holds that what is reported of a claim is reported of each of its
// topologies, with the generation the pod has.
func TestClaims(t *testing.T) {
	to := New(Options{Log: slog.New(slog.DiscardHandler)})
	defer to.events.broadcaster.Shutdown()
	defer to.queue.ShutDown()
	r := Claims{Reporter: to}
	c := claims.Claim{UID: "c1", Namespace: "ns", Name: "claim", Pod: claims.Pod{Name: "pod", UID: "p1"}, Topologies: make([]claims.Topology, 2)}
	for i, name := range []string{"a", "b"} {
		c.Topologies[i].Object.Name, c.Topologies[i].Object.Generation = name, int64(3+i)
	}
	verdictOf := func(topology string) verdict { return to.pending["c1"].verdicts[topology] }
	check := func(when, topology, ready string, generation int64) {
		t.Helper()
		v := verdictOf(topology)
		if v.ready == nil || string(v.ready.status) != ready || v.runs == nil || v.runs.Generation != generation {
			t.Errorf("%s: topology %q: %+v, want Ready %s and generation %d", when, topology, v, ready, generation)
		}
	}
	r.Attached(attachment.Pod{}, c, make([]reconcile.Report, 2))
	check("attached", "a", "True", 3)
	check("attached", "b", "True", 4)
	r.Failed(attachment.Pod{}, c, &ops.StepError{Topology: "b", Step: "vf0", Err: errors.New("no device")})
	check("failed in b", "a", "True", 3)
	check("failed in b", "b", "False", 4)
	r.Updated(c, "a", 2, reconcile.Report{})
	check("updated", "a", "True", 3)
	again := c
	again.UID = "c2"
	r.Failed(attachment.Pod{}, again, errors.New("of no step"))
	for i, name := range []string{"a", "b"} {
		if v := to.pending["c2"].verdicts[name]; v.runs == nil || v.runs.Generation != int64(3+i) {
			t.Errorf("failed before it was attached: topology %q: %+v", name, v.runs)
		}
	}
	before := len(to.pending["c1"].verdicts)
	r.Updated(c, "none of the claim's", 2, reconcile.Report{})
	if have := len(to.pending["c1"].verdicts); have != before {
		t.Errorf("%d topologies, want %d", have, before)
	}
	r.Detached(c)
	check("detached", "a", "False", 0)
	check("detached", "b", "False", 0)
}
