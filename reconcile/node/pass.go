package node

import (
	"context"
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

func (l *Loop) desired(id reconcile.SandboxID) (w desired, wanted, unknown bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, wanted = byID(l.config.files)[id]
	return w, wanted, l.config.unknown
}

// pass handles one work item.
func (l *Loop) pass(ctx context.Context, id reconcile.SandboxID) verdict {
	stopping := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Timeout)
	defer cancel()
	defer context.AfterFunc(stopping, func() {
		t := time.AfterFunc(stopGrace, cancel)
		context.AfterFunc(ctx, func() { t.Stop() })
	})()
	// No sandbox waits for another: a pod that is being attached has its lock for up to a minute.
	v, err := l.reconcile(reconcile.WithoutWait(ctx), id)
	l.mu.Lock()
	delete(l.waiting, id)
	l.mu.Unlock()
	if errors.Is(err, reconcile.ErrInUse) {
		return inUse
	}
	l.logOnce(id, err)
	return v
}

func (l *Loop) reconcile(ctx context.Context, id reconcile.SandboxID) (verdict, error) {
	w, wanted, unknown := l.desired(id)
	rec, known, err := l.record(ctx, id)
	if frame.AsOtherVersion(err) != nil {
		return done, err // until it changes
	}
	if err != nil {
		return retryLater, err
	}
	switch {
	case wanted:
		return l.ensure(ctx, w, rec, known)
	case !known:
		l.forget(id)
		return done, nil
	case rec.Phase == reconcile.Releasing, FromFile(id) && !unknown:
		return l.release(ctx, id)
	case FromFile(id):
		_, err := l.checkAndRepair(ctx, rec)
		return done, errors.Join(err, errors.New("no file describes it, but it is kept while a file cannot be read"))
	default:
		return l.checkAndRepair(ctx, rec)
	}
}

// record reads a record. If that says a pass is in progress, it is read again when no pass has the
// sandbox: it may have been rolled back, and nothing is left to check.
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

// ensure applies what a file describes.
func (l *Loop) ensure(ctx context.Context, w desired, rec reconcile.Record, known bool) (verdict, error) {
	if err := w.Netns.Exists(); err != nil {
		// Its changes on the host are undone, and its devices become free. A record
		// that is the only copy of its topology is kept: the namespace may be created later.
		if known && !w.fromRecord {
			if _, err := l.release(ctx, w.ID); err != nil {
				return retryLater, err
			}
		}
		return retryLater, err
	}
	sb, err := l.sandbox(ctx, w, rec, known)
	if err != nil {
		return l.verdictOf(err), err
	}
	sb.AppliedBefore = w.fromRecord
	if known && l.wasApplied(rec) && rec.Sandbox.Equal(sb) {
		// A new namespace may have the inode of the old one; only opening it shows that
		// it is another one. The file's topology is applied there.
		v, err := l.checkAndRepair(ctx, rec)
		if !errors.Is(err, reconcile.ErrReplaced) {
			return v, err
		}
		// Ensure would wait for the devices of the old one, and block a worker. If the
		// record was the only copy of the topology, it is in w from here on.
		if _, err := l.release(ctx, w.ID); err != nil {
			return retryLater, err
		}
	}
	if err := l.watch(sb); err != nil {
		return retryLater, err
	}
	begun := l.Now()
	rep, err := l.Reconciler.Ensure(ctx, sb)
	if err != nil {
		return l.verdictOf(err), err
	}
	l.noteHostDependency(sb, rep.Changes)
	l.revisit(w.ID, rep.Settles)
	l.logPass(rep, reconcile.TriggerEnsure, begun)
	l.sched.handled(w.ID, begun)
	return done, nil
}

// wasApplied reports whether a record is of a sandbox that was applied, so that
// differences are drift. A failed repair leaves it so; where drift is only observed
// nothing is repaired, and it was the apply that failed.
func (l *Loop) wasApplied(rec reconcile.Record) bool {
	t := rec.Sandbox.Topology
	repaired := t.DriftPolicy != topology.Observe ||
		len(rec.Results) > 0 && slices.ContainsFunc(t.Steps, func(s topology.Step) bool { return s.DriftPolicy != topology.Observe })
	made := rec.Phase == reconcile.Applied || rec.Phase == reconcile.Failed && repaired
	return made && rec.BootID == l.BootID && alive(rec, l.BootID, l.Identify)
}

