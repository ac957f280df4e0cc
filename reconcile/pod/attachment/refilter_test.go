package attachment_test

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// filtered has topologies get a number of filters each; unknown while it is negative.
func (w *world) filtered(numbers map[string]int) {
	w.Filters = func(_ *claims.Claim, t *claims.Topology) (ops.Rules, error) {
		n := numbers[t.Object.Name]
		if n < 0 {
			return ops.Rules{}, fault.New(fault.NotReady, errors.New("not known yet"))
		}
		out := make([]netstate.Filter, n)
		for i := range out {
			out[i] = netstate.Filter{Pref: 20000, Handle: uint32(i + 1)}
		}
		return ops.Rules{Filters: out}, nil
	}
}

func (w *world) wantFilters(uid types.UID, sandbox, topology string, n int) {
	w.t.Helper()
	e, _, err := w.store.Get(uid)
	if err != nil {
		w.t.Fatal(err)
	}
	rec := w.held[e.SandboxID(sandbox, e.Topology(topology))]
	if have := len(rec.Sandbox.Filters); have != n || rec.Phase != reconcile.Applied {
		w.t.Errorf("topology %q has %d filters in phase %q, want %d", topology, have, rec.Phase, n)
	}
}

// TestLogicalRules: rules for ports of OVN are kept and changed as filters are, and an edit of the
// topology has those that its steps need.
func TestLogicalRules(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1", "t2")
	rule := netstate.LogicalRule{Rule: "ai/storage[0]", Priority: new(uint16(29000)), Match: new("ip"), DSCP: new(uint8(8))}
	asked := int64(0)
	w.Filters = func(_ *claims.Claim, t *claims.Topology) (ops.Rules, error) {
		asked = t.Object.Generation
		if t.Object.Name != "t2" {
			return ops.Rules{}, nil
		}
		return ops.Rules{LogicalRules: []netstate.LogicalRule{rule}}, nil
	}
	w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
	dscp := func() (out []uint8) {
		e, _, err := w.store.Get("a")
		w.ok(err)
		for _, r := range w.held[e.SandboxID("s1", e.Topology("t2"))].Sandbox.LogicalRules {
			out = append(out, *r.DSCP)
		}
		return out
	}
	w.done = nil
	for _, changed := range []bool{false, true, false} {
		if changed {
			rule.DSCP = new(uint8(46))
		}
		have, err := w.Refilter(t.Context(), "a")
		w.ok(err)
		if have != changed {
			t.Errorf("changed %t, want %t", have, changed)
		}
	}
	if have := dscp(); len(have) != 1 || have[0] != 46 {
		t.Errorf("marks %v", have)
	}
	w.ok(w.Update(t.Context(), "a", edited("t2", 2)))
	if have := dscp(); len(have) != 1 || have[0] != 46 || asked != 2 {
		t.Errorf("edited: marks %v, rules of generation %d", have, asked)
	}
	w.Filters = nil
}

// TestFilters holds that a pod is attached with its filters or not at all, and that a change
// affects only the topologies whose filters are others.
func TestFilters(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1", "t2")
	numbers := map[string]int{"t1": 2, "t2": -1}
	w.filtered(numbers)
	pod := w.sandbox("s1", 1)
	w.refused(w.Attach(t.Context(), pod), fault.NotReady, "not known yet")
	w.want()
	w.wantGate("a", "")

	numbers["t2"] = 0
	w.ok(w.Attach(t.Context(), pod))
	w.wantFilters("a", "s1", "t1", 2)
	w.wantFilters("a", "s1", "t2", 0)
	w.done = nil

	refilter := func(want bool) {
		t.Helper()
		changed, err := w.Refilter(t.Context(), "a")
		w.ok(err)
		if changed != want {
			t.Errorf("changed %t, want %t", changed, want)
		}
	}
	refilter(false)
	w.want()
	numbers["t2"] = 3
	refilter(true)
	w.want("+s1/a/t2")
	w.wantFilters("a", "s1", "t2", 3)
	w.wantFilters("a", "s1", "t1", 2)

	// An edit of the topology while the filters are not known leaves those there are.
	numbers["t2"] = -1
	w.ok(w.Update(t.Context(), "a", edited("t2", 2)))
	w.wantFilters("a", "s1", "t2", 3)
	_, err := w.Refilter(t.Context(), "a")
	w.refused(err, fault.NotReady, "not known yet")

	// A change that fails leaves what there was.
	numbers["t2"] = 1
	w.fails, w.half, w.done = map[int64]bool{2: true}, true, nil
	_, err = w.Refilter(t.Context(), "a")
	w.refused(err, fault.Unsupported, "not this generation")
	w.want("+s1/a/t2", "+s1/a/t2")
	w.fails = nil
	refilter(true)
	w.wantFilters("a", "s1", "t2", 1)

	// One that could neither be made nor undone is in the record, and not in place.
	e, _, err := w.store.Get("a")
	w.ok(err)
	id := e.SandboxID("s1", e.Topology("t2"))
	rec := w.held[id]
	rec.Sandbox.Filters = append(slices.Clone(rec.Sandbox.Filters), netstate.Filter{Pref: 20000, Handle: 2})
	numbers["t2"], w.fails, w.half = 2, map[int64]bool{2: true}, false
	rec.Phase = reconcile.Failed
	w.held[id] = rec
	for range 2 {
		_, err = w.Refilter(t.Context(), "a")
		w.refused(err, fault.Unsupported, "not this generation")
	}
	w.fails = nil
	refilter(true)
	w.wantFilters("a", "s1", "t2", 2)
	refilter(false)

	w.ok(w.Detach(t.Context(), pod))
	w.done = nil
	numbers["t1"] = 9
	refilter(false)
	w.want()
}
