package attachment_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// edited is a later generation of a topology.
func edited(name string, generation int64) *v1alpha1.NetworkTopology {
	return &v1alpha1.NetworkTopology{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "t-uid", Generation: generation, ResourceVersion: "9"},
		Spec:       v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{{Name: "d", Type: "dummy"}}},
	}
}

// wantGeneration holds the generation in the record, and that of the engine's last
// call.
func (w *world) wantGeneration(uid types.UID, sandbox, topology string, generation int64, updating bool) {
	w.t.Helper()
	e, _, err := w.store.Get(uid)
	if err != nil {
		w.t.Fatal(err)
	}
	t := e.Topology(topology)
	if t.Object.Generation != generation || (t.Next != nil) != updating || t.Object.ResourceVersion != "" {
		w.t.Errorf("record of %q has generation %d, updating %t; want %d, %t", topology, t.Object.Generation, t.Next != nil, generation, updating)
	}
	if sandbox == "" || updating {
		return
	}
	rec := w.held[e.SandboxID(sandbox, t)]
	if rec.Sandbox.Topology == nil || rec.Sandbox.Topology.Generation != generation || rec.Phase != reconcile.Applied {
		w.t.Errorf("the engine has %+v of %q, want generation %d", rec, topology, generation)
	}
}

// interrupted leaves a claim as an agent does that is killed in an update: the
// record has both generations, the engine one of them.
func (w *world) interrupted(uid types.UID, topology string, to int64) {
	w.t.Helper()
	e, _, err := w.store.Get(uid)
	if err != nil {
		w.t.Fatal(err)
	}
	e.Topology(topology).Next = new(claims.Pinned(edited(topology, to)))
	w.ok(w.store.Put(e.Claim))
}

func TestUpdate(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1", "t2")
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.done, w.reported = nil, nil
	for range 2 { // the other agent's, too
		w.ok(w.Update(t.Context(), "a", edited("t2", 3)))
	}
	w.want("+s1/a/t2")
	w.wantGeneration("a", "s1", "t2", 3, false)
	w.wantGeneration("a", "s1", "t1", 1, false)
	w.wantGate("a", "s1")
	w.ok(w.Update(t.Context(), "a", edited("t2", 2))) // a watch that lags behind
	w.wantGeneration("a", "s1", "t2", 3, false)
	if want := []string{"updated t2 from 1 to 3"}; !slices.Equal(w.reported, want) {
		t.Errorf("reported %q, want %q", w.reported, want)
	}

	// The next sandbox of the pod gets what the pod had.
	w.ok(w.Attach(t.Context(), w.sandbox("s2", 2)))
	w.wantGeneration("a", "s2", "t2", 3, false)

	other := edited("t2", 9)
	other.UID = "another"
	w.refused(w.Update(t.Context(), "a", other), fault.Gone, "an earlier object")
	w.refused(w.Update(t.Context(), "zz", edited("t2", 9)), fault.Gone, "no longer prepared")
}

// TestUpdateUnattached holds that only the record of a claim changes that is in no
// sandbox, and that a sandbox which has ended is not attached again.
func TestUpdateUnattached(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	w.ok(w.Update(t.Context(), "a", edited("t1", 2)))
	w.want()
	w.wantGeneration("a", "", "t1", 2, false)
	pod := w.sandbox("s1", 1)
	w.ok(w.Attach(t.Context(), pod))
	w.wantGeneration("a", "s1", "t1", 2, false)
	w.ok(w.Detach(t.Context(), pod))
	w.done = nil
	w.ok(w.Update(t.Context(), "a", edited("t1", 3)))
	w.want()

	w.prepare("b", "t1")
	next := w.sandbox("s2", 2)
	w.ok(w.Attach(t.Context(), next))
	w.done = nil
	w.netns[next.Netns] = 3 // another pod's by now
	w.refused(w.Update(t.Context(), "b", edited("t1", 2)), fault.Gone, "has ended")
	w.want()
	w.wantGeneration("b", "", "t1", 1, false)
}

