package claimstatus

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// reportList is a driftReporter that lists what is reported.
type reportList []string

func (l *reportList) add(c claims.Claim, what string, about any) {
	*l = append(*l, fmt.Sprintf("%s %s: %v", c.UID, what, about))
}

func (l *reportList) Drifted(c claims.Claim, _ string, drift []reconcile.Drift) {
	l.add(c, "drifted", drift[0].Field)
}

func (l *reportList) Repaired(c claims.Claim, _ string, steps []topology.StepResult, took time.Duration) {
	l.add(c, "repaired", fmt.Sprintf("%d %s", len(steps), repairedMessage("t", took)))
}

func (l *reportList) Readdressed(c claims.Claim, _ string, steps []topology.StepResult) {
	l.add(c, "readdressed", len(steps))
}

func (l *reportList) Degraded(c claims.Claim, _ string, err error) {
	l.add(c, "degraded", fault.Of(err))
}

func (l *reportList) Contended(c claims.Claim, _ string, contended []reconcile.Contention) {
	l.add(c, "fighting", contended[0].Field)
}

// TestDriftReport follows sandboxes through the events of engine and loop: what is
// reported, and that the same thing is reported once.
func TestDriftReport(t *testing.T) {
	const id = reconcile.SandboxID("pod/c1/t")
	drift := func(field string) []reconcile.Drift {
		return []reconcile.Drift{{Step: "tune", Object: netstate.LinkKey("data0"), Field: field}}
	}
	contended := []reconcile.Contention{{Step: "tune", Object: netstate.LinkKey("data0"), Field: "mtu"}}
	type on = func(*DriftReport)
	drifted := func(field string) on { return func(d *DriftReport) { d.Drift(id, "t", drift(field)) } }
	inSync := func(d *DriftReport) { d.Drift(id, "t", nil) }
	pass := func(p reconcile.Pass) on {
		return func(d *DriftReport) {
			p.Sandbox, p.Topology = id, "t"
			d.Pass(p)
		}
	}
	repaired := pass(reconcile.Pass{Trigger: reconcile.TriggerRepair, Changes: make([]netstate.Change, 1), Timing: reconcile.Timing{Total: 12_345 * time.Microsecond}})
	idle := pass(reconcile.Pass{Trigger: reconcile.TriggerRepair})
	attached := pass(reconcile.Pass{Trigger: reconcile.TriggerEnsure, Changes: make([]netstate.Change, 1)})
	left := func(field string) on {
		return pass(reconcile.Pass{Trigger: reconcile.TriggerRepair, Changes: make([]netstate.Change, 1), Left: drift(field)})
	}
	recovered := pass(reconcile.Pass{Trigger: reconcile.TriggerRepair, Recovered: true, Timing: reconcile.Timing{Total: time.Second}})
	readdressed := pass(reconcile.Pass{Trigger: reconcile.TriggerRepair, Readdressed: true})
	failed := func(kind fault.Kind) on { return pass(reconcile.Pass{Trigger: reconcile.TriggerRepair, Outcome: kind}) }
	fighting := func(d *DriftReport) { d.Contended(id, "t", contended) }
	contentionEnds := func(d *DriftReport) { d.Contended(id, "t", nil) }
	forget := func(d *DriftReport) { d.Forget(id) }

	for name, tt := range map[string]struct {
		on   []on
		want []string
	}{
		"drift is reported once": {
			[]on{drifted("mtu"), drifted("mtu"), drifted("up"), drifted("mtu")},
			[]string{"c1 drifted: mtu", "c1 drifted: up", "c1 drifted: mtu"},
		},
		"again after it was away":         {[]on{drifted("mtu"), inSync, drifted("mtu")}, []string{"c1 drifted: mtu", "c1 drifted: mtu"}},
		"again after a repair":            {[]on{drifted("mtu"), repaired, drifted("mtu")}, []string{"c1 drifted: mtu", "c1 repaired: 2 topology \"t\": repaired in 12 ms", "c1 drifted: mtu"}},
		"again after the sandbox ended":   {[]on{drifted("mtu"), forget, drifted("mtu")}, []string{"c1 drifted: mtu", "c1 drifted: mtu"}},
		"each repair":                     {[]on{repaired, repaired}, []string{"c1 repaired: 2 topology \"t\": repaired in 12 ms", "c1 repaired: 2 topology \"t\": repaired in 12 ms"}},
		"no repair without a change":      {[]on{idle, attached}, nil},
		"a failure that ends by itself":   {[]on{failed(fault.NotReady), recovered, failed(fault.NotReady)}, []string{"c1 degraded: NotReady", "c1 repaired: 2 topology \"t\": repaired", "c1 degraded: NotReady"}},
		"addresses of the network":        {[]on{readdressed, idle, readdressed}, []string{"c1 readdressed: 2", "c1 readdressed: 2"}},
		"what is left is no repair":       {[]on{drifted("mtu"), left("mtu"), drifted("mtu")}, []string{"c1 drifted: mtu"}},
		"a failure once":                  {[]on{failed(fault.NotReady), failed(fault.NotReady)}, []string{"c1 degraded: NotReady"}},
		"a failure again after a repair":  {[]on{failed(fault.NotReady), repaired, failed(fault.NotReady)}, []string{"c1 degraded: NotReady", "c1 repaired: 2 topology \"t\": repaired in 12 ms", "c1 degraded: NotReady"}},
		"drift after a failure":           {[]on{drifted("mtu"), failed(fault.NotReady), drifted("mtu")}, []string{"c1 drifted: mtu", "c1 degraded: NotReady", "c1 drifted: mtu"}},
		"contention in place of its ways": {[]on{fighting, drifted("mtu"), repaired, failed(fault.NotConverged), drifted("mtu")}, []string{"c1 fighting: mtu"}},
		"another failure in contention":   {[]on{fighting, failed(fault.Unsupported)}, []string{"c1 fighting: mtu", "c1 degraded: Unsupported"}},
		"the end of contention":           {[]on{fighting, drifted("mtu"), repaired, contentionEnds}, []string{"c1 fighting: mtu", "c1 repaired: 2 topology \"t\": repaired"}},
		"what contention leaves":          {[]on{fighting, left("up"), contentionEnds, drifted("up"), repaired}, []string{"c1 fighting: mtu", "c1 drifted: up", "c1 repaired: 2 topology \"t\": repaired in 12 ms"}},
		"drift from before contention":    {[]on{drifted("mtu"), fighting, repaired, contentionEnds, drifted("mtu")}, []string{"c1 drifted: mtu", "c1 fighting: mtu", "c1 repaired: 2 topology \"t\": repaired", "c1 drifted: mtu"}},
		"contention that ended with a pod": {
			[]on{fighting, forget, drifted("mtu")},
			[]string{"c1 fighting: mtu", "c1 drifted: mtu"},
		},
		"another sandbox": {
			[]on{fighting, func(d *DriftReport) { d.Drift("pod/c2/t", "t", drift("mtu")) }},
			[]string{"c1 fighting: mtu", "c2 drifted: mtu"},
		},
		"sandboxes without a claim": {
			[]on{
				func(d *DriftReport) { d.Drift(reconcile.IDByHand("blue", "t"), "t", drift("mtu")) },
				func(d *DriftReport) { d.Drift("pod/unknown/t", "t", drift("mtu")) },
				func(d *DriftReport) { d.Contended("pod/unknown/t", "t", contended) },
			}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got reportList
			d := NewDriftReport(DriftOptions{
				Reporter: &got,
				Claim: func(uid types.UID) (claims.Claim, bool) {
					return claims.Claim{UID: uid, Namespace: "ns", Name: "claim"}, uid != "unknown"
				},
				Record: func(reconcile.SandboxID) (reconcile.Record, bool, error) {
					return reconcile.Record{Phase: reconcile.Applied, Results: make([]topology.StepResult, 2), Failure: "no device", Failures: []reconcile.StepFailure{{Message: "no device"}}}, true, nil
				},
			})
			for _, event := range tt.on {
				event(d)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("reported %q\nwant     %q", got, tt.want)
			}
			d.Forget(id)
			d.Forget("pod/c2/t")
			d.Forget("pod/unknown/t")
			if len(d.reported)+len(d.contended) > 0 {
				t.Errorf("kept after the end of the sandboxes: %q, %v", d.reported, d.contended)
			}
		})
	}
}

