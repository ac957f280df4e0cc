package pluginschema_test

import (
	"os"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"sigs.k8s.io/yaml"
)

// TestAppendsInCRD holds that the API server accepts for appends what a client can read,
// and nothing else.
func TestAppendsInCRD(t *testing.T) {
	text, err := os.ReadFile("../../chart/plumbline/templates/crds/cni.networking.k8s.io_cnipluginschemas.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		t.Fatal(err)
	}
	structural, err := schema.NewStructural(&props)
	if err != nil {
		t.Fatal(err)
	}
	if errs := schema.ValidateStructural(nil, structural); len(errs) > 0 {
		t.Fatalf("not structural: %v", errs)
	}
	validator, _, err := validation.NewSchemaValidator(&props)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"interfaces", "ips", "routes", "devices"} {
		accepts := func(v any) bool {
			object := map[string]any{"spec": map[string]any{"cniType": "x", "output": map[string]any{list: map[string]any{"appends": v}}}}
			return len(validation.ValidateCustomResource(nil, object, validator)) == 0
		}
		for _, good := range []any{true, false, int64(0), int64(65535)} {
			if !accepts(good) {
				t.Errorf("%s: %v is refused", list, good)
			}
		}
		for _, bad := range []any{int64(70000), int64(-1), 1.5, "x", "", []any{}, []any{int64(1)}, map[string]any{}, map[string]any{"a": true}} {
			if accepts(bad) {
				t.Errorf("%s: %v (%T) is accepted", list, bad, bad)
			}
		}
	}
}
