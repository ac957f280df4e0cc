package ports

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile"
)

// RuleMetrics are the counters of NetworkQoS rules on the interfaces of pods.
type RuleMetrics struct {
	Monitor *Monitor
	// Read is kernel.Host.RuleReadings.
	Read func(ctx context.Context, path string, id reconcile.NetnsID, of []Rule) ([]Reading, error)
	// ReadLogical is flowcounters.Reader.Read, nil without OVN.
	ReadLogical func(ctx context.Context, of []LogicalRule) ([]Reading, error)
	// Rules is the maximum number of rules on interfaces with counters; 0 is none.
	Rules int

	mu     sync.Mutex
	read   time.Time
	shown  []ruleSeries
	hidden int
	totals map[ruleKey]*total
}

// ruleKey identifies a rule on an interface.
type ruleKey struct {
	sandbox reconcile.SandboxID
	link    int
	logical string // the interface of a rule of OVN
	rule    string
}

// ruleSeries are the values of a rule's series.
type ruleSeries struct {
	labels [7]string
	RuleCounters
}

var (
	ruleLabels = []string{"namespace", "pod", "topology", "interface", "networkqos", "rule", "backend"}
	markedDesc = prometheus.NewDesc("plumbline_networkqos_marked_packets_total",
		"Packets that a NetworkQoS rule marked, and sent or dropped by its limit.", ruleLabels, nil)
	markedBytesDesc = prometheus.NewDesc("plumbline_networkqos_marked_bytes_total",
		"Bytes that a NetworkQoS rule marked, and sent or dropped by its limit.", ruleLabels, nil)
	droppedDesc = prometheus.NewDesc("plumbline_networkqos_dropped_packets_total",
		"Packets dropped by the limit of a NetworkQoS rule; a packet before segmentation counts as one.", ruleLabels, nil)
	rulesOmitted = prometheus.NewDesc("plumbline_networkqos_rules_omitted",
		"NetworkQoS rules without metrics, beyond --rule-metrics.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *RuleMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{markedDesc, markedBytesDesc, droppedDesc, rulesOmitted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *RuleMetrics) Collect(ch chan<- prometheus.Metric) {
	if m.Rules == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refresh()
	ch <- prometheus.MustNewConstMetric(rulesOmitted, prometheus.GaugeValue, float64(m.hidden))
	for i := range m.shown {
		s := &m.shown[i]
		send := func(d *prometheus.Desc, n uint64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), s.labels[:]...)
		}
		send(markedDesc, s.Marked.Packets)
		send(markedBytesDesc, s.Marked.Bytes)
		if !s.DropsUnknown {
			send(droppedDesc, s.Dropped)
		}
	}
}

// refresh reads the counters, as far as time permits.
func (m *RuleMetrics) refresh() {
	now := m.Monitor.Now()
	if !m.read.IsZero() && now.Sub(m.read) < cacheTime {
		return
	}
	boxes := slices.DeleteFunc(m.Monitor.list(), func(b box) bool { return b.gone || b.pod.Name == "" || len(b.rules)+len(b.logical) == 0 })
	slices.Reverse(boxes) // of two sandboxes of one pod, the newer one has the name
	wanted := make([]int, len(boxes))
	m.hidden = 0
	for i := range boxes {
		wanted[i] = len(boxes[i].rules) + len(boxes[i].logical)
		m.hidden += wanted[i]
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	m.shown = nil
	sent, kept := map[[7]string]bool{}, map[ruleKey]*total{}
	show := func(b *box, key ruleKey, t *total, link, backend string) {
		kept[key] = t
		labels := [7]string{b.pod.Namespace, b.pod.Name, b.id.Origin().Topology, link}
		labels[4], labels[5] = splitRule(key.rule)
		if labels[6] = backend; !sent[labels] {
			sent[labels] = true
			m.shown = append(m.shown, ruleSeries{labels, t.RuleCounters})
		}
	}
	var logical []LogicalRule
	var of []*box // of each of them
	for i, n := range shares(m.Rules, wanted) {
		m.hidden -= n
		b := &boxes[i]
		first := min(n, len(b.rules))
		m.refreshFilters(ctx, b, b.rules[:first], show)
		for _, r := range b.logical[:n-first] {
			logical, of = append(logical, r), append(of, b)
		}
	}
	m.refreshLogical(ctx, of, logical, show)
	m.totals, m.read = kept, m.Monitor.Now()
}

// display keeps a total, and shows it as the series of a rule on a link.
type display func(b *box, key ruleKey, t *total, link, backend string)

// refreshFilters reads the counters of rules that filters enforce.
func (m *RuleMetrics) refreshFilters(ctx context.Context, b *box, of []Rule, show display) {
	if len(of) == 0 {
		return
	}
	readings, err := m.Read(ctx, b.path, b.netns, of)
	for j, r := range of {
		key := ruleKey{sandbox: b.id, link: r.Port.Index, rule: r.Name}
		t := m.totals[key]
		if err == nil {
			switch {
			case t == nil:
				t = &total{onPF: r.OnPF}
			case t.onPF != r.OnPF: // another series, which begins now
				t = &total{onPF: r.OnPF, last: t.last}
			}
			t.take(readings[j])
		}
		if t == nil {
			continue
		}
		backend := v1alpha1.BackendTC
		if t.onPF {
			backend = v1alpha1.BackendPF
		}
		show(b, key, t, r.Port.Name, backend)
	}
}

// refreshLogical reads the counters of rules that OVN enforces. A counter that cannot be read keeps
// its last value.
func (m *RuleMetrics) refreshLogical(ctx context.Context, boxes []*box, of []LogicalRule, show display) {
	if len(of) == 0 || m.ReadLogical == nil {
		return
	}
	readings, _ := m.ReadLogical(ctx, of)
	for i, r := range of {
		key := ruleKey{sandbox: boxes[i].id, logical: r.Interface, rule: r.Name}
		t := m.totals[key]
		if i < len(readings) && readings[i].Filters != nil {
			if t == nil {
				t = &total{}
			}
			t.take(readings[i])
		}
		if t != nil {
			show(boxes[i], key, t, r.Interface, v1alpha1.BackendOVN)
		}
	}
}

// splitRule divides "namespace/object[2]" into the object's name and the rule's number.
func splitRule(name string) (object, rule string) {
	_, name, _ = strings.Cut(name, "/")
	object, rule, _ = strings.Cut(name, "[")
	return object, strings.TrimSuffix(rule, "]")
}
