package controller

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestRepairedEvent holds that only a class that somebody else has written is said to be edited by hand: none that an earlier version
// wrote, and none that is to be another one since a step type is described otherwise.
func TestRepairedEvent(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.NetworkTopology{}
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"ai","uid":"u1","generation":1},"spec":{"steps":[{"name":"vf0","type":"sriov"}]},"status":{"observedGeneration":1}}`), o); err != nil {
		t.Fatal(err)
	}
	decoded, err := topology.FromObject(o)
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).Build()
	said := events.NewFakeRecorder(10)
	var c *Controller
	start := func() { c = &Controller{Client: kube, Live: kube, Log: slog.New(slog.DiscardHandler), Recorder: said} }
	// pass returns the Event of a pass after which the class has an expression.
	pass := func(expression string) (event string) {
		t.Helper()
		want := Classes(o, decoded, registry)
		want[0].Spec.Selectors[0].CEL.Expression = expression
		var have resourceapi.DeviceClassList
		if err := kube.List(t.Context(), &have); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.apply(t.Context(), o, have.Items, want); err != nil {
			t.Fatal(err)
		}
		err = kube.List(t.Context(), &have)
		if err != nil || len(have.Items) != 1 || have.Items[0].Spec.Selectors[0].CEL.Expression != expression {
			t.Fatalf("classes %+v, %v", have.Items, err)
		}
		select {
		case event = <-said.Events:
		default:
		}
		return event
	}
	edit := func() {
		t.Helper()
		class := &resourceapi.DeviceClass{}
		if err := kube.Get(t.Context(), client.ObjectKey{Name: "ai-vf0"}, class); err != nil {
			t.Fatal(err)
		}
		class.Spec.Selectors[0].CEL.Expression = "true"
		if err := kube.Update(t.Context(), class); err != nil {
			t.Fatal(err)
		}
	}

	start()
	for _, step := range []struct {
		name       string
		before     func()
		expression string
		want       string
	}{
		{"created", nil, "false || true", ""},
		{"edited after it was created", edit, "false || true", "Warning Repaired DeviceClass \"ai-vf0\" was edited by hand"},
		{"the step type is described otherwise", nil, "false || false", ""},
		{"as it is to be", nil, "false || false", ""},
		{"edited after a pass that changed nothing", edit, "false || false", "Warning Repaired DeviceClass \"ai-vf0\" was edited by hand"},
		{"the controller is upgraded", start, "true || false", "Normal Repaired DeviceClass \"ai-vf0\" differed from its topology"},
		{"edited while none ran", func() { edit(); start() }, "true || false", "Normal Repaired DeviceClass \"ai-vf0\" differed from its topology"},
		{"a later edit", edit, "true || false", "Warning Repaired DeviceClass \"ai-vf0\" was edited by hand"},
		{"edited after a start", func() { start(); pass("true || false"); edit() }, "true || false", "Warning Repaired DeviceClass \"ai-vf0\" was edited by hand"},
	} {
		if step.before != nil {
			step.before()
		}
		if got := pass(step.expression); !strings.HasPrefix(got, step.want) || (got == "") != (step.want == "") {
			t.Errorf("%s: Event %q, want %q", step.name, got, step.want)
		}
	}
}
