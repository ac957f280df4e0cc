package attachment

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// addFilters adds the filters of a claim's topologies to what is to be attached.
func (k *Keeper) addFilters(e *claims.Entry, sandboxes []reconcile.Sandbox) error {
	for i := range sandboxes {
		rules, err := k.Filters(&e.Claim, &e.Topologies[i])
		if err != nil {
			return err
		}
		sandboxes[i].Rules = rules
	}
	return nil
}

// filtersNow returns the filters for a pod that runs: those that it has, while it is not
// known which it is to have, or if they are too many.
func (k *Keeper) filtersNow(e *claims.Entry, t *claims.Topology, id reconcile.SandboxID) (ops.Rules, error) {
	out, err := k.Filters(&e.Claim, t)
	if err == nil {
		return out, nil
	}
	rec, _, err := k.Engine.Record(id)
	return rec.Sandbox.Rules, err
}

// Refilter gives the running sandbox of a claim the filters that Options.Filters returns, and
// reports whether they were others. A claim in no sandbox needs none: it gets them when it is
// attached. When it fails, the pod has the filters it had before. An error of kind Gone may be
// retried.
func (k *Keeper) Refilter(ctx context.Context, uid types.UID) (changed bool, err error) {
	if k.attaching(uid) {
		return false, fault.New(fault.Gone, errors.New("it is still being attached"))
	}
	e, known, unlock, err := k.hold(ctx, uid)
	if err != nil {
		return false, err
	}
	defer unlock()
	s := e.Attached()
	switch {
	case !known || s == nil:
		return false, nil
	case e.Updating():
		return false, fault.New(fault.Gone, errors.New("it is being updated"))
	case !k.netnsExists(*s):
		return false, ended(s)
	}
	var errs []error
	for i := range e.Topologies {
		done, err := k.refilter(ctx, &e, &e.Topologies[i], s)
		changed = changed || done
		errs = append(errs, err)
	}
	return changed, errors.Join(errs...)
}

func (k *Keeper) refilter(ctx context.Context, e *claims.Entry, t *claims.Topology, s *claims.Sandbox) (changed bool, err error) {
	rules, err := k.Filters(&e.Claim, t)
	if err != nil {
		return false, err
	}
	sb, err := e.SandboxOf(t, &t.Object, s.ID, s.Netns)
	if err != nil {
		return false, fault.New(fault.Invalid, err)
	}
	begun := k.Now()
	rep, changed, err := reconcile.SetRules(ctx, k.Engine, sb, rules, k.ReleaseTimeout)
	if changed {
		k.Log.Info("filters updated", "sandbox", sb.ID, "claim", e.Namespace+"/"+e.Name, "pod", e.Pod.Name, "filters", len(rules.Filters),
			"logicalRules", len(rules.LogicalRules),
			"changes", len(rep.Changes), "took", k.Now().Sub(begun))
	}
	return changed, err
}
