package deviceclass_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/deviceclass"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// runs spells claims: "node/claim@generation", with "!" for a failure and "~" for
// one held back at generation 5, and "=pod" where it is not a pod of its own.
func runs(t *testing.T, text string) []deviceclass.Run {
	t.Helper()
	var out []deviceclass.Run
	for word := range strings.FieldsSeq(text) {
		node, rest, _ := strings.Cut(word, "/")
		rest, pod, shared := strings.Cut(rest, "=")
		name, generation, ok := strings.Cut(rest, "@")
		if !ok {
			t.Fatalf("%q", word)
		}
		if !shared {
			pod = "p-" + name
		}
		r := deviceclass.Run{Namespace: "ns", Claim: name, Pod: pod, PodUID: types.UID(pod), Reported: claim.Reported{Node: node}}
		switch {
		case strings.HasSuffix(generation, "!"):
			r.Update = &claim.Update{Generation: 5, State: claim.UpdateFailed, Step: "tune", Message: `step "tune": no such thing`}
		case strings.HasSuffix(generation, "~"):
			r.Update = &claim.Update{Generation: 5, State: claim.UpdateHeldBack, Message: `step "vf2": no device`}
		}
		r.Generation = int64(generation[0] - '0')
		out = append(out, r)
	}
	return out
}

