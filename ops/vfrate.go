package ops

import (
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

// PFRule is a rule of a NetworkQoS that limits all that a pod sends over an interface, so that a
// physical function can enforce its rate.
type PFRule struct {
	Rule    string // as netstate.Filter.Rule
	Policer uint16
	Mbps    uint32
}

// RuleForPF returns the rule that decides about every packet and limits it, false if there is none:
// the first filter of each address family matches any packet, and both have one limit. What other
// rules say has no effect then. Physical functions have rates in whole Mbit/s, so a rate is rounded
// up, and one below 1 Mbit/s is left to tc.
func RuleForPF(filters []netstate.Filter) (PFRule, bool) {
	first := map[string]netstate.Filter{}
	for _, f := range filters {
		if f.Family == nil || f.Policer == nil || f.Rate == nil {
			return PFRule{}, false
		}
		if now, ok := first[*f.Family]; !ok || f.Pref < now.Pref || f.Pref == now.Pref && matchesAny(f) {
			first[*f.Family] = f
		}
	}
	v4, v6 := first[netstate.IPv4], first[netstate.IPv6]
	if !matchesAny(v4) || !matchesAny(v6) || *v4.Policer == 0 || *v4.Policer != *v6.Policer {
		return PFRule{}, false
	}
	const bytes = 1_000_000 / 8
	if rate := *v4.Rate; rate >= bytes {
		if mbps := (rate-1)/bytes + 1; mbps <= 1<<32-1 {
			return PFRule{v4.Rule, *v4.Policer, uint32(mbps)}, true
		}
	}
	return PFRule{}, false
}

// matchesAny reports whether a filter matches every packet of its family.
func matchesAny(f netstate.Filter) bool {
	return f.To != nil && *f.To == "" && f.Protocol != nil && *f.Protocol == "" && f.Port != nil && *f.Port == 0
}

// SetsRates reports whether steps of a type set rates of virtual functions on physical ones: those
// that take VFParams.
func SetsRates(c contract.Contract) bool {
	return slices.ContainsFunc(c.Params, func(p contract.Param) bool { return p.Name == "maxTxRate" })
}

// ruleForVF returns the rule whose rate the physical function enforces for the virtual function of
// this step, nil if tc does. The rate of a rule concerns one interface, so no other step may make
// one that sends through the function. The config may have a rate, too.
func (p *Planner) ruleForVF(id string, config *uint32) (*PFRule, error) {
	rule, ok := RuleForPF(p.req.Rules.Of(p.stepName()).Filters)
	if !ok || !p.req.sendsAlone(p.stepName()) {
		return nil, nil
	}
	have, ok, err := Lookup(p, netstate.VF{ID: id})
	if err != nil || !ok || have.MaxTxRateMbps == nil {
		return nil, err // no virtual function, or its physical function is not on this host
	}
	rate := rule.Mbps
	if config != nil && *config != 0 {
		rate = min(rate, *config)
	}
	instead := "tc filters limit the interface instead"
	if p.current.userspace {
		instead = "nothing limits what a process sends with the device"
	}
	switch why, refused := p.req.Refused[id]; {
	case refused:
		p.Note("the physical function refuses the rate of rule %s, so %s: %s", rule.Rule, instead, why)
		return nil, nil
	case have.NoLink && *have.MaxTxRateMbps != rate: // a driver has nothing to compare a rate with
		p.Note("physical function %q has no link and takes no rate for rule %s, so %s", have.PF, rule.Rule, instead)
		return nil, nil
	}
	return &rule, nil
}

// sendsAlone reports whether the steps that build on a step make no interface of their own.
func (r *Request) sendsAlone(step string) bool {
	for i := range r.Topology.Steps {
		s := &r.Topology.Steps[i]
		if slices.Contains(s.DependOn, step) && (s.Type != "tuning" && s.Type != "vrf" || !r.sendsAlone(s.Name)) {
			return false
		}
	}
	return true
}

// onPF returns a filter for a link whose physical function enforces a rule: it marks, and has no limit
// of its own, so that no packet is limited twice.
func (r *PFRule) onPF(f netstate.Filter) netstate.Filter {
	if r != nil && f.Policer != nil && *f.Policer == r.Policer {
		f.Policer, f.Rate, f.BurstNanos = new(uint16(0)), new(uint64(0)), new(uint64(0))
	}
	return f
}

// Avoidable reports whether there is another plan for a change of which fields were refused: tc enforces the rate of a rule that a
// physical function refuses for a virtual one.
func (p *Plan) Avoidable(c netstate.Change, fields []string) bool {
	vf, ok := c.After.(netstate.VF)
	if !ok || vf.MaxTxRateMbps == nil || p.by == nil || !slices.Contains(fields, "maxTxRate") {
		return false
	}
	st := p.by.steps[c.Step]
	return st != nil && st.rule != nil && st.rule.Mbps == *vf.MaxTxRateMbps
}
