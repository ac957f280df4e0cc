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
		ours, more bool
		want       string
	}{
		{true, false, "o0 Accepted SamePrecedence, o1 Accepted SamePrecedence, o2 NoTopology NoTie, o3 Invalid NoTie, "},
		{false, false, "o0 Accepted SamePrecedence, o1 Accepted SamePrecedence, o3 Invalid NoTie, "},
		{true, true, "o0 TooManyObjects NoTie, o1 TooManyObjects NoTie, o2 TooManyObjects NoTie, o3 Invalid NoTie, "},
	} {
		have := ""
		for _, o := range controller.QoSConditions(policies, nil, c.ours, c.more) {
			have += fmt.Sprintf("%s %s %s, ", o.Policy.Key.Name, o.Conditions[0].Reason, o.Conditions[1].Reason)
		}
		if have != c.want {
			t.Errorf("ours %t, more %t:\n%s\nwant\n%s", c.ours, c.more, have, c.want)
		}
	}
}
