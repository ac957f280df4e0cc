package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestFailures holds what a record keeps of an error, and that it is restored with the
// same steps, kind and text.
func TestFailures(t *testing.T) {
	of := func(step, text string) error {
		return &ops.StepError{Topology: "ai", Step: step, Err: fault.New(fault.Conflict, errors.New(text))}
	}
	for name, tt := range map[string]struct {
		err  error
		want []StepFailure
	}{
		"none":                {nil, nil},
		"of a step":           {of("a", "taken"), []StepFailure{{"a", fault.Conflict, "taken"}}},
		"a step in the words": {errors.New(`step "b": not a step's`), []StepFailure{{"", fault.Internal, `step "b": not a step's`}}},
		"several": {
			errors.Join(of("a", "taken"), fault.New(fault.NotReady, errors.New("busy")), of("b", "gone")),
			[]StepFailure{{"a", fault.Conflict, "taken"}, {"", fault.NotReady, "busy"}, {"b", fault.Conflict, "gone"}},
		},
		"with words in front": {fmt.Errorf("roll back: %w", of("a", "taken")), []StepFailure{{"a", fault.Conflict, `roll back: topology "ai": step "a": taken`}}},
	} {
		r := Record{Sandbox: Sandbox{Topology: &topology.Topology{Name: "ai"}}}
		r.fail(tt.err)
		if !slices.Equal(r.Failures, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, r.Failures, tt.want)
		}
		again := r.FailureError()
		if (again == nil) != (tt.err == nil) {
			t.Fatalf("%s: %v", name, again)
		}
		if again == nil {
			continue
		}
		if fault.Of(again) != fault.Of(tt.err) || name != "with words in front" && again.Error() != tt.err.Error() {
			t.Errorf("%s: comes back as %s: %v", name, fault.Of(again), again)
		}
		if step, ok := errors.AsType[*ops.StepError](again); ok != (tt.want[0].Step != "" || len(tt.want) > 1) || ok && step.Step != tt.want[0].Step {
			t.Errorf("%s: of step %v", name, step)
		}
	}
	r := Record{}
	r.fail(errors.New(strings.Repeat("x", 5000)))
	if n := len(r.Failures[0].Message); n > maxFailureMessage+3 {
		t.Errorf("a message of %d bytes is kept", n)
	}
}
