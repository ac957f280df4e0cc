package admission

import (
	"encoding/json"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/pluginschema"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

func TestMessage(t *testing.T) {
	for _, c := range []struct {
		problems []string
		want     string
	}{
		{[]string{"one line"}, "one line"},
		{[]string{"a,\nb"}, "\n  a,\n  b"},
		{[]string{"a", "b:\n  c\n"}, "\n  a\n  b:\n    c"},
	} {
		if got := message(c.problems); got != c.want {
			t.Errorf("%q is laid out as %q, want %q", c.problems, got, c.want)
		}
	}
}

// TestRefused holds that clients know a refusal of this webhook without reading its text.
func TestRefused(t *testing.T) {
	a := refused(answer{problems: []string{"a"}})
	if a.Allowed || !apierrors.HasStatusCause(&apierrors.StatusError{ErrStatus: *a.Result}, v1alpha1.CauseRefused) {
		t.Errorf("%+v", a.Result)
	}
}

// TestPasses covers requests that need nothing of the cluster: there is none here.
func TestPasses(t *testing.T) {
	w := New(nil, nil, nil, nil)
	for name, r := range map[string]admissionv1.AdmissionRequest{
		"deletion":    {Operation: admissionv1.Delete},
		"subresource": {Operation: admissionv1.Update, SubResource: "status"},
		"others":      {Operation: admissionv1.Create},
	} {
		if a := w.Handle(t.Context(), admission.Request{AdmissionRequest: r}); !a.Allowed {
			t.Errorf("%s: %+v", name, a.Result)
		}
	}
	r := admissionv1.AdmissionRequest{Operation: admissionv1.Create}
	r.Kind.Group, r.Kind.Kind, r.Object.Raw = v1alpha1.GroupVersion.Group, v1alpha1.Kind, make([]byte, maxObject+1)
	if a := w.Handle(t.Context(), admission.Request{AdmissionRequest: r}); a.Allowed || a.Result.Code != 400 {
		t.Errorf("a topology without bounds: %+v", a.Result)
	}
	r.Object.Raw = []byte(`{"spec":7}`)
	if a := w.Handle(t.Context(), admission.Request{AdmissionRequest: r}); a.Allowed || a.Result.Code != 400 {
		t.Errorf("an object that is none: %+v", a.Result)
	}
}

// TestVetted holds that a topology with types described by schemas is planned, without
// those steps.
func TestVetted(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	set, problems := pluginschema.Known(registry, []schemav1alpha1.CNIPluginSchema{{Spec: schemav1alpha1.CNIPluginSchemaSpec{CNIType: "theirs"}}})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	o := &v1alpha1.NetworkTopology{}
	text := `{"metadata":{"name":"t"},"spec":{"steps":[{"name":"x","type":"theirs"},{"name":"a","type":"dummy","config":{"name":"d0"}},{"name":"b","type":"dummy","config":{"name":"d0"}}]}}`
	if err := json.Unmarshal([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	_, _, err = validity.Object(t.Context(), o, set)
	want := `NetworkTopology "t", step "b": makes an interface "d0", as step "a" does already: give one of them another name`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	o.Spec.Steps = o.Spec.Steps[:2]
	if _, _, err := validity.Object(t.Context(), o, set); err != nil {
		t.Error(err)
	}
}

// FuzzTopology reads hostile objects as the webhook and the controller do.
func FuzzTopology(f *testing.F) {
	registry, err := all.Registry()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"metadata":{"name":"t"},"spec":{"steps":[{"name":"vf0","type":"sriov","selector":{"cel":"true"},"config":{"vlan":1}},{"name":"b","type":"vlan","dependOn":["vf0"],"config":{"id":1,"master":"{{ vf0.interfaceName }}"}}]}}`))
	f.Add([]byte(`{"metadata":{"name":"t"},"spec":{"steps":[{"name":"a","type":"bond","dependOn":["a"],"config":[[[]]]}]}}`))
	f.Add([]byte(`{"metadata":{"name":"t"},"spec":{"steps":[{"name":"a","type":"sriov"}],"export":{"presets":["nccl"],"env":{"A":"{{ a*.mac }}","PATH":"{{ *."}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o := &v1alpha1.NetworkTopology{}
		if json.Unmarshal(data, o) != nil {
			return
		}
		decoded, _, err := validity.Object(t.Context(), o, registry)
		if err != nil {
			return
		}
		classes := controller.Classes(o, decoded, registry)
		for _, c := range classes {
			if !passesOver(t, c.Spec.Selectors[0].CEL.Expression) {
				t.Errorf("class %q would match devices of other drivers, or fail on them", c.Name)
			}
		}
	})
}

// passesOver reports whether a selector says no, rather than yes or an error, to a device of another driver, which has none of our
// attributes.
func passesOver(t *testing.T, expr string) bool {
	t.Helper()
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expr, cel.Options{})
	if compiled.Error != nil {
		t.Fatal(compiled.Error)
	}
	matches, _, err := compiled.DeviceMatches(t.Context(), cel.Device{Driver: "another." + inventory.Driver})
	return err == nil && !matches
}
