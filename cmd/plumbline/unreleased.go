package main

import (
	"fmt"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// releaseTime is more than a release takes that goes well.
const releaseTime = 30 * time.Second

// unreleased lists the devices whose release began and has not come to its end,
// with the reason: something of what was done to them could not be taken back.
func unreleased(records []reconcile.Record, now time.Time) map[string]string {
	devices := map[string]string{}
	for _, r := range records {
		switch {
		case r.Phase != reconcile.Releasing:
		case r.Failure != "":
			for _, c := range r.History {
				if d, ok := c.Object().(netstate.Device); ok {
					devices[d.ID] = r.Failure
				}
			}
		case now.Sub(r.Updated) > releaseTime:
			for _, id := range r.Sandbox.Given.Devices() {
				devices[id] = fmt.Sprintf("the release of sandbox %q began at %s and has not ended", r.Sandbox.ID, r.Updated.Format(time.RFC3339))
			}
		}
	}
	return devices
}
