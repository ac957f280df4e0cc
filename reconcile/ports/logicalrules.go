package ports

import (
	"cmp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// LogicalRule is a rule of a NetworkQoS that OVN enforces for an interface of a sandbox.
type LogicalRule struct {
	Name, Interface string
	// Port is the logical port. Link and Bridge are where it is bound: a link of the host, and a
	// bridge of Open vSwitch, "" if there is none.
	Port, Link, Bridge string
	// Priority and DSCP are those of the rule's row. No other row of the port has the priority.
	Priority uint16
	DSCP     uint8
	// Limited says that the row has a rate.
	Limited bool
}

// LogicalRulesOf returns the rules of a sandbox by its record, by interface, and of those of one
// interface the one that decides first.
func LogicalRulesOf(rec *reconcile.Record) []LogicalRule {
	rules := rec.Sandbox.Rules
	type key struct{ step, rule string }
	wanted := map[key]netstate.LogicalRule{}
	want := func(step string, of ops.Rules) {
		for _, r := range of.LogicalRules {
			if r.Priority != nil {
				wanted[key{step, r.Rule}] = r
			}
		}
	}
	want("", rules)
	for step, of := range rules.Steps {
		want(step, of)
	}
	bound := map[string]netstate.OVSPort{} // by logical port
	for _, c := range rec.History {
		if p, ok := c.After.(netstate.OVSPort); ok && p.LogicalPort != nil && p.Bridge != nil {
			bound[*p.LogicalPort] = p
		}
	}
	var out []LogicalRule
	for _, c := range rec.History {
		r, ok := c.After.(netstate.LogicalRule)
		if !ok {
			continue
		}
		step := ""
		if _, own := rules.Steps[c.Step]; own {
			step = c.Step
		}
		want, found := wanted[key{step, r.Rule}]
		if !found {
			continue
		}
		l := LogicalRule{Name: r.Rule, Interface: r.Link, Port: r.Port, Priority: *want.Priority, Limited: want.Rate != nil &&
			*want.Rate > 0}
		if want.DSCP != nil {
			l.DSCP = *want.DSCP
		}
		if p, ok := bound[r.Port]; ok {
			l.Link, l.Bridge = p.Link, *p.Bridge
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b LogicalRule) int {
		return cmp.Or(strings.Compare(a.Interface, b.Interface), cmp.Compare(b.Priority, a.Priority))
	})
	return out
}
