package qos_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/qos"
)

// TestPossibleTies holds which objects are said to tie without any pod being known.
func TestPossibleTies(t *testing.T) {
	const on = "netAttachRefs: [{kind: NetworkTopology, name: rail}]"
	for _, c := range []struct{ name, a, b, want string }{
		{"the same packets", "priority: 1, egress: [{dscp: 1}], " + on, "priority: 1, egress: [{dscp: 2}], " + on, "a[0]>b a<b[0]"},
		{"other priorities", "priority: 1, egress: [{dscp: 1}], " + on, "priority: 2, egress: [{dscp: 2}], " + on, ""},
		{"other places", "priority: 1, egress: [{dscp: 1}], " + on, "priority: 1, egress: [{dscp: 2, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{protocol: TCP}]}}, {dscp: 2}], " + on, "a[0]>b a<b[0]"},
		{"other destinations", "priority: 1, egress: [{dscp: 1, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8}}]}}], " + on, "priority: 1, egress: [{dscp: 2, classifier: {to: [{ipBlock: {cidr: 192.0.2.0/24}}]}}], " + on, ""},
		{"other ports", "priority: 1, egress: [{dscp: 1, classifier: {ports: [{protocol: TCP}]}}], " + on, "priority: 1, egress: [{dscp: 2, classifier: {ports: [{protocol: UDP}]}}], " + on, ""},
		{"pods that exclude one another", "priority: 1, egress: [{dscp: 1}], podSelector: {matchLabels: {x: \"1\"}}, " + on, "priority: 1, egress: [{dscp: 2}], podSelector: {matchExpressions: [{key: x, operator: In, values: [\"2\", \"3\"]}]}, " + on, ""},
		{"pods that may have both labels", "priority: 1, egress: [{dscp: 1}], podSelector: {matchLabels: {x: \"1\"}}, " + on, "priority: 1, egress: [{dscp: 2}], podSelector: {matchLabels: {y: \"1\"}}, " + on, "a[0]>b a<b[0]"},
		{"other topologies", "priority: 1, egress: [{dscp: 1}], " + on, "priority: 1, egress: [{dscp: 2}], netAttachRefs: [{kind: NetworkTopology, name: other}]", ""},
		{"by name and by label", "priority: 1, egress: [{dscp: 1}], " + on, "priority: 1, egress: [{dscp: 2}], networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {}}]", "a[0]>b a<b[0]"},
		{"a topology that may be the primary network", "priority: 1, egress: [{dscp: 1}], " + on, "priority: 1, egress: [{dscp: 2}]", "a[0]>b a<b[0]"},
		{"a topology that may be the default network", "priority: 1, egress: [{dscp: 1}], " + on, "priority: 1, egress: [{dscp: 2}], networkSelectors: [{networkSelectionType: DefaultNetwork}]", "a[0]>b a<b[0]"},
		{"networks of another kind", "priority: 1, egress: [{dscp: 1}], " + on, "priority: 1, egress: [{dscp: 2}], networkSelectors: [{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {}}]", ""},
	} {
		var policies []*qos.Policy
		for name, spec := range map[string]string{"a": c.a, "b": c.b} {
			objects, _, err := qos.Decode([]byte("apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: " + name + "}\nspec: {" + spec + "}"))
			if err != nil {
				t.Fatal(err)
			}
			p := qos.New(objects[0])
			if p.Err != nil {
				t.Fatal(p.Err)
			}
			policies = append(policies, p)
		}
		ties, complete := qos.PossibleTies(policies)
		var have []string
		for key, of := range ties {
			for _, tie := range of {
				if tie.Wins {
					have = append(have, fmt.Sprintf("%s[%d]>%s", key.Name, tie.Rule, tie.Other.Name))
				} else {
					have = append(have, fmt.Sprintf("%s<%s[%d]", tie.Other.Name, key.Name, tie.Rule))
				}
			}
		}
		slices.Sort(have)
		slices.Reverse(have)
		want := strings.Fields(c.want)
		slices.Sort(want)
		slices.Reverse(want)
		if !slices.Equal(have, want) || !complete {
			t.Errorf("%s: %q, complete %t, want %q", c.name, have, complete, want)
		}
	}
}