// TestDriftReportWithoutRecord holds that nothing is reported of a repair whose record
// cannot be read, nor the end of contention in a sandbox that is not applied.
func TestDriftReportWithoutRecord(t *testing.T) {
	for name, record := range map[string]func(reconcile.SandboxID) (reconcile.Record, bool, error){
		"unreadable": func(reconcile.SandboxID) (reconcile.Record, bool, error) {
			return reconcile.Record{Phase: reconcile.Applied}, true, errors.New("unreadable")
		},
		"none": func(reconcile.SandboxID) (reconcile.Record, bool, error) { return reconcile.Record{}, false, nil },
		"failed": func(reconcile.SandboxID) (reconcile.Record, bool, error) {
			return reconcile.Record{Phase: reconcile.Failed}, true, nil
		},
	} {
		var got reportList
		d := NewDriftReport(DriftOptions{
			Reporter: &got, Record: record,
			Claim: func(uid types.UID) (claims.Claim, bool) { return claims.Claim{UID: uid}, true },
		})
		if name != "failed" {
			d.Pass(reconcile.Pass{Sandbox: "pod/c1/t", Trigger: reconcile.TriggerRepair, Changes: make([]netstate.Change, 1)})
		}
		d.Contended("pod/c1/t", "t", nil)
		if len(got) > 0 {
			t.Errorf("%s: reported %q", name, got)
		}
	}
}
