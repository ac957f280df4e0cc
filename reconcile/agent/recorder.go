package agent

import (
	"github.com/plumbline/plumbline/qos/filters"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/hostengine"
	"github.com/plumbline/plumbline/reconcile/metrics"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// recorder is the Recorder of the engine and of the loop: it counts, reports the drift of claims to the
// API server, notes where rules of NetworkQoS objects are missing, and hands passes to others.
type recorder struct {
	*metrics.Metrics
	drift *claimstatus.DriftReport
	rules *filters.Missing
	all   []reconcile.Recorder // these and others
}

func newRecorder(
	c Config, counts writes[*metrics.Metrics], status writes[*claimstatus.Reporter], n *nodeClaims, base *hostengine.Base,
	missing writes[*filters.Missing], m writes[*ports.Monitor], networks writes[*podEntries], nodes writes[*attachment.Nodes],
) *recorder {
	drift := claimstatus.NewDriftReport(claimstatus.DriftOptions{Reporter: status.to, Claim: n.claim, Record: base.Store.Get})
	r := &recorder{counts.to, drift, missing.to, []reconcile.Recorder{counts.to, drift, missing.to, m.to, networks.to, nodes.to}}
	if c.Recorder != nil {
		r.all = append(r.all, c.Recorder)
	}
	return r
}

// Pass implements reconcile.Recorder.
func (r *recorder) Pass(p reconcile.Pass) {
	for _, o := range r.all {
		o.Pass(p)
	}
}

// Drift implements reconcile.Recorder.
func (r *recorder) Drift(id reconcile.SandboxID, topology string, drift []reconcile.Drift) {
	for _, o := range r.all {
		o.Drift(id, topology, drift)
	}
}

// Contended implements node.Recorder.
func (r *recorder) Contended(id reconcile.SandboxID, topology string, contended []reconcile.Contention) {
	r.Metrics.Contended(id, topology, contended)
	r.drift.Contended(id, topology, contended)
	r.rules.Contended(id, topology, contended)
}

// Forget implements reconcile.Recorder.
func (r *recorder) Forget(id reconcile.SandboxID) {
	for _, o := range r.all {
		o.Forget(id)
	}
}
