package node

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/watch"
)

func drifted(link, field string) reconcile.Drift {
	d := reconcile.Drift{Step: "a", Type: "dummy", Action: netstate.Update, Object: netstate.LinkKey(link), Field: field, Want: uint32(1400), Have: uint32(1500)}
	if field == "" {
		d.Action, d.Want, d.Have = netstate.Create, nil, nil
	}
	return d
}

// Each line is a pass: the time since the last one, what it repaired, whether it
// failed, and the outcome.
func TestContention(t *testing.T) {
	mtu, up, gone := drifted("net1", "mtu"), drifted("net1", "up"), drifted("net1", "")
	ms, s := time.Millisecond, time.Second
	type pass struct {
		after    time.Duration
		repaired []reconcile.Drift
		failed   bool // it did not converge
		want     string
	}
	repeat := func(n int, p pass) (out []pass) {
		for range n {
			out = append(out, p)
		}
		return out
	}
	one := []reconcile.Drift{mtu}
	begun := "mtu; began, contested, hold 375ms"
	for name, passes := range map[string][]pass{
		"an occasional change is none": repeat(20, pass{3 * s, one, false, ""}),
		"nothing to repair":            {{s, nil, false, ""}},
		"repairs of different fields are none": slices.Concat(
			repeat(4, pass{100 * ms, one, false, ""}),
			repeat(4, pass{100 * ms, []reconcile.Drift{up}, false, ""})),
		"five repairs in ten seconds": slices.Concat(
			repeat(4, pass{2 * s, one, false, ""}),
			[]pass{{2 * s, one, false, begun}}),
		"twice in one pass counts once": slices.Concat(
			repeat(4, pass{s, []reconcile.Drift{mtu, mtu}, false, ""}),
			[]pass{{s, []reconcile.Drift{mtu, mtu}, false, begun}}),
		"the pause doubles up to a limit": slices.Concat(
			repeat(4, pass{100 * ms, one, false, ""}),
			[]pass{
				{100 * ms, one, false, begun},
				{s, one, false, "mtu; contested, hold 750ms"},
				{s, one, false, "mtu; contested, hold 1.5s"},
				{2 * s, one, false, "mtu; contested, hold 3s"},
				{4 * s, one, false, "mtu; contested, hold 6s"},
				{8 * s, one, true, "mtu; contested, hold 12s"},
				{16 * s, one, false, "mtu; contested, hold 22.5s"},
				{30 * s, one, false, "mtu; contested, hold 22.5s"},
			}),
		"it ends after a quiet time": slices.Concat(
			repeat(4, pass{100 * ms, one, false, ""}),
			[]pass{
				{100 * ms, one, false, begun},
				{s, nil, false, "mtu"},
				{9 * s, nil, false, "mtu"},
				{500 * ms, nil, false, "ended"},
				{s, one, false, ""},
			}),
		"other drift does not prolong it": slices.Concat(
			repeat(4, pass{100 * ms, one, false, ""}),
			[]pass{
				{100 * ms, one, false, begun},
				{s, []reconcile.Drift{up}, false, "mtu"},
				{s, []reconcile.Drift{up, mtu}, false, "mtu; contested, hold 750ms"},
			}),
		"an object that is deleted each time": slices.Concat(
			repeat(4, pass{100 * ms, []reconcile.Drift{gone}, false, ""}),
			[]pass{{100 * ms, []reconcile.Drift{gone}, false, "missing; began, contested, hold 375ms"}}),
		"a value that is never accepted is none": repeat(20, pass{100 * ms, one, true, ""}),
		"a value that was accepted once is": slices.Concat(
			repeat(3, pass{100 * ms, one, true, ""}),
			[]pass{{100 * ms, one, false, ""}, {100 * ms, one, true, begun}}),
	} {
		t.Run(name, func(t *testing.T) {
			f := newContentionTracker()
			f.random = func() float64 { return 0.5 }
			now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
			for i, p := range passes {
				now = now.Add(p.after)
				got := describeStanding(f.record("x", p.repaired, !p.failed, now), now)
				if got != p.want {
					t.Fatalf("pass %d: %q, want %q", i+1, got, p.want)
				}
			}
			f.forget("x")
			if len(f.of) != 0 {
				t.Error("remembered after it was forgotten")
			}
		})
	}
}

func describeStanding(s outcome, now time.Time) string {
	var fields, how []string
	for _, f := range s.contended {
		name := f.Field
		if f.Action == netstate.Create {
			name = "missing"
		}
		fields = append(fields, name)
	}
	for what, is := range map[string]bool{"began": s.began, "contested": s.contested, "ended": s.ended} {
		if is {
			how = append(how, what)
		}
	}
	slices.Sort(how)
	if !s.holdUntil.IsZero() {
		how = append(how, "hold "+s.holdUntil.Sub(now).String())
	}
	out := slices.DeleteFunc([]string{strings.Join(fields, " "), strings.Join(how, ", ")}, func(s string) bool { return s == "" })
	return strings.Join(out, "; ")
}

