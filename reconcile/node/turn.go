package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

func (l *Loop) wish(id reconcile.SandboxID) (w wish, wanted, unknown bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, wanted = byID(l.config.files)[id]
	return w, wanted, l.config.unknown
}

// pass is one turn of a sandbox.
func (l *Loop) pass(ctx context.Context, id reconcile.SandboxID) verdict {
	stopping := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Timeout)
	defer cancel()
	defer context.AfterFunc(stopping, func() {
		t := time.AfterFunc(stopGrace, cancel)
		context.AfterFunc(ctx, func() { t.Stop() })
	})()
	v, err := l.reconcile(ctx, id)
	l.mu.Lock()
	delete(l.waiting, id)
	l.mu.Unlock()
	l.say(id, err)
	return v
}

func (l *Loop) reconcile(ctx context.Context, id reconcile.SandboxID) (verdict, error) {
	w, wanted, unknown := l.wish(id)
	rec, known, err := l.record(ctx, id)
	if frame.AsOtherVersion(err) != nil {
		return settled, err // until it changes
	}
	if err != nil {
		return again, err
	}
	switch {
	case wanted:
		return l.keep(ctx, w, rec, known)
	case !known:
		l.drop(id)
		return settled, nil
	case rec.Phase == reconcile.Releasing, FromFile(id) && !unknown:
		return l.release(ctx, id)
	case FromFile(id):
		_, err := l.guard(ctx, rec)
		return settled, errors.Join(err, errors.New("no file describes it, but it is kept while a file cannot be read"))
	default:
		return l.guard(ctx, rec)
	}
}

// record reads a record. One that says a pass is under way is read again when
// whoever makes the pass is done: perhaps it is undone, and nothing is there to
// be looked after.
func (l *Loop) record(ctx context.Context, id reconcile.SandboxID) (reconcile.Record, bool, error) {
	rec, known, err := l.Store.Get(id)
	if err != nil || !known || rec.Phase != reconcile.Applying {
		return rec, known, err
	}
	unlock, err := l.Store.Lock(ctx, id)
	if err != nil {
		return rec, known, err
	}
	unlock()
	return l.Store.Get(id)
}

// keep makes true what a file describes.
func (l *Loop) keep(ctx context.Context, w wish, rec reconcile.Record, known bool) (verdict, error) {
	if err := w.netns.Exists(); err != nil {
		// What is left of it on the host is put back, and its devices are free.
		if known {
			if _, err := l.release(ctx, w.id); err != nil {
				return again, err
			}
		}
		return again, err
	}
	sb, err := l.sandbox(ctx, w, rec, known)
	if err != nil {
		return l.retry(err), err
	}
	if known && l.stands(rec) && sameSandbox(rec.Sandbox, sb) {
		// A new namespace may have the number of the old one, and is found to be
		// another only when it is opened. What the file describes is made there.
		v, err := l.guard(ctx, rec)
		if !errors.Is(err, reconcile.ErrReplaced) {
			return v, err
		}
		// Ensure would wait for the devices of the old one, and hold a worker.
		if _, err := l.release(ctx, w.id); err != nil {
			return again, err
		}
	}
	if err := l.Watcher.Add(w.id, sb.Netns); err != nil {
		return again, err
	}
	begun := l.Now()
	rep, err := l.Reconciler.Ensure(ctx, sb)
	if err != nil {
		return l.retry(err), err
	}
	l.depends(sb, rep.Changes)
	l.wrote(rep, reconcile.TriggerEnsure, begun)
	l.sched.answered(w.id, begun)
	return settled, nil
}

// stands reports whether a record is of a sandbox that has been made, so that
// what differs is drift. One whose repair failed is; where drift is only
// observed nothing is repaired, and it was the making that failed.
func (l *Loop) stands(rec reconcile.Record) bool {
	t := rec.Sandbox.Topology
	repaired := t.DriftPolicy != topology.Observe ||
		len(rec.Results) > 0 && slices.ContainsFunc(t.Steps, func(s topology.Step) bool { return s.DriftPolicy != topology.Observe })
	made := rec.Phase == reconcile.Applied || rec.Phase == reconcile.Failed && repaired
	return made && rec.BootID == l.BootID && Alive(rec, l.BootID)
}