func TestUpdateFails(t *testing.T) {
	t.Run("held back", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
		w.done, w.follow = nil, errors.New("it takes another device")
		if err := w.Update(t.Context(), "a", edited("t1", 2)); !errors.Is(err, w.follow) {
			t.Errorf("error %v", err)
		}
		w.want()
		w.wantGeneration("a", "s1", "t1", 1, false)
	})
	t.Run("undone by the engine", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
		w.done, w.fails = nil, map[int64]bool{2: true}
		w.refused(w.Update(t.Context(), "a", edited("t1", 2)), fault.Unsupported, "not this generation")
		w.want("+s1/a/t1", "+s1/a/t1") // the engine's rollback is verified
		w.wantGeneration("a", "s1", "t1", 1, false)
		w.wantGate("a", "s1")
		w.wantPhase("a", "s1", claims.Attached)
		w.ok(w.Update(t.Context(), "a", edited("t1", 3)))
		w.wantGeneration("a", "s1", "t1", 3, false)
	})
	t.Run("left half applied", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
		w.done, w.fails, w.half = nil, map[int64]bool{2: true}, true
		w.refused(w.Update(t.Context(), "a", edited("t1", 2)), fault.Unsupported, "not this generation")
		w.want("+s1/a/t1", "+s1/a/t1")
		w.wantGeneration("a", "s1", "t1", 1, false)
	})
	t.Run("neither way", func(t *testing.T) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod))
		w.fails, w.half = map[int64]bool{1: true, 2: true}, true
		w.refused(w.Update(t.Context(), "a", edited("t1", 2)), fault.Unsupported, "roll back to generation 1: not this generation")
		w.wantGeneration("a", "s1", "t1", 1, true)
		// No container starts on an unverified state; running ones continue.
		w.refused(w.Admit(t.Context(), pod, env("a", "s1")), fault.Unsupported, "not this generation")
		w.wantPhase("a", "s1", claims.Attached)
		w.fails = map[int64]bool{2: true}
		w.ok(w.Admit(t.Context(), pod, env("a", "s1")))
		w.wantGeneration("a", "s1", "t1", 1, false)
	})
}

// TestUpdateKilled covers the states that another process may find.
func TestUpdateKilled(t *testing.T) {
	attached := func(t *testing.T) (*world, attachment.Pod) {
		w := newWorld(t)
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(t.Context(), pod))
		w.interrupted("a", "t1", 2)
		w.done, w.reported = nil, nil
		return w, pod
	}
	restart := func(w *world) { w.restart(filepath.Dir(string(w.gate)), "boot") }
	for _, made := range []int64{0, 1, 2} { // nothing yet, half, all of it
		inBubble(t, fmt.Sprintf("at %d of 2", made), func(t *testing.T) {
			w, _ := attached(t)
			id := reconcile.SandboxID("s1/a/t1")
			rec := w.held[id]
			if made > 0 {
				top := *rec.Sandbox.Topology
				top.Generation = 2
				rec.Sandbox.Topology = &top
			}
			if made == 1 {
				rec.Phase = reconcile.Applying
			}
			w.held[id] = rec
			restart(w)
			w.run()
			w.wantGeneration("a", "s1", "t1", 2, false)
			if want := []string{"updated t1 from 1 to 2"}; !slices.Equal(w.reported, want) {
				t.Errorf("reported %q, want %q", w.reported, want)
			}
		})
	}
	inBubble(t, "and the later one fails", func(t *testing.T) {
		w, pod := attached(t)
		w.fails, w.half = map[int64]bool{2: true}, true
		restart(w)
		w.run()
		w.wantGeneration("a", "s1", "t1", 1, false)
		w.wantGate("a", pod.Sandbox)
	})
	t.Run("a container comes first", func(t *testing.T) {
		w, pod := attached(t)
		restart(w)
		w.ok(w.Admit(t.Context(), pod, env("a", "s1")))
		w.want("+s1/a/t1")
		w.wantGeneration("a", "s1", "t1", 2, false)
	})
	t.Run("the next edit comes first", func(t *testing.T) {
		w, _ := attached(t)
		restart(w)
		w.ok(w.Update(t.Context(), "a", edited("t1", 3)))
		w.want("+s1/a/t1", "+s1/a/t1")
		w.wantGeneration("a", "s1", "t1", 3, false)
	})
	t.Run("a new sandbox comes first", func(t *testing.T) {
		w, _ := attached(t)
		restart(w)
		w.ok(w.Attach(t.Context(), w.sandbox("s2", 2)))
		w.want("-s1/a/t1", "+s2/a/t1")
		w.wantGeneration("a", "s2", "t1", 1, false)
	})
	inBubble(t, "the sandbox ends first", func(t *testing.T) {
		w, pod := attached(t)
		restart(w)
		w.ok(w.Detach(t.Context(), pod))
		w.run()
		w.want("-s1/a/t1")
		w.wantGeneration("a", "", "t1", 1, false)
		w.ok(w.Withdraw(t.Context(), "a"))
	})
	inBubble(t, "a reboot", func(t *testing.T) {
		w, _ := attached(t)
		w.restart(filepath.Dir(string(w.gate)), "next")
		w.run()
		w.wantGeneration("a", "", "t1", 1, false)
		w.ok(w.Attach(t.Context(), w.sandbox("s2", 2)))
		w.wantGeneration("a", "s2", "t1", 1, false)
	})
}

