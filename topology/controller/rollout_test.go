package controller_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// runs spells claims: "node/claim@generation", with "!" for a failure, "~" for one
// held back and "?2" for one that was tried twice at generation 5, "=pod" where it
// is not a pod of its own, and "namespace:" before all where it is not "ns".
func runs(t *testing.T, text string) []controller.Run {
	t.Helper()
	var out []controller.Run
	for item := range strings.FieldsSeq(text) {
		namespace, after, found := strings.Cut(item, ":")
		if !found {
			namespace, after = "ns", item
		}
		node, rest, _ := strings.Cut(after, "/")
		rest, pod, shared := strings.Cut(rest, "=")
		name, generation, ok := strings.Cut(rest, "@")
		if !ok {
			t.Fatalf("%q", item)
		}
		if !shared {
			pod = "p-" + name
		}
		r := controller.Run{Namespace: namespace, Claim: name, PodUID: types.UID(pod), Reported: claim.Reported{Node: node}}
		switch {
		case strings.HasSuffix(generation, "!"):
			r.Update = &claim.Update{Generation: 5, State: claim.UpdateFailed, Step: "tune", Kind: "Unsupported", Message: `step "tune": no such thing`}
		case strings.Contains(generation, "?"):
			r.Update = &claim.Update{Generation: 5, State: claim.UpdateRetrying, Attempts: int(generation[2] - '0'), Message: "the name is taken"}
		case strings.HasSuffix(generation, "~"):
			r.Update = &claim.Update{Generation: 5, State: claim.UpdateHeldBack, Message: `step "vf2": no device`}
		}
		r.Generation = int64(generation[0] - '0')
		out = append(out, r)
	}
	return out
}

