package main

import (
	"context"
	"sync"
	"time"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
)

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

// recorder is the Recorder of the engine and of the loop: it counts, and reports the
// drift of claims to the API server.
type recorder struct {
	*metrics.Metrics
	drift *claimstatus.DriftReport
}

// Pass implements reconcile.Recorder.
func (r recorder) Pass(p reconcile.Pass) {
	r.Metrics.Pass(p)
	r.drift.Pass(p)
}

// Drift implements reconcile.Recorder.
func (r recorder) Drift(id reconcile.SandboxID, topology string, drift []reconcile.Drift) {
	r.Metrics.Drift(id, topology, drift)
	r.drift.Drift(id, topology, drift)
}

// Fighting implements node.Recorder.
func (r recorder) Fighting(id reconcile.SandboxID, topology string, fights []reconcile.Fight) {
	r.Metrics.Fighting(id, topology, fights)
	r.drift.Fighting(id, topology, fights)
}

// Forget implements reconcile.Recorder.
func (r recorder) Forget(id reconcile.SandboxID) {
	r.Metrics.Forget(id)
	r.drift.Forget(id)
}
