//go:build soak

package main

import (
	"os"
	"time"

	"github.com/plumbline/plumbline/reconcile/kernel"
)

// disturb is kernel.Options.Disturb of the agent in tests on a node: each message that
// changes something takes the time that PLUMBLINE_WRITE_DELAY says, as with a slow
// driver.
func disturb() func(kernel.Message) error {
	delay, err := time.ParseDuration(os.Getenv("PLUMBLINE_WRITE_DELAY"))
	if err != nil {
		return nil
	}
	return func(m kernel.Message) error {
		if m.Write && !m.Answered {
			<-time.After(delay)
		}
		return nil
	}
}
