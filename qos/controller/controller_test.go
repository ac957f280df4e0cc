package controller_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/controller"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestQoSConditions holds which objects get conditions, and what they say where a namespace
// has too many or the kind belongs to others, too.
func TestQoSConditions(t *testing.T) {
	var policies []*qos.Policy
	for _, spec := range []string{
		"priority: 1, egress: [{dscp: 1}], netAttachRefs: [{kind: NetworkTopology, name: rail}]",
		"priority: 1, egress: [{dscp: 2}], netAttachRefs: [{kind: NetworkTopology, name: rail}]",
		"priority: 1, egress: [{dscp: 1}]",
		"priority: 1, egress: [{dscp: 99}], netAttachRefs: [{kind: NetworkTopology, name: rail}]",
	} {
		objects, err := qostest.Objects(fmt.Appendf(nil, "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: o%d}\nspec: {%s}", len(policies), spec))
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, qos.New(objects[0]))
	}
	topologies := []v1alpha1.NetworkTopology{{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: v1alpha1.NetworkTopologySpec{Role: v1alpha1.Primary}}}
	for _, c := range []struct {
		ours, room bool
		podNetwork bool
		want       string
	}{
		{true, true, false, "o2 NoTopology NoTie, o3 Invalid NoTie, o0 Accepted SamePrecedence, o1 Accepted SamePrecedence, "},
		{false, true, false, "o3 Invalid NoTie, o0 Accepted SamePrecedence, o1 Accepted SamePrecedence, "},
		{true, true, true, "o3 Invalid NoTie, o0 Accepted SamePrecedence, o1 Accepted SamePrecedence, o2 Accepted SamePrecedence, "},
		{true, false, true, "o0 TooManyObjects NoTie, o1 TooManyObjects NoTie, o2 TooManyObjects NoTie, o3 Invalid NoTie, "},
		{true, false, false, "o0 TooManyObjects NoTie, o1 TooManyObjects NoTie, o2 NoTopology NoTie, o3 Invalid NoTie, "},
	} {
		var out []controller.Outcome
		var enforced []*qos.Policy
		for _, p := range policies {
			if c.room && p.Err == nil && p.Selects(c.podNetwork) {
				enforced = append(enforced, p)
			} else if o, is := controller.Without(p, c.ours, c.podNetwork); is {
				out = append(out, o)
			}
		}
		have := ""
		for _, o := range append(out, controller.Conditions(enforced, func(*qos.Policy) (d controller.Decision) { return d }, topologies, nil, c.podNetwork, nil)...) {
			have += fmt.Sprintf("%s %s %s, ", o.Policy.Key.Name, o.Conditions[0].Reason, o.Conditions[1].Reason)
		}
		if have != c.want {
			t.Errorf("ours %t, room %t:\n%s\nwant\n%s", c.ours, c.room, have, c.want)
		}
	}
}

// counted are the contracts of no types. It counts how often they are asked for.
type counted struct{ asked int }

func (c *counted) Contract(string) (contract.Contract, bool) {
	c.asked++
	return contract.Contract{}, false
}
func (*counted) Types() []string { return nil }

// TestTopologiesAreReadOnce: however many objects a namespace has, each topology is read once for all of them.
func TestTopologiesAreReadOnce(t *testing.T) {
	objects, err := qostest.Objects([]byte("apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: o}\nspec: {priority: 1, egress: [{dscp: 1}], netAttachRefs: [{kind: NetworkAttachmentDefinition, name: a}, {kind: NetworkTopology, name: rail}]}"))
	if err != nil {
		t.Fatal(err)
	}
	topologies := []v1alpha1.NetworkTopology{{ObjectMeta: metav1.ObjectMeta{Name: "rail"}, Spec: v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{{Name: "a", Type: "dummy"}}}}}
	asked := func(n int) int {
		var set counted
		controller.Conditions(slices.Repeat([]*qos.Policy{qos.New(objects[0])}, n), func(*qos.Policy) (d controller.Decision) { return d }, topologies, &set, false, nil)
		return set.asked
	}
	if one, many := asked(1), asked(100); one == 0 || many != one {
		t.Errorf("contracts are asked for %d times for one object, and %d times for a hundred", one, many)
	}
}
