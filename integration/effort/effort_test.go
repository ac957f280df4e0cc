package effort_test

import (
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
)

func TestDuration(t *testing.T) {
	t.Setenv("PLUMBLINE_SOAK", "3h")
	want := time.Second
	if effort.Long() {
		want = 3 * time.Hour
	}
	if got := effort.Duration(t, time.Second); got != want {
		t.Errorf("a random test goes on for %v, want %v", got, want)
	}
}

func TestSeed(t *testing.T) {
	t.Setenv("PLUMBLINE_SEED", "42")
	if got := effort.Seed(t); got != 42 {
		t.Errorf("the seed is %d, want that of the run to repeat, 42", got)
	}
	t.Setenv("PLUMBLINE_SEED", "")
	if first, second := effort.Seed(t), effort.Seed(t); first == second {
		t.Errorf("two runs have the seed %d", first)
	}
}
