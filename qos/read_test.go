package qos_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/plumbline/plumbline/qos"
)

// TestRead holds that an object that cannot be read is a policy with an error, which keeps
// the name and generation of the object.
func TestRead(t *testing.T) {
	object := func(priority any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "k8s.ovn.org/v1alpha1", "kind": "NetworkQoS",
			"metadata": map[string]any{"namespace": "ai", "name": "q", "generation": int64(7)},
			"spec":     map[string]any{"priority": priority, "egress": []any{map[string]any{"dscp": int64(8)}}},
			"status":   map[string]any{"conditions": []any{map[string]any{"type": "Accepted", "status": "True"}}},
		}}
	}
	for _, tt := range []struct {
		priority          any
		rules, conditions int
		fails             bool
	}{
		{int64(5), 1, 1, false},
		{"five", 0, 0, true},
		{int64(101), 0, 1, true},
	} {
		p, o := qos.Read(object(tt.priority))
		if p.Name() != "ai/q" || p.Generation != 7 || (p.Err != nil) != tt.fails || len(p.Rules) != tt.rules || len(o.Status.Conditions) != tt.conditions {
			t.Errorf("priority %v: policy %+v, object %+v", tt.priority, p, o)
		}
	}
}
