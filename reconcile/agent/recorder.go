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
	drift  *claimstatus.DriftReport
	rules  *filters.Missing
	others []reconcile.Recorder
}

func newRecorder(
	c Config, counts writes[*metrics.Metrics], status writes[*claimstatus.Reporter], n *nodeClaims, base *hostengine.Base,
	missing writes[*filters.Missing], m writes[*ports.Monitor], networks writes[*podEntries], nodes writes[*attachment.Nodes],
) *recorder {
	r := &recorder{
		counts.to, claimstatus.NewDriftReport(claimstatus.DriftOptions{Reporter: status.to, Claim: n.claim, Record: base.Store.Get}),
		missing.to,
		[]reconcile.Recorder{m.to, networks.to, nodes.to},
	}
	if c.Recorder != nil {
		r.others = append(r.others, c.Recorder)
	}
	return r
}

// Pass implements reconcile.Recorder.
func (r *recorder) Pass(p reconcile.Pass) {
	r.Metrics.Pass(p)
	r.drift.Pass(p)
	r.rules.Pass(p)
	for _, o := range r.others {
		o.Pass(p)
	}
}

// Drift implements reconcile.Recorder.
func (r *recorder) Drift(id reconcile.SandboxID, topology string, drift []reconcile.Drift) {
	r.Metrics.Drift(id, topology, drift)
	r.drift.Drift(id, topology, drift)
	r.rules.Drift(id, topology, drift)
	for _, o := range r.others {
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
	r.Metrics.Forget(id)
	r.drift.Forget(id)
	r.rules.Forget(id)
	for _, o := range r.others {
		o.Forget(id)
	}
}
