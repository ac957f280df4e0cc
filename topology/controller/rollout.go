package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Run is a node's report on one claim of a topology.
type Run struct {
	Namespace, Claim string
	PodUID           types.UID
	claim.Reported
}

// key identifies the pod.
func (r *Run) key() string { return cmp.Or(string(r.PodUID), r.Namespace+"/"+r.Claim) }

// state is how far a claim is with a generation.
type state int

const (
	unreported state = iota // its node has not reported what runs
	pending                 // it is to get it
	heldBack                // it needs a new pod
	retrying                // it failed for a reason of the pod or the node, and is retried
	failed                  // it failed and was rolled back
	updated
)

func (r *Run) state(generation int64) state {
	switch {
	case r.Generation == 0:
		return unreported
	case r.Generation >= generation:
		return updated
	case r.Update == nil || r.Update.Generation != generation:
		return pending
	}
	return cmp.Or(stateOf[r.Update.State], pending)
}

var stateOf = map[claim.State]state{claim.UpdateFailed: failed, claim.UpdateHeldBack: heldBack, claim.UpdateRetrying: retrying}

// The reasons of the condition Updated that are not fault kinds.
const (
	reasonComplete   = "Complete"
	reasonRollingOut = "RollingOut"
	reasonFailed     = "Failed"
	reasonHeldBack   = "HeldBack"
	reasonRetrying   = "Retrying"
)

// maxNodes bounds how many nodes update at a time, whatever the topology says: all
// are named in its status.
const maxNodes = 256

// rollOut writes into a status how many pods run which generation, and with the update
// policy InPlace which nodes may update now. Pods without a report of their node are not
// counted.
func rollOut(o *v1alpha1.NetworkTopology, found Outcome, s *v1alpha1.NetworkTopologyStatus) {
	runs := slices.SortedFunc(slices.Values(found.Use.Runs), func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim))
	})
	pods := byPod(runs)
	countGenerations(o.Generation, pods, s)
	if o.Spec.UpdatePolicy != v1alpha1.InPlace {
		s.Rollout = nil
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionUpdated)
		return
	}
	if found.Err != nil {
		return // nothing is decided before all claims are known
	}
	r := &v1alpha1.RolloutStatus{Generation: o.Generation}
	var before []string
	if old := o.Status.Rollout; old != nil {
		before = old.Nodes
		if old.Generation == o.Generation {
			r.Failure = old.Failure
		}
	}
	of := countStates(pods, o.Generation)
	r.HeldBack, r.Retrying, r.Failed = int32(of[heldBack]), int32(of[retrying]), int32(of[failed])
	if r.Failure == nil {
		r.Failure = stopping(o, runs)
	}
	var notReady []string
	if r.Failure == nil && found.Invalid == nil && len(found.Unknown) == 0 {
		r.Nodes, notReady = nodesToUpdate(o, found.passed(o), runs, before)
	}
	s.Rollout = r
	c := updating(o, found, pods, r)
	if len(notReady) > 0 {
		c.Message += fmt.Sprintf("; waiting until %s ready: %s",
			map[bool]string{true: "this node is", false: "these nodes are"}[len(notReady) == 1], names(notReady))
	}
	c.ObservedGeneration = o.Generation
	c.Message = excerpt.Lines(c.Message, maxMessage)
	meta.SetStatusCondition(&s.Conditions, c)
}

// byPod returns one run of each pod: the one with the earliest generation. A claim that is
// no longer reserved for a pod counts as one.
func byPod(runs []Run) []Run {
	at := map[string]int{}
	var out []Run
	for _, r := range runs {
		if r.Generation == 0 {
			continue
		}
		key := r.key()
		i, known := at[key]
		switch {
		case !known:
			at[key] = len(out)
			out = append(out, r)
		case r.Generation < out[i].Generation:
			out[i] = r
		}
	}
	return out
}

// countStates counts how far pods are with a generation.
func countStates(pods []Run, generation int64) map[state]int {
	of := map[state]int{}
	for i := range pods {
		of[pods[i].state(generation)]++
	}
	return of
}

