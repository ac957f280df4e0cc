package ports

import (
	"cmp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// LogicalRule is a rule of a NetworkQoS that OVN enforces for an interface of a sandbox. OVN has
// no counters of it that a client of its databases could read.
type LogicalRule struct {
	Name, Interface string
}

// LogicalRulesOf returns the rules of a sandbox by its record, by interface, and of those of one
// interface the one that decides first.
func LogicalRulesOf(rec *reconcile.Record) []LogicalRule {
	priority := map[string]uint16{}
	for _, r := range rec.Sandbox.LogicalRules {
		if r.Priority != nil {
			priority[r.Rule] = *r.Priority
		}
	}
	var out []LogicalRule
	for _, c := range rec.History {
		r, ok := c.After.(netstate.LogicalRule)
		if _, wanted := priority[r.Rule]; ok && wanted {
			out = append(out, LogicalRule{r.Rule, r.Link})
		}
	}
	slices.SortFunc(out, func(a, b LogicalRule) int {
		return cmp.Or(strings.Compare(a.Interface, b.Interface), cmp.Compare(priority[b.Name], priority[a.Name]))
	})
	return out
}
