package admission

import (
	"encoding/json"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/exposure"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestWarningsOfEdits holds the warnings about the pods that use an edited topology.
func TestWarningsOfEdits(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const (
		vf0   = `{"name":"vf0","type":"sriov","selector":{"cel":"device.driver == \"dra.networking\""}}`
		vf1   = `{"name":"vf1","type":"sriov"}`
		tune  = `{"name":"tune","type":"tuning","dependOn":["vf0"]}`
		place = `"updatePolicy":"InPlace",`
	)
	const (
		newPods = `NetworkTopology "t" is in use by 3 claims: their pods keep the network they have, the change is for new pods`
		running = `NetworkTopology "t" is in use by 3 claims: the change is applied to their running pods, node by node; connections over a recreated link are interrupted`
		keep    = `keep their network until they are recreated`
	)
	for name, c := range map[string]struct {
		users    int
		old, new string // spec of the topology without braces; no old one: it is created
		want     []string
	}{
		"created":                {3, "", `"steps":[` + vf0 + `]`, nil},
		"edited, in no use":      {0, `"steps":[` + vf0 + `]`, `"steps":[` + vf1 + `]`, nil},
		"edited, new pods only":  {3, `"steps":[` + vf0 + `]`, `"steps":[` + vf1 + `]`, []string{newPods}},
		"edited in place":        {3, `"steps":[` + vf0 + `]`, place + `"steps":[` + vf0 + `,` + tune + `]`, []string{running}},
		"a device more":          {3, `"steps":[` + vf0 + `]`, place + `"steps":[` + vf0 + `,` + vf1 + `]`, []string{running, `NetworkTopology "t": step "vf1" takes a device that running pods do not have: they ` + keep}},
		"a device less":          {3, `"steps":[` + vf0 + `,` + vf1 + `]`, place + `"steps":[` + vf0 + `]`, []string{running}},
		"another selector":       {3, `"steps":[` + vf0 + `]`, place + `"steps":[{"name":"vf0","type":"sriov"}]`, []string{running, `NetworkTopology "t": step "vf0" has another selector: running pods whose device it does not choose ` + keep}},
		"another type":           {3, `"steps":[` + vf1 + `]`, place + `"steps":[{"name":"vf1","type":"host-device"}]`, []string{running, `NetworkTopology "t": step "vf1" is of another type: running pods whose device does not fit it ` + keep}},
		"a rollout without pace": {0, "", `"rollout":{},"steps":[` + vf0 + `]`, []string{`NetworkTopology "t": spec.rollout has an effect only with updatePolicy InPlace`}},
		"a rollout with it":      {0, "", place + `"rollout":{},"steps":[` + vf0 + `]`, nil},
	} {
		raw := func(spec string) []byte { return []byte(`{"metadata":{"name":"t","uid":"u"},"spec":{` + spec + `}}`) }
		o := &v1alpha1.NetworkTopology{}
		if err := json.Unmarshal(raw(c.new), o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		decoded, err := topology.FromObject(o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w := New(nil, nil, nil, func(name string, uid types.UID) int {
			if name != "t" || uid != "u" {
				t.Errorf("claims of %q (%s) are counted", name, uid)
			}
			return c.users
		})
		var r admission.Request
		if c.old != "" {
			r.OldObject = runtime.RawExtension{Raw: raw(c.old)}
		}
		var a answer
		if err := w.used(o, decoded, registry, r, &a); err != nil || len(a.problems) > 0 || !slices.Equal(a.warnings, c.want) {
			t.Errorf("%s: %v %q\nwarnings %q\nwant     %q", name, err, a.problems, a.warnings, c.want)
		}
	}
}

// TestWarningOfSchema holds that a schema for a built-in type is allowed with a warning,
// and without one if the controller has written it.
func TestWarningOfSchema(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	w := New(nil, &controller.Contracts{BuiltIn: registry}, &exposure.Compiled{}, nil)
	for object, want := range map[string][]string{
		`{"metadata":{"name":"s"},"spec":{"cniType":"vlan"}}`:                                                {`step type "vlan" is built in and validated by its own contract: CNIPluginSchema "s" has no effect`},
		`{"metadata":{"name":"s","labels":{"networking.dra.io/built-in":"true"}},"spec":{"cniType":"vlan"}}`: nil,
		`{"metadata":{"name":"s"},"spec":{"cniType":"theirs"}}`:                                              nil,
	} {
		if a := w.Handle(t.Context(), request(schemav1alpha1.GroupVersion.Group, "CNIPluginSchema", object)); !a.Allowed || !slices.Equal(a.Warnings, want) {
			t.Errorf("%s: %+v\nwarnings %q\nwant     %q", object, a.Result, a.Warnings, want)
		}
	}
}