// TestUpdatePrepared: an edit is first applied to what is prepared before the sandbox. If
// the edit fails, the generation that the next sandbox gets is restored there.
func TestUpdatePrepared(t *testing.T) {
	prepared := func(w *world, generation int64) {
		t.Helper()
		if rec := w.held["prepared/a/t1"]; rec.Sandbox.Topology == nil || rec.Sandbox.Topology.Generation != generation {
			t.Errorf("prepared is %+v, want generation %d", rec, generation)
		}
	}
	begin := func(t *testing.T) (*world, attachment.Pod) {
		w := newWorld(t)
		c := w.prepareDevice("a", "t1")
		w.ok(w.Prepare(t.Context(), &c))
		w.done = nil
		return w, w.sandbox("s1", 1)
	}
	attached := func(t *testing.T) (*world, attachment.Pod) {
		w, pod := begin(t)
		w.ok(w.Attach(t.Context(), pod))
		w.done = nil
		return w, pod
	}
	t.Run("attached", func(t *testing.T) {
		w, _ := attached(t)
		w.ok(w.Update(t.Context(), "a", edited("t1", 2)))
		w.want("+prepared/a/t1", "+s1/a/t1")
		w.wantGeneration("a", "s1", "t1", 2, false)
		prepared(w, 2)
	})
	t.Run("attached, and it fails", func(t *testing.T) {
		w, _ := attached(t)
		w.fails = map[int64]bool{2: true}
		w.refused(w.Update(t.Context(), "a", edited("t1", 2)), fault.Unsupported, "not this generation")
		w.want("+prepared/a/t1", "+prepared/a/t1", "+s1/a/t1")
		w.wantGeneration("a", "s1", "t1", 1, false)
		prepared(w, 1)
	})
	t.Run("no sandbox yet", func(t *testing.T) {
		w, pod := begin(t)
		w.ok(w.Update(t.Context(), "a", edited("t1", 2)))
		w.want("+prepared/a/t1")
		prepared(w, 2)
		w.ok(w.Attach(t.Context(), pod))
		w.want("+s1/a/t1")
		w.wantGeneration("a", "s1", "t1", 2, false)
	})
	t.Run("no sandbox yet, and it fails", func(t *testing.T) {
		w, _ := begin(t)
		w.fails = map[int64]bool{2: true}
		w.refused(w.Update(t.Context(), "a", edited("t1", 2)), fault.Unsupported, "not this generation")
		w.wantGeneration("a", "", "t1", 1, false)
		prepared(w, 1)
	})
	killed := func(t *testing.T) *world { // once the later one was prepared
		w, _ := attached(t)
		w.interrupted("a", "t1", 2)
		rec := w.held["prepared/a/t1"]
		top := *rec.Sandbox.Topology
		top.Generation = 2
		rec.Sandbox.Topology = &top
		w.held["prepared/a/t1"] = rec
		w.restart(filepath.Dir(string(w.gate)), "boot")
		w.done = nil
		return w
	}
	t.Run("killed, and a new sandbox comes first", func(t *testing.T) {
		w := killed(t)
		w.ok(w.Attach(t.Context(), w.sandbox("s2", 2)))
		w.want("-s1/a/t1", "+prepared/a/t1", "+s2/a/t1")
		w.wantGeneration("a", "s2", "t1", 1, false)
		prepared(w, 1)
	})
	inBubble(t, "killed, and the sandbox ends first", func(t *testing.T) {
		w := killed(t)
		w.ok(w.Detach(t.Context(), w.sandbox("s1", 1)))
		w.run()
		w.want("-s1/a/t1", "+prepared/a/t1")
		w.wantGeneration("a", "", "t1", 1, false)
		prepared(w, 1)
	})
}

// TestAttachedBefore: the record of a claim has the generation that its pod had. After a
// reboot, and when an update is rolled back, the engine gets it as applied before, and so
// applies it although validation would refuse it; not so another generation.
func TestAttachedBefore(t *testing.T) {
	synctest.Test(t, testAttachedBefore)
}

func testAttachedBefore(t *testing.T) {
	w := newWorld(t)
	w.prepare("a", "t1")
	dir := filepath.Dir(string(w.gate))
	before := func(sandbox string) bool {
		e, _, err := w.store.Get("a")
		if err != nil {
			t.Fatal(err)
		}
		return w.held[e.SandboxID(sandbox, e.Topology("t1"))].Sandbox.AppliedBefore
	}
	w.ok(w.Attach(t.Context(), w.sandbox("s1", 1)))
	if before("s1") {
		t.Error("it was never attached before")
	}
	w.fails = map[int64]bool{2: true}
	w.interrupted("a", "t1", 2)
	w.run()
	w.wantGeneration("a", "s1", "t1", 1, false)
	if !before("s1") {
		t.Error("the update was undone, and the engine is not informed that the pod had this generation")
	}
	w.restart(dir, "next")
	w.ok(w.Attach(t.Context(), w.sandbox("s2", 2)))
	if !before("s2") {
		t.Error("after a reboot the engine is not informed that the pod had this generation")
	}
	w.restart(dir, "after")
	w.fails = nil
	w.ok(w.Update(t.Context(), "a", edited("t1", 3)))
	w.ok(w.Attach(t.Context(), w.sandbox("s3", 3)))
	w.wantGeneration("a", "s3", "t1", 3, false)
	if before("s3") {
		t.Error("the pod did not have the edited topology")
	}
}
