package metrics

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// Build identifies the program.
type Build struct {
	Version   string
	Revision  string
	GoVersion string
}

// Metrics counts what a Reconciler does. It is safe for concurrent use.
type Metrics struct {
	prometheus.Collector // all of these

	passes       *prometheus.CounterVec
	passSeconds  *prometheus.HistogramVec
	phaseSeconds *prometheus.HistogramVec
	changes      *prometheus.CounterVec
	repairs      *prometheus.CounterVec
	timeToRepair prometheus.Histogram
	messages     *prometheus.CounterVec
	damaged      prometheus.Gauge
	others       prometheus.Gauge
	searching    prometheus.Gauge
	detected     *prometheus.CounterVec
	current      current
	topologies   topologies
}

var (
	_ reconcile.Recorder   = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// passBuckets reach from a pass that finds nothing to do to one that waits for
// a card: 1 ms, 2 ms, ... 32.8 s.
var passBuckets = prometheus.ExponentialBuckets(0.001, 2, 16)

// phaseBuckets reach down to one fsync on a fast disk: 0.1 ms, 0.2 ms, ... 26 s.
var phaseBuckets = prometheus.ExponentialBuckets(0.0001, 4, 10)

// BuildInfo is the metric that identifies the program.
func BuildInfo(b Build) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "plumbline_build_info", Help: "Always 1; the labels identify the program.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.GoVersion},
	})
	g.Set(1)
	return g
}

// New returns metrics without events.
func New(b Build, now func() time.Time) *Metrics {
	all := prometheus.NewRegistry()
	with := promauto.With(all)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return with.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return with.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return with.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &Metrics{
		Collector: all,
		passes: counter("plumbline_passes_total",
			"Passes of the engine over a sandbox; outcome is Success or the error kind.", "trigger", "outcome"),
		passSeconds:  histogram("plumbline_pass_duration_seconds", "Duration of a pass over a sandbox.", passBuckets, "trigger"),
		phaseSeconds: histogram("plumbline_phase_duration_seconds", "Time that a pass spent in each phase.", phaseBuckets, "phase"),
		changes: counter("plumbline_changes_total",
			"Changes made to kernel objects, without those of rollbacks.", "step_type", "action"),
		repairs: counter("plumbline_repairs_total",
			"Repairs of drifted sandboxes; outcome is Success or the error kind.", "topology", "outcome"),
		detected: counter("plumbline_drift_detected_total",
			"Drifted fields, counted when first found. Labels as for plumbline_drift_fields.", driftLabels...),
		timeToRepair: with.NewHistogram(prometheus.HistogramOpts{
			Name: "plumbline_time_to_repair_seconds", Buckets: passBuckets,
			Help: "Time from the first notification of a drift to the end of its repair.",
		}),
		messages: counter("plumbline_netlink_messages_total",
			"Netlink requests: dumps, reads of single objects (get), and writes.", "kind"),
		damaged: gauge("plumbline_journal_damaged_files", "Journal files that could not be read and were renamed."),
		others: gauge("plumbline_other_version_records",
			"Records written by another version of plumbline, which this one does not change."),
		searching: gauge("plumbline_hidden_link_search", "1 if hidden links of pods are searched for one by one, which slows releases, "+
			"as the BPF program cannot be used; the log says why."),
		current: current{
			states: map[reconcile.SandboxID]reconcile.State{}, drift: map[reconcile.SandboxID]map[driftKey]int{},
			contentions: map[reconcile.SandboxID]map[driftKey]int{},
		},
		topologies: topologies{now: now, of: map[reconcile.SandboxID]string{}, gone: map[string]time.Time{}},
	}
	all.MustRegister(BuildInfo(b), &m.current)

	// A series that exists before its first event lets rate() count that event.
	for _, t := range []reconcile.Trigger{
		reconcile.TriggerEnsure, reconcile.TriggerCheck, reconcile.TriggerRepair,
		reconcile.TriggerRelease,
	} {
		m.passes.WithLabelValues(string(t), success)
	}
	for _, kind := range []string{"dump", "get", "write"} {
		m.messages.WithLabelValues(kind)
	}
	return m
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, name := range m.topologies.expire() {
		for _, c := range []*prometheus.CounterVec{m.repairs, m.detected} {
			c.DeletePartialMatch(prometheus.Labels{"topology": name})
		}
	}
	m.Collector.Collect(ch)
}

