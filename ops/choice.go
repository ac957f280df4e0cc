package ops

import (
	"maps"

	"github.com/plumbline/plumbline/ops/netstate"
)

// Choices maps fields that a topology leaves open, such as the metric of a route, to the values that the planner has chosen. The
// record of a sandbox keeps them. If the planner chose in each pass, the change of another writer could lead to another choice,
// and a running pod would be changed in what looks like a repair.
type Choices map[string]string

// Choose returns the value of an object's field as it was chosen before, else as choose does
// now. A choice lasts as long as plans ask for it, and no longer than the namespace. An error
// is that of choose, and then nothing is chosen.
func (p *Planner) Choose(of netstate.Key, field string, choose func() (string, error)) (string, error) {
	name := of.String() + " " + field
	value, ok := p.plan.Chosen[name]
	if !ok {
		value, ok = p.req.Chosen[name]
	}
	if !ok {
		return p.ChooseAgain(of, field, choose)
	}
	p.plan.Chosen[name] = value
	return value, nil
}

// ChooseAgain is Choose without regard to an earlier choice: one that has not taken effect, and can no longer.
func (p *Planner) ChooseAgain(of netstate.Key, field string, choose func() (string, error)) (string, error) {
	value, err := choose()
	if err != nil {
		return "", err
	}
	p.plan.Chosen[of.String()+" "+field] = value
	return value, nil
}

// choices are those that this plan asked for, and those of steps that are still to be planned.
func (r *Request) choices(now Choices, pending bool) Choices {
	if !pending {
		return now
	}
	out := maps.Clone(r.Chosen)
	if out == nil {
		out = Choices{}
	}
	maps.Copy(out, now)
	return out
}
