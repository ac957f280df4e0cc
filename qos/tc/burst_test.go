package tc

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
)

// TestBurstNanos: in the time that the kernel keeps of a burst, at least the burst is sent at the rate; a packet as
// large as the burst would never pass otherwise.
func TestBurstNanos(t *testing.T) {
	for _, p := range []bucket{
		{rate: 125_000, burst: 64 << 10},
		{rate: 3 * 125, burst: 1000},
		{rate: 7_777_777, burst: 65_537},
		{rate: 12_500_000_000, burst: 125},
	} {
		nanos := p.nanos()
		if nanos%netstate.BurstUnit != 0 {
			t.Errorf("%+v: %d ns are no multiple of the kernel's %d", p, nanos, int(netstate.BurstUnit))
		}
		if sent := float64(nanos) * float64(p.rate) / 1e9; sent < float64(p.burst) || sent >= float64(p.burst)+float64(p.rate)*netstate.BurstUnit/1e9 {
			t.Errorf("%+v: in %d ns it sends %f bytes", p, nanos, sent)
		}
	}
}

func TestBucket(t *testing.T) {
	for want, r := range map[bucket]qos.Rule{
		{125000, 12500}:            {RateKbit: 1000, BurstKbit: 100},
		{125000, 65536}:            {RateKbit: 1000},
		{536870911875, 5368709118}: {RateKbit: 1<<32 - 1},
	} {
		if have := bucketOf(&r); have != want {
			t.Errorf("%s: %+v, want %+v", &r, have, want)
		}
	}
}
