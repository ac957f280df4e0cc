package controller_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/controller"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestPrimaryNetwork holds what Accepted says of objects about the primary network of pods: who makes it decides.
func TestPrimaryNetwork(t *testing.T) {
	own := v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: v1alpha1.NetworkTopologySpec{Role: v1alpha1.Primary}}
	named := own
	named.Annotations = map[string]string{v1alpha1.AnnotationDefinition: "ns/x"}
	rail := v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "rail"}}
	const both = ", networkSelectors: [{networkSelectionType: DefaultNetwork}, {networkSelectionType: NetworkTopologies, networkTopologySelector: {}}]"
	for _, tt := range []struct {
		spec       string
		topologies []v1alpha1.NetworkTopology
		podNetwork bool
		want       string
	}{
		{"", []v1alpha1.NetworkTopology{own, rail}, true, "True Accepted: 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks"},
		{"", []v1alpha1.NetworkTopology{rail}, true, "False NoTopology: it selects no NetworkTopology, and nothing else is enforced. The primary network of pods is that of the CNI plugin: ovn-kubernetes enforces"},
		{both, []v1alpha1.NetworkTopology{rail}, true, "True Accepted: 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; not on the pods' primary network, which another CNI plugin makes"},
		{", netAttachRefs: [{kind: NetworkTopology, name: pods}]", []v1alpha1.NetworkTopology{own, rail}, false, `False PrimaryNetwork: it selects only topology "pods" of role primary, which needs podNetwork.enabled`},
		{", netAttachRefs: [{kind: NetworkTopology, name: pods}, {kind: NetworkTopology, name: rail}]", []v1alpha1.NetworkTopology{own, rail}, false, `True Accepted: 1 rule; enforced by tc filters in pods, and by OVN QoS rows on OVN networks; not on topology "pods" of role primary, which needs podNetwork.enabled`},
		{", netAttachRefs: [{kind: NetworkAttachmentDefinition, name: x}]", []v1alpha1.NetworkTopology{named, rail}, false, `False PrimaryNetwork: it selects only topology "pods" of role primary`},
	} {
		objects, err := qostest.Objects(fmt.Appendf(nil, "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: q}\nspec: {priority: 1, egress: [{dscp: 1}]%s}", tt.spec))
		if err != nil {
			t.Fatal(err)
		}
		c := controller.Conditions([]*qos.Policy{qos.New(objects[0])}, func(*qos.Policy) (d controller.Decision) { return d }, tt.topologies, nil, tt.podNetwork, nil)[0].Conditions[0]
		if have := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); !strings.HasPrefix(have, tt.want) {
			t.Errorf("%q with pod network %t: %s\nwant %s", tt.spec, tt.podNetwork, have, tt.want)
		}
	}
}
