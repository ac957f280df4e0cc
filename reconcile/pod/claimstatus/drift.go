package claimstatus

import (
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// DriftOptions are the dependencies of a DriftReport.
type DriftOptions struct {
	Reporter driftReporter
	// Claim returns the record of a claim; false if the claim is not prepared.
	Claim func(types.UID) (claims.Claim, bool)
	// Record returns the engine's record of a sandbox.
	Record func(reconcile.SandboxID) (reconcile.Record, bool, error)
}

// driftReporter receives the reports on drift; a Reporter does.
type driftReporter interface {
	Drifted(c claims.Claim, topologyName string, drift []reconcile.Drift)
	Repaired(c claims.Claim, topologyName string, steps []topology.StepResult, took time.Duration)
	Readdressed(c claims.Claim, topologyName string, steps []topology.StepResult)
	Degraded(c claims.Claim, topologyName string, err error)
	Contended(c claims.Claim, topologyName string, contended []reconcile.Contention)
}

// DriftReport reports drift in the sandboxes of claims. The engine reports the same
// drift at each check, and during contention drift and repair by turns: a DriftReport
// reports what differs from its last report. It is a reconcile.Recorder.
type DriftReport struct {
	DriftOptions

	mu       sync.Mutex
	reported map[reconcile.SandboxID]string // the last report on a sandbox that drifted
	// contended are the sandboxes with contention, with what differed there last.
	// Drift and repairs are not reported while contention lasts.
	contended map[reconcile.SandboxID][]reconcile.Drift
}

// NewDriftReport returns a DriftReport that has reported nothing yet.
func NewDriftReport(o DriftOptions) *DriftReport {
	return &DriftReport{DriftOptions: o, reported: map[reconcile.SandboxID]string{}, contended: map[reconcile.SandboxID][]reconcile.Drift{}}
}

// Drift implements reconcile.Recorder.
func (d *DriftReport) Drift(id reconcile.SandboxID, topologyName string, drift []reconcile.Drift) {
	if d.inContention(id, drift) {
		return
	}
	var lines []string
	for _, x := range drift {
		lines = append(lines, x.Step+"/"+x.Object.String()+"/"+x.Field)
	}
	text := strings.Join(lines, "\n")
	if c, ok := d.claim(id); ok && d.isNew(id, text) && text != "" {
		d.Reporter.Drifted(c, topologyName, drift)
	}
}

// Pass implements reconcile.Recorder.
func (d *DriftReport) Pass(p reconcile.Pass) {
	if p.Trigger != reconcile.TriggerRepair || d.inContention(p.Sandbox, p.Left) && (p.Outcome == "" || p.Outcome == fault.NotConverged) {
		return
	}
	c, ok := d.claim(p.Sandbox)
	if !ok {
		return
	}
	rec, known, err := d.Record(p.Sandbox)
	switch {
	case err != nil || !known:
	case p.Outcome == "" && len(p.Left) > 0: // Drift has reported that
	case p.Outcome == "" && (len(p.Changes) > 0 || p.Recovered):
		d.isNew(p.Sandbox, "")
		if p.Sandbox.Origin().Prepared {
			rec.Results = nil // those of the pod's sandbox hold
		}
		took := p.Timing.Total
		if len(p.Changes) == 0 { // it has ended by itself
			took = 0
		}
		d.Reporter.Repaired(c, p.Topology, rec.Results, took)
	case p.Outcome == "" && p.Readdressed:
		d.Reporter.Readdressed(c, p.Topology, rec.Results)
	case p.Outcome != "" && d.isNew(p.Sandbox, rec.Failure):
		d.Reporter.Degraded(c, p.Topology, fault.New(p.Outcome, rec.FailureError()))
	}
}

// Contended reports the contention in a sandbox, or that it has ended.
func (d *DriftReport) Contended(id reconcile.SandboxID, topologyName string, contended []reconcile.Contention) {
	left := d.setContention(id, len(contended) > 0)
	c, ok := d.claim(id)
	if !ok {
		return
	}
	if len(contended) > 0 {
		d.Reporter.Contended(c, topologyName, contended)
		return
	}
	d.isNew(id, "")
	if len(left) > 0 { // drift of steps with policy Observe
		d.Drift(id, topologyName, left)
		return
	}
	if rec, known, err := d.Record(id); err == nil && known && rec.Phase == reconcile.Applied {
		d.Reporter.Repaired(c, topologyName, rec.Results, 0)
	}
}

// Forget implements reconcile.Recorder.
func (d *DriftReport) Forget(id reconcile.SandboxID) {
	d.setContention(id, false)
	d.isNew(id, "")
}

// setContention records whether there is contention in a sandbox, and returns what
// differed there last.
func (d *DriftReport) setContention(id reconcile.SandboxID, on bool) (left []reconcile.Drift) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left = d.contended[id]
	if !on {
		delete(d.contended, id)
		return left
	}
	d.contended[id] = left
	return left
}

// inContention reports whether there is contention in a sandbox, and if so records
// what differs there now.
func (d *DriftReport) inContention(id reconcile.SandboxID, drift []reconcile.Drift) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, on := d.contended[id]
	if on {
		d.contended[id] = drift
	}
	return on
}

// isNew reports whether a text differs from the last report on a sandbox, which it
// replaces; "" is reported of a sandbox without drift.
func (d *DriftReport) isNew(id reconcile.SandboxID, text string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.reported[id]
	if d.reported[id] = text; text == "" {
		delete(d.reported, id)
	}
	return was != text
}

// claim returns the claim a sandbox belongs to.
func (d *DriftReport) claim(id reconcile.SandboxID) (claims.Claim, bool) {
	uid := id.Origin().ClaimUID
	if uid == "" {
		return claims.Claim{}, false
	}
	return d.Claim(types.UID(uid))
}
