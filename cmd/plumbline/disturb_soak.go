//go:build soak

package main

import (
	"os"
	"time"

	"github.com/plumbline/plumbline/reconcile/kernel"
)

// disturb is kernel.Options.Disturb of the agent in tests on a node: each write is delayed
// by PLUMBLINE_WRITE_DELAY, as by a slow driver.
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