// noteHostDependency remembers a sandbox that depends on the host's devices.
func (l *Loop) noteHostDependency(sb reconcile.Sandbox, changes []netstate.Change) {
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

// verdictOf decides whether a retry may help: an invalid file stays invalid until it
// changes.
func (l *Loop) verdictOf(err error) verdict {
	if fault.Of(err) == fault.Invalid {
		return refused
	}
	return retryLater
}

// sandbox assigns devices to a desired sandbox.
func (l *Loop) sandbox(ctx context.Context, w desired, rec reconcile.Record, known bool) (reconcile.Sandbox, error) {
	if known {
		w.Own = &rec
	}
	w.Records = func() []reconcile.Record {
		records, _ := l.Reconciler.List() // damage is reported by reload
		return records
	}
	w.Alive = func(rec reconcile.Record) bool { return alive(rec, l.BootID, l.Identify) }
	w.Contracts, w.OtherVersions, w.Discover, w.Sys = l.Contracts, l.Reconciler.OtherVersions, l.Discover, l.Sys
	return w.Sandbox(ctx)
}

// checkAndRepair checks a sandbox that was applied, and repairs drift where the policy
// permits it.
func (l *Loop) checkAndRepair(ctx context.Context, rec reconcile.Record) (verdict, error) {
	id := rec.Sandbox.ID
	if rec.Sandbox.Netns == "" && rec.BootID != l.BootID {
		return done, nil // the boot has undone it: its owner prepares it again, or releases it
	}
	if !alive(rec, l.BootID, l.Identify) {
		l.Watcher.Remove(id)
		return done, fault.New(fault.Gone,
			fmt.Errorf("network namespace %q is gone: delete the sandbox, or recreate the namespace and apply", rec.Sandbox.Netns))
	}
	if err := l.watch(rec.Sandbox); err != nil {
		return retryLater, err
	}
	l.noteHostDependency(rec.Sandbox, rec.History)
	begun := l.Now()
	defer func() { l.checked(id, l.Now().Sub(begun)) }()
	if repairsAll(rec.Sandbox.Topology) {
		return l.repair(ctx, rec, begun) // which checks first
	}
	rec, st, err := l.check(ctx, rec)
	switch {
	case fault.Of(err) == fault.Gone: // its record was removed meanwhile
		return retryLater, nil
	case err != nil:
		return retryLater, err
	case st.Kind != "":
		return retryLater, st.Err
	}
	l.revisit(id, st.Settles)
	switch {
	case st.State == reconcile.InSync, st.State == reconcile.Fighting && len(st.Drift) == 0 && rec.Phase == reconcile.Applied:
		l.sched.handled(id, begun)
		l.recordContention(ctx, rec, nil, true)
		return done, nil
	case !mayRepair(rec.Sandbox.Topology, st.Drift):
		l.sched.handled(id, begun)
		l.recordContention(ctx, rec, nil, true)
		return done, errors.New("drifted, and the policy is Observe: " + describe(st.Drift))
	}
	if now, known, err := l.Store.Get(id); err != nil || !known || now.Phase != rec.Phase {
		return retryLater, err // it is being deleted or applied: that is no drift
	}
	return l.repair(ctx, rec, begun)
}

// watch watches the namespace of a sandbox. A sandbox without one is checked when a device of
// the host has changed, and periodically.
func (l *Loop) watch(sb reconcile.Sandbox) error {
	if sb.Netns == "" {
		l.sched.enqueueAt(sb.ID, l.Now().Add(l.Resync))
		return nil
	}
	return l.Watcher.Add(sb.ID, sb.Netns)
}

// check checks a sandbox while no pass runs on it: what an update is just changing is
// not drift. It returns the record that was checked.
func (l *Loop) check(ctx context.Context, rec reconcile.Record) (reconcile.Record, reconcile.Status, error) {
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

// revisit makes a sandbox due when a value that is wanted now may no longer be; 0 is never.
func (l *Loop) revisit(id reconcile.SandboxID, after time.Duration) {
	if after > 0 {
		l.sched.enqueueAt(id, l.Now().Add(after))
	}
}

// repairsAll reports whether all drift of a topology is to be repaired, so that no
// check is needed first.
func repairsAll(t *topology.Topology) bool {
	return t.DriftPolicy != topology.Observe && !slices.ContainsFunc(t.Steps,
		func(s topology.Step) bool { return s.DriftPolicy == topology.Observe })
}

func (l *Loop) repair(ctx context.Context, rec reconcile.Record, begun time.Time) (verdict, error) {
	id := rec.Sandbox.ID
	since := l.sched.changedSince(id)
	if since.IsZero() {
		since = begun
	}
	rep, err := l.Reconciler.Repair(ctx, id)
	if fault.Of(err) == fault.Gone {
		if now, known, e := l.Store.Get(id); e == nil && (!known || now.Phase == reconcile.Releasing) {
			return retryLater, nil // it is being deleted: that is no drift
		}
	}
	if err == nil || fault.Of(err) == fault.NotConverged {
		contested := l.recordContention(ctx, rec, rep.Drift, err == nil)
		if contested && err != nil {
			return done, nil // it was reported, and the pause is longer than a retry's
		}
	}
	if err != nil {
		return retryLater, err
	}
	l.revisit(id, rep.Settles)
	if !rep.Unchanged {
		l.Recorder.Repaired(l.Now().Sub(since))
	}
	l.logPass(rep, reconcile.TriggerRepair, begun)
	l.sched.handled(id, begun)
	return done, nil
}

// recordContention takes what a pass has repaired, and pauses repairs where another
// writer changes that back each time. It reports whether that is so.
func (l *Loop) recordContention(ctx context.Context, rec reconcile.Record, repaired []reconcile.Drift, converged bool) (contested bool) {
	id, name := rec.Sandbox.ID, rec.Sandbox.Topology.Name
	s := l.contention.record(id, repaired, converged, l.Now())
	if !s.holdUntil.IsZero() {
		l.sched.holdUntil(id, s.holdUntil)
	}
	if !s.checkAt.IsZero() {
		l.sched.enqueueAt(id, s.checkAt)
	}
	switch {
	case s.began:
		f := s.contended[0]
		l.Log.Warn("another writer reverts repairs: repairs are slowed down", "sandbox", id, "topology", name,
			"step", f.Step, "object", f.Object.String(), "field", f.Field, "want", f.Want, "have", f.Have, "fields", len(s.contended))
	case s.ended:
		l.Log.Info("contention has ended", "sandbox", id, "topology", name)
	}
	if sameContention(rec.Fighting, s.contended) {
		return s.contested
	}
	// If the record could not be written, the next pass finds that it differs.
	if err := l.Reconciler.RecordContention(ctx, id, s.contended); err != nil && !errors.Is(err, reconcile.ErrInUse) {
		l.Log.Error("cannot use the journal", "error", err)
	}
	l.Recorder.Contended(id, name, s.contended)
	return s.contested
}

// mayRepair reports whether one of the drifts belongs to a step that is to be repaired.
// So is a sandbox without drift: its last pass failed.
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
		return retryLater, err
	}
	l.logPass(rep, reconcile.TriggerRelease, begun)
	if rep.Unclean != "" {
		return retryLater, nil // the device may be clean soon, and no other sandbox gets it until then
	}
	if _, wanted, _ := l.desired(id); !wanted {
		l.forget(id)
	}
	return done, nil
}

// forget forgets a sandbox that is neither wanted nor there.
func (l *Loop) forget(id reconcile.SandboxID) {
	l.Watcher.Remove(id)
	l.sched.forget(id)
	l.contention.forget(id)
	l.Recorder.Forget(id)
	l.mu.Lock()
	delete(l.checks, id)
	delete(l.paths, id)
	delete(l.onHost, id)
	delete(l.logged, id)
	l.mu.Unlock()
}

// logPass logs a pass that changed something, on one line.
func (l *Loop) logPass(rep reconcile.Report, trigger reconcile.Trigger, begun time.Time) {
	if rep.Unchanged {
		return
	}
	l.Log.Info("reconciled", "sandbox", rep.Sandbox, "trigger", trigger, "changes", len(rep.Changes), "took",
		l.Now().Sub(begun).Round(time.Microsecond))
	for _, c := range rep.Changes {
		l.Log.Debug("change", "sandbox", rep.Sandbox, "step", c.Step, "change", c.String())
	}
}
