package claimstatus

import (
	"errors"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/contract"
)

// SubjectOf returns the subject of a report on a claim.
func SubjectOf(c *claims.Claim) Subject {
	return Subject{
		Claim: Object{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
		Pod:   Object{Namespace: c.Namespace, Name: c.Pod.Name, UID: c.Pod.UID},
	}
}

// Claims adapts a Reporter to the packages that attach and update claims.
type Claims struct {
	To *Reporter
	// Contracts are those of all step types.
	Contracts contract.Set
}

// Attaching implements attachment.Reporter.
func (r Claims) Attaching(_ attachment.Pod, c claims.Claim, at attachment.Progress) {
	r.To.Attaching(SubjectOf(&c), at.Topology, at.String())
}

// Attached implements attachment.Reporter.
func (r Claims) Attached(_ attachment.Pod, c claims.Claim, reports []reconcile.Report) {
	for i, rep := range reports {
		o := &c.Topologies[i].Object
		r.To.Attached(SubjectOf(&c), o.Name, rep.Results)
		r.To.notRedundant(SubjectOf(&c), o.Name, c.Topologies[i].OnePF(r.Contracts))
		r.To.Runs(SubjectOf(&c), o.Name, o.Generation, nil)
	}
}

// Failed implements attachment.Reporter.
func (r Claims) Failed(_ attachment.Pod, c claims.Claim, err error) {
	name := ""
	if step, ok := errors.AsType[*ops.StepError](err); ok {
		name = step.Topology
	}
	r.To.Failed(SubjectOf(&c), name, err)
	for i := range c.Topologies {
		o := &c.Topologies[i].Object
		r.To.Runs(SubjectOf(&c), o.Name, o.Generation, nil)
	}
}

// Detached implements attachment.Reporter.
func (r Claims) Detached(c claims.Claim) { r.To.Detached(SubjectOf(&c)) }

// Replaced implements attachment.Reporter.
func (r Claims) Replaced(c claims.Claim, container string, variables []string) {
	r.To.Replaced(SubjectOf(&c), container, variables)
}

// Updated implements attachment.Reporter.
func (r Claims) Updated(c claims.Claim, topologyName string, from int64, rep reconcile.Report) {
	if t := c.Topology(topologyName); t != nil {
		r.To.Updated(SubjectOf(&c), topologyName, from, t.Object.Generation, rep.Results)
	}
}

// Runs implements rollout.Reporter.
func (r Claims) Runs(c claims.Claim, topologyName string, generation int64) {
	r.To.Runs(SubjectOf(&c), topologyName, generation, nil)
}

// HeldBack implements rollout.Reporter.
func (r Claims) HeldBack(c claims.Claim, topologyName string, from, to int64, why error) {
	r.To.HeldBack(SubjectOf(&c), topologyName, from, to, why)
}

// UpdateFailed implements rollout.Reporter.
func (r Claims) UpdateFailed(c claims.Claim, topologyName string, from, to int64, err error) {
	r.To.UpdateFailed(SubjectOf(&c), topologyName, from, to, err)
}

// UpdateDelayed implements rollout.Reporter.
func (r Claims) UpdateDelayed(c claims.Claim, topologyName string, from, to int64, attempts int, err error) {
	r.To.UpdateDelayed(SubjectOf(&c), topologyName, from, to, attempts, err)
}

// Filtered implements filters.Reporter.
func (r Claims) Filtered(c claims.Claim) { r.To.Filtered(SubjectOf(&c)) }

// FilterFailed implements filters.Reporter.
func (r Claims) FilterFailed(c claims.Claim, err error) { r.To.FilterFailed(SubjectOf(&c), err) }