func countGenerations(newest int64, pods []Run, s *v1alpha1.NetworkTopologyStatus) {
	of := map[int64]int32{}
	for _, p := range pods {
		of[p.Generation]++
	}
	s.Generations, s.Updated, s.PodsByGeneration = nil, "", ""
	var parts []string
	for _, g := range slices.Backward(slices.Sorted(maps.Keys(of))) {
		s.Generations = append(s.Generations, v1alpha1.GenerationStatus{Generation: g, Pods: of[g]})
		parts = append(parts, fmt.Sprintf("%d:%d", g, of[g]))
	}
	if len(pods) > 0 {
		s.Updated = fmt.Sprintf("%d/%d", of[newest], len(pods))
		s.PodsByGeneration = strings.Join(parts, " ")
	}
}

// A rollout is stopped when the change has failed in this many pods, on this many nodes and
// in this many namespaces. One pod may cause a failure itself, as its owner may change its
// network, and so may one node. Where there are fewer, all of them must have failed.
const (
	stopPods       = 3
	stopNodes      = 2
	stopNamespaces = 2
)

// spread counts the pods, nodes and namespaces of some runs.
type spread struct{ pods, nodes, namespaces map[string]bool }

func newSpread() spread {
	return spread{map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

func (s spread) add(r *Run) {
	s.pods[r.key()], s.nodes[r.Node], s.namespaces[r.Namespace] = true, true, true
}

// stopping returns the first of the failures that stop a rollout; nil when it goes on.
func stopping(o *v1alpha1.NetworkTopology, runs []Run) *v1alpha1.RolloutFailure {
	all, bad := newSpread(), newSpread()
	var first *Run
	for i := range runs {
		r := &runs[i]
		now := r.state(o.Generation)
		if now == unreported {
			continue
		}
		all.add(r)
		if now == failed {
			bad.add(r)
			first = cmp.Or(first, r)
		}
	}
	if first == nil || len(bad.pods) < min(stopPods, len(all.pods)) ||
		len(bad.nodes) < min(stopNodes, len(all.nodes)) || len(bad.namespaces) < min(stopNamespaces, len(all.namespaces)) {
		return nil
	}
	out := &v1alpha1.RolloutFailure{Node: first.Node}
	// Others can write the status of a claim, too: only known step names and reasons are
	// copied from it.
	if roots, derived := topology.StepNames(o); slices.Contains(roots, first.Update.Step) || slices.Contains(derived, first.Update.Step) {
		out.Step = first.Update.Step
	}
	if slices.Contains(fault.Kinds(), fault.Kind(first.Update.Kind)) {
		out.Reason = first.Update.Kind
	}
	return out
}

// deadNode is after how long a node that is not ready no longer counts for the limit, if it has begun with
// this edit: perhaps the edit is why it is not ready, and the next node would be lost as well.
const deadNode = 10 * time.Minute

// passed returns the nodes that others do not wait for: nodes that are not ready, which would block the rollout for
// as long as that lasts.
func (found *Outcome) passed(o *v1alpha1.NetworkTopology) func(node string) bool {
	return func(node string) bool {
		if found.NotReady == nil {
			return false
		}
		begun := o.Status.Rollout != nil && o.Status.Rollout.Generation == o.Generation && slices.Contains(o.Status.Rollout.Nodes, node)
		down := found.NotReady(node)
		return down > 0 && (!begun || down >= deadNode)
	}
}

// nodesToUpdate returns the nodes that may update now. Nodes that have begun come first,
// also if they began with an earlier edit, so that the limit always holds. When every pod
// was tried, nodes with pods to retry follow, those with the fewest attempts first, so that
// none starves. Those that are passed are returned apart.
func nodesToUpdate(o *v1alpha1.NetworkTopology, passed func(node string) bool, runs []Run, before []string) (out, notReady []string) {
	all, left, again := map[string]bool{}, map[string]bool{}, map[string]int{}
	for i := range runs {
		r := &runs[i]
		now := r.state(o.Generation)
		if now == unreported {
			continue
		}
		all[r.Node] = true
		left[r.Node] = left[r.Node] || now == pending
		if n, known := again[r.Node]; now == retrying && (!known || r.Update.Attempts < n) {
			again[r.Node] = r.Update.Attempts
		}
	}
	byAttempts := slices.SortedFunc(maps.Keys(again), func(a, b string) int {
		return cmp.Or(cmp.Compare(again[a], again[b]), cmp.Compare(a, b))
	})
	most := limit(o, len(all))
	take := func(nodes []string, may func(node string) bool) {
		for _, n := range nodes {
			switch {
			case !may(n) || slices.Contains(out, n) || slices.Contains(notReady, n):
			case passed(n):
				notReady = append(notReady, n)
			case len(out) < most:
				out = append(out, n)
			}
		}
	}
	isLeft := func(node string) bool { return left[node] }
	take(before, isLeft)
	take(slices.Sorted(maps.Keys(left)), isLeft)
	take(byAttempts, func(node string) bool { return !left[node] })
	slices.Sort(out)
	slices.Sort(notReady)
	return out, notReady
}

// limit returns how many of the nodes may update at a time.
func limit(o *v1alpha1.NetworkTopology, nodes int) int {
	most := intstr.FromInt32(1)
	if r := o.Spec.Rollout; r != nil && r.MaxUnavailable != nil {
		most = *r.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&most, nodes, true)
	if err != nil {
		n = 1 // the API server refuses such values
	}
	return min(max(n, 1), maxNodes)
}

// complete reports whether a topology was rolled out, as far as its status says.
func complete(o *v1alpha1.NetworkTopology) bool {
	return meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionUpdated)
}

// updating is the condition Updated. It names no pods: everybody who uses a topology can
// read it, and pods are for those who may read the claims.
func updating(o *v1alpha1.NetworkTopology, found Outcome, pods []Run, r *v1alpha1.RolloutStatus) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionUpdated, Status: metav1.ConditionFalse}
	of := countStates(pods, o.Generation)
	parts := []string{fmt.Sprintf("%d of %s on generation %d", of[updated], excerpt.Count(len(pods), "pod"), o.Generation)}
	for _, kind := range []struct {
		state
		label string
	}{{failed, "failed"}, {retrying, "to be tried again"}, {heldBack, "to be recreated"}} {
		if n := of[kind.state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, kind.label))
		}
	}
	progress := strings.Join(parts, ", ")
	switch {
	case of[updated] == len(pods):
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonComplete, progress
	case found.Invalid != nil:
		c.Reason, c.Message = string(fault.Invalid), progress+"; the topology is not valid, and pods keep what they have"
	case len(found.Unknown) > 0:
		c.Reason, c.Message = string(fault.Unsupported), progress+"; no node can run the topology, and pods keep what they have"
	case r.Failure != nil:
		c.Reason, c.Message = reasonFailed, fmt.Sprintf("%s; stopped until the next edit, and pods keep what they have: %s", progress,
			failure(r.Failure))
	case of[pending] > 0:
		c.Reason, c.Message = reasonRollingOut, fmt.Sprintf("%s; updating on %s: %s", progress, excerpt.Count(len(r.Nodes), "node"),
			names(r.Nodes))
	case of[retrying] > 0:
		c.Reason, c.Message = reasonRetrying, fmt.Sprintf("%s; trying again on %s: %s", progress, excerpt.Count(len(r.Nodes), "node"),
			names(r.Nodes))
	case of[failed] > 0:
		c.Reason, c.Message = reasonFailed, progress+"; pods in which the update failed keep what they have until the next edit"
	default:
		c.Reason, c.Message = reasonHeldBack, progress
	}
	return c
}

func failure(f *v1alpha1.RolloutFailure) string {
	out := fmt.Sprintf("it failed on node %q", f.Node)
	if f.Step != "" {
		out += fmt.Sprintf(" in step %q", f.Step)
	}
	if f.Reason != "" {
		out += " (" + f.Reason + ")"
	}
	return out
}

// names lists the first few of some names.
func names(all []string) string { return excerpt.First(all, maxNames) }
