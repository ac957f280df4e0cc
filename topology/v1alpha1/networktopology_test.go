package v1alpha1_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestRoundTrip reads and writes an object through a scheme, as clients do.
func TestRoundTrip(t *testing.T) {
	const wire = `{"kind":"NetworkTopology","apiVersion":"networking.dra.io/v1alpha1","metadata":{"name":"t"},` +
		`"spec":{"steps":[{"name":"vf0","type":"sriov","selector":{"cel":"true"},"config":{"trust":"on","vlan":0}},` +
		`{"name":"tune","type":"tuning","dependOn":["vf0"],"driftPolicy":"Observe"}],"driftPolicy":"Repair","updatePolicy":"InPlace"},` +
		`"status":{"observedGeneration":1,"deviceClasses":1}}`
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	decoded, kind, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode([]byte(wire), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if *kind != v1alpha1.GroupVersion.WithKind(v1alpha1.Kind) || v1alpha1.Resource().Resource != "networktopologies" {
		t.Errorf("decoded as %v", kind)
	}
	object, ok := decoded.(*v1alpha1.NetworkTopology)
	if !ok {
		t.Fatalf("decoded into %T", decoded)
	}
	copied := object.DeepCopy()
	copied.Spec.Steps[0].Config.Raw[2] = 'X'
	copied.Spec.Steps[1].DependOn[0] = "x"
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := json.Unmarshal([]byte(wire), &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSeconds(t *testing.T) {
	for text, want := range map[string]int{"": 60, "1s": 1, "90s": 90, "5m": 300, "24h": 86400, "99999h": 359996400, "1.5s": 60, "s": 60, "x": 60, "99999999999s": 60} {
		if got := (&v1alpha1.FailurePolicy{After: text}).Seconds(); got != want {
			t.Errorf("%q is %d seconds, want %d", text, got, want)
		}
	}
}
