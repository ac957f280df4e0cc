package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/frame"
)

// TestUnreleased holds which devices must not be allocated.
func TestUnreleased(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	record := func(phase Phase, age time.Duration, device string) Record {
		return Record{Phase: phase, Updated: now.Add(-age), Sandbox: Sandbox{Given: ops.Givens{}.WithDevices(map[string]string{"vf0": device})}}
	}
	unclean := record(Releasing, time.Second, "clean")
	unclean.Failure = "settings of the pod could not be undone: ring.rx"
	unclean.History = []netstate.Change{{Before: netstate.Device{ID: "unclean"}, After: netstate.Device{ID: "unclean"}}}
	have := Unreleased([]Record{
		record(Applied, time.Hour, "in a pod"), record(Failed, time.Hour, "in a pod, and not repaired"),
		record(Releasing, time.Second, "on its way"), record(Releasing, time.Minute, "stuck"), record(Releasing, time.Minute, "stuck too"), unclean,
	}, []*frame.OtherVersion{{Mentions: map[string]bool{"mentioned": true, "stuck": true}}}, now)
	if len(have) != 4 || have["unclean"] != unclean.Failure || !strings.Contains(have["stuck too"], "has not ended") || !strings.Contains(have["stuck"], "another version") || !strings.Contains(have["mentioned"], "another version") {
		t.Errorf("have %q", have)
	}
}
