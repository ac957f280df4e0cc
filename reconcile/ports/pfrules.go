package ports

import (
	"slices"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// FunctionRule is a rule of a NetworkQoS whose limit a physical function enforces for a virtual one that
// has no interface in the sandbox. Nothing marks what that sends.
type FunctionRule struct {
	Name, Function string // the function is a PCI address
}

// FunctionRulesOf returns these rules of a sandbox by its record.
func FunctionRulesOf(rec *reconcile.Record) []FunctionRule {
	rules := rec.Sandbox.Rules
	var out []FunctionRule
	moved := map[string]bool{}
	for _, c := range rec.History {
		switch o := c.After.(type) {
		case netstate.Device:
			moved[o.ID] = o.At != nil
		case netstate.VF:
			rule, ok := ops.RuleForPF(rules.Of(c.Step).Filters)
			if rate := o.MaxTxRateMbps; ok && rate != nil && *rate != 0 && *rate <= rule.Mbps {
				out = append(out, FunctionRule{rule.Rule, o.ID})
			}
		}
	}
	out = slices.DeleteFunc(out, func(r FunctionRule) bool { return moved[r.Function] })
	if len(out) == 0 {
		return nil
	}
	return out
}

// RuleOnPF returns the rule whose limit physical functions enforce for a sandbox, "" if there is none:
// it is the only one that decides about what such a function sends.
func RuleOnPF(rec *reconcile.Record) string {
	for _, r := range RulesOf(rec, Of(rec)) {
		if r.OnPF {
			return r.Name
		}
	}
	for _, r := range FunctionRulesOf(rec) {
		return r.Name
	}
	return ""
}
