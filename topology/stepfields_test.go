package topology

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestStepFields holds that contract.StepFields lists the fields of a step, but for those
// that are keys of configs, too.
func TestStepFields(t *testing.T) {
	fields := jsonFields(reflect.TypeFor[v1alpha1.Step]())
	for _, other := range []string{"name", "type", "config"} {
		delete(fields, other)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(fields)), contract.StepFields); diff != "" {
		t.Errorf("-API +contract.StepFields:\n%s", diff)
	}
}
