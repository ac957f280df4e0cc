package main

import (
	"maps"
	"slices"
	"time"

	"github.com/plumbline/plumbline/reconcile"
)

// releaseTime is more than a release takes that goes well.
const releaseTime = 30 * time.Second

// unreleased lists the devices whose release began and has not come to its end:
// something of what was done to them could not be taken back.
func unreleased(records []reconcile.Record, now time.Time) []string {
	devices := map[string]bool{}
	for _, r := range records {
		if r.Phase == reconcile.Releasing && now.Sub(r.Updated) > releaseTime {
			for _, id := range r.Sandbox.Devices {
				devices[id] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(devices))
}
