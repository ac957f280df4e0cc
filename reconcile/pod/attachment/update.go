package attachment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Update applies a later generation of a topology to the running pod of a claim. It records the intention first, so that after any
// failure the pod ends up with one of both generations as a whole, which the record names. For the current or an earlier generation
// it does nothing. If the claim is in no sandbox, only the record changes.
//
// After an error of a step the pod has the network that it had before. Errors of Options.Follow are returned as they are. An error of
// kind Gone means that the claim or its sandbox no longer exists, or is not attached yet: it is not reported, and may be retried.
func (k *Keeper) Update(ctx context.Context, uid types.UID, o *v1alpha1.NetworkTopology) error {
	if k.attaching(uid) {
		return fault.New(fault.Gone, errors.New("it is still being attached"))
	}
	e, known, unlock, err := k.hold(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	if !known {
		return fault.New(fault.Gone, errors.New("it is no longer prepared"))
	}
	if err := k.finishUpdate(ctx, &e); err != nil {
		return err
	}
	t := e.Topology(o.Name)
	switch {
	case t == nil || t.Object.UID != o.UID:
		return fault.New(fault.Gone, fmt.Errorf("it is attached with an earlier object of the name %q", o.Name))
	case t.Object.Generation >= o.Generation:
		return nil
	}
	if err := k.Follow(ctx, t, o); err != nil {
		return err
	}
	next := claims.Pinned(o)
	s := e.Attached()
	switch {
	case s == nil && !t.Prepared: // from now on, a new sandbox gets it
		t.Object = next
		return k.Store.Put(e.Claim)
	case s != nil && !k.netnsExists(*s): // another namespace may be mounted at its path
		return ended(s)
	}
	t.Next = &next
	if err := k.Store.Put(e.Claim); err != nil {
		return err
	}
	return k.advance(ctx, &e, t, s)
}

func ended(s *claims.Sandbox) error {
	return fault.New(fault.Gone, fmt.Errorf("sandbox %q has ended", s.ID))
}

// FinishUpdate finishes an interrupted update of a claim: the later generation is applied
// or, if that fails, the earlier one. A claim that is in no sandbox any more keeps the
// earlier one.
func (k *Keeper) FinishUpdate(ctx context.Context, uid types.UID) error {
	return k.held(ctx, uid, func(e *claims.Entry) error { return k.finishUpdate(ctx, e) })
}

// finishUpdate is FinishUpdate for a caller that holds the claim's lock. A rollback to the
// earlier generation is no error: the pod has a whole generation.
func (k *Keeper) finishUpdate(ctx context.Context, e *claims.Entry) error {
	if !e.Updating() {
		return nil
	}
	s := e.Attached()
	switch {
	case s == nil:
		return k.abandon(ctx, e)
	case !k.netnsExists(*s):
		return ended(s)
	}
	for i := range e.Topologies {
		t := &e.Topologies[i]
		if t.Next == nil {
			continue
		}
		to := t.Next.Generation
		err := k.advance(ctx, e, t, s)
		if t.Next != nil {
			return err
		}
		k.Log.Info("interrupted update finished", "claim", e.Namespace+"/"+e.Name, "topology", t.Object.Name,
			"generation", t.Object.Generation, "of", to, "error", err)
	}
	return nil
}

// finishUpdates finishes the updates of all claims.
func (k *Keeper) finishUpdates(ctx context.Context) {
	k.forClaims(ctx, func(e *claims.Entry) bool { return e.Updating() }, k.FinishUpdate,
		func(of ...any) { k.Log.Warn("cannot finish an interrupted update", of...) })
}

// noteAttached records durably which generations running pods have. It is not recorded on
// attachment, which would delay pods: only a later version needs it, and records it when it
// starts.
func (k *Keeper) noteAttached(ctx context.Context) {
	note := func(ctx context.Context, uid types.UID) error {
		return k.held(ctx, uid, func(e *claims.Entry) error {
			if !unnoted(e) {
				return nil
			}
			for i := range e.Topologies {
				e.Topologies[i].Attached = e.Topologies[i].Object.Generation
			}
			return k.Store.Put(e.Claim)
		})
	}
	k.forClaims(ctx, unnoted, note, func(of ...any) { k.Log.Warn("cannot record that a claim is attached", of...) })
}

// forClaims calls do with those of the claims that are due and not being attached: an attachment abandons an update.
func (k *Keeper) forClaims(
	ctx context.Context, due func(*claims.Entry) bool, do func(ctx context.Context, uid types.UID) error, warn func(of ...any),
) {
	for _, e := range k.list() {
		if !due(&e) || k.attaching(e.UID) {
			continue
		}
		k.Alive(2 * k.Sweep)
		within, cancel := context.WithTimeout(ctx, k.ReleaseTimeout)
		err := do(within, e.UID)
		cancel()
		if err != nil && fault.Of(err) != fault.Gone {
			warn("claim", e.Namespace+"/"+e.Name, "kind", fault.Of(err), "error", err)
		}
	}
}

// unnoted reports whether the pod of a claim has a generation that is not recorded as
// attached. While it is updated it had the earlier one.
func unnoted(e *claims.Entry) bool {
	return e.Attached() != nil &&
		slices.ContainsFunc(e.Topologies, func(t claims.Topology) bool { return t.Attached != t.Object.Generation })
}

// advance applies the generation that is recorded as Next in a sandbox, nil for what is
// only prepared, and then records it as the claim's; the caller holds the lock. On an error
// Next is nil if the earlier generation is in place, and is kept if that is unknown.
func (k *Keeper) advance(ctx context.Context, e *claims.Entry, t *claims.Topology, s *claims.Sandbox) error {
	from, next := t.Object, t.Next
	begun := k.Now()
	rep, err := k.ensureGeneration(ctx, e, t, next, s)
	if err == nil && s != nil {
		err = k.exportable(e, t, s)
	}
	if err != nil {
		if back := k.restore(ctx, e, t, s); back != nil {
			return errors.Join(err, fmt.Errorf("roll back to generation %d: %w", from.Generation, back))
		}
		t.Next = nil
		if put := k.Store.Put(e.Claim); put != nil {
			t.Next = next
			return errors.Join(err, put)
		}
		return errors.Join(err, k.openAgain(e, s))
	}
	k.Log.Info("updated", "sandbox", rep.Sandbox, "claim", e.Namespace+"/"+e.Name, "pod", e.Pod.Name, "from", from.Generation, "to",
		next.Generation,
		"changes", len(rep.Changes), "took", k.Now().Sub(begun).Round(time.Microsecond))
	t.Object, t.Next = *next, nil
	if err = k.openAgain(e, s); err == nil {
		err = k.Store.Put(e.Claim)
	}
	if err != nil {
		t.Object, t.Next = from, next
		return err
	}
	if s == nil {
		return nil
	}
	k.refineAgain(e, s, &rep)
	k.Reporter.Updated(e.Claim, t.Object.Name, from.Generation, rep)
	return nil
}

// openAgain has containers that are created from now on get what the steps give, and what is exported, now.
func (k *Keeper) openAgain(e *claims.Entry, s *claims.Sandbox) error {
	if s == nil {
		return nil
	}
	return k.openGate(e, s.ID, s.Netns)
}

// exportable returns an error unless what the next generation exports is true of its results, and goes with what the other topologies of
// the claim export.
func (k *Keeper) exportable(e *claims.Entry, t *claims.Topology, s *claims.Sandbox) error {
	from := t.Object
	t.Object = *t.Next
	defer func() { t.Object = from }()
	_, err := k.exported(e, s.ID)
	return err
}

// ensureGeneration applies one generation of a topology: what is prepared, and then what
// is in the sandbox, if there is one.
func (k *Keeper) ensureGeneration(ctx context.Context, e *claims.Entry, t *claims.Topology, o *v1alpha1.NetworkTopology,
	s *claims.Sandbox,
) (reconcile.Report, error) {
	if t.Prepared {
		if err := k.prepare(ctx, &e.Claim, t, o); err != nil {
			return reconcile.Report{}, err
		}
	}
	if s == nil {
		return reconcile.Report{}, nil
	}
	sb, err := e.SandboxOf(t, o, s.ID, s.Netns)
	if err != nil {
		return reconcile.Report{}, fault.New(fault.Invalid, err)
	}
	edited := *t // whose steps decide what enforces rules
	edited.Object = *o
	rules, err := k.filtersNow(e, &edited, sb.ID)
	if err != nil {
		return reconcile.Report{}, err
	}
	sb.Rules = rules
	return k.ensureUrgent(ctx, sb)
}

// restore applies the earlier generation again. The engine has rolled back its changes, so
// usually this only observes; but the state of a running pod must be verified.
func (k *Keeper) restore(ctx context.Context, e *claims.Entry, t *claims.Topology, s *claims.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.ReleaseTimeout)
	defer cancel()
	_, err := k.ensureGeneration(ctx, e, t, &t.Object, s)
	return err
}

// refineAgain updates the metadata for containers that are created from now on.
func (k *Keeper) refineAgain(e *claims.Entry, s *claims.Sandbox, rep *reconcile.Report) {
	ctx, cancel := context.WithTimeout(context.Background(), k.ReleaseTimeout)
	defer cancel()
	var results [][]topology.StepResult
	for i := range e.Topologies {
		id := e.SandboxID(s.ID, &e.Topologies[i])
		if id == rep.Sandbox {
			results = append(results, rep.Results)
			continue
		}
		rec, _, err := k.Engine.Record(id)
		if err != nil {
			k.Log.Warn("cannot write the metadata of a claim", "sandbox", id, "error", err)
		}
		results = append(results, rec.Results)
	}
	k.refine(ctx, &e.Claim, results)
}

// abandon forgets an update without a sandbox: a new sandbox gets the earlier generation,
// which is prepared for it.
func (k *Keeper) abandon(ctx context.Context, e *claims.Entry) error {
	if !e.Updating() {
		return nil
	}
	if err := k.Prepare(ctx, &e.Claim); err != nil {
		return err
	}
	for i := range e.Topologies {
		e.Topologies[i].Next = nil
	}
	return k.Store.Put(e.Claim)
}
