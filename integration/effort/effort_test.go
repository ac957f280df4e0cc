package effort_test

import (
	"maps"
	"strings"
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

func TestSample(t *testing.T) {
	all := []string{"a", "b", "c", "d", "e"}
	samples := map[string]bool{}
	for range 1000 {
		samples[strings.Join(effort.Sample(t, 3, all), "")] = true
	}
	want := map[bool]map[string]bool{true: {"abcde": true}, false: {"ad": true, "be": true, "c": true}}[effort.Long()]
	if !maps.Equal(samples, want) {
		t.Errorf("samples %v, want %v", samples, want)
	}
	if got := effort.Sample(t, 3, all[:1]); len(got) != 1 {
		t.Errorf("a sample of one is %v", got)
	}
	if got := effort.Sample(t, 3, all[:0]); len(got) != 0 {
		t.Errorf("a sample of none is %v", got)
	}
	t.Setenv("PLUMBLINE_SEED", "42")
	if got := effort.Sample(t, 3, all); len(got) != len(all) {
		t.Errorf("a run that is repeated has %v", got)
	}
}
