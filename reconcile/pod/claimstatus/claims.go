package claimstatus

import (
	"errors"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/contract"
)

// Claims adapts a Reporter to the packages that attach and update claims.
type Claims struct {
	*Reporter
	// Contracts are those of all step types.
	Contracts contract.Set
}

// Attaching implements attachment.Reporter.
func (r Claims) Attaching(_ attachment.Pod, c claims.Claim, at attachment.Progress) {
	r.Reporter.Attaching(c, at.Topology, at.String())
}

// Attached implements attachment.Reporter.
func (r Claims) Attached(_ attachment.Pod, c claims.Claim, reports []reconcile.Report) {
	for i, rep := range reports {
		o := &c.Topologies[i].Object
		r.Reporter.Attached(c, o.Name, rep.Results)
		r.notRedundant(c, o.Name, c.Topologies[i].OnePF(r.Contracts))
		r.Reporter.Runs(c, o.Name, o.Generation, nil)
	}
}

// Failed implements attachment.Reporter.
func (r Claims) Failed(_ attachment.Pod, c claims.Claim, err error) {
	name := ""
	if step, ok := errors.AsType[*ops.StepError](err); ok {
		name = step.Topology
	}
	r.Reporter.Failed(c, name, err)
	for i := range c.Topologies {
		o := &c.Topologies[i].Object
		r.Reporter.Runs(c, o.Name, o.Generation, nil)
	}
}

// Updated implements attachment.Reporter.
func (r Claims) Updated(c claims.Claim, topologyName string, from int64, rep reconcile.Report) {
	if t := c.Topology(topologyName); t != nil {
		r.Reporter.Updated(c, topologyName, from, t.Object.Generation, rep.Results)
	}
}

// Runs implements rollout.Reporter.
func (r Claims) Runs(c claims.Claim, topologyName string, generation int64) {
	r.Reporter.Runs(c, topologyName, generation, nil)
}
