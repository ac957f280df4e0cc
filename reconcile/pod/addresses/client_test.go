package addresses

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestSameButCounts: what the controller counts in a pool is no reason for a pass of all nodes; anything else is.
func TestSameButCounts(t *testing.T) {
	read := func(text string) *unstructured.Unstructured {
		t.Helper()
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		return o
	}
	was := read(`{metadata: {uid: a, generation: 1, resourceVersion: "7", finalizers: [f]}, status: {size: 100, leased: 10, nodes: 3, conditions: [{type: Low, status: "False", message: 10 of 100}]}}`)
	for text, same := range map[string]bool{
		`{metadata: {uid: a, generation: 1, resourceVersion: "8", finalizers: [f]}, status: {size: 100, leased: 20, nodes: 4, conditions: [{type: Low, status: "False", message: 20 of 100}]}}`: true,
		`{metadata: {uid: a, generation: 2, finalizers: [f]}, status: {conditions: [{type: Low, status: "False"}]}}`:                                                                            false,
		`{metadata: {uid: b, generation: 1, finalizers: [f]}, status: {conditions: [{type: Low, status: "False"}]}}`:                                                                            false,
		`{metadata: {uid: a, generation: 1}, status: {conditions: [{type: Low, status: "False"}]}}`:                                                                                             false,
		`{metadata: {uid: a, generation: 1, finalizers: [f], deletionTimestamp: "2026-01-01T00:00:00Z"}, status: {conditions: [{type: Low, status: "False"}]}}`:                                 false,
		`{metadata: {uid: a, generation: 1, finalizers: [f]}, status: {conditions: [{type: Low, status: "True"}]}}`:                                                                             false,
		`{metadata: {uid: a, generation: 1, finalizers: [f]}}`:                                                                                                                                  false,
		`{metadata: {uid: a, generation: 1, finalizers: [f]}, status: {conditions: [{type: Low, status: "False"}, {type: Exhausted, status: "True"}]}}`:                                         false,
	} {
		if is := sameButCounts(was, read(text)); is != same {
			t.Errorf("%s: %t, want %t", text, is, same)
		}
	}
}
