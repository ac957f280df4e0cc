package reconcile

import (
	"fmt"
	"time"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/frame"
)

// releaseTime is longer than any successful release takes.
const releaseTime = 30 * time.Second

// Unreleased returns the devices that must not be allocated, with the reason: those whose
// release has begun and not ended, because a change to them could not be undone, and all
// that records of other versions mention.
func Unreleased(records []Record, others []*frame.OtherVersion, now time.Time) map[string]string {
	devices := map[string]string{}
	for _, r := range records {
		switch {
		case r.Phase != Releasing:
		case r.Failure != "":
			for _, c := range r.History {
				if d, ok := c.Object().(netstate.Device); ok {
					devices[d.ID] = r.Failure
				}
			}
		case now.Sub(r.Updated) > releaseTime:
			for _, id := range r.Sandbox.Given.Devices() {
				devices[id] = fmt.Sprintf("the release of sandbox %q began at %s and has not ended", r.Sandbox.ID,
					r.Updated.Format(time.RFC3339))
			}
		}
	}
	for _, other := range others {
		for id := range other.Mentions {
			devices[id] = "a record of another version mentions it"
		}
	}
	return devices
}
