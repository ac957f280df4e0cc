package qos_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	topologyv1alpha1 "github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestObjectsOfTheEnhancement: the objects of OKEP-4380, as they are there, cover the primary network of the pods that they select, or
// the network of the NetworkAttachmentDefinition, which a topology with the annotation stands for.
func TestObjectsOfTheEnhancement(t *testing.T) {
	for file, tt := range map[string]struct {
		namespace, user string
		primary, topology,
		other []string
	}{
		"paid-and-free.yaml": {"games", "paid", []string{"10020 games/qos-external-paid[0] dscp 20 rate 0"}, nil, nil},
		"bandwidth.yaml":     {"games", "free", []string{"10040 games/qos-external-free[0] dscp 11 rate 1000000"}, nil, nil},
		"secondary.yaml":     {"games", "free", nil, []string{"10040 games/qos-external-free[0] dscp 11 rate 0"}, nil},
		"ipv6.yaml":          {"default", "free", []string{"10060 default/default[0] dscp 48 rate 0"}, nil, nil},
	} {
		data, err := os.ReadFile("testdata/okep-4380/" + file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := qostest.Objects(data)
		if err != nil {
			t.Fatal(err)
		}
		c := qos.NewCompiler()
		for _, o := range objects {
			p := qos.New(o)
			if p.Err != nil {
				t.Errorf("%s: %v", file, p.Err)
			}
			c.SetPolicy(p)
		}
		topology := func(name string, annotations map[string]string) qos.Attachment {
			o := metav1.ObjectMeta{Labels: map[string]string{"rail": "a"}, Annotations: annotations}
			return qos.Attachment{Network: qos.Network{NetworkID: qos.NetworkID{Kind: qos.NetworkTopology, Name: name}, Labels: qos.TopologyLabels(&o)}}
		}
		pod := &qos.Pod{Key: types.NamespacedName{Namespace: tt.namespace, Name: "pod"}, Labels: map[string]string{"user-type": tt.user}, Attachments: []qos.Attachment{
			{Network: qos.Network{NetworkID: qos.NetworkID{Kind: qos.DefaultNetwork}, Primary: true}},
			topology("storage", map[string]string{topologyv1alpha1.AnnotationDefinition: "default/ovn-storage"}),
			topology("other", map[string]string{topologyv1alpha1.AnnotationDefinition: "games/ovn-storage"}),
		}}
		c.SetPod(pod)
		for i, want := range [][]string{tt.primary, tt.topology, tt.other} {
			var have []string
			for _, r := range c.Rules(pod.Key)[i] {
				have = append(have, fmt.Sprintf("%d %s[%d] dscp %d rate %d", r.Precedence, r.Policy, r.Index, r.DSCP, r.RateKbit))
			}
			if !slices.Equal(have, want) {
				t.Errorf("%s, network %d: rules %q, want %q", file, i, have, want)
			}
		}
	}
}

// TestDefinitionIsNoLabel: the annotation that names a NetworkAttachmentDefinition is not seen by selectors of labels.
func TestDefinitionIsNoLabel(t *testing.T) {
	of := qos.TopologyLabels(&metav1.ObjectMeta{Labels: map[string]string{"rail": "a"}, Annotations: map[string]string{topologyv1alpha1.AnnotationDefinition: "ns/n"}})
	for selector, want := range map[string]bool{
		"{matchLabels: {rail: a}}": true,
		"{matchExpressions: [{key: networking.dra.io/net-attach-def, operator: Exists}]}":       false,
		"{matchExpressions: [{key: networking.dra.io/net-attach-def, operator: DoesNotExist}]}": true,
	} {
		objects, err := qostest.Objects(fmt.Appendf(nil, "apiVersion: k8s.ovn.org/v1alpha1\nkind: NetworkQoS\nmetadata: {namespace: ns, name: q}\nspec: {priority: 1, egress: [{dscp: 1}], networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {networkSelector: %s}}]}", selector))
		if err != nil {
			t.Fatal(err)
		}
		if got := qos.New(objects[0]).SelectsTopology("t", of); got != want {
			t.Errorf("%s: %v", selector, got)
		}
	}
}
