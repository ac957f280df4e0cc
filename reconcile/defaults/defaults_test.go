package defaults_test

import (
	"testing"

	"github.com/plumbline/plumbline/reconcile/defaults"
)

// TestFunc: a function that is given is kept.
func TestFunc(t *testing.T) {
	type options struct{ f func() int }
	for want, o := range []options{{}, {func() int { return 1 }}} {
		if got := defaults.Func(o.f, func() int { return 0 })(); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
}
