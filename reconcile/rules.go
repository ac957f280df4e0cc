package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/plumbline/plumbline/ops"
)

// Ruled is an engine that gives sandboxes other rules; a Reconciler is one.
type Ruled interface {
	Ensure(ctx context.Context, sb Sandbox) (Report, error)
	Record(id SandboxID) (Record, bool, error)
}

// SetRules gives a sandbox that is applied these rules, and reports whether they were others. When it fails, the sandbox has
// those of its record, which are restored within a time.
func SetRules(ctx context.Context, e Ruled, sb Sandbox, rules ops.Rules, restore time.Duration) (rep Report, changed bool, err error) {
	rec, _, err := e.Record(sb.ID)
	had := rec.Sandbox.Rules
	same := had.Equal(rules)
	// The rules in a record that is not Applied may be some that no pass could put in place.
	if err != nil || same && (rec.Phase == Applied || had.Empty() && !ops.Ruled(rec.History)) {
		return rep, false, err
	}
	sb.Rules = rules
	rep, err = e.Ensure(ctx, sb)
	if err != nil && same {
		return rep, false, err // there are no others to restore
	}
	if err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), restore)
		defer cancel()
		sb.Rules = had
		if _, again := e.Ensure(back, sb); again != nil { // the engine has rolled back; this verifies it
			err = errors.Join(err, fmt.Errorf("restore the rules it had: %w", again))
		}
		return rep, false, err
	}
	return rep, true, nil
}
