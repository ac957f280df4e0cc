package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func nodeWith(status corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"a": "b"}}, Spec: corev1.NodeSpec{PodCIDR: "192.0.2.0/24"}}
	if status != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: status}}
	}
	return n
}

// TestReadiness: a rollout is decided again when a node has become ready, or no longer is.
func TestReadiness(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	for _, c := range []struct {
		from, to corev1.ConditionStatus
		want     bool
	}{{yes, yes, false}, {yes, no, true}, {yes, unknown, true}, {no, unknown, false}, {unknown, yes, true}, {"", yes, false}, {"", no, true}} {
		kept, err := stripNode(nodeWith(c.to))
		if err != nil {
			t.Fatal(err)
		}
		if n := kept.(*corev1.Node); n.Name != "n1" || len(n.Labels) > 0 || n.Spec.PodCIDR != "" || len(n.Status.Conditions) > 1 {
			t.Errorf("kept of a node: %+v", n)
		}
		if got := readiness.Update(event.UpdateEvent{ObjectOld: nodeWith(c.from), ObjectNew: kept.(client.Object)}); got != c.want {
			t.Errorf("from %q to %q: %t", c.from, c.to, got)
		}
	}
}

func TestRollingSince(t *testing.T) {
	now := time.Unix(1e9, 0)
	o := &v1alpha1.NetworkTopology{}
	if d := rollingSince(o, now); d != 0 {
		t.Errorf("without a condition: %s", d)
	}
	c := metav1.Condition{Type: v1alpha1.ConditionUpdated, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}
	o.Status.Conditions = []metav1.Condition{c}
	if d := rollingSince(o, now); d != time.Minute {
		t.Errorf("during a rollout: %s", d)
	}
	o.Status.Conditions[0].Status = metav1.ConditionTrue
	if d := rollingSince(o, now); d != 0 {
		t.Errorf("after a rollout: %s", d)
	}
}