func TestRollout(t *testing.T) {
	failure := &v1alpha1.RolloutFailure{Node: "n1", Namespace: "ns", Claim: "a", Pod: "p-a", Step: "tune", Message: `step "tune": no such thing`}
	for _, c := range []struct {
		name   string
		runs   string
		most   any // maxUnavailable; 1 when nil
		before *v1alpha1.RolloutStatus
		found  deviceclass.Outcome

		nodes       string
		updated     string
		generations string
		reason      string
		message     string // part of it
		failure     bool
	}{
		{name: "nobody runs it", reason: "Complete"},
		{name: "one node at a time", runs: "n1/a@4 n1/b@4 n2/c@4", nodes: "n1", updated: "0/3", generations: "4:3", reason: "RollingOut", message: "0 of 3 pods on generation 5; updating on 1 node: n1"},
		{name: "a node stays until all of it is done", runs: "n1/a@5 n1/b@4 n2/c@4", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, nodes: "n1", updated: "1/3", generations: "5:1 4:2", reason: "RollingOut"},
		{name: "then it is the next one's turn", runs: "n1/a@5 n1/b@5 n2/c@4", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, nodes: "n2", updated: "2/3", generations: "5:2 4:1", reason: "RollingOut"},
		{name: "done", runs: "n1/a@5 n1/b@5 n2/c@5", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n2"}}, updated: "3/3", generations: "5:3", reason: "Complete"},
		{name: "two at a time", runs: "n1/a@4 n2/b@4 n3/c@3", most: 2, nodes: "n1 n2", updated: "0/3", generations: "4:2 3:1", reason: "RollingOut"},
		{name: "a percentage, rounded up", runs: "n1/a@5 n2/b@4 n3/c@4 n4/d@4 n5/e@4", most: "30%", nodes: "n2 n3", updated: "1/5", generations: "5:1 4:4", reason: "RollingOut"},
		{name: "all", runs: "n1/a@4 n2/b@4", most: "100%", nodes: "n1 n2", updated: "0/2", generations: "4:2", reason: "RollingOut"},
		{name: "who has begun goes first", runs: "n1/a@4 n2/b@4 n3/c@4", most: 2, before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n3"}}, nodes: "n1 n3", updated: "0/3", generations: "4:3", reason: "RollingOut"},
		{name: "the limit was lowered", runs: "n1/a@4 n2/b@4 n3/c@4", before: &v1alpha1.RolloutStatus{Generation: 4, Nodes: []string{"n2", "n3"}}, nodes: "n2", updated: "0/3", generations: "4:3", reason: "RollingOut"},
		{name: "an edit in the middle", runs: "n1/a@4 n1/b@3 n2/c@3", before: &v1alpha1.RolloutStatus{Generation: 4, Nodes: []string{"n1"}}, nodes: "n1", updated: "0/3", generations: "4:1 3:2", reason: "RollingOut"},
		{name: "an edit after a failure", runs: "n1/a@3 n2/c@3", before: &v1alpha1.RolloutStatus{Generation: 4, Failure: failure}, nodes: "n1", updated: "0/2", generations: "3:2", reason: "RollingOut"},
		{name: "a failure stops all", runs: "n1/a@4! n2/b@4 n3/c@5", most: 3, before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1", "n2"}}, updated: "1/3", generations: "5:1 4:2", reason: "Failed", message: `failed on node "n1" in pod "p-a" of namespace "ns", which keeps what it has: step "tune": no such thing`, failure: true},
		{name: "also when its pod has gone", runs: "n2/b@4", before: &v1alpha1.RolloutStatus{Generation: 5, Failure: failure}, updated: "0/1", generations: "4:1", reason: "Failed", failure: true},
		{name: "held back", runs: "n1/a@4~ n2/b@5", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, updated: "1/2", generations: "5:1 4:1", reason: "HeldBack", message: "1 pod to be made anew:\npod \"p-a\" in namespace \"ns\": step \"vf2\": no device"},
		{name: "held back holds nobody else back", runs: "n1/a@4~ n1/b@4 n2/c@4", nodes: "n1", updated: "0/3", generations: "4:3", reason: "RollingOut"},
		{name: "a node that is gone with its claims", runs: "n2/c@4", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, nodes: "n2", updated: "0/1", generations: "4:1", reason: "RollingOut"},
		{name: "a claim nobody has told of", runs: "n1/a@0 n2/b@5", updated: "1/1", generations: "5:1", reason: "Complete"},
		{name: "a pod with two claims", runs: "n1/a@5=p n1/b@4=p n2/c@5", nodes: "n1", updated: "1/2", generations: "5:1 4:1", reason: "RollingOut"},
		{name: "not valid", runs: "n1/a@4", found: deviceclass.Outcome{Invalid: errors.New("no")}, updated: "0/1", generations: "4:1", reason: "Invalid", message: "pods keep what they have"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "t", Generation: 5}}
			o.Spec.UpdatePolicy = v1alpha1.InPlace
			switch most := c.most.(type) {
			case int:
				o.Spec.Rollout = &v1alpha1.Rollout{MaxUnavailable: new(intstr.FromInt(most))}
			case string:
				o.Spec.Rollout = &v1alpha1.Rollout{MaxUnavailable: new(intstr.FromString(most))}
			}
			o.Status.Rollout = c.before
			c.found.Use.Runs = runs(t, c.runs)
			s := deviceclass.StatusOf(o, c.found)
			r := s.Rollout
			if r == nil || r.Generation != 5 || strings.Join(r.Nodes, " ") != c.nodes || (r.Failure != nil) != c.failure {
				t.Errorf("rollout %+v, want nodes %q, failure %t", r, c.nodes, c.failure)
			}
			if c.failure && *r.Failure != *failure {
				t.Errorf("failure %+v", r.Failure)
			}
			if s.Updated != c.updated || s.PodsByGeneration != c.generations {
				t.Errorf("updated %q, generations %q; want %q, %q", s.Updated, s.PodsByGeneration, c.updated, c.generations)
			}
			cond := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionUpdated)
			if cond == nil || cond.Reason != c.reason || (cond.Status == metav1.ConditionTrue) != (c.reason == "Complete") || !strings.Contains(cond.Message, c.message) || cond.ObservedGeneration != 5 {
				t.Errorf("condition %+v, want reason %s and %q", cond, c.reason, c.message)
			}
		})
	}
}

// TestImmutable holds that pods are counted, and that nobody updates them.
func TestImmutable(t *testing.T) {
	o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "t", Generation: 5}}
	o.Spec.UpdatePolicy = v1alpha1.Immutable
	o.Status.Rollout = &v1alpha1.RolloutStatus{Generation: 4, Nodes: []string{"n1"}}
	o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionUpdated, Status: metav1.ConditionFalse, Reason: "RollingOut"}}
	s := deviceclass.StatusOf(o, deviceclass.Outcome{Use: deviceclass.Use{Runs: runs(t, "n1/a@4 n2/b@5")}})
	if s.Rollout != nil || meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionUpdated) != nil || s.PodsByGeneration != "5:1 4:1" || s.Updated != "1/2" {
		t.Errorf("status %+v", s)
	}
}
