package qos_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// byLabels reads an object of namespace ai with these networkSelectors.
func byLabels(t *testing.T, selectors string) *qos.Policy {
	t.Helper()
	objects, err := qostest.Objects(fmt.Appendf(nil, "{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ai, name: q, uid: q}, spec: {priority: 1, egress: [{dscp: 1}], networkSelectors: [%s]}}", selectors))
	if err != nil {
		t.Fatal(err)
	}
	p := qos.New(objects[0])
	if p.Err != nil {
		t.Fatal(p.Err)
	}
	return p
}

// TestSelectedDefinitions holds which networks an object selects by the labels of objects of others, and that a topology on one of these is
// covered, and no other one.
func TestSelectedDefinitions(t *testing.T) {
	var d qos.Definitions
	id := func(kind qos.NetworkKind, namespace, name string) qos.NetworkID {
		return qos.NetworkID{Kind: kind, Namespace: namespace, Name: name}
	}
	blue := map[string]string{"net": "blue"}
	cluster := id(qos.ClusterUserDefinedNetwork, "", "tenant")
	for _, o := range []*qos.Definition{
		{NetworkID: id(qos.NetworkAttachmentDefinition, "ai", "one"), Labels: blue},
		{NetworkID: id(qos.NetworkAttachmentDefinition, "other", "two"), Labels: blue},
		{NetworkID: id(qos.NetworkAttachmentDefinition, "ai", "red"), Labels: map[string]string{"net": "red"}},
		{NetworkID: id(qos.UserDefinedNetwork, "ai", "second"), Labels: blue, Primary: new(false)},
		{NetworkID: id(qos.UserDefinedNetwork, "ai", "first"), Labels: blue, Primary: new(true)},
		{NetworkID: id(qos.UserDefinedNetwork, "ai", "unknown"), Labels: blue},
		{NetworkID: cluster, Labels: blue},
		{NetworkID: id(qos.NetworkAttachmentDefinition, "ai", "made-for-tenant"), Owner: cluster},
		{NetworkID: id(qos.NetworkAttachmentDefinition, "other", "made-for-tenant"), Owner: cluster},
	} {
		d.Set(o)
	}
	namespaces := map[string]map[string]string{"ai": {"team": "ai"}, "other": {"team": "other"}}
	topologies := map[string]bool{}
	selected := func(p *qos.Policy, before ...string) ([]string, bool) {
		s := d.Selected(p, func(name string) map[string]string { return namespaces[name] }, func(name string) bool { return topologies[name] }, before)
		return s.Names, s.TooMany
	}
	const labels = "networkSelector: {matchLabels: {net: blue}}"
	for selectors, want := range map[string]string{
		"{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {" + labels + "}}":                                                                                                                                                  "ai/one other/two",
		"{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {namespaceSelector: {matchLabels: {team: ai}}, " + labels + "}}":                                                                                                    "ai/one",
		"{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {namespaceSelector: {matchLabels: {team: none}}, " + labels + "}}":                                                                                                  "",
		"{networkSelectionType: SecondaryUserDefinedNetworks, secondaryUserDefinedNetworkSelector: {namespaceSelector: {}, " + labels + "}}":                                                                                                                           "ai/second",
		"{networkSelectionType: PrimaryUserDefinedNetworks, primaryUserDefinedNetworkSelector: {namespaceSelector: {}}}":                                                                                                                                               "ai/first",
		"{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {" + labels + "}}":                                                                                                                                                      "ai/made-for-tenant ai/tenant",
		"{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {" + labels + "}}, {networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {networkSelector: {matchLabels: {net: red}}}}":             "ai/made-for-tenant ai/red ai/tenant",
		"{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {networkSelector: {matchLabels: {net: green}}}}, {networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}}": "",
	} {
		p := byLabels(t, selectors)
		names, tooMany := selected(p)
		if have := strings.Join(names, " "); have != want || tooMany || !p.ByLabels() || !p.Written() || !p.SelectsTopologies() {
			t.Errorf("%s\nselects %q (too many: %t), want %q", selectors, have, tooMany, want)
		}
		known := p.WithNetworks(names)
		if known.ByLabels() {
			t.Errorf("%s: not resolved", selectors)
		}
		for _, name := range []string{"ai/one", "ai/red", "ai/tenant", "other/two", ""} {
			on := map[string]string{v1alpha1.AnnotationDefinition: name}
			if covers, want := known.SelectsTopology("rail", on), name != "" && strings.Contains(" "+want+" ", " "+name+" "); covers != want {
				t.Errorf("%s: covers a topology on %q: %t", selectors, name, covers)
			}
		}
		if known.Covers(qos.PodNetwork("pods", nil)) || p.WithNetworks(nil).Covers(qos.PodNetwork("pods", nil)) {
			t.Errorf("%s: covers the primary network", selectors)
		}
	}
	all := byLabels(t, "{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {}}")
	for i := range v1alpha1.MaxQoSNetworks {
		d.Set(&qos.Definition{NetworkID: id(qos.NetworkAttachmentDefinition, "ai", fmt.Sprint("n-", i))})
	}
	// Of more than 256, which tenants may add, those come first that topologies are on: the others have no effect.
	topologies["ai/red"], topologies["ai/another"] = true, true
	const red, former = "ai/red", "ai/one"
	for _, before := range [][]string{nil, {former, "ai/gone"}} {
		want := slices.DeleteFunc([]string{former, red}, func(name string) bool { return name == former && before == nil })
		if names, tooMany := selected(all, before...); !slices.Equal(names, want) || tooMany {
			t.Errorf("of more networks than an object may select, after %q: %q (too many: %t), want %q", before, names, tooMany, want)
		}
	}
	var full []string
	for i := range v1alpha1.MaxQoSNetworks {
		full = append(full, fmt.Sprint("ai/n-", i))
	}
	if names, tooMany := selected(all, full...); len(names) != v1alpha1.MaxQoSNetworks || !slices.Contains(names, red) || tooMany {
		t.Errorf("those that were selected before take the place of a topology's: %d (too many: %t)", len(names), tooMany)
	}
	for _, name := range full {
		topologies[name] = true
	}
	if names, tooMany := selected(all); len(names) > 0 || !tooMany {
		t.Errorf("of more networks of topologies than an object may select, %d (too many: %t)", len(names), tooMany)
	}
	for i := range v1alpha1.MaxQoSNetworks {
		d.Delete(id(qos.NetworkAttachmentDefinition, "ai", fmt.Sprint("n-", i)))
	}
	d.Delete(cluster)
	if names, _ := selected(all); strings.Join(names, " ") != "ai/made-for-tenant ai/one ai/red other/made-for-tenant other/two" {
		t.Errorf("after the others are gone: %q", names)
	}
}
