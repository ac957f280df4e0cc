package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
)

// Contention is a field of an object, or the object's presence, that another writer
// changes back after each repair. The kernel does not report which one.
type Contention struct {
	Step   string       `json:"step"`
	Object netstate.Key `json:"object"`
	// Field is "" if the object as a whole is contended; then Action says how:
	// Create if the other writer deletes it, Delete if it creates it.
	Field  string          `json:"field,omitempty"`
	Action netstate.Action `json:"action"` // of the repairs
	// Want and Have are the step's value and the one found at first, as
	// plans print values.
	Want  string    `json:"want,omitempty"`
	Have  string    `json:"have,omitempty"`
	Since time.Time `json:"since"`
}

// String describes what is contended, without the time.
func (f Contention) String() string {
	step := ""
	if f.Step != "" {
		step = fmt.Sprintf("step %q: ", f.Step)
	}
	switch f.Action {
	case netstate.Create:
		return fmt.Sprintf("%s%s is deleted by another writer each time it is recreated", step, f.Object)
	case netstate.Delete:
		return fmt.Sprintf("%s%s is created by another writer each time it is deleted", step, f.Object)
	default:
		return fmt.Sprintf("%s%s: %s is set to %s by another writer each time it is set to %s", step, f.Object, f.Field, f.Have, f.Want)
	}
}

// RecordContention writes the contention in a sandbox to its record, from which its status
// is read; an empty list ends it. A sandbox that is unknown or being released is left as it
// is.
func (r *Reconciler) RecordContention(ctx context.Context, id SandboxID, contended []Contention) error {
	unlock, err := r.opts.Store.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	rec, known, err := r.opts.Store.Get(id)
	if err != nil || !known || rec.Phase == Releasing || rec.BootID != r.opts.BootID {
		return err
	}
	if slices.Equal(rec.Fighting, contended) {
		return nil
	}
	rec.Fighting = slices.Clone(contended)
	if err := r.opts.Store.Settle(rec); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}