// depends notes whether a sandbox depends on the host's devices.
func (l *Loop) depends(sb reconcile.Sandbox, changes []netstate.Change) {
	host := len(sb.Given.Devices()) > 0 || slices.ContainsFunc(changes, func(c netstate.Change) bool {
		o := c.Object()
		return netstate.OfHost(o) || netstate.OnHost(o.LivesOn().ID)
	})
	if !host {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onHost[sb.ID] = true
}

// retry tells whether trying again may help: the user's mistake stays one until
// the file changes.
func (l *Loop) retry(err error) verdict {
	if fault.Of(err) == fault.Invalid {
		return settled
	}
	return again
}

// sandbox gives a wish its devices.
func (l *Loop) sandbox(ctx context.Context, w wish, rec reconcile.Record, known bool) (reconcile.Sandbox, error) {
	var own *reconcile.Record
	if known {
		own = &rec
	}
	return Assignment{
		ID: w.id, Netns: w.netns, Topology: w.topology, Asked: w.asked, Contracts: l.Contracts, Own: own,
		Records: func() []reconcile.Record {
			records, _ := l.Reconciler.List() // damage is reported by take
			return records
		},
		OtherVersions: l.Reconciler.OtherVersions,
		Alive:         func(rec reconcile.Record) bool { return Alive(rec, l.BootID) },
		Discover:      l.Discover, Sys: l.Sys,
	}.Sandbox(ctx)
}

func sameSandbox(a, b reconcile.Sandbox) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// guard looks at a sandbox that has been made, and repairs it if it may.
func (l *Loop) guard(ctx context.Context, rec reconcile.Record) (verdict, error) {
	id := rec.Sandbox.ID
	if !Alive(rec, l.BootID) {
		l.Watcher.Remove(id)
		return settled, fault.New(fault.Gone, fmt.Errorf("network namespace %q is gone: delete the sandbox, or make the namespace again and apply", rec.Sandbox.Netns))
	}
	if err := l.Watcher.Add(id, rec.Sandbox.Netns); err != nil {
		return again, err
	}
	l.depends(rec.Sandbox, rec.History)
	begun := l.Now()
	if repairsAll(rec.Sandbox.Topology) {
		return l.repair(ctx, rec, begun) // which looks first
	}
	rec, st, err := l.look(ctx, rec)
	switch {
	case fault.Of(err) == fault.Gone: // its record went meanwhile
		return again, nil
	case err != nil:
		return again, err
	case st.Kind != "":
		return again, st.Err
	case st.State == reconcile.InSync, st.State == reconcile.Fighting && len(st.Drift) == 0 && rec.Phase == reconcile.Applied:
		l.sched.answered(id, begun)
		l.judge(ctx, rec, nil, true)
		return settled, nil
	case !mayRepair(rec.Sandbox.Topology, st.Drift):
		l.sched.answered(id, begun)
		l.judge(ctx, rec, nil, true)
		return settled, errors.New("drifted, and only observed: " + describe(st.Drift))
	}
	if now, known, err := l.Store.Get(id); err != nil || !known || now.Phase != rec.Phase {
		return again, err // somebody deletes or applies it right now: that is no drift
	}
	return l.repair(ctx, rec, begun)
}

// look checks a sandbox while nobody is at work on it: what an update is at is not
// drift. It returns the record that was checked.
func (l *Loop) look(ctx context.Context, rec reconcile.Record) (reconcile.Record, reconcile.Status, error) {
	id := rec.Sandbox.ID
	unlock, err := l.Store.Lock(ctx, id)
	if err != nil {
		return rec, reconcile.Status{}, err
	}
	defer unlock()
	if now, known, err := l.Store.Get(id); err == nil && known {
		rec = now
	}
	st, err := l.Reconciler.Check(ctx, id)
	return rec, st, err
}

// repairsAll reports whether all drift of a topology is to be repaired, so that
// nobody has to look at it first.
func repairsAll(t *topology.Topology) bool {
	return t.DriftPolicy != topology.Observe && !slices.ContainsFunc(t.Steps, func(s topology.Step) bool { return s.DriftPolicy == topology.Observe })
}

func (l *Loop) repair(ctx context.Context, rec reconcile.Record, begun time.Time) (verdict, error) {
	id := rec.Sandbox.ID
	since := l.sched.noticed(id)
	if since.IsZero() {
		since = begun
	}
	rep, err := l.Reconciler.Repair(ctx, id)
	if fault.Of(err) == fault.Gone {
		if now, known, e := l.Store.Get(id); e == nil && (!known || now.Phase == reconcile.Releasing) {
			return again, nil // somebody deletes it right now: that is no drift
		}
	}
	if err == nil || fault.Of(err) == fault.NotConverged {
		contested := l.judge(ctx, rec, rep.Drift, err == nil)
		if contested && err != nil {
			return settled, nil // it has been said, and the pause is longer than a retry's
		}
	}
	if err != nil {
		return again, err
	}
	if !rep.Unchanged {
		l.Recorder.Repaired(l.Now().Sub(since))
	}
	l.wrote(rep, reconcile.TriggerRepair, begun)
	l.sched.answered(id, begun)
	return settled, nil
}

// judge takes what a pass has repaired, and leaves a sandbox alone for a while
// where somebody else changes that back each time. It reports whether so it is.
func (l *Loop) judge(ctx context.Context, rec reconcile.Record, repaired []reconcile.Drift, converged bool) (contested bool) {
	id, name := rec.Sandbox.ID, rec.Sandbox.Topology.Name
	s := l.fights.passed(id, repaired, converged, l.Now())
	if !s.hold.IsZero() {
		l.sched.hold(id, s.hold)
	}
	if !s.look.IsZero() {
		l.sched.expect(id, s.look)
	}
	switch {
	case s.began:
		f := s.fights[0]
		l.Log.Warn("another writer changes back what is repaired: repairs are slowed down", "sandbox", id, "topology", name,
			"step", f.Step, "object", f.Object.String(), "field", f.Field, "want", f.Want, "have", f.Have, "fields", len(s.fights))
	case s.ended:
		l.Log.Info("contention has ended", "sandbox", id, "topology", name)
	}
	if sameFights(rec.Fighting, s.fights) {
		return s.contested
	}
	// A record that could not be written is found to differ by the next pass.
	if err := l.Reconciler.NoteFights(ctx, id, s.fights); err != nil {
		l.Log.Error("cannot use the journal", "error", err)
	}
	l.Recorder.Fighting(id, name, s.fights)
	return s.contested
}

// mayRepair reports whether one of the drifts belongs to a step that is to be
// repaired. A sandbox without drift may be: its last pass failed.
func mayRepair(t *topology.Topology, drift []reconcile.Drift) bool {
	return len(drift) == 0 || slices.ContainsFunc(drift, func(d reconcile.Drift) bool {
		policy := t.DriftPolicy
		if s, ok := t.Step(d.Step); ok && s.DriftPolicy != "" {
			policy = s.DriftPolicy
		}
		return policy != topology.Observe
	})
}

// release undoes a sandbox.
func (l *Loop) release(ctx context.Context, id reconcile.SandboxID) (verdict, error) {
	l.Watcher.Remove(id)
	begun := l.Now()
	rep, err := l.Reconciler.Release(ctx, id)
	if err != nil {
		return again, err
	}
	l.wrote(rep, reconcile.TriggerRelease, begun)
	if rep.Unclean != "" {
		return again, nil // the device may be clean soon, and is kept from others until then
	}
	if _, wanted, _ := l.wish(id); !wanted {
		l.drop(id)
	}
	return settled, nil
}

// drop forgets a sandbox that is neither wanted nor there.
func (l *Loop) drop(id reconcile.SandboxID) {
	l.Watcher.Remove(id)
	l.sched.forget(id)
	l.fights.forget(id)
	l.Recorder.Forget(id)
	l.mu.Lock()
	delete(l.paths, id)
	delete(l.onHost, id)
	delete(l.said, id)
	l.mu.Unlock()
}

// wrote logs a pass that changed something: one line, whatever it did.
func (l *Loop) wrote(rep reconcile.Report, trigger reconcile.Trigger, begun time.Time) {
	if rep.Unchanged {
		return
	}
	l.Log.Info("reconciled", "sandbox", rep.Sandbox, "trigger", trigger, "changes", len(rep.Changes), "took", l.Now().Sub(begun).Round(time.Microsecond))
	for _, c := range rep.Changes {
		l.Log.Debug("change", "sandbox", rep.Sandbox, "step", c.Step, "change", c.String())
	}
}
