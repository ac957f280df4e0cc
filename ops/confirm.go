package ops

import (
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// prospect is the state that a plan leads to.
type prospect struct {
	p     *Planner
	now   *netstate.Snapshot // with all changes made
	order []*topology.Step
}

// ToQuery lists the objects that an observation of the outcome has to query beyond those that
// are always observed. The settings of links that the plan creates could not be queried
// before.
func (p *Plan) ToQuery() []netstate.Object {
	if p.leadsTo == nil {
		return nil
	}
	var out []netstate.Object
	for _, w := range p.leadsTo.p.wants {
		if !w.obj.Traits().Whole || netstate.OfHost(w.obj) {
			out = append(out, w.obj)
		}
	}
	return out
}

// Confirm compares an observation with the state that the plan leads to. If they agree, and
// no step waited for unknown values, nothing is left to do, by the first law: Confirm returns
// an empty plan with the current results. Otherwise it returns false, and a new plan is
// needed.
//
// A difference is not an error: the model does not cover everything the kernel does. Objects
// that the kernel creates on every link, and fields that the model left open, are not
// compared.
func (p *Plan) Confirm(have *netstate.Snapshot) (*Plan, bool) {
	to := p.leadsTo
	if to == nil || len(p.Pending) > 0 || len(p.Missing) > 0 || !to.now.ForeseenIn(have) {
		return nil, false
	}
	if slices.ContainsFunc(to.p.settling, func(o netstate.Object) bool { return unsettled(have, o) }) {
		return nil, false
	}
	out := &Plan{
		Held: p.Held, Shared: p.Shared, Notes: p.Notes, Chosen: p.Chosen,
		SettlesMillis: p.SettlesMillis, ViaHost: p.ViaHost, by: p.by,
	}
	results := map[string]topology.Result{}
	for _, step := range to.order {
		res := to.p.steps[step.Name].result(to.p.req.Netns, have, pick(results, step.DependOn))
		results[step.Name] = res
		out.Results = append(out.Results, topology.StepResult{Name: step.Name, Type: step.Type, Result: res})
	}
	return out, true
}
