package metrics_test

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/topology/fault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func create(step, link string) netstate.Change {
	return netstate.Change{Step: step, After: netstate.Link{Name: link, LinkKind: "dummy"}}
}

func TestExposition(t *testing.T) {
	m := metrics.New(metrics.Build{Version: "v1.2.3", Revision: "0123456789ab", GoVersion: "go1.26"}, time.Now)
	types := map[string]string{"bond0": "bond", "vlan100": "vlan"}

	m.Pass(reconcile.Pass{
		Sandbox: "blue/ai", Topology: "ai", Trigger: reconcile.TriggerEnsure, StepTypes: types,
		Changes: []netstate.Change{create("bond0", "bond0"), create("vlan100", "data0"), {Step: "", Before: netstate.Link{Name: "old"}}},
		Timing:  reconcile.Timing{Observe: 2 * time.Millisecond, Journal: time.Millisecond, Apply: 30 * time.Millisecond, Total: 34 * time.Millisecond},
		Dumps:   6, Gets: 2, Writes: 3,
	})
	// A pass that finds nothing to do has no journal and no apply phase.
	m.Pass(reconcile.Pass{Sandbox: "green/ai", Topology: "ai", Trigger: reconcile.TriggerEnsure, Timing: reconcile.Timing{Observe: time.Millisecond, Total: time.Millisecond}, Dumps: 3})
	m.Pass(reconcile.Pass{Sandbox: "gone/ai", Topology: "ai", Trigger: reconcile.TriggerCheck, Outcome: fault.Gone})
	// A plan is counted, but does not report the state.
	m.Pass(reconcile.Pass{Sandbox: "new/ai", Topology: "ai", Trigger: reconcile.TriggerPlan, Outcome: fault.Conflict})

	// Two sandboxes drift; one field of them is the same series.
	mtu := reconcile.Drift{Step: "bond0", Type: "bond", Action: netstate.Update, Object: netstate.LinkKey("bond0"), Field: "mtu"}
	m.Drift("blue/ai", "ai", []reconcile.Drift{mtu})
	m.Drift("red/ai", "ai", []reconcile.Drift{
		mtu,
		{Step: "vlan100", Type: "vlan", Action: netstate.Create, Object: netstate.LinkKey("data0")},
		{Step: "", Action: netstate.Delete, Object: netstate.LinkKey("old")},
		{Step: "tune", Type: "tuning", Action: netstate.Update, Field: "dummy0.mac"},
	})
	m.Pass(reconcile.Pass{Sandbox: "red/ai", Topology: "ai", Trigger: reconcile.TriggerRepair, Outcome: fault.Internal})
	m.Damaged(1)
	m.OtherVersions(2)
	m.Contended("blue/ai", "ai", []reconcile.Contention{{Step: "bond0", Object: netstate.LinkKey("bond0"), Field: "mtu", Action: netstate.Update}})
	m.Contended("red/ai", "ai", []reconcile.Contention{
		{Step: "bond0", Object: netstate.LinkKey("bond0"), Field: "mtu", Action: netstate.Update},
		{Step: "vlan100", Object: netstate.LinkKey("data0"), Action: netstate.Create},
	})

	health := metrics.Health{
		Loop: func() metrics.Work {
			return metrics.Work{Running: true, Waiting: 3, Busy: 2, Delay: 1500 * time.Millisecond, Resync: time.UnixMilli(1700000000250)}
		},
		Registered: func() bool { return true },
		Reports:    func() (int, uint64) { return 4, 5 },
	}
	bandwidths := metrics.Bandwidths(func() []metrics.Bandwidth {
		one := metrics.Bandwidth{Namespace: "default", Pod: "pod-one", Claim: "a", Topology: "ai", Step: "vf0", Reserved: 3e9, Enforced: 1e9}
		unread := metrics.Bandwidth{Namespace: "default", Pod: "pod-two", Claim: "a", Topology: "ai", Step: "vf0", Reserved: 6e9, Enforced: -1}
		second := one // a pod has the topology twice
		second.Claim = "b"
		return []metrics.Bandwidth{one, one, unread, second}
	})
	metricstest.Golden(t, *update, m, health, bandwidths)
}