// success is the outcome of a pass without an error.
const success = "Success"

func outcome(k fault.Kind) string { return cmp.Or(string(k), success) }

// Pass implements reconcile.Recorder.
func (m *Metrics) Pass(p reconcile.Pass) {
	trigger := string(p.Trigger)
	if p.Trigger != reconcile.TriggerPlan {
		m.seen(p.Sandbox, p.Topology)
	}
	m.passes.WithLabelValues(trigger, outcome(p.Outcome)).Inc()
	m.passSeconds.WithLabelValues(trigger).Observe(p.Timing.Total.Seconds())
	for phase, took := range map[string]time.Duration{"observe": p.Timing.Observe, "journal": p.Timing.Journal, "apply": p.Timing.Apply} {
		if took > 0 {
			m.phaseSeconds.WithLabelValues(phase).Observe(took.Seconds())
		}
	}
	for _, c := range p.Changes {
		m.changes.WithLabelValues(stepType(p.StepTypes[c.Step]), string(c.Action())).Inc()
	}
	if p.Trigger == reconcile.TriggerRepair && (len(p.Changes) > 0 || p.Outcome != "") {
		m.repairs.WithLabelValues(p.Topology, outcome(p.Outcome)).Inc()
	}
	m.messages.WithLabelValues("dump").Add(float64(p.Dumps))
	m.messages.WithLabelValues("get").Add(float64(p.Gets))
	m.messages.WithLabelValues("write").Add(float64(p.Writes))
	m.current.pass(p)
}

// Drift implements reconcile.Recorder.
func (m *Metrics) Drift(id reconcile.SandboxID, topology string, drift []reconcile.Drift) {
	m.seen(id, topology)
	for k, n := range m.current.drifted(id, topology, drift) {
		m.detected.WithLabelValues(k.values()...).Add(float64(n))
	}
}

// Contended implements node.Recorder: fields that another writer keeps changing back.
func (m *Metrics) Contended(id reconcile.SandboxID, topology string, contended []reconcile.Contention) {
	m.seen(id, topology)
	m.current.contended(id, topology, contended)
}

// Forget implements reconcile.Recorder.
func (m *Metrics) Forget(id reconcile.SandboxID) {
	m.current.forget(id)
	m.topologies.forget(id)
}

// seen records the topology of a sandbox. A counter of repairs that exists before
// the first repair lets rate() count that one.
func (m *Metrics) seen(id reconcile.SandboxID, topology string) {
	if m.topologies.seen(id, topology) {
		m.repairs.WithLabelValues(topology, success)
	}
}

// Repaired records how long a drift lasted, from its first notification to the
// end of the pass that repaired it.
func (m *Metrics) Repaired(took time.Duration) { m.timeToRepair.Observe(took.Seconds()) }

// Damaged sets the number of journal files that were set aside.
func (m *Metrics) Damaged(files int) { m.damaged.Set(float64(files)) }

// OtherVersions sets the number of records that other versions have written.
func (m *Metrics) OtherVersions(files int) { m.others.Set(float64(files)) }

// Searching reports that links hidden on a device are searched for one by one.
func (m *Metrics) Searching() { m.searching.Set(1) }

// noStep is the step type of changes that belong to no step of the topology.
const noStep = "none"

func stepType(typ string) string { return cmp.Or(typ, noStep) }

// driftKey is one series of plumbline_drift_fields, and without the type of the step one of plumbline_fighting_fields.
type driftKey struct{ topology, step, stepType, object, field string }

// driftLabels are bounded by what topologies say: no pod, no object's name.
var driftLabels = []string{"topology", "step", "step_type", "object", "field"}

func (k driftKey) values() []string {
	return []string{k.topology, k.step, k.stepType, k.object, k.field}
}

var (
	contentionDesc = prometheus.NewDesc("plumbline_fighting_fields",
		"Fields that another writer changes back after each repair. Labels as for plumbline_drift_fields.",
		[]string{"topology", "step", "object", "field"}, nil)
	driftDesc = prometheus.NewDesc("plumbline_drift_fields",
		"Drifted fields of all sandboxes; field is \"missing\" or \"unwanted\" for a whole object.",
		driftLabels, nil)
	sandboxesDesc = prometheus.NewDesc("plumbline_sandboxes", "Sandboxes by the result of the last pass.", []string{"state"}, nil)
)

