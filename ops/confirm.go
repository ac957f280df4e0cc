package ops

import (
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// prospect is what a plan leads to.
type prospect struct {
	p     *Planner
	now   *netstate.Snapshot // with all changes made
	order []*topology.Step
}

// Asks lists what an observation of the outcome has to ask for beyond what is
// observed anyway. The settings of links that the plan makes could not be asked for
// before.
func (p *Plan) Asks() []netstate.Object {
	if p.leadsTo == nil {
		return nil
	}
	var out []netstate.Object
	for _, w := range p.leadsTo.p.wants {
		if !w.obj.Traits().Whole {
			out = append(out, w.obj)
		}
	}
	return out
}

// Confirm compares an observation with what the plan leads to. If they agree, and
// nothing waited for values yet unknown, nothing is left to do, by the first law: it
// returns an empty plan with the current results. Otherwise it returns false, and only
// a new plan can tell.
//
// A difference is not an error: the kernel may have done what the model does not know.
// What the kernel creates by itself on every link is no difference, nor is a field that
// the model left open.
func (p *Plan) Confirm(have *netstate.Snapshot) (*Plan, bool) {
	to := p.leadsTo
	if to == nil || len(p.Pending) > 0 || len(p.Missing) > 0 || !to.now.ForeseenIn(have) {
		return nil, false
	}
	out := &Plan{Held: p.Held, Notes: p.Notes}
	results := map[string]topology.Result{}
	for _, step := range to.order {
		res := to.p.result(to.p.steps[step.Name], have, pick(results, step.DependOn))
		results[step.Name] = res
		out.Results = append(out.Results, topology.StepResult{Name: step.Name, Type: step.Type, Result: res})
	}
	return out, true
}