func lines(t *testing.T, m *metrics.Metrics, prefix string) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(metricstest.Exposition(t, m)) {
		if strings.HasPrefix(line, prefix) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func TestDriftEndsWithItsRepairAndWithTheSandbox(t *testing.T) {
	m := metrics.New(metrics.Build{}, time.Now)
	drift := []reconcile.Drift{{Step: "b", Type: "bond", Action: netstate.Update, Object: netstate.LinkKey("bond0"), Field: "mtu"}}
	states := func(inSync, drifted, failed string) []string {
		return []string{
			`plumbline_sandboxes{state="Drifted"} ` + drifted,
			`plumbline_sandboxes{state="Failed"} ` + failed,
			`plumbline_sandboxes{state="InSync"} ` + inSync,
		}
	}
	check := func(when string, fields int, want []string) {
		t.Helper()
		if got := lines(t, m, "plumbline_drift_fields{"); len(got) != fields {
			t.Errorf("%s: drift: %q, want %d series", when, got, fields)
		}
		if diff := cmp.Diff(want, lines(t, m, "plumbline_sandboxes{")); diff != "" {
			t.Errorf("%s: sandboxes (-want +got):\n%s", when, diff)
		}
	}
	m.Drift("a", "t", drift)
	m.Drift("a", "t", drift) // seen again, found once
	m.Drift("b", "t", drift)
	check("both drifted", 1, states("0", "2", "0"))
	m.Pass(reconcile.Pass{Sandbox: "a", Topology: "t", Trigger: reconcile.TriggerRepair, Outcome: fault.Internal})
	check("a repair failed", 1, states("0", "1", "1"))
	m.Pass(reconcile.Pass{Sandbox: "a", Topology: "t", Trigger: reconcile.TriggerRepair, Changes: []netstate.Change{create("b", "x")}})
	check("a was repaired", 1, states("1", "1", "0"))
	m.Forget("b")
	check("b was released", 0, states("1", "0", "0"))
	m.Drift("a", "t", drift)
	want := []string{`plumbline_drift_detected_total{field="mtu",object="link",step="b",step_type="bond",topology="t"} 3`}
	if diff := cmp.Diff(want, lines(t, m, "plumbline_drift_detected_total{")); diff != "" {
		t.Errorf("detected (-want +got):\n%s", diff)
	}
	if got := lines(t, m, "plumbline_repairs_total{"); len(got) != 2 {
		t.Errorf("repairs: %q, want one success and one failure", got)
	}
}

// Drift of steps with policy Observe remains after a repair.
func TestDriftThatIsLeft(t *testing.T) {
	m := metrics.New(metrics.Build{}, time.Now)
	observed := []reconcile.Drift{{Step: "a", Type: "dummy", Action: netstate.Update, Object: netstate.LinkKey("a0"), Field: "mtu"}}
	m.Drift("s", "t", observed)
	m.Pass(reconcile.Pass{Sandbox: "s", Topology: "t", Trigger: reconcile.TriggerRepair, Changes: []netstate.Change{create("b", "x")}, Left: observed})
	got := append(lines(t, m, "plumbline_drift_fields{"), lines(t, m, `plumbline_sandboxes{state="Drifted"}`)...)
	want := []string{`plumbline_drift_fields{field="mtu",object="link",step="a",step_type="dummy",topology="t"} 1`, `plumbline_sandboxes{state="Drifted"} 1`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after a repair of another step (-want +got):\n%s", diff)
	}
}

func TestContentionEndsWithReportOrSandbox(t *testing.T) {
	m := metrics.New(metrics.Build{}, time.Now)
	contended := []reconcile.Contention{{Step: "b", Object: netstate.LinkKey("bond0"), Field: "mtu", Action: netstate.Update}}
	series := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, lines(t, m, "plumbline_fighting_fields{")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	const name = `plumbline_fighting_fields{field="mtu",object="link",step="b",topology="t"} `
	m.Contended("x", "t", contended)
	m.Contended("x", "t", contended)
	m.Contended("y", "t", contended)
	series("two contended", name+"2")
	m.Contended("x", "t", nil)
	series("one has ended", name+"1")
	m.Forget("y")
	series("the other was released")
}

// A repair that found nothing to do was no repair.
func TestRepairOfNothingIsNotCounted(t *testing.T) {
	m := metrics.New(metrics.Build{}, time.Now)
	m.Pass(reconcile.Pass{Sandbox: "a", Topology: "t", Trigger: reconcile.TriggerRepair})
	want := []string{`plumbline_repairs_total{outcome="Success",topology="t"} 0`}
	if diff := cmp.Diff(want, lines(t, m, "plumbline_repairs_total{")); diff != "" {
		t.Errorf("repairs (-want +got):\n%s", diff)
	}
}

// A loop without a cluster has no metrics of one, and none of a time it does not have.
func TestHealthLeavesOutWhatIsNotThere(t *testing.T) {
	got := metricstest.Exposition(t, metrics.Health{Loop: func() metrics.Work { return metrics.Work{} }})
	for _, name := range []string{"kubelet", "claim", "resync"} {
		if strings.Contains(got, name) {
			t.Errorf("something is said of %q:\n%s", name, got)
		}
	}
	if !strings.Contains(got, "plumbline_loop_running 0\n") {
		t.Errorf("not said that no loop runs:\n%s", got)
	}
}

// fieldPaths lists the fields that a step can want of an object, by their tags.
func fieldPaths(of reflect.Type, prefix string) []string {
	var out []string
	for f := range of.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("plan"), ",")
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if other, ok := strings.CutPrefix(options, "name="); ok {
			name = other
		}
		switch tag {
		case "", "-", "key":
		case "nested":
			out = append(out, fieldPaths(f.Type.Elem(), prefix+name+".")...)
		default:
			out = append(out, prefix+name)
		}
	}
	return out
}

