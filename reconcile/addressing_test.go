package reconcile

import (
	"testing"
	"time"
)

// TestReaddress holds how often the addresses of a sandbox are recorded whose router alternates prefixes: about twelve times
// in the first two hours, and not every ten seconds. A sandbox whose addresses change seldom waits ten seconds at most.
func TestReaddress(t *testing.T) {
	now := time.Unix(1e9, 0)
	r := New(Options{Now: func() time.Time { return now }})
	written, records := now, 0
	second := func() {
		now = now.Add(time.Second)
		if r.readdress("blue/t", written) <= 0 {
			written, records = now, records+1
		}
	}
	for range 7200 {
		second()
	}
	if records < 10 || records > 20 {
		t.Errorf("recorded %d times in two hours", records)
	}
	if early := r.readdress("blue/t", written); early <= 0 || early > addressesMost {
		t.Errorf("the next one is in %s", early)
	}
	for range 3 {
		now = now.Add(time.Hour)
		if early := r.readdress("blue/t", written); early > 0 {
			t.Errorf("an hour later, not before %s", early)
		}
		written, records = now, 0
		for range 11 {
			second()
		}
		if records != 1 {
			t.Errorf("recorded %d times in the next eleven seconds", records)
		}
	}
	if early := r.readdress("red/t", now.Add(-4*time.Second)); early != 6*time.Second {
		t.Errorf("another sandbox waits %s", early)
	}
	if early := r.readdress("green/t", now.Add(6*time.Hour)); early > 0 {
		t.Errorf("after the clock was set back, another sandbox waits %s", early)
	}
}
