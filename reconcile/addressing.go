package reconcile

import "time"

// How often the addresses that the network gives to a sandbox are recorded and reported: each time is a write to disk and to
// the API server, and an Event. A hostile router, and the pod itself, can change them any number of times, so the
// interval doubles while they change, and is the first one again when they have not for four times as long.
const (
	addressesEvery = 10 * time.Second
	addressesMost  = 10 * time.Minute
)

// readdressing is when the addresses of a sandbox were recorded last, and how long it takes until they are again.
type readdressing struct {
	at    time.Time
	every time.Duration
}

// readdress returns how long other addresses of a sandbox are not recorded yet, after its record was written; 0 if they
// are now.
func (r *Reconciler) readdress(id SandboxID, written time.Time) (early time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, last := r.opts.Now(), r.readdressed[id]
	if last.every == 0 || now.Sub(last.at) >= 4*last.every {
		last = readdressing{every: addressesEvery / 2}
	}
	if early = max(last.every, addressesEvery) - now.Sub(written); early > 0 && !written.After(now) { // else the clock was set back
		return early
	}
	r.readdressed[id] = readdressing{now, min(2*last.every, addressesMost)}
	return 0
}