// objects are all kinds of objects with all their fields set: what the labels
// object and field can be.
func objects() map[netstate.Kind][]string {
	out := map[netstate.Kind][]string{}
	for _, o := range []netstate.Object{
		netstate.Link{}, netstate.Addr{}, netstate.Route{}, netstate.Sysctl{}, netstate.Ethtool{}, netstate.BridgeVLAN{}, netstate.Device{}, netstate.VF{},
	} {
		out[o.Key().Kind] = append(fieldPaths(reflect.TypeOf(o), ""), "missing", "unwanted")
	}
	return out
}

// The number of series is bounded by what topologies say, however many pods there
// are and whatever drifts in them; and it shrinks when a topology goes.
func TestSeriesAreBounded(t *testing.T) {
	now := time.Unix(1700000000, 0)
	m := metrics.New(metrics.Build{}, func() time.Time { return now })
	const sandboxes, topologies, steps = 500, 2, 3
	fields := 0
	for _, paths := range objects() {
		fields += len(paths)
	}
	kinds := []fault.Kind{"", fault.Invalid, fault.NotReady, fault.Conflict, fault.Unsupported, fault.NotConverged, fault.Gone, fault.Internal}
	var ids []reconcile.SandboxID
	for i := range sandboxes {
		id := reconcile.SandboxID(fmt.Sprintf("pod-%d/uid/t", i))
		ids = append(ids, id)
		name := fmt.Sprintf("t%d", i%topologies)
		var drift []reconcile.Drift
		var contended []reconcile.Contention
		for step := range steps {
			s := fmt.Sprintf("s%d", step)
			for kind, paths := range objects() {
				key := netstate.Key{Kind: kind, ID: fmt.Sprintf("of-%s", id)} // the pod's own names are no label
				for _, path := range paths {
					d := reconcile.Drift{Step: s, Type: "dummy", Action: netstate.Update, Object: key, Field: path}
					switch path {
					case "missing":
						d.Action, d.Field = netstate.Create, ""
					case "unwanted":
						d.Action, d.Field = netstate.Delete, ""
					}
					drift = append(drift, d)
					contended = append(contended, reconcile.Contention{Step: s, Object: key, Field: d.Field, Action: d.Action})
				}
			}
		}
		m.Drift(id, name, drift)
		m.Contended(id, name, contended)
		for _, k := range kinds {
			m.Pass(reconcile.Pass{Sandbox: id, Topology: name, Trigger: reconcile.TriggerRepair, Outcome: k, Left: drift, Changes: []netstate.Change{create("s0", string(id))}, StepTypes: map[string]string{"s0": "dummy"}})
		}
	}
	most := map[string]int{
		"plumbline_drift_fields":         topologies * steps * fields,
		"plumbline_drift_detected_total": topologies * steps * fields,
		"plumbline_fighting_fields":      topologies * steps * fields,
		"plumbline_repairs_total":        topologies * len(kinds),
	}
	count := func() map[string]int {
		of := map[string]int{}
		for _, f := range metricstest.Gather(t, m) {
			for _, series := range f.GetMetric() {
				labelled := false
				for _, l := range series.GetLabel() {
					if strings.Contains(l.GetValue(), "pod-") {
						t.Errorf("%s has a label %s=%q", f.GetName(), l.GetName(), l.GetValue())
					}
					labelled = labelled || l.GetName() == "topology"
				}
				if labelled {
					of[f.GetName()]++
				}
			}
		}
		return of
	}
	if diff := cmp.Diff(most, count()); diff != "" {
		t.Errorf("series with a topology, %d sandboxes (-want +got):\n%s", sandboxes, diff)
	}
	for i, id := range ids {
		if i%topologies == 0 {
			m.Forget(id)
		}
	}
	now = now.Add(14 * time.Minute)
	half := map[string]int{
		"plumbline_drift_fields":         steps * fields,
		"plumbline_drift_detected_total": topologies * steps * fields, // its last repairs can still be scraped
		"plumbline_fighting_fields":      steps * fields,
		"plumbline_repairs_total":        topologies * len(kinds),
	}
	if diff := cmp.Diff(half, count()); diff != "" {
		t.Errorf("soon after a topology has gone (-want +got):\n%s", diff)
	}
	now = now.Add(time.Minute)
	half["plumbline_drift_detected_total"], half["plumbline_repairs_total"] = steps*fields, len(kinds)
	if diff := cmp.Diff(half, count()); diff != "" {
		t.Errorf("later (-want +got):\n%s", diff)
	}
}

// A topology that comes back in time keeps its counters.
func TestTopologyThatComesBack(t *testing.T) {
	now := time.Unix(1700000000, 0)
	m := metrics.New(metrics.Build{}, func() time.Time { return now })
	repair := reconcile.Pass{Sandbox: "a", Topology: "t", Trigger: reconcile.TriggerRepair, Changes: []netstate.Change{create("b", "x")}}
	m.Pass(repair)
	m.Forget("a")
	now = now.Add(10 * time.Minute)
	repair.Sandbox = "b"
	m.Pass(repair)
	now = now.Add(10 * time.Minute)
	want := []string{`plumbline_repairs_total{outcome="Success",topology="t"} 2`}
	if diff := cmp.Diff(want, lines(t, m, "plumbline_repairs_total{")); diff != "" {
		t.Errorf("repairs (-want +got):\n%s", diff)
	}
}
