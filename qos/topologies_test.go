package qos_test

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/qos"
)

// TestOnTopologies holds which objects are about NetworkTopologies, and that one with pods as
// a destination is refused there as a whole.
func TestOnTopologies(t *testing.T) {
	const head = "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ai, name: q}\nspec: {priority: 1, "
	for spec, want := range map[string]struct {
		selects bool
		reason  string
	}{
		"egress: [{dscp: 1}]}": {},
		"egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: DefaultNetwork}]}":                                                                                    {},
		"egress: [{dscp: 1}], netAttachRefs: [{kind: NetworkTopology, name: rail}]}":                                                                                          {selects: true},
		"egress: [{dscp: 1}, {dscp: 2, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8}}, {podSelector: {}}]}}], netAttachRefs: [{kind: NetworkTopology, name: rail}]}":         {true, "spec.egress[1].classifier.to[1]: pods are not supported as a destination on NetworkTopologies: give their addresses as ipBlock"},
		"egress: [{dscp: 1, classifier: {to: [{podSelector: {}}, {namespaceSelector: {}}]}}], netAttachRefs: [{kind: NetworkTopology, name: rail}]}":                          {true, "spec.egress[0].classifier.to[0]: pods are not supported as a destination on NetworkTopologies: give their addresses as ipBlock (and more)"},
		"egress: [{dscp: 99, classifier: {to: [{podSelector: {}}]}}], netAttachRefs: [{kind: NetworkTopology, name: rail}]}":                                                  {true, "spec.egress[0].dscp: is 99, and must be 0 to 63"},
		"egress: [{dscp: 1, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8}}]}}], networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {}}]}": {selects: true},
	} {
		objects, _, err := qos.Decode([]byte(head + spec))
		if err != nil {
			t.Fatal(err)
		}
		p := qos.New(objects[0])
		rules := len(p.Rules)
		on := p.OnTopologies()
		if p.SelectsTopologies() != want.selects || on.Reason() != want.reason || want.reason != "" && len(on.Rules) > 0 || len(p.Rules) != rules {
			t.Errorf("%s:\nselects topologies %t, %d rules, reason %q\nwant %t, %q", strings.TrimSpace(spec), p.SelectsTopologies(), len(on.Rules), on.Reason(), want.selects, want.reason)
		}
	}
}
