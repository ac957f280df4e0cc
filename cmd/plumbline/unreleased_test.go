package main

import (
	"slices"
	"testing"
	"time"

	"github.com/plumbline/plumbline/reconcile"
)

func TestUnreleased(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	record := func(phase reconcile.Phase, age time.Duration, device string) reconcile.Record {
		return reconcile.Record{Phase: phase, Updated: now.Add(-age), Sandbox: reconcile.Sandbox{Devices: map[string]string{"vf0": device}}}
	}
	have := unreleased([]reconcile.Record{
		record(reconcile.Applied, time.Hour, "in a pod"), record(reconcile.Failed, time.Hour, "in a pod, and not repaired"),
		record(reconcile.Releasing, time.Second, "on its way"), record(reconcile.Releasing, time.Minute, "stuck"),
	}, now)
	if !slices.Equal(have, []string{"stuck"}) {
		t.Errorf("have %q", have)
	}
}
