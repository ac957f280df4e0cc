package metrics

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/plumbline/plumbline/reconcile"
)

// keepGone is how long the counters of a topology outlive its last sandbox here:
// long enough for the slowest scrape to see how they ended.
const keepGone = 15 * time.Minute

// topologies knows which topologies have sandboxes here, so that what is counted
// of a topology goes after the last of them: its name and its steps' are the only
// labels that users choose.
type topologies struct {
	now func() time.Time

	mu   sync.Mutex
	of   map[reconcile.SandboxID]string
	gone map[string]time.Time // since when there is no sandbox of it
}

// seen notes of which topology a sandbox is, and reports whether that is news.
func (t *topologies) seen(id reconcile.SandboxID, topology string) (isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was, ok := t.of[id]; ok && (topology == "" || was == topology) {
		return false
	}
	if topology == "" { // of a record that could not be read
		return false
	}
	t.of[id] = topology
	delete(t.gone, topology)
	return true
}

func (t *topologies) forget(id reconcile.SandboxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	topology, ok := t.of[id]
	delete(t.of, id)
	if ok && !slices.Contains(slices.Collect(maps.Values(t.of)), topology) {
		t.gone[topology] = t.now()
	}
}

// expire returns the topologies that have been gone for long enough, once.
func (t *topologies) expire() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	var out []string
	for name, since := range t.gone {
		if now.Sub(since) >= keepGone {
			out = append(out, name)
			delete(t.gone, name)
		}
	}
	return out
}
