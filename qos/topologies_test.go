package qos_test

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
)

// TestSelectsTopologies holds which objects are about NetworkTopologies, and which have pods as a
// destination.
func TestSelectsTopologies(t *testing.T) {
	const head = "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ai, name: q}\nspec: {priority: 1, "
	for spec, want := range map[string]struct {
		selects bool
		pods    bool
		reason  string
	}{
		"egress: [{dscp: 1}]}": {},
		"egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: DefaultNetwork}]}":                                                                                    {},
		"egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {}}]}":                             {selects: true},
		"egress: [{dscp: 1}], netAttachRefs: [{kind: NetworkTopology, name: rail}]}":                                                                                          {selects: true},
		"egress: [{dscp: 1}, {dscp: 2, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8}}, {podSelector: {}}]}}], netAttachRefs: [{kind: NetworkTopology, name: rail}]}":         {selects: true, pods: true},
		"egress: [{dscp: 1, classifier: {to: [{podSelector: {}}, {namespaceSelector: {}}]}}], netAttachRefs: [{kind: NetworkTopology, name: rail}]}":                          {selects: true, pods: true},
		"egress: [{dscp: 99, classifier: {to: [{podSelector: {}}]}}], netAttachRefs: [{kind: NetworkTopology, name: rail}]}":                                                  {true, false, "spec.egress[0].dscp: is 99, and must be 0 to 63"},
		"egress: [{dscp: 1, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8}}]}}], networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {}}]}": {selects: true},
	} {
		objects, err := qostest.Objects([]byte(head + spec))
		if err != nil {
			t.Fatal(err)
		}
		p := qos.New(objects[0])
		if p.SelectsTopologies() != want.selects || p.ToPods() != want.pods || p.Reason() != want.reason {
			t.Errorf("%s:\nselects topologies %t, pods as a destination %t, reason %q\nwant %+v", strings.TrimSpace(spec), p.SelectsTopologies(), p.ToPods(), p.Reason(), want)
		}
	}
}
