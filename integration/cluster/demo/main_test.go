package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// TestObjects holds that the objects which the demo makes of those of the story are valid, and differ as it says.
func TestObjects(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, manifest := range []string{bonded(), edit(bonded())} {
		f, err := topology.Parse("", []byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		top, _, err := validity.Topology(t.Context(), f, registry)
		if err != nil {
			t.Fatal(err)
		}
		bond, _ := top.Step("bond0")
		if top.UpdatePolicy != v1alpha1.InPlace || bond.Config["mode"] != "active-backup" || len(bond.Config) != 4 {
			t.Errorf("update policy %q, bond %v", top.UpdatePolicy, bond.Config)
		}
	}
	if n := strings.Count(edit(bonded()), "mtu: 1400"); n != 1 || strings.Contains(edit(bonded()), "mtu: 1500") {
		t.Errorf("the edit sets %d MTUs", n)
	}
	if !strings.Contains(bonded(), "labels: {network: ai}") {
		t.Error("the limit selects the topology by a label that it does not have")
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(served()), &pod); err != nil || len(pod.Spec.Containers[0].Args) != 2 || pod.Spec.DNSPolicy != corev1.DNSDefault {
		t.Errorf("the pod: %v\n%s", err, served())
	}
}
