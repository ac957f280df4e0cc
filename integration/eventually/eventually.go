package eventually

import (
	"testing"
	"time"
)

// Holds waits until wrong returns "", and fails the test with what it returned last when that takes longer than limit,
// which is for tests that hang: no time of the product.
func Holds(t testing.TB, limit time.Duration, what string, wrong func() string) {
	t.Helper()
	began := time.Now()
	for {
		last := wrong()
		if last == "" {
			return
		}
		waited := time.Since(began)
		if waited > limit {
			t.Fatalf("%s: not after %s: %s", what, limit, last)
		}
		time.Sleep(min(time.Millisecond+waited/10, 250*time.Millisecond))
	}
}

// True waits, as Holds does, until a condition is true.
func True(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	Holds(t, limit, what, func() string {
		if !is() {
			return "it is not"
		}
		return ""
	})
}

// Succeeds waits, as Holds does, until check returns no error.
func Succeeds(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	Holds(t, limit, what, func() string {
		if err := check(); err != nil {
			return err.Error()
		}
		return ""
	})
}
