package admission

import (
	"errors"
	"testing"
)

func reserved(t *testing.T, d *body, bytes int) {
	t.Helper()
	if freed, err := d.tryReserve(bytes); freed != nil || err != nil {
		t.Fatalf("waits: %v, error: %v", freed != nil, err)
	}
}

// TestMemoryOfBodies: a body takes memory from the oldest incomplete one of the host that has most, its own included, and
// waits only if there is none.
func TestMemoryOfBodies(t *testing.T) {
	b := newBudget(10)
	begin := func(host string) *body { return b.begin(host, func() {}) }
	server, first, second, third := begin("192.0.2.9"), begin("192.0.2.1"), begin("192.0.2.1"), begin("192.0.2.1")
	reserved(t, server, 1)
	for _, d := range []*body{first, second, third} {
		reserved(t, d, 3)
	}
	reserved(t, begin("192.0.2.1"), 3)
	if _, err := first.tryReserve(1); !errors.Is(err, errBusy) {
		t.Errorf("the oldest body of the host that has most keeps its memory: %v", err)
	}
	reserved(t, server, 3)
	if _, err := second.tryReserve(1); !errors.Is(err, errBusy) {
		t.Errorf("the next one of that host keeps its memory: %v", err)
	}
	reserved(t, third, 3) // from the last one of its host
	third.leave()         // it is complete
	if freed, _ := begin("192.0.2.1").tryReserve(3); freed == nil {
		t.Error("memory is taken from a complete body, or from a host that has less")
	}
	for _, d := range []*body{server, third} {
		d.end()
	}
	if b.free != 10 || len(b.held) > 0 {
		t.Errorf("%d bytes are free at the end, hosts have %v", b.free, b.held)
	}
}