// current is the state of each sandbox; it is summed when metrics are collected.
type current struct {
	mu          sync.Mutex
	states      map[reconcile.SandboxID]reconcile.State
	drift       map[reconcile.SandboxID]map[driftKey]int
	contentions map[reconcile.SandboxID]map[driftKey]int
}

func (c *current) Describe(ch chan<- *prometheus.Desc) {
	ch <- driftDesc
	ch <- contentionDesc
	ch <- sandboxesDesc
}

func (c *current) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	states := map[reconcile.State]int{reconcile.InSync: 0, reconcile.Drifted: 0, reconcile.StateFailed: 0}
	for _, s := range c.states {
		states[s]++
	}
	for s, n := range states {
		ch <- prometheus.MustNewConstMetric(sandboxesDesc, prometheus.GaugeValue, float64(n), string(s))
	}
	for k, n := range sum(c.drift) {
		ch <- prometheus.MustNewConstMetric(driftDesc, prometheus.GaugeValue, float64(n), k.values()...)
	}
	for k, n := range sum(c.contentions) {
		ch <- prometheus.MustNewConstMetric(contentionDesc, prometheus.GaugeValue, float64(n), k.topology, k.step, k.object, k.field)
	}
}

func sum(sandboxes map[reconcile.SandboxID]map[driftKey]int) map[driftKey]int {
	out := map[driftKey]int{}
	for _, of := range sandboxes {
		for k, n := range of {
			out[k] += n
		}
	}
	return out
}

// pass takes the state of a sandbox from a pass. A check that succeeds reports by
// Drift what it found, and so does a repair for what it left; a plan says nothing
// about the state.
func (c *current) pass(p reconcile.Pass) {
	if p.Trigger == reconcile.TriggerPlan || p.Trigger == reconcile.TriggerCheck && p.Outcome == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Outcome != "" {
		c.states[p.Sandbox] = reconcile.StateFailed
		return
	}
	if len(p.Left) > 0 {
		c.states[p.Sandbox] = reconcile.Drifted
		return
	}
	c.states[p.Sandbox] = reconcile.InSync
	delete(c.drift, p.Sandbox)
}

func (c *current) contended(id reconcile.SandboxID, topology string, contended []reconcile.Contention) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.contentions, id)
	if len(contended) == 0 {
		return
	}
	of := map[driftKey]int{}
	for _, f := range contended {
		of[keyOf(topology, reconcile.Drift{Step: f.Step, Action: f.Action, Object: f.Object, Field: f.Field})]++
	}
	c.contentions[id] = of
}

// drifted stores the drift of a sandbox and returns what is new in it.
func (c *current) drifted(id reconcile.SandboxID, topology string, drift []reconcile.Drift) map[driftKey]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.drift[id]
	c.states[id] = reconcile.InSync
	delete(c.drift, id)
	if len(drift) == 0 {
		return nil
	}
	c.states[id] = reconcile.Drifted
	of := map[driftKey]int{}
	for _, d := range drift {
		of[keyOf(topology, d)]++
	}
	c.drift[id] = of
	fresh := maps.Clone(of)
	for k, n := range known {
		if fresh[k] -= n; fresh[k] <= 0 {
			delete(fresh, k)
		}
	}
	return fresh
}

func (c *current) forget(id reconcile.SandboxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.states, id)
	delete(c.drift, id)
	delete(c.contentions, id)
}

// keyOf leaves out what would make series without bound: names and keys of
// objects, and the reference a pending step waits for.
func keyOf(topology string, d reconcile.Drift) driftKey {
	k := driftKey{
		topology: topology, step: cmp.Or(d.Step, noStep), stepType: stepType(d.Type), object: string(d.Object.Kind),
		field: d.Field,
	}
	switch {
	case d.Object.Kind == "":
		k.object, k.field = "step", "pending"
	case d.Action == netstate.Create:
		k.field = "missing"
	case d.Action == netstate.Delete:
		k.field = "unwanted"
	}
	return k
}
