package reconcile

import (
	"errors"
	"maps"
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/excerpt"
)

// refusesRate reports whether a plan failed since a physical function refuses the rate of a rule, and
// records that: tc enforces the rule then, and the pass goes on with another plan. The change that
// failed is the last one executed.
func (p *pass) refusesRate(plan *ops.Plan, err error) bool {
	refused, ok := errors.AsType[*netstate.Refused](err)
	if !ok || len(p.executed) == 0 || !slices.Contains(refused.Paths, "maxTxRate") {
		return false
	}
	c := p.executed[len(p.executed)-1]
	id := c.Key().ID
	if _, known := p.record.RatesRefused[id]; known || !plan.PlansRate(c) {
		return false
	}
	p.executed = p.executed[:len(p.executed)-1] // nothing of it was made
	p.record.History = netstate.Coalesce(p.record.History, netstate.Change{Step: c.Step, Before: c.After, After: c.Before})
	all := map[string]string{id: excerpt.Of(refused.Error(), maxFailureMessage)}
	maps.Copy(all, p.record.RatesRefused)
	p.record.RatesRefused = all // the record before this pass keeps its own
	return true
}

// newRules reports whether the sandbox is to have other rules than those that its record has.
func (p *pass) newRules() bool {
	if p.trigger != TriggerEnsure && p.trigger != TriggerPlan || p.record.RatesRefused == nil {
		return false
	}
	return !onlyRules(p.record.Sandbox.Rules()).Equal(onlyRules(p.sandbox.Rules()))
}
