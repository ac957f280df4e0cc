package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// Ruled is an engine that gives sandboxes other rules; a Reconciler is one.
type Ruled interface {
	Ensure(ctx context.Context, sb Sandbox) (Report, error)
	Record(id SandboxID) (Record, bool, error)
}

// Rules are the rules of NetworkQoS objects that a sandbox is given.
func (s *Sandbox) Rules() ops.Enforced {
	return ops.Enforced{Filters: s.Filters, LogicalRules: s.LogicalRules, Steps: s.StepRules}
}

// SetRules replaces them.
func (s *Sandbox) SetRules(rules ops.Enforced) {
	s.Filters, s.LogicalRules, s.StepRules = rules.Filters, rules.LogicalRules, rules.Steps
}

// onlyRules is a sandbox with rules alone, to compare them.
func onlyRules(rules ops.Enforced) (out Sandbox) {
	out.SetRules(rules)
	return out
}

// SetRules gives a sandbox that is applied these rules, and reports whether they were others. When it fails, the sandbox has
// those of its record, which are restored within a time.
func SetRules(ctx context.Context, e Ruled, sb Sandbox, rules ops.Enforced, restore time.Duration) (rep Report, changed bool, err error) {
	rec, _, err := e.Record(sb.ID)
	same := onlyRules(rec.Sandbox.Rules()).Equal(onlyRules(rules))
	// The rules in a record that is not Applied may be some that no pass could put in place.
	if err != nil || same && (rec.Phase == Applied || !rec.ruled()) {
		return rep, false, err
	}
	sb.SetRules(rules)
	rep, err = e.Ensure(ctx, sb)
	if err != nil && same {
		return rep, false, err // there are no others to restore
	}
	if err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), restore)
		defer cancel()
		sb.SetRules(rec.Sandbox.Rules())
		if _, again := e.Ensure(back, sb); again != nil { // the engine has rolled back; this verifies it
			err = errors.Join(err, fmt.Errorf("restore the filters it had: %w", again))
		}
		return rep, false, err
	}
	return rep, true, nil
}

// ruled reports whether a sandbox has rules, or may still have some.
func (r *Record) ruled() bool {
	return !r.Sandbox.Rules().Empty() || slices.ContainsFunc(r.History, func(c netstate.Change) bool {
		kind := c.Key().Kind
		return kind == netstate.KindFilter || kind == netstate.KindLogicalRule
	})
}
