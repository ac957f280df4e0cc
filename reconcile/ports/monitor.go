package ports

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// Options are the settings of a Monitor. All are required.
type Options struct {
	// Record returns the record of a sandbox.
	Record func(reconcile.SandboxID) (reconcile.Record, bool, error)
	// Read is kernel.Host.Ports.
	Read func(ctx context.Context, path string, id reconcile.NetnsID, of []Port) ([]State, error)
	// ReadRDMA is kernel.Host.RDMAPorts.
	ReadRDMA func(ctx context.Context, path string, id reconcile.NetnsID, of []Port, states []State)
	// SilentRDMA is kernel.Host.SilentRDMA.
	SilentRDMA func() int
	// Pod is the pod of a sandbox; without one the sandbox is not watched.
	Pod func(reconcile.SandboxID) (Pod, bool)
	// Changed is called with each new report, in order and one at a time. It must not
	// block.
	Changed func(Report)
	Now     func() time.Time
}

// Limits, so that a pod that changes its links cannot overload the agent or the API server.
const (
	// pace is the shortest time between two reads of a sandbox.
	pace = time.Second
	// readTimeout bounds one read.
	readTimeout = 2 * time.Second
	// retryAfter is the time after a read that failed.
	retryAfter = 30 * time.Second
	// reportEvery is the time between two reports of all sandboxes on average, and
	// reportBurst how many are reported at once: a port of a switch can fail for all pods.
	reportEvery = 200 * time.Millisecond
	reportBurst = 100
	// The same of one sandbox. A pod that deletes its links gets new ones, each of which is
	// reported at once; some such pods would use up the reports of all.
	sandboxReportEvery = 10 * time.Second
	sandboxReportBurst = 10
)

// wait returns how long it takes until a report may be made.
func wait(budget *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - budget.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing/float64(budget.Limit())*float64(time.Second)) + 1 // rounded up
}

// Pod names a pod, and the claim by which it has a sandbox: a pod can have a topology twice, by two claims.
type Pod struct{ Namespace, Name, Claim string }

// Report is the state of the ports of a sandbox.
type Report struct {
	Sandbox  reconcile.SandboxID
	Topology *topology.Topology
	Ports    []Port
	// Verdicts are those on the ports; one that is not settled yet is zero.
	Verdicts []Verdict
	// Before are the verdicts of the last report.
	Before []Verdict
	Outcome
	// Gone: the sandbox has ended, or is about to. The rest is that of the last report. Succeeded: the
	// topology is in another sandbox of the claim by now.
	Gone, Succeeded bool
}

// Monitor watches the ports of sandboxes. As a reconcile.Recorder it learns of a change from
// the pass that the kernel's notification causes.
type Monitor struct {
	Options
	// Reported changes with Reports.
	Reported table.Changes
	wake     table.Wake

	mu    sync.Mutex
	boxes map[reconcile.SandboxID]*box
	seq   uint64

	budget *rate.Limiter // of reports
}

// box is the state of a sandbox.
type box struct {
	id   reconcile.SandboxID
	seq  uint64    // in order of appearance
	due  time.Time // zero: not
	gone bool

	pod        Pod
	path       string
	netns      reconcile.NetnsID
	read       time.Time
	ports      []Port
	rules      []Rule
	logical    []LogicalRule
	rdma       []rdmaDevice
	states     []State
	debouncers map[Port]*debouncer
	report     Report
	reported   bool
	budget     *rate.Limiter
}

// New returns a Monitor that does nothing until Run.
func New(o Options) *Monitor {
	return &Monitor{
		Options: o, wake: table.Woken(), boxes: map[reconcile.SandboxID]*box{},
		budget: rate.NewLimiter(rate.Every(reportEvery), reportBurst),
	}
}

// Pass implements reconcile.Recorder.
func (m *Monitor) Pass(p reconcile.Pass) {
	switch p.Trigger {
	case reconcile.TriggerEnsure, reconcile.TriggerCheck, reconcile.TriggerRepair:
		m.setDue(p.Sandbox)
	case reconcile.TriggerRelease: // what is left of it is no port
		m.Forget(p.Sandbox)
	case reconcile.TriggerPlan:
	}
}

// Drift implements reconcile.Recorder.
func (m *Monitor) Drift(reconcile.SandboxID, string, []reconcile.Drift) {}

// Forget implements reconcile.Recorder.
func (m *Monitor) Forget(id reconcile.SandboxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil {
		b.gone, b.due = true, m.Now()
		m.wake.Now()
	}
}

// setDue makes a sandbox due.
func (m *Monitor) setDue(id reconcile.SandboxID) {
	if id.Origin().PodSandbox == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, now := m.boxes[id], m.Now()
	if b == nil {
		m.seq++
		b = &box{
			id: id, seq: m.seq, debouncers: map[Port]*debouncer{},
			budget: rate.NewLimiter(rate.Every(sandboxReportEvery), sandboxReportBurst),
		}
		m.boxes[id] = b
	}
	b.gone = false
	at := now
	if next := b.read.Add(pace); !b.read.IsZero() && next.After(at) {
		at = next
	}
	if b.due.IsZero() || at.Before(b.due) {
		b.due = at
		m.wake.Now()
	}
}

