package eventually_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
)

// failing is a test that notes its failure.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}

// TestSucceeds holds that it waits no longer than needed, checks at least once, and fails with the last error.
func TestSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, checks := time.Now(), 0
		eventually.Succeeds(t, time.Minute, "the third check", func() error {
			if checks++; checks < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		if waited := time.Since(begin); checks != 3 || waited > 10*time.Millisecond {
			t.Errorf("%d checks in %s", checks, waited)
		}
		eventually.Holds(t, 0, "what holds", func() string { return "" })

		f := &failing{TB: t}
		func() {
			defer func() { _ = recover() }()
			eventually.Succeeds(f, time.Second, "the link", func() error { return errors.New("is down") })
		}()
		if f.said != "the link: not after 1s: is down" {
			t.Errorf("it said %q", f.said)
		}
	})
}
