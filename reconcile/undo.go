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
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/fault"
)

// shortWait bounds the waits of a release: long enough for a driver that returns EBUSY
// for a moment, and short enough that workers are free for other sandboxes.
const shortWait = time.Second

// undo undoes a history, compared with what is observed, until nothing is left to undo.
// Ensure waits for what is not ready, as its caller wants all or nothing; any other
// pass leaves that to the next one. Of a rollback, kept is the record before the pass.
func (p *pass) undo(ctx context.Context, history []netstate.Change, kept ...netstate.Change) error {
	history = netstate.Coalesce(nil, history...)
	patience := shortWait
	if p.trigger == TriggerEnsure {
		patience = p.r.opts.Patience
	}
	p.undoDeadline = p.r.opts.Now().Add(patience)
	wait := 5 * time.Millisecond
	var failed error
	for rounds := 0; ; {
		changes, absent, err := p.planUndo(ctx, history, kept)
		if err != nil {
			return err
		}
		if len(changes) == 0 && len(absent) == 0 {
			if _, why := p.withheld(history); why != nil {
				return why
			}
			if p.partial != nil {
				return fmt.Errorf("%w: %w", ErrUnread, p.partial)
			}
			return nil // also if a change failed: its object no longer exists
		}
		switch {
		case len(changes) > 0 && rounds > maxUndoRounds:
			return errors.Join(failed, fault.New(fault.NotConverged, fmt.Errorf("still to undo: %v", changes)))
		case len(changes) == 0 && (p.trigger != TriggerEnsure || p.patience() == 0):
			// Its kind counts: what failed may have met a device that the pod was moving away.
			return errors.Join(p.absentError(absent[0]), failed)
		case len(changes) == 0:
			if !loop.Wait(ctx, wait, nil) {
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
		// The first round waits for nothing: what is not ready may belong to a namespace
		// that is being destroyed.
		history = p.recordForeign(history, changes)
		given := p.givenUp(rounds)
		failed = p.applyUndo(ctx, changes, rounds > 1, given)
		if slices.ContainsFunc(changes, given) {
			history = slices.DeleteFunc(history, func(c netstate.Change) bool {
				return given(c) || slices.ContainsFunc(changes, func(of netstate.Change) bool { return of.Key() == c.Key() && given(of) })
			})
		}
	}
}

// givenUp reports for which changes no failure counts in a round of an undo: addresses and routes of others. What the host had
// over a device is restored once, what else a sandbox that is released had is tried twice, as far as the kernel accepts it:
// what they cannot have any more must not keep a sandbox from its release. Nor must a change that may fail, tried twice.
func (p *pass) givenUp(round int) func(netstate.Change) bool {
	return func(c netstate.Change) bool {
		return netstate.MayFail(c) && round > 1 || c.Foreign && c.Object().Traits().Phase > netstate.PhaseLinks &&
			(netstate.OnHost(netstate.LinkOf(c.Object())) || p.trigger == TriggerRelease && round > 1)
	}
}

// absentError says that a device is absent.
func (p *pass) absentError(id string) error {
	err := fmt.Errorf("device %q has not returned: %w", id, ErrAbsent)
	if d := netstate.Recorded(p.record.History, netstate.Device{ID: id}); !d.HasPCIAddress() &&
		d.Index == 0 && (d.Made() || d.LinkKind == "") {
		// The attachment was interrupted, or an earlier version has recorded it.
		err = fmt.Errorf("%w, or its record does not identify its link: "+
			"if the sandbox has it under another name than %q, move it to the host by hand; the record ends with the namespace",
			err, *cmp.Or(d.At, new("")))
	}
	return fault.New(fault.NotReady, err)
}

// unclean reports whether only settings of devices that have returned to the host are left
// to undo.
func unclean(left []netstate.Change) bool {
	return !slices.ContainsFunc(made(left), func(c netstate.Change) bool {
		after, isDevice := c.After.(netstate.Device)
		return !isDevice || after.Settings == nil ||
			slices.ContainsFunc(c.Fields(), func(f netstate.FieldDiff) bool { return f.Path != "settings" && f.Path != "up" })
	})
}

// patience is how long an undo may still wait.
func (p *pass) patience() time.Duration {
	return max(0, p.undoDeadline.Sub(p.r.opts.Now()))
}

// applyUndo applies the changes of an undo, all of them even if some fail.
func (p *pass) applyUndo(ctx context.Context, changes []netstate.Change, patient bool, given func(netstate.Change) bool) (failed error) {
	for left := made(changes); len(left) > 0; {
		patience := time.Duration(0)
		if patient {
			patience = p.patience()
		}
		some := p.atOnce(left)
		err := p.applySome(ctx, some, patience)
		if err != nil && len(some) > 1 { // one of them must not keep the others
			some = some[:1]
			err = p.applySome(ctx, some, patience)
		}
		left = left[len(some):]
		if err != nil && fault.Of(err) != fault.NotReady {
			if other, ok := ops.InsteadOf(p.record.History, some[0]); ok {
				some[0] = other
				err = p.applySome(ctx, some, patience)
			}
		}
		if err != nil && given(some[0]) {
			whose := "of the pod"
			if netstate.OfHost(some[0].Object()) {
				whose = "of the host"
			}
			p.notes = append(p.notes, fmt.Sprintf("%s %s is not restored: %v", some[0].Key(), whose, err))
			continue
		}
		if err != nil {
			failed = errors.Join(failed, p.stepError(some[0], err))
			continue
		}
		if p.trigger == TriggerRelease {
			p.executed = append(p.executed, some...)
		}
	}
	return failed
}

// recordForeign adds to the history, and to the record, the foreign objects that an undo
// deletes and recreates: a crash in between must not lose them. If that cannot be written,
// the undo continues: stopping halfway would lose more.
func (p *pass) recordForeign(history, changes []netstate.Change) []netstate.Change {
	foreign := slices.DeleteFunc(slices.Clone(changes), func(c netstate.Change) bool { return !c.Foreign })
	if len(foreign) == 0 {
		return history
	}
	p.record.History = netstate.Coalesce(p.record.History, foreign...)
	p.keepJournalErr(p.r.opts.Store.Intend(p.sandbox.ID, foreign))
	return netstate.Coalesce(history, foreign...)
}

// keepJournalErr keeps the error of a journal write without which the pass can continue.
func (p *pass) keepJournalErr(err error) {
	if err != nil {
		p.journalErr = fmt.Errorf("journal: %w", err)
	}
}

// maxUndoRounds bounds how often an undo is planned: once more because a device
// returned late, once more because a setting had to wait for another.
const maxUndoRounds = 4

// onHost lists what an undo has to observe outside the sandbox: the devices, the names
// they had, and what was set for them.
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

func (p *pass) planUndo(ctx context.Context, history, kept []netstate.Change) (changes []netstate.Change, absent []string, err error) {
	if err := p.observe(ctx); err != nil {
		return nil, nil, err
	}
	for range 32 {
		start := p.r.opts.Now()
		changes, missing := ops.Undo(p.snapshot, history, kept...)
		p.timing.Plan += p.r.opts.Now().Sub(start)
		if len(missing) == 0 {
			return changes, ops.Absent(p.snapshot, history), nil
		}
		if err := p.extend(ctx, missing); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, errors.New("undoing does not end: each plan needs further observations")
}
