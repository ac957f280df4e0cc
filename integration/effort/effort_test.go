package effort_test

import (
	"maps"
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

func TestStride(t *testing.T) {
	begun := map[int]bool{}
	for range 1000 {
		first, stride := effort.Stride(t, 3)
		if want := map[bool]int{true: 1, false: 3}[effort.Long()]; stride != want {
			t.Fatalf("the step is %d, want %d", stride, want)
		}
		begun[first] = true
	}
	want := map[bool]map[int]bool{true: {1: true}, false: {1: true, 2: true, 3: true}}[effort.Long()]
	if !maps.Equal(begun, want) {
		t.Errorf("runs begin at %v, want %v", begun, want)
	}
}
