package reconcile

import (
	"errors"
	"maps"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/excerpt"
)

// refused reports whether a plan failed since a device refuses what the planner can have in another way, and records that: the
// pass goes on with another plan. The change that failed is the last one executed.
func (p *pass) refused(plan *ops.Plan, err error) bool {
	refused, ok := errors.AsType[*netstate.Refused](err)
	if !ok || len(p.executed) == 0 {
		return false
	}
	c := p.executed[len(p.executed)-1]
	id := c.Key().ID
	if _, known := p.record.Refused[id]; known || !plan.Avoidable(c, refused.Paths) {
		return false
	}
	p.executed = p.executed[:len(p.executed)-1] // nothing of it was made
	p.record.History = netstate.Coalesce(p.record.History, netstate.Change{Step: c.Step, Before: c.After, After: c.Before})
	all := map[string]string{id: excerpt.Of(refused.Error(), maxFailureMessage)}
	maps.Copy(all, p.record.Refused)
	p.record.Refused = all // the record before this pass keeps its own
	return true
}

// asksAgain reports whether what devices have refused is tried again: the sandbox is to have other rules than its record has.
func (p *pass) asksAgain() bool {
	return (p.trigger == TriggerEnsure || p.trigger == TriggerPlan) && p.record.Refused != nil &&
		!p.record.Sandbox.Rules.Equal(p.sandbox.Rules)
}