func TestRollout(t *testing.T) {
	failure := &v1alpha1.RolloutFailure{Node: "n1", Step: "tune", Reason: "Unsupported"}
	for _, c := range []struct {
		name   string
		runs   string
		most   any // maxUnavailable; 1 when nil
		before *v1alpha1.RolloutStatus
		found  controller.Outcome
		down   string // nodes that are not ready for a minute, or with "!" for an hour

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
		{name: "then the next one", runs: "n1/a@5 n1/b@5 n2/c@4", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, nodes: "n2", updated: "2/3", generations: "5:2 4:1", reason: "RollingOut"},
		{name: "done", runs: "n1/a@5 n1/b@5 n2/c@5", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n2"}}, updated: "3/3", generations: "5:3", reason: "Complete"},
		{name: "two at a time", runs: "n1/a@4 n2/b@4 n3/c@3", most: 2, nodes: "n1 n2", updated: "0/3", generations: "4:2 3:1", reason: "RollingOut"},
		{name: "a percentage, rounded up", runs: "n1/a@5 n2/b@4 n3/c@4 n4/d@4 n5/e@4", most: "30%", nodes: "n2 n3", updated: "1/5", generations: "5:1 4:4", reason: "RollingOut"},
		{name: "all", runs: "n1/a@4 n2/b@4", most: "100%", nodes: "n1 n2", updated: "0/2", generations: "4:2", reason: "RollingOut"},
		{name: "a node that has begun comes first", runs: "n1/a@4 n2/b@4 n3/c@4", most: 2, before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n3"}}, nodes: "n1 n3", updated: "0/3", generations: "4:3", reason: "RollingOut"},
		{name: "the limit was lowered", runs: "n1/a@4 n2/b@4 n3/c@4", before: &v1alpha1.RolloutStatus{Generation: 4, Nodes: []string{"n2", "n3"}}, nodes: "n2", updated: "0/3", generations: "4:3", reason: "RollingOut"},
		{name: "an edit in the middle", runs: "n1/a@4 n1/b@3 n2/c@3", before: &v1alpha1.RolloutStatus{Generation: 4, Nodes: []string{"n1"}}, nodes: "n1", updated: "0/3", generations: "4:1 3:2", reason: "RollingOut"},
		{name: "an edit after a failure", runs: "n1/a@3 n2/c@3", before: &v1alpha1.RolloutStatus{Generation: 4, Failure: failure}, nodes: "n1", updated: "0/2", generations: "3:2", reason: "RollingOut"},
		{name: "one failure stops nothing", runs: "n1/a@4! n1/b@4 n2/c@4 n3/d@5", nodes: "n1", updated: "1/4", generations: "5:1 4:3", reason: "RollingOut", message: "1 of 4 pods on generation 5, 1 failed; updating on 1 node: n1"},
		{name: "nor do those of one node", runs: "n1/a@4! n1/b@4! m:n1/c@4! n2/d@4", nodes: "n2", updated: "0/4", generations: "4:4", reason: "RollingOut"},
		{name: "nor those of one namespace", runs: "n1/a@4! n2/b@4! n3/c@4! m:n3/d@4", nodes: "n3", updated: "0/4", generations: "4:4", reason: "RollingOut"},
		{name: "nor two", runs: "n1/a@4! m:n2/b@4! n3/c@4", nodes: "n3", updated: "0/3", generations: "4:3", reason: "RollingOut"},
		{name: "nor those of a pod with many claims", runs: "n1/a@4!=p n1/b@4!=p m:n2/c@4! n2/d@4", nodes: "n2", updated: "0/3", generations: "4:3", reason: "RollingOut"},
		{name: "failures everywhere stop all", runs: "n1/a@4! m:n2/b@4! n3/c@5 n4/d@4!", most: 3, before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1", "n2"}}, updated: "1/4", generations: "5:1 4:3", reason: "Failed", message: `1 of 4 pods on generation 5, 3 failed; stopped until the next edit, and pods keep what they have: it failed on node "n1" in step "tune" (Unsupported)`, failure: true},
		{name: "all of fewer pods failed", runs: "n1/a@4!", updated: "0/1", generations: "4:1", reason: "Failed", failure: true},
		{name: "failed in some, and done", runs: "n1/a@4! n2/b@5", updated: "1/2", generations: "5:1 4:1", reason: "Failed", message: "1 of 2 pods on generation 5, 1 failed; pods in which the update failed keep what they have"},
		{name: "what is tried again stops nothing", runs: "n1/a@4?1 n2/b@4?1 m:n3/c@4?1 n4/d@4", nodes: "n4", updated: "0/4", generations: "4:4", reason: "RollingOut", message: "3 to be tried again; updating on 1 node: n4"},
		{name: "and is tried again in the end", runs: "n1/a@4?2 n2/b@4?1 n3/c@4?2 n4/d@5", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, nodes: "n2", updated: "1/4", generations: "5:1 4:3", reason: "Retrying", message: "trying again on 1 node: n2"},
		{name: "retries, the fewest attempts first", runs: "n1/a@4?2 n2/b@4?2 n3/c@4?2", most: 2, nodes: "n1 n2", updated: "0/3", generations: "4:3", reason: "Retrying"},
		{name: "also when its pod has gone", runs: "n2/b@4", before: &v1alpha1.RolloutStatus{Generation: 5, Failure: failure}, updated: "0/1", generations: "4:1", reason: "Failed", failure: true},
		{name: "held back", runs: "n1/a@4~ n2/b@5", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, updated: "1/2", generations: "5:1 4:1", reason: "HeldBack", message: "1 of 2 pods on generation 5, 1 to be recreated"},
		{name: "held back holds nobody else back", runs: "n1/a@4~ n1/b@4 n2/c@4", nodes: "n1", updated: "0/3", generations: "4:3", reason: "RollingOut"},
		{name: "a node that is gone with its claims", runs: "n2/c@4", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, nodes: "n2", updated: "0/1", generations: "4:1", reason: "RollingOut"},
		{name: "a claim without a report", runs: "n1/a@0 n2/b@5", updated: "1/1", generations: "5:1", reason: "Complete"},
		{name: "a pod with two claims", runs: "n1/a@5=p n1/b@4=p n2/c@5", nodes: "n1", updated: "1/2", generations: "5:1 4:1", reason: "RollingOut"},
		{name: "a node that is not ready", runs: "n1/a@4 n2/b@4 n3/c@4", down: "n1", nodes: "n2", updated: "0/3", generations: "4:3", reason: "RollingOut", message: "updating on 1 node: n2; waiting until this node is ready: n1"},
		{name: "also behind the limit", runs: "n1/a@4 n2/b@4 n3/c@4", down: "n1", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n2"}}, nodes: "n2", updated: "0/3", generations: "4:3", reason: "RollingOut", message: "updating on 1 node: n2; waiting until this node is ready: n1"},
		{name: "one that became so after it began", runs: "n1/a@4 n1/b@5 n2/c@4", down: "n1", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, nodes: "n1", updated: "1/3", generations: "5:1 4:2", reason: "RollingOut"},
		{name: "and stays so", runs: "n1/a@4 n1/b@5 n2/c@4", down: "n1!", before: &v1alpha1.RolloutStatus{Generation: 5, Nodes: []string{"n1"}}, nodes: "n2", updated: "1/3", generations: "5:1 4:2", reason: "RollingOut"},
		{name: "an edit after it became so", runs: "n1/a@3 n1/b@4 n2/c@3", down: "n1", before: &v1alpha1.RolloutStatus{Generation: 4, Nodes: []string{"n1"}}, nodes: "n2", updated: "0/3", generations: "4:1 3:2", reason: "RollingOut"},
		{name: "it is ready again", runs: "n1/a@4 n1/b@5 n2/c@5", before: &v1alpha1.RolloutStatus{Generation: 5}, nodes: "n1", updated: "2/3", generations: "5:2 4:1", reason: "RollingOut"},
		{name: "no node is ready", runs: "n1/a@4 n2/b@4 n3/c@5", down: "n1 n2", updated: "1/3", generations: "5:1 4:2", reason: "RollingOut", message: "waiting until these nodes are ready: n1, n2"},
		{name: "nor retried on one", runs: "n1/a@4?1 n2/b@4?2 n3/c@5", down: "n1", nodes: "n2", updated: "1/3", generations: "5:1 4:2", reason: "Retrying"},
		{name: "not valid", runs: "n1/a@4", found: controller.Outcome{Invalid: errors.New("no")}, updated: "0/1", generations: "4:1", reason: "Invalid", message: "pods keep what they have"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "t", Generation: 5}}
			o.Spec.UpdatePolicy = v1alpha1.InPlace
			o.Spec.Steps = []v1alpha1.Step{{Name: "tune"}}
			switch most := c.most.(type) {
			case int:
				o.Spec.Rollout = &v1alpha1.Rollout{MaxUnavailable: new(intstr.FromInt(most))}
			case string:
				o.Spec.Rollout = &v1alpha1.Rollout{MaxUnavailable: new(intstr.FromString(most))}
			}
			o.Status.Rollout = c.before
			c.found.Use.Runs = runs(t, c.runs)
			c.found.NotReady = func(node string) time.Duration {
				switch down := strings.Fields(c.down); {
				case slices.Contains(down, node):
					return time.Minute
				case slices.Contains(down, node+"!"):
					return time.Hour
				default:
					return 0
				}
			}
			s := controller.StatusOf(o, c.found)
			r := s.Rollout
			if r == nil || r.Generation != 5 || strings.Join(r.Nodes, " ") != c.nodes || (r.Failure != nil) != c.failure {
				t.Errorf("rollout %+v, want nodes %q, failure %t", r, c.nodes, c.failure)
			}
			if c.failure && *r.Failure != *failure {
				t.Errorf("failure %+v", r.Failure)
			}
			for _, secret := range []string{"p-a", `"ns"`, "taken", "no such thing"} { // of a tenant
				for _, cond := range s.Conditions {
					if strings.Contains(cond.Message, secret) {
						t.Errorf("the topology reports %s: %s", secret, cond.Message)
					}
				}
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

// TestForeignText holds that a topology's status contains no text that somebody
// has written into a claim.
func TestForeignText(t *testing.T) {
	o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "t", Generation: 5}}
	o.Spec.UpdatePolicy = v1alpha1.InPlace
	of := runs(t, "n1/a@4!")
	of[0].Update.Step, of[0].Update.Kind = "see my pod", "call me"
	s := controller.StatusOf(o, controller.Outcome{Use: controller.Use{Runs: of}})
	if f := s.Rollout.Failure; f == nil || *f != (v1alpha1.RolloutFailure{Node: "n1"}) {
		t.Errorf("failure %+v", f)
	}
}

// TestImmutable holds that pods are counted, and that nobody updates them.
func TestImmutable(t *testing.T) {
	o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "t", Generation: 5}}
	o.Spec.UpdatePolicy = v1alpha1.Immutable
	o.Status.Rollout = &v1alpha1.RolloutStatus{Generation: 4, Nodes: []string{"n1"}}
	o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionUpdated, Status: metav1.ConditionFalse, Reason: "RollingOut"}}
	s := controller.StatusOf(o, controller.Outcome{Use: controller.Use{Runs: runs(t, "n1/a@4 n2/b@5")}})
	if s.Rollout != nil || meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionUpdated) != nil || s.PodsByGeneration != "5:1 4:1" || s.Updated != "1/2" {
		t.Errorf("status %+v", s)
	}
}
