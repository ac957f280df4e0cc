package qos_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
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
			objects, err := qostest.Objects([]byte("apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: " + name + "}\nspec: {" + spec + "}"))
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

// networksOf are parts of objects that select networks, with those that the controller has found by labels, and an oracle for each: what
// the page on NetworkQoS says that it covers.
var networksOf = []struct {
	spec   string
	found  []string
	covers func(name, label, definition string, primary bool) bool
}{
	{"", nil, func(_, _, _ string, primary bool) bool { return primary }},
	{"networkSelectors: [{networkSelectionType: DefaultNetwork}]", nil, func(_, _, _ string, primary bool) bool { return primary }},
	{"netAttachRefs: [{kind: NetworkTopology, name: rail}]", nil, func(name, _, _ string, _ bool) bool { return name == "rail" }},
	{"netAttachRefs: [{kind: NetworkTopology, name: other}]", nil, func(name, _, _ string, _ bool) bool { return name == "other" }},
	{"networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {}}]", nil, func(_, _, _ string, _ bool) bool { return true }},
	{"networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: a}}}}]", nil, func(_, label, _ string, _ bool) bool { return label == "a" }},
	{"networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: b}}}}]", nil, func(_, label, _ string, _ bool) bool { return label == "b" }},
	{"netAttachRefs: [{kind: NetworkAttachmentDefinition, name: x}]", nil, func(_, _, definition string, _ bool) bool { return definition == "ns/x" }},
	{"netAttachRefs: [{kind: NetworkAttachmentDefinition, name: x, namespace: far}]", nil, func(_, _, definition string, _ bool) bool { return definition == "far/x" }},
	{"netAttachRefs: [{kind: UserDefinedNetwork, name: x}]", nil, func(_, _, definition string, _ bool) bool { return definition == "ns/x" }},
	{"netAttachRefs: [{kind: ClusterUserDefinedNetwork, name: x}]", nil, func(_, _, definition string, _ bool) bool { return definition == "ns/x" }},
	{"netAttachRefs: [{kind: NetworkAttachmentDefinition, name: z}, {kind: NetworkTopology, name: rail}]", nil, func(name, _, definition string, _ bool) bool { return definition == "ns/z" || name == "rail" }},
	{selectedByLabels, []string{"ns/x", "ns/z"}, func(_, _, definition string, _ bool) bool { return definition == "ns/x" || definition == "ns/z" }},
	{selectedByLabels, []string{"far/x"}, func(_, _, definition string, _ bool) bool { return definition == "far/x" }},
	{selectedByLabels, nil, func(_, _, _ string, _ bool) bool { return false }},
	{strings.Replace(selectedByLabels, "[{", "[{networkSelectionType: DefaultNetwork}, {", 1), []string{"ns/x"}, func(_, _, definition string, primary bool) bool { return primary || definition == "ns/x" }},
}

const selectedByLabels = "networkSelectors: [{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {namespaceSelector: {}, networkSelector: {matchLabels: {team: a}}}}]"

// TestPossibleTiesOfNetworks holds, of any two ways to select networks, that two objects are said to tie if and only if there may be a
// network that both cover: each topology is tried, with every name, label, role and NetworkAttachmentDefinition.
func TestPossibleTiesOfNetworks(t *testing.T) {
	policy := func(name string, i int) *qos.Policy {
		objects, err := qostest.Objects([]byte("apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: " + name + "}\nspec:\n  priority: 1\n  egress: [{dscp: 1}]\n  " + networksOf[i].spec))
		if err != nil {
			t.Fatal(err)
		}
		p := qos.New(objects[0])
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		return p.WithNetworks(networksOf[i].found)
	}
	every := func(visit func(name, label, definition string, primary bool)) {
		for _, name := range []string{"rail", "other", "third"} {
			for _, label := range []string{"", "a", "b"} {
				for _, definition := range []string{"", "ns/x", "ns/z", "far/x"} {
					visit(name, label, definition, true)
					visit(name, label, definition, false)
				}
			}
		}
	}
	for i, a := range networksOf {
		p := policy("a", i)
		every(func(name, label, definition string, primary bool) {
			n := qos.PodNetwork(name, qos.TopologyLabels(&metav1.ObjectMeta{
				Labels: map[string]string{"rail": label}, Annotations: map[string]string{v1alpha1.AnnotationDefinition: definition},
			}))
			n.Primary = primary
			if have, want := p.Covers(n), a.covers(name, label, definition, primary); have != want {
				t.Errorf("%s: covers topology %q, label %q, definition %q, primary %t: %t, want %t", a.spec, name, label, definition, primary, have, want)
			}
		})
		for j, b := range networksOf {
			want := false
			every(func(name, label, definition string, primary bool) {
				want = want || a.covers(name, label, definition, primary) && b.covers(name, label, definition, primary)
			})
			ties, complete := qos.PossibleTies([]*qos.Policy{p, policy("b", j)})
			if have := len(ties) > 0; have != want || !complete {
				t.Errorf("%s %q\n%s %q\nties %t, complete %t, want %t", a.spec, a.found, b.spec, b.found, have, complete, want)
			}
		}
	}
}
