package filters

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/controller"
	"github.com/plumbline/plumbline/qos/enforce"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestConditionsAreTrue holds that the condition Accepted of an object is true if and only if a node enforces it: for each reason
// that the controller gives, the agent of a node with a pod that the object's selectors cover has filters of it, or has none; and
// so does `plumbline plan` of the topology.
func TestConditionsAreTrue(t *testing.T) {
	contracts, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const (
		onRail   = "networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: {matchLabels: {rail: storage}}}}]"
		byLabels = "networkSelectors: [{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {}}]"
		onPods   = "netAttachRefs: [{kind: NetworkTopology, name: pods}]"
	)
	topologies := []v1alpha1.NetworkTopology{
		{ObjectMeta: metav1.ObjectMeta{Name: "rail", Labels: map[string]string{"rail": "storage"}}, Spec: v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{
			{Name: "d", Type: "dummy"},
			{Name: "net", Type: "ovn-k8s-cni-overlay", Config: &runtime.RawExtension{Raw: []byte(`{"topology": "layer2", "netAttachDefName": "ns/blue", "ifName": "net9"}`)}},
		}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: v1alpha1.NetworkTopologySpec{Role: v1alpha1.Primary, Steps: []v1alpha1.Step{{Name: "d", Type: "dummy"}}}},
	}
	for _, tt := range []struct {
		reason, spec string
		before       int // older objects of the namespace
		enforced     bool
		over         bool     // what the controller has written of its destinations
		podNetwork   bool     // agents make the primary network of pods
		networks     []string // that it selects by labels, as the controller has written them
	}{
		{"Accepted", "egress: [{dscp: 1}], " + onRail, 0, true, false, false, nil},
		{"Accepted", "egress: [{dscp: 1}], " + onRail, qos.MaxObjects - 1, true, false, false, nil},
		{"Accepted", "egress: [{dscp: 1}], netAttachRefs: [{kind: NetworkTopology, name: pods}, {kind: NetworkTopology, name: rail}]", 0, true, false, false, nil},
		{"TooManyObjects", "egress: [{dscp: 1}], " + onRail, qos.MaxObjects, false, false, false, nil},
		{"Invalid", "egress: [{dscp: 64}], " + onRail, 0, false, false, false, nil},
		{"NoTopology", "egress: [{dscp: 1}]", 0, false, false, false, nil},
		{"TooManyDestinations", "egress: [{dscp: 1, classifier: {to: [{podSelector: {}}, {ipBlock: {cidr: 192.0.2.0/24}}]}}], " + onRail, 0, false, true, false, nil},
		{"Accepted", "egress: [{dscp: 1}], netAttachRefs: [{kind: NetworkAttachmentDefinition, namespace: ns, name: blue}]", 0, true, false, false, nil},
		{"Accepted", "egress: [{dscp: 1}], netAttachRefs: [{kind: UserDefinedNetwork, name: blue}]", 0, true, false, false, nil},
		{"Accepted", "egress: [{dscp: 1}], netAttachRefs: [{kind: ClusterUserDefinedNetwork, name: blue}]", 0, true, false, false, nil},
		{"NoNetwork", "egress: [{dscp: 1}], netAttachRefs: [{kind: ClusterUserDefinedNetwork, name: red}]", 0, false, false, false, nil},
		{"NoNetwork", "egress: [{dscp: 1}], netAttachRefs: [{kind: NetworkAttachmentDefinition, namespace: other, name: blue}]", 0, false, false, false, nil},
		{"NoNetwork", "egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: ClusterUserDefinedNetworks, clusterUserDefinedNetworkSelector: {}}]", 0, false, false, false, nil},
		{"NoNetwork", "egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: NetworkAttachmentDefinitions, networkAttachmentDefinitionSelector: {}}]", 0, false, false, true, nil},
		{"PrimaryNetwork", "egress: [{dscp: 1}], " + onPods, 0, false, false, false, nil},
		{"Accepted", "egress: [{dscp: 1}], " + onRail, 0, true, false, true, nil},
		{"Accepted", "egress: [{dscp: 1}]", 0, true, false, true, nil},
		{"Accepted", "egress: [{dscp: 1}]", qos.MaxObjects - 1, true, false, true, nil},
		{"Accepted", "egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: DefaultNetwork}]", 0, true, false, true, nil},
		{"Accepted", "egress: [{dscp: 1}], " + onPods, 0, true, false, true, nil},
		{"Accepted", "egress: [{dscp: 1, classifier: {to: [{podSelector: {}}, {ipBlock: {cidr: 192.0.2.0/24}}]}}]", 0, true, false, true, nil},
		{"TooManyObjects", "egress: [{dscp: 1}]", qos.MaxObjects, false, false, true, nil},
		{"Invalid", "egress: [{dscp: 64}]", 0, false, false, true, nil},
		{"NoNetwork", "egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: PrimaryUserDefinedNetworks, primaryUserDefinedNetworkSelector: {}}]", 0, false, false, true, nil},
		{"Accepted", "egress: [{dscp: 1}], " + byLabels, 0, true, false, false, []string{"ns/blue"}},
		{"Accepted", "egress: [{dscp: 1}], " + byLabels, 0, true, false, true, []string{"other/red", "ns/blue"}},
		{"NoNetwork", "egress: [{dscp: 1}], " + byLabels, 0, false, false, false, []string{"other/blue"}},
		{"TooManyNetworks", "egress: [{dscp: 1}], " + byLabels, 0, false, true, false, nil},
		{"TooManyObjects", "egress: [{dscp: 1}], " + byLabels, qos.MaxObjects, false, false, false, []string{"ns/blue"}},
		{"Invalid", "egress: [{dscp: 64}], " + byLabels, 0, false, false, false, []string{"ns/blue"}},
	} {
		t.Run(fmt.Sprint(tt.reason, " ", tt.before, " ", tt.podNetwork), func(t *testing.T) {
			f, n := crowded(t, 1)
			f.Contracts = contracts
			if tt.podNetwork {
				f.PodTopology = func(string) (*v1alpha1.NetworkTopology, bool) { return &topologies[1], true }
			}
			share := &qos.Share{}
			var last *unstructured.Unstructured
			for i := range tt.before + 1 {
				spec := tt.spec
				if i < tt.before {
					spec = "egress: [{dscp: 2}], podSelector: {matchLabels: {role: none}}, " + onRail
				}
				content := map[string]any{}
				if err := yaml.Unmarshal(fmt.Appendf(nil, "{apiVersion: k8s.ovn.org/v1alpha1, kind: NetworkQoS, metadata: {namespace: ns, name: o-%04d}, spec: {priority: 1, %s}}", i, spec), &content); err != nil {
					t.Fatal(err)
				}
				last = &unstructured.Unstructured{Object: content}
				o := objectOf(last)
				n.put(o)
				if tt.over || o.policy.ByLabels() {
					n.write(o.UID, &destinations{of: o.Generation, tooMany: tt.over, networks: tt.networks})
				}
				if p, _ := qos.Read(last); p.Err == nil && p.Selects(tt.podNetwork) {
					share.Put(p)
				}
			}
			p, _ := qos.Read(last)
			outcome, without := controller.Without(p, true, tt.podNetwork)
			for _, o := range controller.Conditions(share.Policies(), func(*qos.Policy) controller.Decision {
				return controller.Decision{Over: tt.over, Networks: tt.networks, TooManyNetworks: tt.reason == "TooManyNetworks"}
			}, topologies, contracts, tt.podNetwork, nil) {
				if o.Policy.Key == p.Key {
					outcome, without = o, false
				}
			}
			accepted := outcome.Conditions[0]
			if accepted.Reason != tt.reason || (accepted.Status == metav1.ConditionTrue) != tt.enforced || without && tt.enforced {
				t.Fatalf("condition %s %s: %s", accepted.Status, accepted.Reason, accepted.Message)
			}
			of := func(rules []string) (enforced bool) {
				for _, rule := range rules {
					enforced = enforced || rule == p.Key.String()+"[0]"
				}
				return enforced
			}
			c := f.claims["of-p-0"]
			c.Topologies[0].Object.Spec = topologies[0].Spec
			out, err := f.Of(c, &c.Topologies[0])
			if err != nil {
				t.Fatal(err)
			}
			if tt.podNetwork { // of a pod without a claim
				own, err := f.OfPodNetwork(&reconcile.Sandbox{
					ID: reconcile.IDOfPrimary("c", "eth0", "pods"), Pod: &reconcile.Pod{Namespace: "ns", Name: "p-0", UID: "u"},
					Topology: &topology.Topology{Name: "pods", Steps: []topology.Step{{Name: "d", Type: "dummy"}}},
				})
				if err != nil {
					t.Fatal(err)
				}
				out.Filters = append(out.Filters, own.Filters...)
			}
			var rules []string
			filters, rows := out.All()
			for _, o := range filters {
				rules = append(rules, o.Rule)
			}
			for _, o := range rows {
				rules = append(rules, o.Rule)
			}
			if of(rules) != tt.enforced {
				t.Errorf("the condition is %s, and the agent has filters of %q", accepted.Status, rules)
			}
			if tt.before > 0 || p.Err != nil || tt.over || tt.networks != nil { // a plan knows one object as it is written
				return
			}
			object, err := yaml.Marshal(last.Object)
			if err != nil {
				t.Fatal(err)
			}
			planned := false
			for i := range topologies {
				if topologies[i].Spec.Role == v1alpha1.Primary && !tt.podNetwork {
					continue // no agent makes it
				}
				topologies[i].TypeMeta = metav1.TypeMeta{APIVersion: "networking.dra.io/v1alpha1", Kind: v1alpha1.Kind}
				content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&topologies[i])
				if err != nil {
					t.Fatal(err)
				}
				delete(content, "status")
				file, err := yaml.Marshal(content)
				if err != nil {
					t.Fatal(err)
				}
				f, err := topology.Parse("", slices.Concat(file, []byte("---\n"), object))
				if err != nil {
					t.Fatal(err)
				}
				out, _, err := enforce.Objects([]*topology.Manifest{f}, f, enforce.Pod{Namespace: "ns", Labels: map[string]string{"role": "r0"}}, contracts)
				if err != nil {
					t.Fatal(err)
				}
				planned = planned || !out.Empty()
			}
			if planned != tt.enforced {
				t.Errorf("the condition is %s, and the plan has filters: %t", accepted.Status, planned)
			}
		})
	}
}
