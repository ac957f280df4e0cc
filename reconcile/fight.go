package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
)

// Fight is a field of an object, or the object's presence, that somebody else
// changes back after each repair. Who it is the kernel does not tell.
type Fight struct {
	Step   string       `json:"step"`
	Object netstate.Key `json:"object"`
	// Field is "" when the object as a whole is fought over; then Action says
	// which way: Create when others delete it, Delete when others make it.
	Field  string          `json:"field,omitempty"`
	Action netstate.Action `json:"action"` // of the repairs
	// Want and Have are what the step says and what was found at first, as
	// plans print values.
	Want  string    `json:"want,omitempty"`
	Have  string    `json:"have,omitempty"`
	Since time.Time `json:"since"`
}

// String says what is fought over, without the time.
func (f Fight) String() string {
	step := ""
	if f.Step != "" {
		step = fmt.Sprintf("step %q: ", f.Step)
	}
	switch f.Action {
	case netstate.Create:
		return fmt.Sprintf("%s%s is deleted by somebody else each time it is made again", step, f.Object)
	case netstate.Delete:
		return fmt.Sprintf("%s%s is made by somebody else each time it is deleted", step, f.Object)
	default:
		return fmt.Sprintf("%s%s: %s is set to %s by somebody else each time it is set to %s", step, f.Object, f.Field, f.Have, f.Want)
	}
}

// SameAs reports whether two fights are over the same thing.
func (f Fight) SameAs(g Fight) bool {
	return f.Step == g.Step && f.Object == g.Object && f.Field == g.Field && f.Action == g.Action
}

// NoteFights writes into the record of a sandbox what is fought over there, for
// whoever asks for its status; none ends it. A sandbox that is unknown or being
// released is left as it is.
func (r *Reconciler) NoteFights(ctx context.Context, id SandboxID, fights []Fight) error {
	unlock, err := r.opts.Store.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	rec, known, err := r.opts.Store.Get(id)
	if err != nil || !known || rec.Phase == Releasing || rec.BootID != r.opts.BootID {
		return err
	}
	if slices.Equal(rec.Fighting, fights) {
		return nil
	}
	rec.Fighting = slices.Clone(fights)
	if err := r.opts.Store.Settle(rec); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}
