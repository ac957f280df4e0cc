package attachment

import (
	"context"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/reconcile"
)

// noted is an Engine that notes that it was called.
type noted struct {
	Engine
	calls *[]string
}

func (e noted) Ensure(context.Context, reconcile.Sandbox) (reconcile.Report, error) {
	*e.calls = append(*e.calls, "ensure")
	return reconcile.Report{}, nil
}

// TestYield holds that repairs yield while the engine attaches a topology.
func TestYield(t *testing.T) {
	var calls []string
	k := New(Options{Engine: noted{calls: &calls}, Yield: func() func() {
		calls = append(calls, "yield")
		return func() { calls = append(calls, "done") }
	}})
	if _, err := k.ensureUrgent(t.Context(), reconcile.Sandbox{}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"yield", "ensure", "done"}; !slices.Equal(calls, want) {
		t.Errorf("calls %v, want %v", calls, want)
	}
	k = New(Options{Engine: noted{calls: &calls}})
	if _, err := k.ensureUrgent(t.Context(), reconcile.Sandbox{}); err != nil {
		t.Errorf("without a loop: %v", err)
	}
}
