package controller_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestTemplatesCondition holds the condition on claim templates, and that it names no
// namespace which the topology does not name.
func TestTemplatesCondition(t *testing.T) {
	for _, c := range []struct {
		name                   string
		found                  *controller.Templates
		status, reason, phrase string
	}{
		{"not tried", nil, "False", "Earlier", "as it was"},
		{"not wanted", &controller.Templates{}, "", "", ""},
		{"all", &controller.Templates{Wanted: true, Name: "x", Chosen: 2, Kept: 2}, "True", "Succeeded", `ResourceClaimTemplate "x" is in 2 namespaces`},
		{"none", &controller.Templates{Wanted: true, Name: "x"}, "False", "NoNamespace", "none of the namespaces"},
		{"too many", &controller.Templates{Wanted: true, Name: "x", Chosen: 1025}, "False", "TooMany", "chooses 1025 namespaces, and at most 1024 are served"},
		{"taken", &controller.Templates{Wanted: true, Name: "x", Chosen: 3, Kept: 1, Clashes: 2, Listed: []string{"red"}}, "False", "Conflict", "in 2 namespaces, among them red, another"},
		{"refused", &controller.Templates{Wanted: true, Name: "x", Chosen: 3, Refused: "no attribute"}, "False", "Unsupported", `is in 0 namespaces; the API server refuses it: no attribute`},
		{"failed", &controller.Templates{Wanted: true, Name: "x", Chosen: 3, Kept: 1, Err: errors.New(`in namespace "secret"`)}, "False", "Internal", "others failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := topologyOf()
			meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionClaimTemplates, Status: metav1.ConditionFalse, Reason: "Earlier", Message: "as it was"})
			s := controller.StatusOf(o, controller.Outcome{Steps: 1, Classes: 1, Templates: c.found})
			got := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionClaimTemplates)
			if c.status == "" {
				if got != nil {
					t.Errorf("condition %+v", got)
				}
				return
			}
			if got == nil || string(got.Status) != c.status || got.Reason != c.reason || !strings.Contains(got.Message, c.phrase) || strings.Contains(got.Message, "secret") {
				t.Errorf("condition %+v", got)
			}
			if !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) {
				t.Error("the topology is not Ready, and pods can use it")
			}
		})
	}
}
