package metrics_test

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/metrics"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func exposition(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&out, f); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

func create(step, link string) netstate.Change {
	return netstate.Change{Step: step, After: netstate.Link{Name: link, LinkKind: "dummy"}}
}

func TestExposition(t *testing.T) {
	m := metrics.New(metrics.Build{Version: "v1.2.3", Revision: "0123456789ab", GoVersion: "go1.26"})
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
	// A plan is counted, but says nothing of what is.
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
	m.Fighting("blue/ai", "ai", []reconcile.Fight{{Step: "bond0", Object: netstate.LinkKey("bond0"), Field: "mtu", Action: netstate.Update}})
	m.Fighting("red/ai", "ai", []reconcile.Fight{
		{Step: "bond0", Object: netstate.LinkKey("bond0"), Field: "mtu", Action: netstate.Update},
		{Step: "vlan100", Object: netstate.LinkKey("data0"), Action: netstate.Create},
	})

	const file = "testdata/exposition.txt"
	got := exposition(t, m)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("exposition (-want +got; -update rewrites %s):\n%s", file, diff)
	}
}

func lines(t *testing.T, m *metrics.Metrics, prefix string) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(exposition(t, m)) {
		if strings.HasPrefix(line, prefix) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func TestDriftEndsWithItsRepairAndWithTheSandbox(t *testing.T) {
	m := metrics.New(metrics.Build{})
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

// What a repair leaves alone, as its step says, drifts on.
func TestDriftThatIsLeft(t *testing.T) {
	m := metrics.New(metrics.Build{})
	observed := []reconcile.Drift{{Step: "a", Type: "dummy", Action: netstate.Update, Object: netstate.LinkKey("a0"), Field: "mtu"}}
	m.Drift("s", "t", observed)
	m.Pass(reconcile.Pass{Sandbox: "s", Topology: "t", Trigger: reconcile.TriggerRepair, Changes: []netstate.Change{create("b", "x")}, Left: observed})
	got := append(lines(t, m, "plumbline_drift_fields{"), lines(t, m, `plumbline_sandboxes{state="Drifted"}`)...)
	want := []string{`plumbline_drift_fields{field="mtu",object="link",step="a",step_type="dummy",topology="t"} 1`, `plumbline_sandboxes{state="Drifted"} 1`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after a repair of another step (-want +got):\n%s", diff)
	}
}

func TestFightEndsWhenToldAndWithTheSandbox(t *testing.T) {
	m := metrics.New(metrics.Build{})
	fight := []reconcile.Fight{{Step: "b", Object: netstate.LinkKey("bond0"), Field: "mtu", Action: netstate.Update}}
	series := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, lines(t, m, "plumbline_fighting_fields{")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	const name = `plumbline_fighting_fields{field="mtu",object="link",step="b",topology="t"} `
	m.Fighting("x", "t", fight)
	m.Fighting("x", "t", fight)
	m.Fighting("y", "t", fight)
	series("two fight", name+"2")
	m.Fighting("x", "t", nil)
	series("one has ended", name+"1")
	m.Forget("y")
	series("the other was released")
}

// A repair that found nothing to do was no repair.
func TestRepairOfNothingIsNotCounted(t *testing.T) {
	m := metrics.New(metrics.Build{})
	m.Pass(reconcile.Pass{Sandbox: "a", Topology: "t", Trigger: reconcile.TriggerRepair})
	if got := lines(t, m, "plumbline_repairs_total{"); len(got) != 0 {
		t.Errorf("repairs: %q", got)
	}
}
