package main

import (
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

func TestUnreleased(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	record := func(phase reconcile.Phase, age time.Duration, device string) reconcile.Record {
		return reconcile.Record{Phase: phase, Updated: now.Add(-age), Sandbox: reconcile.Sandbox{Given: ops.GivenDevices(map[string]string{"vf0": device})}}
	}
	unclean := record(reconcile.Releasing, time.Second, "clean")
	unclean.Failure = "settings of the pod could not be taken back: ring.rx"
	unclean.History = []netstate.Change{{Before: netstate.Device{ID: "unclean"}, After: netstate.Device{ID: "unclean"}}}
	have := unreleased([]reconcile.Record{
		record(reconcile.Applied, time.Hour, "in a pod"), record(reconcile.Failed, time.Hour, "in a pod, and not repaired"),
		record(reconcile.Releasing, time.Second, "on its way"), record(reconcile.Releasing, time.Minute, "stuck"), unclean,
	}, now)
	if len(have) != 2 || have["unclean"] != unclean.Failure || !strings.Contains(have["stuck"], "has not ended") {
		t.Errorf("have %q", have)
	}
}
