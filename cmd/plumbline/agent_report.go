package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/topology/fault"
)

func subject(c *claims.Claim) claimstatus.Subject {
	return claimstatus.Subject{
		Claim: claimstatus.Object{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
		Pod:   claimstatus.Object{Namespace: c.Namespace, Name: c.Pod.Name, UID: c.Pod.UID},
	}
}

// claimReport tells the API server what has become of claims.
type claimReport struct{ to *claimstatus.Reporter }

// Attaching implements attachment.Reporter.
func (r claimReport) Attaching(_ attachment.Pod, c claims.Claim, at attachment.Progress) {
	r.to.Attaching(subject(&c), at.Topology, at.String())
}

// Attached implements attachment.Reporter.
func (r claimReport) Attached(_ attachment.Pod, c claims.Claim, reports []reconcile.Report) {
	for i, rep := range reports {
		o := &c.Topologies[i].Object
		r.to.Attached(subject(&c), o.Name, rep.Results)
		r.to.Runs(subject(&c), o.Name, o.Generation, nil)
	}
}

// Updated implements attachment.Reporter.
func (r claimReport) Updated(c claims.Claim, topology string, from int64, rep reconcile.Report) {
	if t := c.Topology(topology); t != nil {
		r.to.Updated(subject(&c), topology, from, t.Object.Generation, rep.Results)
	}
}

// Runs implements rollout.Reporter.
func (r claimReport) Runs(c claims.Claim, topology string, generation int64) {
	r.to.Runs(subject(&c), topology, generation, nil)
}

// HeldBack implements rollout.Reporter.
func (r claimReport) HeldBack(c claims.Claim, topology string, from, to int64, why error) {
	r.to.HeldBack(subject(&c), topology, from, to, why)
}

// UpdateFailed implements rollout.Reporter.
func (r claimReport) UpdateFailed(c claims.Claim, topology string, from, to int64, err error) {
	r.to.UpdateFailed(subject(&c), topology, from, to, err)
}

// UpdateDelayed implements rollout.Reporter.
func (r claimReport) UpdateDelayed(c claims.Claim, topology string, from, to int64, attempts int, err error) {
	r.to.UpdateDelayed(subject(&c), topology, from, to, attempts, err)
}

// Failed implements attachment.Reporter.
func (r claimReport) Failed(_ attachment.Pod, c claims.Claim, err error) {
	name := ""
	if step, ok := errors.AsType[*ops.StepError](err); ok {
		name = step.Topology
	}
	r.to.Failed(subject(&c), name, err)
	for i := range c.Topologies {
		o := &c.Topologies[i].Object
		r.to.Runs(subject(&c), o.Name, o.Generation, nil)
	}
}

// Detached implements attachment.Reporter.
func (r claimReport) Detached(c claims.Claim) { r.to.Detached(subject(&c)) }

// urgent is the engine as the runtime's hooks call it: while a hook waits for a
// pod's network the loop begins no repair.
type urgent struct {
	*reconcile.Reconciler
	yield func() (done func())
}

// Ensure implements attachment.Engine.
func (u urgent) Ensure(ctx context.Context, sb reconcile.Sandbox) (reconcile.Report, error) {
	done := sync.OnceFunc(u.yield())
	defer done()
	defer time.AfterFunc(urgentFor, done).Stop()
	return u.Reconciler.Ensure(ctx, sb)
}

// urgentFor is how long repairs are held up by one topology: what takes longer than
// a hook goes on behind the gate, for minutes perhaps.
const urgentFor = 2 * time.Second

// driftReport is the Recorder of the engine and of the loop: it counts, and tells
// the API server of drift in what belongs to claims.
type driftReport struct {
	*metrics.Metrics
	status  *claimstatus.Reporter
	store   *claims.Store
	journal reconcile.Store

	mu   sync.Mutex
	said map[reconcile.SandboxID]string // what was told last of a sandbox that drifted
	// fought are the sandboxes in which somebody changes back what is repaired,
	// with what was found to differ there last. That they drift and are repaired
	// by turns is not told while it goes on.
	fought map[reconcile.SandboxID][]reconcile.Drift
}

// Drift implements reconcile.Recorder.
func (d *driftReport) Drift(id reconcile.SandboxID, topology string, drift []reconcile.Drift) {
	d.Metrics.Drift(id, topology, drift)
	if d.fights(id, drift) {
		return
	}
	var lines []string
	for _, x := range drift {
		lines = append(lines, x.Step+"/"+x.Object.String()+"/"+x.Field)
	}
	text := strings.Join(lines, "\n")
	if c, ok := d.claim(id); ok && d.news(id, text) && text != "" {
		d.status.Drifted(subject(&c), topology, drift)
	}
}

// Pass implements reconcile.Recorder.
func (d *driftReport) Pass(p reconcile.Pass) {
	d.Metrics.Pass(p)
	if p.Trigger != reconcile.TriggerRepair || d.fights(p.Sandbox, p.Left) && (p.Outcome == "" || p.Outcome == fault.NotConverged) {
		return
	}
	c, ok := d.claim(p.Sandbox)
	if !ok {
		return
	}
	rec, known, err := d.journal.Get(p.Sandbox)
	switch {
	case err != nil || !known:
	case p.Outcome == "" && len(p.Left) > 0: // Drift has told of that
	case p.Outcome == "" && len(p.Changes) > 0:
		d.news(p.Sandbox, "")
		d.status.Repaired(subject(&c), p.Topology, rec.Results)
	case p.Outcome != "" && d.news(p.Sandbox, rec.Failure):
		d.status.Degraded(subject(&c), p.Topology, fault.New(p.Outcome, rec.FailureError()))
	}
}

// Fighting implements node.Recorder.
func (d *driftReport) Fighting(id reconcile.SandboxID, topology string, fights []reconcile.Fight) {
	d.Metrics.Fighting(id, topology, fights)
	left := d.fight(id, len(fights) > 0)
	c, ok := d.claim(id)
	if !ok {
		return
	}
	if len(fights) > 0 {
		d.status.Fighting(subject(&c), topology, fights)
		return
	}
	d.news(id, "")
	if len(left) > 0 { // what may only be observed
		d.Drift(id, topology, left)
		return
	}
	if rec, known, err := d.journal.Get(id); err == nil && known && rec.Phase == reconcile.Applied {
		d.status.Repaired(subject(&c), topology, rec.Results)
	}
}

// Forget implements reconcile.Recorder.
func (d *driftReport) Forget(id reconcile.SandboxID) {
	d.Metrics.Forget(id)
	d.fight(id, false)
	d.news(id, "")
}

// fight notes whether there is a fight in a sandbox, and returns what was found
// to differ there last.
func (d *driftReport) fight(id reconcile.SandboxID, on bool) (left []reconcile.Drift) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left = d.fought[id]
	if !on {
		delete(d.fought, id)
		return left
	}
	if d.fought == nil {
		d.fought = map[reconcile.SandboxID][]reconcile.Drift{}
	}
	d.fought[id] = left
	return left
}

// fights reports whether there is a fight in a sandbox, and if so notes what
// differs there now.
func (d *driftReport) fights(id reconcile.SandboxID, drift []reconcile.Drift) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, on := d.fought[id]
	if on {
		d.fought[id] = drift
	}
	return on
}

// news reports whether a sandbox has something to tell that was not told last.
func (d *driftReport) news(id reconcile.SandboxID, text string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.said == nil {
		d.said = map[reconcile.SandboxID]string{}
	}
	was := d.said[id]
	if d.said[id] = text; text == "" {
		delete(d.said, id)
	}
	return was != text
}

// claim returns the claim a sandbox belongs to.
func (d *driftReport) claim(id reconcile.SandboxID) (claims.Claim, bool) {
	uid := id.Origin().ClaimUID
	if uid == "" || d.store == nil {
		return claims.Claim{}, false
	}
	e, known, err := d.store.Get(types.UID(uid))
	return e.Claim, known && err == nil
}
