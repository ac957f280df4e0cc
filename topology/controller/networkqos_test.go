package controller_test

import (
	"fmt"
	"testing"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/topology/controller"
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
		objects, _, err := qos.Decode(fmt.Appendf(nil, "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: o%d}\nspec: {%s}", len(policies), spec))
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, qos.New(objects[0]))
	}
	for _, c := range []struct {
		ours, room bool
		want       string
	}{
		{true, true, "o2 NoTopology NoTie, o3 Invalid NoTie, o0 Accepted SamePrecedence, o1 Accepted SamePrecedence, "},
		{false, true, "o3 Invalid NoTie, o0 Accepted SamePrecedence, o1 Accepted SamePrecedence, "},
		{true, false, "o0 TooManyObjects NoTie, o1 TooManyObjects NoTie, o2 NoTopology NoTie, o3 Invalid NoTie, "},
	} {
		var out []controller.QoSOutcome
		var enforced []*qos.Policy
		for _, p := range policies {
			if c.room && p.Err == nil && p.SelectsTopologies() {
				enforced = append(enforced, p)
			} else if o, is := controller.QoSWithout(p, c.ours); is {
				out = append(out, o)
			}
		}
		have := ""
		for _, o := range append(out, controller.QoSConditions(enforced, func(*qos.Policy) bool { return false }, nil, nil)...) {
			have += fmt.Sprintf("%s %s %s, ", o.Policy.Key.Name, o.Conditions[0].Reason, o.Conditions[1].Reason)
		}
		if have != c.want {
			t.Errorf("ours %t, room %t:\n%s\nwant\n%s", c.ours, c.room, have, c.want)
		}
	}
}