// Deleting a link deletes a lot with it: few are reported, and nothing is kept once it
// is over.
func TestContentionIsBounded(t *testing.T) {
	f := newContentionTracker()
	now := time.Now()
	var all []reconcile.Drift
	for i := range 100 {
		all = append(all, drifted(fmt.Sprintf("net%d", i), ""))
	}
	var s outcome
	for range 2 * contentionRepairs {
		now = now.Add(100 * time.Millisecond)
		s = f.record("x", all, true, now)
	}
	if len(s.contended) != contentionMax || s.contended[0].Object != netstate.LinkKey("net0") {
		t.Errorf("%d are reported, the first is %+v", len(s.contended), s.contended[0])
	}
	for _, r := range f.of["x"].targets {
		if len(r.at) > contentionRepairs {
			t.Fatalf("%d repairs remembered of one field", len(r.at))
		}
	}
	f.record("x", nil, true, now.Add(time.Hour))
	if len(f.of) != 0 {
		t.Errorf("after a quiet hour %d are remembered", len(f.of))
	}
}

// flip changes an MTU periodically, with the watcher's event for each change, until
// stop is called.
func (n *node) flip(netns string, id reconcile.SandboxID, every time.Duration) (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(every):
				n.world.change(n.t, n.path(netns), disturbed)
				n.watched.events <- watch.Event{ID: id, Reason: watch.Changed}
			}
		}
	})
	return func() { close(end); wg.Wait(); synctest.Wait() }
}

func TestContentionSlowsRepairs(t *testing.T) {
	running(t, func(n *node) {
		for _, name := range []string{"blue", "red"} {
			n.make(name)
			n.wants(name+".yaml", name, "mtu: 1400")
		}
	}, func(n *node) {
		n.log.take()
		n.world.written()
		stop := n.flip("blue", "run/blue/ai", 20*time.Millisecond)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		// Five, seven until the pause is longest, and one each 15 to 30 s then.
		if w := n.world.written(); w < 20 || w > 60 {
			t.Errorf("%d repairs in ten minutes", w)
		}
		got := n.log.take()
		if c := strings.Count(got, "level=WARN"); c != 1 || !strings.Contains(got, `sandbox=run/blue/ai topology=ai step=a object="link net1" field=mtu want=1400 have=1500`) {
			t.Errorf("want one warning about the episode, have %d:\n%s", c, got)
		}
		st, err := n.engine.Check(n.t.Context(), "run/blue/ai")
		if err != nil || st.State != reconcile.Fighting || len(st.Fighting) != 1 {
			t.Fatalf("status: %v, %+v", err, st)
		}
		if want := `step "a": link net1: mtu is set to 1500 by another writer each time it is set to 1400`; st.Fighting[0].String() != want {
			t.Errorf("contention %q, want %q", st.Fighting[0], want)
		}

		// Another sandbox is repaired at once, and other drift of this one with
		// the next repair.
		n.world.change(t, n.path("red"), disturbed)
		n.notify(watch.Event{ID: "run/red/ai", Reason: watch.Changed})
		n.expect("while blue is contended", "red", "net1/1400")
		n.world.change(t, n.path("blue"), netstate.Change{Before: netstate.Link{Name: "net1"}})
		time.Sleep(pauseMax)
		synctest.Wait()
		if got := n.world.links(t, n.path("blue")); !strings.Contains(got, "net1/") {
			t.Errorf("blue holds %q: other drift was not repaired", got)
		}

		stop()
		time.Sleep(pauseMax)
		synctest.Wait()
		n.expect("it has stopped", "blue", "net1/1400")
		time.Sleep(pauseMax + quietAfter)
		synctest.Wait()
		if st, err := n.engine.Check(n.t.Context(), "run/blue/ai"); err != nil || st.State != reconcile.InSync {
			t.Errorf("status when all is quiet: %v, %+v", err, st)
		}
		if got := n.log.take(); strings.Count(got, "contention has ended") != 1 {
			t.Errorf("log:\n%s", got)
		}
		if f := n.recorder.contended; len(f) < 2 || len(f[0]) != 1 || len(f[len(f)-1]) != 0 {
			t.Errorf("told: %+v", f)
		}
		n.world.written()
		n.world.change(t, n.path("blue"), disturbed)
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
		n.expect("a new change is repaired at once", "blue", "net1/1400")
	})
}

// A new topology does not wait for the end of a pause.
func TestContentionDoesNotDelayEdits(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		n.wants("blue.yaml", "blue", "mtu: 1400")
	}, func(n *node) {
		stop := n.flip("blue", "run/blue/ai", 20*time.Millisecond)
		time.Sleep(5 * time.Minute)
		stop()
		n.wants("blue.yaml", "blue", "mtu: 1300")
		n.reread()
		n.expect("the file changed in a pause", "blue", "net1/1300")
	})
}

