package primary

import (
	"context"
	"errors"
	"time"

	k8stypes "k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	// knownWithin bounds how long an ADD waits until it is known which objects cover its pod: as long as the kubelet lets a
	// claim wait. The runtime tries again.
	knownWithin = 45 * time.Second
	// restoreWithin bounds how long the rules that a pod had are restored.
	restoreWithin = 10 * time.Second
)

// await waits until it is known which NetworkQoS objects cover a pod: it must not send unmarked.
func (s *Server) await(ctx context.Context, p podArgs) error {
	pod := p.recorded()
	if pod == nil {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, knownWithin)
	defer cancel()
	wake := make(table.Wake, 1)
	defer s.KnownBy.Wakes(wake)() // before it is asked for the first time, so that no change is missed
	for {
		err := s.Known(pod.Namespace, claims.Pod{Name: pod.Name, UID: k8stypes.UID(pod.UID)})
		if fault.Of(err) != fault.NotReady {
			return err
		}
		if !loop.Wait(within, knownWithin, wake) {
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// Refilter gives the running network of a pod the rules that Options.Rules returns, and reports whether they were others. When it
// fails, the pod has the rules it had before.
func (s *Server) Refilter(ctx context.Context, owner string) (changed bool, err error) {
	unlock, err := s.locks.take(ctx, owner)
	if err != nil {
		return false, err
	}
	defer unlock()
	ids, err := s.sandboxes(owner)
	errs := []error{err}
	for _, id := range ids {
		done, err := s.refilter(ctx, id)
		changed = changed || done
		errs = append(errs, err)
	}
	return changed, errors.Join(errs...)
}

func (s *Server) refilter(ctx context.Context, id reconcile.SandboxID) (changed bool, err error) {
	rec, known, err := s.Engine.Record(id)
	if err != nil || !known || rec.Phase == reconcile.Releasing || rec.BootID != s.BootID || rec.Sandbox.Pod == nil {
		return false, err
	}
	if _, err := s.Identify(rec.Sandbox.Netns); err != nil {
		return false, err // its DEL, or Run, ends it
	}
	rules, err := s.Rules(&rec.Sandbox)
	if err != nil {
		return false, err
	}
	rep, changed, err := reconcile.SetRules(ctx, s.Engine, rec.Sandbox, rules, restoreWithin)
	if changed {
		s.Log.Info("filters updated", "sandbox", id, "pod", rec.Sandbox.Pod.Namespace+"/"+rec.Sandbox.Pod.Name, "filters",
			len(rules.Filters), "logicalRules", len(rules.LogicalRules), "changes", len(rep.Changes))
	}
	return changed, err
}
