package reconcile

import (
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

// ErrAbsent means that a device is neither on the host nor in its sandbox: it is returning
// from a namespace that is being destroyed, or the pod has moved it elsewhere. The kind of
// an error that wraps it is NotReady.
var ErrAbsent = errors.New("neither the host nor the sandbox has it")

// errUnclean means that everything is undone except settings that a pod has left on a
// device, which is on the host again.
var errUnclean = errors.New("a device is on the host again, but without its earlier settings")

// ErrUnread means that a release has undone all that can be read: devices are on the host again. The rest may be in a
// namespace that cannot be read in full (ErrPartial), and ends with it; the record is kept until then.
var ErrUnread = errors.New("undone as far as the namespace can be read")

// Release undoes everything that was done to a sandbox and forgets it. An unknown sandbox,
// and a namespace or objects that no longer exist, are no errors. If something cannot be
// undone, the record is kept and Release can be called again. It does not wait for a device
// that is absent (ErrAbsent), which may take forever, and only briefly for what is not
// ready: a sandbox that cannot be released delays no other.
func (r *Reconciler) Release(ctx context.Context, id SandboxID) (rep Report, err error) {
	unlock, err := r.opts.Store.Lock(ctx, id)
	if err != nil {
		return Report{}, err
	}
	defer unlock()
	p := &pass{r: r, sandbox: Sandbox{ID: id}, trigger: TriggerRelease, began: r.opts.Now()}
	defer func() { p.report(err) }()
	if err := p.load(); err != nil {
		return Report{}, err
	}
	if !p.known {
		return Report{Sandbox: id, Unchanged: true}, nil
	}
	p.sandbox = p.record.Sandbox
	rep = Report{Sandbox: id}
	err = p.release(ctx)
	rep.Changes, rep.Unchanged, rep.Notes = p.executed, len(p.executed) == 0, p.notes
	if errors.Is(err, errUnclean) {
		// The settings may never be restored, so this does not wait: the caller retries,
		// and withholds the device meanwhile.
		rep.Unclean = err.Error()
		return rep, nil
	}
	if err != nil {
		return rep, fmt.Errorf("release sandbox %q: %w", id, err)
	}
	return rep, nil
}

// AwaitRelease is Release for callers that need it to be finished: it waits for what is
// not ready, such as an absent device, until Patience is over or ctx ends. The sandbox
// is not locked between two attempts.
func (r *Reconciler) AwaitRelease(ctx context.Context, id SandboxID) (Report, error) {
	deadline := r.opts.Now().Add(r.opts.Patience)
	var changes []netstate.Change
	var notes []string
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		rep, err := r.Release(ctx, id)
		changes = append(changes, rep.Changes...)
		for _, n := range rep.Notes {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
		rep.Changes, rep.Unchanged, rep.Notes = changes, len(changes) == 0, notes
		if fault.Of(err) != fault.NotReady || !r.opts.Now().Before(deadline) || !loop.Wait(ctx, wait, nil) {
			return rep, err
		}
	}
}

// release undoes the record's whole history and removes it.
func (p *pass) release(ctx context.Context) error {
	if p.record.Phase != Releasing {
		start := p.r.opts.Now()
		p.record.Phase, p.record.Updated = Releasing, start
		p.record.fail(nil)
		// A full disk must not keep devices from returning to the host: pods are
		// deleted to free space on it. At worst the record does not show that a release
		// had begun, and its caller retries.
		p.keepJournalErr(p.r.opts.Store.Put(p.record))
		p.timing.Journal += p.r.opts.Now().Sub(start)
	}
	if err := p.openForRelease(); err != nil {
		return errors.Join(err, p.journalErr)
	}
	defer p.close()
	p.onDemand = onHost(p.record.History)
	p.findOthers()
	if history := ops.Unshared(p.record.History, othersOf(p.others)); len(history) > 0 {
		if err := p.undo(ctx, history); err != nil {
			p.recordLeft(err)
			return errors.Join(err, p.journalErr)
		}
	}
	p.known = false
	p.r.remember(p.sandbox.ID, nil)
	p.r.mu.Lock()
	delete(p.r.readdressed, p.sandbox.ID)
	delete(p.r.noCarrier, p.sandbox.ID)
	p.r.mu.Unlock()
	start := p.r.opts.Now()
	defer func() { p.timing.Journal += p.r.opts.Now().Sub(start) }()
	return p.r.opts.Store.Remove(p.sandbox.ID)
}

// recordLeft keeps in the record what a release could not undo, and why.
func (p *pass) recordLeft(err error) {
	left := slices.Clone(p.record.History)
	switch {
	case errors.Is(err, errUnclean): // settings of devices that are on the host again
		left = slices.DeleteFunc(left, func(c netstate.Change) bool {
			before, ok := c.Before.(netstate.Device)
			if !ok {
				return true
			}
			have, _ := p.snapshot.Device(before.ID)
			return len(netstate.Diff(netstate.Device{ID: before.ID, Settings: before.Settings}, have)) == 0
		})
	case errors.Is(err, errWithheld):
		left, _ = p.withheld(left)
	case errors.Is(err, ErrUnread): // what has returned to the host another pod can have
		left = slices.DeleteFunc(left, func(c netstate.Change) bool { return c.Object().Traits().Host })
	default:
		return
	}
	if p.record.Failure == err.Error() && len(left) == len(p.record.History) { // as text: so a record keeps it
		return
	}
	p.record.fail(err)
	p.record.History = left
	p.keepJournalErr(p.r.opts.Store.Put(p.record))
}

// openForRelease opens the namespace of the record, or the host only if the namespace
// no longer exists or the path now leads to another one.
func (p *pass) openForRelease() error {
	d, err := p.r.opts.Open(p.record.Sandbox.Netns)
	switch {
	case err == nil && (p.record.NetnsID == NetnsID{} || d.NetnsID() == p.record.NetnsID):
		p.domain = d
		return nil
	case err == nil:
		d.Close()
	case fault.Of(err) != fault.Gone:
		return err
	}
	p.domain, err = p.r.opts.Open("")
	return err
}
