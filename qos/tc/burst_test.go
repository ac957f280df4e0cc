package tc

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestBurstNanos: in the time that the kernel keeps of a burst, at least the burst is sent at the rate; a packet as
// large as the burst would never pass otherwise.
func TestBurstNanos(t *testing.T) {
	for _, p := range []Policer{
		{RateBytes: 125_000, BurstBytes: 64 << 10},
		{RateBytes: 3 * 125, BurstBytes: 1000},
		{RateBytes: 7_777_777, BurstBytes: 65_537},
		{RateBytes: 12_500_000_000, BurstBytes: 125},
	} {
		nanos := p.burstNanos()
		if nanos%netstate.BurstUnit != 0 {
			t.Errorf("%+v: %d ns are no multiple of the kernel's %d", p, nanos, int(netstate.BurstUnit))
		}
		if sent := float64(nanos) * float64(p.RateBytes) / 1e9; sent < float64(p.BurstBytes) || sent >= float64(p.BurstBytes)+float64(p.RateBytes)*netstate.BurstUnit/1e9 {
			t.Errorf("%+v: in %d ns it sends %f bytes", p, nanos, sent)
		}
	}
}