// Contention that an earlier loop recorded ends with that loop.
func TestContentionOfAnEarlierLoop(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		n.byHand("blue/ai", "blue", "mtu: 1400")
		if err := n.engine.RecordContention(n.t.Context(), "blue/ai", []reconcile.Contention{{Step: "a", Object: netstate.LinkKey("net1"), Field: "mtu", Action: netstate.Update}}); err != nil {
			t.Fatal(err)
		}
		if st, err := n.engine.Check(n.t.Context(), "blue/ai"); err != nil || st.State != reconcile.Fighting {
			t.Errorf("before: %v, %+v", err, st)
		}
	}, func(n *node) {
		if st, err := n.engine.Check(n.t.Context(), "blue/ai"); err != nil || st.State != reconcile.InSync {
			t.Errorf("after: %v, %+v", err, st)
		}
	})
}

// A topology with both policies: only the step with policy Repair is repaired and can
// be contended.
func TestBothPolicies(t *testing.T) {
	two := `netns: %s
topology:
  apiVersion: networking.dra.io/v1alpha1
  kind: NetworkTopology
  metadata: {name: ai}
  spec:
    driftPolicy: Observe
    steps:
    - {name: seen, type: dummy, config: {name: net0, mtu: 1400}}
    - {name: a, type: dummy, driftPolicy: Repair, config: {name: net1, mtu: 1400}}
`
	running(t, func(n *node) {
		n.make("blue")
		write(t, n.Dir, map[string]string{"blue.yaml": fmt.Sprintf(two, n.path("blue"))})
	}, func(n *node) {
		n.expect("at the start", "blue", "net0/1400 net1/1400")
		n.world.written()
		observed := netstate.Change{Before: netstate.Link{Name: "net0", MTU: new(uint32(1400))}, After: netstate.Link{Name: "net0", MTU: new(uint32(1500))}}
		n.world.change(t, n.path("blue"), observed)
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
		n.expect("only the observed step drifted", "blue", "net0/1500 net1/1400")
		n.world.change(t, n.path("blue"), disturbed)
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
		n.expect("both drifted", "blue", "net0/1500 net1/1400")
		if w := n.world.written(); w != 1 {
			t.Errorf("%d writes, want one", w)
		}
		st, err := n.engine.Check(n.t.Context(), "run/blue/ai")
		if err != nil || st.State != reconcile.Drifted || len(st.Drift) != 1 || st.Drift[0].Step != "seen" || st.Drift[0].Field != "mtu" {
			t.Errorf("check: %v, %+v", err, st)
		}

		stop := n.flip("blue", "run/blue/ai", 20*time.Millisecond)
		time.Sleep(time.Minute)
		stop()
		n.recorder.mu.Lock()
		for _, contended := range n.recorder.contended {
			for _, f := range contended {
				if f.Step != "a" {
					t.Errorf("contention of an observed step: %+v", f)
				}
			}
		}
		if len(n.recorder.contended) == 0 {
			t.Error("no contention was reported")
		}
		n.recorder.mu.Unlock()

		// A repair that fails is retried as a repair, not by applying everything.
		n.world.mu.Lock()
		n.world.refuse = refuseAll
		n.world.mu.Unlock()
		time.Sleep(2 * time.Minute)
		n.world.change(t, n.path("blue"), disturbed)
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
		n.world.mu.Lock()
		n.world.refuse = nil
		n.world.mu.Unlock()
		time.Sleep(2 * backoffMax)
		synctest.Wait()
		n.expect("after a repair that failed", "blue", "net0/1500 net1/1400")
	})
}

// Objects on a link that is only observed have to wait for it, and are reported as
// waiting.
func TestRepairOnWhatIsOnlyObserved(t *testing.T) {
	two := `netns: %s
topology:
  apiVersion: networking.dra.io/v1alpha1
  kind: NetworkTopology
  metadata: {name: ai}
  spec:
    steps:
    - {name: seen, type: dummy, driftPolicy: Observe, config: {name: net0, mtu: 1400}}
    - {name: v, type: vlan, dependOn: [seen], config: {name: net1, id: 5, mtu: 1400}}
    - {name: b, type: dummy, config: {name: net2, mtu: 1400}}
`
	running(t, func(n *node) {
		n.make("blue")
		write(t, n.Dir, map[string]string{"blue.yaml": fmt.Sprintf(two, n.path("blue"))})
	}, func(n *node) {
		n.log.take()
		for _, name := range []string{"net1", "net0", "net2"} {
			n.world.change(t, n.path("blue"), netstate.Change{Before: netstate.Link{Name: name}})
		}
		n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
		n.expect("all were deleted", "blue", "net2/1400")
		if got := n.log.take(); strings.Contains(got, "level=WARN") {
			t.Errorf("the repair failed:\n%s", got)
		}
		st, err := n.engine.Check(n.t.Context(), "run/blue/ai")
		var steps []string
		for _, d := range st.Drift {
			steps = append(steps, d.Step)
		}
		if diff := cmp.Diff([]string{"seen", "v"}, steps); err != nil || st.State != reconcile.Drifted || diff != "" {
			t.Errorf("check: %v, %s (-want +got):\n%s", err, st.State, diff)
		}
	})
}
