package admission

import (
	"errors"
	"testing"
)

// TestOldestTakesFromNext: the body that has been incomplete for longest gets memory from the next one, and waits only if
// the others are complete.
func TestOldestTakesFromNext(t *testing.T) {
	b := newBudget(10)
	oldest, next, last := b.begin(func() {}), b.begin(func() {}), b.begin(func() {})
	for _, d := range []*body{oldest, next, last} {
		if freed, err := d.tryReserve(3); freed != nil || err != nil {
			t.Fatalf("%v, %v", freed, err)
		}
	}
	if freed, err := oldest.tryReserve(4); freed != nil || err != nil {
		t.Fatalf("the oldest waits for others that are incomplete, or is refused: %v", err)
	}
	if _, err := next.tryReserve(1); !errors.Is(err, errBusy) {
		t.Errorf("the next one: %v", err)
	}
	last.leave() // it is complete
	if freed, _ := oldest.tryReserve(1); freed == nil {
		t.Error("memory is taken from a complete one")
	}
}
