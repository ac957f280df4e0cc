package failures

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// hold is how long a device is not allocated after a pod was evicted because of it. On the
// host the agent sees less of it: a link that is not up has no carrier to report. Without
// this, the next pod would get the same device, and be evicted, too.
const hold = 10 * time.Minute

// Options configures a Tracker. All fields are required.
type Options struct {
	// Claim returns the record of a claim.
	Claim func(types.UID) (claims.Claim, bool)
	// InUse lists the names of the devices that claims have.
	InUse func() []string
	// Changed is called when Failing may return something else. It must not block.
	Changed func()
	Now     func() time.Time
}

// Tracker tracks what is down, for how long, and the reaction.
type Tracker struct {
	Options

	mu   sync.Mutex
	down map[reconcile.SandboxID]map[string]failure // by device name
	held map[string]time.Time                       // by device name: since when
	// evicting are devices that an earlier agent has evicted a pod for, until the port is
	// known to be up or the pod has ended.
	evicting map[string]bool
}

// failure is a device that is down in a sandbox.
type failure struct {
	lost, evict bool
	since       time.Time
	after       time.Duration
}

func (f *failure) due(now time.Time) bool { return now.Sub(f.since) >= f.after }

// New returns an empty Tracker.
func New(o Options) *Tracker {
	return &Tracker{
		Options: o, down: map[reconcile.SandboxID]map[string]failure{}, held: map[string]time.Time{},
		evicting: map[string]bool{},
	}
}

// Restore takes what an earlier agent has published. A hold goes on, and a pod that is being
// evicted is not spared because the agent was started again.
func (t *Tracker) Restore(was map[string]publish.Failing) {
	now := t.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, f := range was {
		switch {
		case f.Held && (f.Since.IsZero() || f.Since.After(now)): // an earlier version, or the clock was set
			t.hold(name, now)
		case f.Held:
			t.hold(name, f.Since)
		case f.Evict:
			t.evicting[name] = true
		}
	}
	for _, devices := range t.down {
		for name, f := range devices {
			if t.evicting[name] && f.evict {
				f.since = now.Add(-f.after)
				devices[name] = f
			}
		}
	}
}

// hold keeps a device from other pods. The time is in whole seconds, as in the API.
func (t *Tracker) hold(name string, since time.Time) {
	t.held[name] = since.Truncate(time.Second)
	time.AfterFunc(t.held[name].Add(hold).Sub(t.Now()), t.Changed)
}

// Report updates the state of a sandbox's ports.
func (t *Tracker) Report(r ports.Report) {
	now := t.Now()
	t.mu.Lock()
	before, evicting := t.down[r.Sandbox], len(t.evicting)
	after := t.failures(r, before, now)
	changed := len(before) > 0 || len(t.evicting) < evicting
	if r.Gone {
		for name, f := range before {
			if f.lost && f.evict && f.due(now) {
				delete(t.evicting, name) // the pod is gone
				t.hold(name, now)
			}
		}
	}
	if len(after) == 0 {
		delete(t.down, r.Sandbox)
	} else {
		t.down[r.Sandbox] = after
	}
	t.mu.Unlock()
	for name, f := range after {
		if before[name] != f {
			time.AfterFunc(f.after, t.Changed)
		}
	}
	if changed {
		t.Changed()
	}
}

// failures returns the devices that are down according to a report, and since when.
func (t *Tracker) failures(r ports.Report, before map[string]failure, now time.Time) map[string]failure {
	if r.Gone || len(r.Devices) == 0 && len(t.evicting) == 0 {
		return nil
	}
	c, known := t.Claim(types.UID(r.Sandbox.Origin().ClaimUID))
	if !known {
		return nil
	}
	of := c.Topology(r.Topology.Name)
	if of == nil || of.Object.Spec.OnFailure == nil {
		return nil
	}
	if !slices.Contains(r.Verdicts, ports.Verdict{}) { // each port is known
		for _, d := range of.Devices {
			if r.Devices[d.Step] != ports.Lost {
				delete(t.evicting, d.Name)
			}
		}
	}
	policy := of.Object.Spec.OnFailure
	out := map[string]failure{}
	for _, d := range of.Devices {
		severity, failed := r.Devices[d.Step]
		if !failed {
			continue
		}
		f := failure{lost: severity == ports.Lost, since: now, after: time.Duration(policy.Seconds()) * time.Second}
		// A pod that shares a device can make its own link on it fail, and a taint would
		// evict the others.
		f.evict = f.lost && policy.Lost == v1alpha1.Evict && d.ShareID == nil
		if was, ok := before[d.Name]; ok && was.lost == f.lost {
			f.since = was.since
		} else if f.evict && t.evicting[d.Name] {
			f.since = now.Add(-f.after)
		}
		out[d.Name] = f
	}
	return out
}

// Failing returns what is to be tainted now, by device name.
func (t *Tracker) Failing() map[string]publish.Failing {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.Now()
	if len(t.evicting) > 0 {
		used := t.InUse()
		for name := range t.evicting {
			if !slices.Contains(used, name) { // the pod ended while no agent ran
				delete(t.evicting, name)
				t.hold(name, now)
			}
		}
	}
	out := map[string]publish.Failing{}
	for name := range t.evicting {
		out[name] = publish.Failing{Lost: true, Evict: true}
	}
	for name, since := range t.held {
		if since.After(now) { // the clock was set back
			t.hold(name, now)
		}
		if now.Sub(since) >= hold {
			delete(t.held, name)
			continue
		}
		out[name] = publish.Failing{Lost: true, Held: true, Since: t.held[name]}
	}
	for _, devices := range t.down {
		for name, f := range devices {
			if was := out[name]; f.due(now) && (!was.Lost || was.Held) {
				next := publish.Failing{Lost: f.lost, Evict: f.evict, Held: was.Held && !f.evict}
				if next.Held {
					next.Since = was.Since
				}
				out[name] = next
			}
		}
	}
	return out
}
