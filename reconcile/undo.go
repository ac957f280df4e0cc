package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// shortWait bounds the waits of a release: long enough for a driver that answers
// EBUSY for a moment, short enough for the workers that other sandboxes need.
const shortWait = time.Second

// undo takes back a history against what is there now, until nothing is left to
// take back. What an Ensure undoes it waits for, as its caller wants all of it or
// nothing; any other pass leaves what is not ready to the next.
func (p *pass) undo(ctx context.Context, history []netstate.Change) error {
	history = netstate.Coalesce(nil, history...)
	patience := shortWait
	if p.trigger == TriggerEnsure {
		patience = p.r.opts.Patience
	}
	p.lenient = p.r.opts.Now().Add(patience)
	wait := 5 * time.Millisecond
	var failed error
	for rounds := 0; ; {
		changes, absent, err := p.planUndo(ctx, history)
		if err != nil {
			return err
		}
		if len(changes) == 0 && len(absent) == 0 {
			if _, why := p.withheld(history); why != nil {
				return why
			}
			return p.partial // also when a change failed: what it was about is gone by now
		}
		switch {
		case len(changes) > 0 && rounds > maxUndoRounds:
			return errors.Join(failed, fault.New(fault.NotConverged, fmt.Errorf("still to undo: %v", changes)))
		case len(changes) == 0 && (p.trigger != TriggerEnsure || p.patience() == 0):
			return errors.Join(failed, p.notBack(absent[0]))
		case len(changes) == 0:
			if !sleep(ctx, wait) {
				return ctx.Err()
			}
			wait = min(2*wait, 200*time.Millisecond)
			continue
		case failed != nil && rounds > 1:
			if unclean(changes) {
				return fmt.Errorf("%w: %w", errUnclean, failed)
			}
			return failed
		}
		rounds++
		// At first nothing is waited for: what seems not ready may be going, with
		// a namespace that is being torn down.
		history = p.noteForeign(history, changes)
		failed = p.takeBack(ctx, changes, rounds > 1)
	}
}

// notBack says that a device is absent.
func (p *pass) notBack(id string) error {
	err := fmt.Errorf("device %q has not come back: %w", id, ErrAbsent)
	if d := netstate.Recorded(p.record.History, netstate.Device{ID: id}); !d.HasPCIAddress() && d.Index == 0 && (d.Made() || d.LinkKind == "") {
		// The attachment was cut off, or a version before this one has recorded it.
		err = fmt.Errorf("%w, or its record does not tell which link it is: if the sandbox has it under another name than %q, move it to the host by hand; the record goes with the namespace",
			err, *cmp.Or(d.At, new("")))
	}
	return fault.New(fault.NotReady, err)
}

// unclean reports whether all that an undo still has to do are settings of devices
// that are where they belong.
func unclean(left []netstate.Change) bool {
	return !slices.ContainsFunc(made(left), func(c netstate.Change) bool {
		after, isDevice := c.After.(netstate.Device)
		return !isDevice || after.Settings == nil ||
			slices.ContainsFunc(c.Fields(), func(f netstate.FieldDiff) bool { return f.Path != "settings" && f.Path != "up" })
	})
}

// patience is what is left of the time an undo may wait.
func (p *pass) patience() time.Duration {
	return max(0, p.lenient.Sub(p.r.opts.Now()))
}

// takeBack makes the changes of an undo, all of them whatever fails.
func (p *pass) takeBack(ctx context.Context, changes []netstate.Change, patient bool) (failed error) {
	for _, c := range made(changes) {
		patience := time.Duration(0)
		if patient {
			patience = p.patience()
		}
		if err := p.applyOne(ctx, c, patience); err != nil {
			failed = errors.Join(failed, p.stepError(c, err))
			continue
		}
		if p.trigger == TriggerRelease {
			p.executed = append(p.executed, c)
		}
	}
	return failed
}

// noteForeign adds to the history, and to the record, what an undo takes along
// of others for a moment: a crash before it is made again must not lose it.
// Where it cannot be written down the way back is gone all the same: half of it
// would lose more.
func (p *pass) noteForeign(history, changes []netstate.Change) []netstate.Change {
	foreign := slices.DeleteFunc(slices.Clone(changes), func(c netstate.Change) bool { return !c.Foreign })
	if len(foreign) == 0 {
		return history
	}
	p.record.History = netstate.Coalesce(p.record.History, foreign...)
	p.noted(p.r.opts.Store.Intend(p.sandbox.ID, foreign))
	return netstate.Coalesce(history, foreign...)
}

// noted keeps the error of a write to the journal that the pass goes on without.
func (p *pass) noted(err error) {
	if err != nil {
		p.unnoted = fmt.Errorf("journal: %w", err)
	}
}

// maxUndoRounds bounds how often an undo is planned again: once because a device
// came back late, once because a setting had to wait for another.
const maxUndoRounds = 4

// onHost lists what the way back needs to know beyond the sandbox: the devices,
// the names they had, and what was set for them.
func onHost(history []netstate.Change) []netstate.Object {
	var out []netstate.Object
	for _, c := range history {
		o := c.Object()
		if netstate.OfHost(o) && netstate.LinkOf(o) == "" {
			out = append(out, o)
		}
		if before, ok := c.Before.(netstate.Device); ok && before.At != nil && netstate.OnHost(*before.At) {
			out = append(out, netstate.Link{Name: *before.At})
		}
	}
	return out
}

func (p *pass) planUndo(ctx context.Context, history []netstate.Change) (changes []netstate.Change, absent []string, err error) {
	if err := p.observe(ctx); err != nil {
		return nil, nil, err
	}
	for range 32 {
		start := p.r.opts.Now()
		changes, missing := ops.Undo(p.snapshot, history)
		p.timing.Plan += p.r.opts.Now().Sub(start)
		if len(missing) == 0 {
			return changes, ops.Absent(p.snapshot, history), nil
		}
		if err := p.extend(ctx, missing); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, errors.New("undoing asks for ever more observations")
}
