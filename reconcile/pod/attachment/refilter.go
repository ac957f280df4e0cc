package attachment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// addFilters adds the filters of a claim's topologies to what is to be attached.
func (k *Keeper) addFilters(e *claims.Entry, sandboxes []reconcile.Sandbox) error {
	for i := range sandboxes {
		var err error
		if sandboxes[i].Filters, err = k.Filters(&e.Claim, &e.Topologies[i]); err != nil {
			return err
		}
	}
	return nil
}

// filtersNow returns the filters for a pod that runs: those that it has, while it is not
// known which it is to have, or if they are too many.
func (k *Keeper) filtersNow(e *claims.Entry, t *claims.Topology, id reconcile.SandboxID) ([]netstate.Filter, error) {
	out, err := k.Filters(&e.Claim, t)
	if err == nil {
		return out, nil
	}
	rec, _, err := k.Engine.Record(id)
	return rec.Sandbox.Filters, err
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
	s := attachedIn(&e)
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
	filters, err := k.Filters(&e.Claim, t)
	if err != nil {
		return false, err
	}
	sb, err := e.SandboxOf(t, &t.Object, s.ID, s.Netns)
	if err != nil {
		return false, fault.New(fault.Invalid, err)
	}
	rec, _, err := k.Engine.Record(sb.ID)
	if err != nil || equalFilters(rec.Sandbox.Filters, filters) {
		return false, err
	}
	begun := k.Now()
	sb.Filters = filters
	rep, err := k.Engine.Ensure(ctx, sb)
	if err != nil {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.ReleaseTimeout)
		defer cancel()
		sb.Filters = rec.Sandbox.Filters
		if _, again := k.Engine.Ensure(back, sb); again != nil { // the engine has rolled back; this verifies it
			err = errors.Join(err, fmt.Errorf("restore the filters it had: %w", again))
		}
		return false, err
	}
	k.Log.Info("filters updated", "sandbox", sb.ID, "claim", e.Namespace+"/"+e.Name, "pod", e.Pod.Name, "filters", len(filters),
		"changes", len(rep.Changes), "took", k.Now().Sub(begun))
	return true, nil
}

// equalFilters compares filters as records hold them.
func equalFilters(a, b []netstate.Filter) bool {
	if len(a) != len(b) {
		return false
	}
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && (len(a) == 0 || bytes.Equal(x, y))
}
