package deviceclass

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Run is what a node says of one claim of a topology.
type Run struct {
	Namespace, Claim string
	Pod              string
	PodUID           types.UID
	claim.Reported
}

// state is how far a claim is with a generation.
type state int

const (
	silent   state = iota // its node has not told what runs
	pending               // it is to get it
	heldBack              // it takes a new pod
	failed                // it was tried and undone
	updated
)

func (r *Run) state(generation int64) state {
	switch {
	case r.Generation == 0:
		return silent
	case r.Generation >= generation:
		return updated
	case r.Update == nil || r.Update.Generation != generation:
		return pending
	case r.Update.State == claim.UpdateFailed:
		return failed
	case r.Update.State == claim.UpdateHeldBack:
		return heldBack
	default:
		return pending
	}
}

// The reasons of the condition Updated that are not fault kinds.
const (
	reasonComplete   = "Complete"
	reasonRollingOut = "RollingOut"
	reasonFailed     = "Failed"
	reasonHeldBack   = "HeldBack"
)

// maxNodes bounds how many nodes update at a time, whatever the topology says: all
// are named in its status.
const maxNodes = 256

// rollOut writes into a status how many pods run which generation, and with the
// update policy InPlace which nodes may update now. It says nothing of pods whose
// nodes have said nothing.
func rollOut(o *v1alpha1.NetworkTopology, found Outcome, s *v1alpha1.NetworkTopologyStatus) {
	runs := slices.Clone(found.Use.Runs)
	slices.SortFunc(runs, func(a, b Run) int {
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
		return // nothing is decided on half of what there is to know
	}
	r := &v1alpha1.RolloutStatus{Generation: o.Generation}
	var before []string
	if old := o.Status.Rollout; old != nil {
		before = old.Nodes
		if old.Generation == o.Generation {
			r.Failure = old.Failure
		}
	}
	for _, p := range pods {
		if p.state(o.Generation) == heldBack {
			r.HeldBack++
		}
	}
	for i := range runs {
		if r.Failure == nil && runs[i].state(o.Generation) == failed {
			r.Failure = failureOf(&runs[i])
		}
	}
	if r.Failure == nil && found.Invalid == nil && len(found.Unknown) == 0 {
		r.Nodes = turns(o, runs, before)
	}
	s.Rollout = r
	c := updating(o, found, pods, r)
	c.ObservedGeneration = o.Generation
	c.Message = cut(c.Message, maxMessage)
	meta.SetStatusCondition(&s.Conditions, c)
}

// byPod returns one run of each pod that runs something: the one that is furthest
// behind. A claim that is reserved for no pod any more stands for itself.
func byPod(runs []Run) []Run {
	at := map[string]int{}
	var out []Run
	for _, r := range runs {
		if r.Generation == 0 {
			continue
		}
		key := cmp.Or(string(r.PodUID), r.Namespace+"/"+r.Claim)
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

func countGenerations(newest int64, pods []Run, s *v1alpha1.NetworkTopologyStatus) {
	of := map[int64]int32{}
	for _, p := range pods {
		of[p.Generation]++
	}
	s.Generations, s.Updated, s.PodsByGeneration = nil, "", ""
	var words []string
	for _, g := range slices.Backward(slices.Sorted(maps.Keys(of))) {
		s.Generations = append(s.Generations, v1alpha1.GenerationStatus{Generation: g, Pods: of[g]})
		words = append(words, fmt.Sprintf("%d:%d", g, of[g]))
	}
	if len(pods) > 0 {
		s.Updated = fmt.Sprintf("%d/%d", of[newest], len(pods))
		s.PodsByGeneration = strings.Join(words, " ")
	}
}

// turns returns the nodes that may update now: those that have begun first, also
// when they began with an earlier edit, so that never more are at it than may be.
func turns(o *v1alpha1.NetworkTopology, runs []Run, before []string) []string {
	all, left := map[string]bool{}, map[string]bool{}
	for i := range runs {
		switch runs[i].state(o.Generation) {
		case silent:
		case pending:
			left[runs[i].Node] = true
			fallthrough
		default:
			all[runs[i].Node] = true
		}
	}
	most := limit(o, len(all))
	var out []string
	for _, n := range slices.Concat(before, slices.Sorted(maps.Keys(left))) {
		if len(out) < most && left[n] && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// limit is how many of so many nodes may update at a time.
func limit(o *v1alpha1.NetworkTopology, nodes int) int {
	most := intstr.FromInt32(1)
	if r := o.Spec.Rollout; r != nil && r.MaxUnavailable != nil {
		most = *r.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&most, nodes, true)
	if err != nil {
		n = 1 // the API server lets none such pass
	}
	return min(max(n, 1), maxNodes)
}

func failureOf(r *Run) *v1alpha1.RolloutFailure {
	return &v1alpha1.RolloutFailure{
		Node: r.Node, Namespace: r.Namespace, Claim: r.Claim, Pod: r.Pod, Step: r.Update.Step, Message: cut(r.Update.Message, maxNote),
	}
}

// updating is the condition Updated.
func updating(o *v1alpha1.NetworkTopology, found Outcome, pods []Run, r *v1alpha1.RolloutStatus) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionUpdated, Status: metav1.ConditionFalse}
	var done, waiting int
	var held []string
	for i := range pods {
		switch p := &pods[i]; p.state(o.Generation) {
		case updated:
			done++
		case heldBack:
			held = append(held, fmt.Sprintf("pod %q in namespace %q: %s", p.Pod, p.Namespace, p.Update.Message))
		default:
			waiting++
		}
	}
	progress := fmt.Sprintf("%d of %s on generation %d", done, count(len(pods), "pod"), o.Generation)
	switch {
	case done == len(pods):
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonComplete, progress
	case found.Invalid != nil:
		c.Reason, c.Message = string(fault.Invalid), progress+"; the topology is not valid, and pods keep what they have"
	case len(found.Unknown) > 0:
		c.Reason, c.Message = string(fault.Unsupported), progress+"; no node can run the topology, and pods keep what they have"
	case r.Failure != nil:
		c.Reason, c.Message = reasonFailed, fmt.Sprintf("%s; stopped until the next edit, as it failed on node %q in pod %q of namespace %q, which keeps what it has: %s",
			progress, r.Failure.Node, r.Failure.Pod, r.Failure.Namespace, r.Failure.Message)
	case waiting > 0:
		c.Reason, c.Message = reasonRollingOut, fmt.Sprintf("%s; updating on %s: %s", progress, count(len(r.Nodes), "node"), names(r.Nodes))
	default:
		c.Reason, c.Message = reasonHeldBack, fmt.Sprintf("%s; %s to be made anew:\n%s", progress, count(len(held), "pod"), strings.Join(held[:min(len(held), maxNames)], "\n"))
	}
	return c
}

// names lists the first few of some names.
func names(all []string) string {
	out := strings.Join(all[:min(len(all), maxNames)], ", ")
	if more := len(all) - maxNames; more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}