// Run watches until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if b, wait := m.next(); b != nil {
			m.visit(ctx, b)
		} else {
			loop.Wait(ctx, cmp.Or(wait, loop.Forever), m.wake)
		}
	}
}

// next removes the sandbox that has been due for longest from the queue, or returns the time
// until the next one is due; 0 if there is none.
func (m *Monitor) next() (*box, time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Now()
	var first *box
	var at time.Time
	for _, b := range m.boxes {
		if b.due.IsZero() {
			continue
		}
		due := b.due
		if next := now.Add(wait(b.budget, now)); next.After(now) && !b.gone && due.Before(next) {
			due = next
		}
		if first == nil || due.Before(at) || due.Equal(at) && b.seq < first.seq {
			first, at = b, due
		}
	}
	switch {
	case first == nil:
		return nil, 0
	case at.After(now):
		return nil, at.Sub(now)
	case wait(m.budget, now) > 0:
		return nil, wait(m.budget, now)
	}
	first.due = time.Time{}
	return first, 0
}

// visit reads a sandbox and reports what is new.
func (m *Monitor) visit(ctx context.Context, b *box) {
	m.mu.Lock()
	gone := b.gone
	if gone {
		delete(m.boxes, b.id)
	}
	m.mu.Unlock()
	if gone {
		m.end(b)
		return
	}
	rec, known, err := m.Record(b.id)
	pod, ofPod := m.Pod(b.id)
	switch {
	case err != nil:
		m.again(b, retryAfter)
		return
	case !known || !ofPod || rec.Phase == reconcile.Releasing || rec.Sandbox.Netns == "":
		m.Forget(b.id)
		return
	}
	ports := Of(&rec)
	rules, logical := RulesOf(&rec, ports), LogicalRulesOf(&rec)
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	states, err := m.Read(limited, rec.Sandbox.Netns, rec.NetnsID, ports)
	if err == nil {
		m.ReadRDMA(limited, rec.Sandbox.Netns, rec.NetnsID, ports, states)
	}
	now := m.Now()
	if fault.Of(err) == fault.Gone {
		m.Forget(b.id)
		return
	}
	m.mu.Lock()
	b.read = now
	if err == nil {
		b.pod, b.path, b.netns, b.ports, b.rules, b.logical, b.states = pod, rec.Sandbox.Netns, rec.NetnsID, ports, rules, logical, states
		b.rdma = rdmaOf(&rec)
	}
	m.mu.Unlock()
	if err != nil {
		m.again(b, retryAfter)
		return
	}
	m.settle(b, rec.Sandbox.Topology, now)
}

// settle debounces what was read, and reports it.
func (m *Monitor) settle(b *box, t *topology.Topology, now time.Time) {
	report := Report{
		Sandbox: b.id, Topology: t, Ports: b.ports, Verdicts: make([]Verdict, len(b.ports)),
		Before: make([]Verdict, len(b.ports)),
	}
	changed := len(b.debouncers) != len(b.ports)
	kept := map[Port]*debouncer{}
	var next time.Duration
	for i, p := range b.ports {
		d := b.debouncers[p]
		if d == nil {
			d, changed = &debouncer{}, true
		}
		kept[p] = d
		report.Before[i] = d.reported
		differs, again := d.observe(now, Judge(b.states[i]), b.states[i].CarrierChanges)
		changed = changed || differs
		report.Verdicts[i] = d.reported
		if again > 0 && (next == 0 || again < next) {
			next = again
		}
	}
	m.mu.Lock()
	b.debouncers = kept
	m.mu.Unlock()
	if next > 0 {
		m.again(b, max(next, pace))
	}
	if !changed {
		return
	}
	report.Outcome = Weigh(t, report.Ports, report.Verdicts)
	m.mu.Lock()
	b.report, b.reported = report, true
	m.mu.Unlock()
	m.budget.AllowN(now, 1)
	b.budget.AllowN(now, 1)
	m.report(report)
}

// report hands on a report.
func (m *Monitor) report(r Report) {
	m.Changed(r)
	m.Reported.Changed()
}

func (m *Monitor) again(b *box, after time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := m.Now().Add(after); b.due.IsZero() || at.Before(b.due) {
		b.due = at
	}
}

func (m *Monitor) end(b *box) {
	if b.reported {
		r := b.report
		r.Gone = true
		r.Succeeded = slices.ContainsFunc(m.Reports(), func(other Report) bool {
			a, b := r.Sandbox.Origin(), other.Sandbox.Origin()
			return a.ClaimUID == b.ClaimUID && a.Topology == b.Topology
		})
		m.report(r)
	}
}

// Reports returns the last report on each sandbox, in order of their appearance.
func (m *Monitor) Reports() []Report {
	var out []Report
	for _, b := range m.list() {
		if b.reported && !b.gone {
			out = append(out, b.report)
		}
	}
	return out
}

// list copies what is known.
func (m *Monitor) list() []box {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []box
	for _, b := range m.boxes {
		out = append(out, *b)
	}
	slices.SortFunc(out, func(a, b box) int { return cmp.Compare(a.seq, b.seq) })
	return out
}

// newestOfPods copies what is known of sandboxes of pods that are there, the newest first.
func (m *Monitor) newestOfPods() []box {
	out := slices.DeleteFunc(m.list(), func(b box) bool { return b.gone || b.pod.Name == "" })
	slices.Reverse(out)
	return out
}
