package qos_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
)

// TestPodNetwork holds which objects cover the primary network of a pod that a topology makes, and which a topology of a claim.
func TestPodNetwork(t *testing.T) {
	labels := map[string]string{"rail": "blue"}
	primary := qos.PodNetwork("pods", labels)
	claimed := primary
	claimed.Name, claimed.Primary = "rail", false
	for _, tt := range []struct {
		networks         string
		primary, claimed bool
		counts           bool // of the share of a namespace where agents make the primary network
	}{
		{"", true, false, true},
		{", networkSelectors: [{networkSelectionType: DefaultNetwork}]", true, false, true},
		{", networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: blue}}}}]", true, true, true},
		{", networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: red}}}}]", false, false, true},
		{", netAttachRefs: [{kind: NetworkTopology, name: pods}]", true, false, true},
		{", networkSelectors: [{networkSelectionType: PrimaryUserDefinedNetworks, primaryUserDefinedNetworkSelector: {}}]", false, false, true},
		{", networkSelectors: [{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {}}]", false, false, true},
	} {
		objects, err := qostest.Objects(fmt.Appendf(nil, "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: q}\nspec: {priority: 1, egress: [{dscp: 1}]%s}", tt.networks))
		if err != nil {
			t.Fatal(err)
		}
		p := qos.New(objects[0])
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		c := qos.NewCompiler()
		key := types.NamespacedName{Namespace: "ns", Name: "p"}
		c.SetPolicy(p)
		c.SetPod(&qos.Pod{Key: key, Attachments: []qos.Attachment{{Network: primary}, {Network: claimed}}})
		rules := c.Rules(key)
		if have := [2]bool{len(rules[0]) > 0, len(rules[1]) > 0}; have != [2]bool{tt.primary, tt.claimed} || p.Covers(primary) != tt.primary {
			t.Errorf("%q covers the primary network and that of a claim: %t, want %t, %t", tt.networks, have, tt.primary, tt.claimed)
		}
		if p.Selects(true) != tt.counts || p.Selects(false) != p.SelectsTopologies() {
			t.Errorf("%q counts with a primary network of ours: %t, without %t", tt.networks, p.Selects(true), p.Selects(false))
		}
	}
}
