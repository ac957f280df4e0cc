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

// RuleMetricsOptions are the settings of RuleMetrics.
type RuleMetricsOptions struct {
	Monitor *Monitor
	// Read is kernel.Host.RuleReadings.
	Read func(ctx context.Context, path string, id reconcile.NetnsID, of []Rule) ([]Reading, error)
	// Rules is the maximum number of rules on interfaces with counters; 0 is none.
	Rules int
}

// RuleMetrics are the counters of NetworkQoS rules on the interfaces of pods.
type RuleMetrics struct {
	RuleMetricsOptions

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
	rule    string
}

// ruleSeries are the values of a rule's series.
type ruleSeries struct {
	labels [7]string
	RuleCounters
}

// NewRuleMetrics returns the metrics of the rules on the ports of a Monitor.
func NewRuleMetrics(o RuleMetricsOptions) *RuleMetrics {
	return &RuleMetrics{RuleMetricsOptions: o, totals: map[ruleKey]*total{}}
}

var (
	ruleLabels      = []string{"namespace", "pod", "topology", "interface", "networkqos", "rule", "backend"}
	markedDesc      = prometheus.NewDesc("plumbline_networkqos_marked_packets_total", "Packets that a rule of a NetworkQoS has marked on an interface of a pod, with those that its limit has dropped.", ruleLabels, nil)
	markedBytesDesc = prometheus.NewDesc("plumbline_networkqos_marked_bytes_total", "Bytes that a rule of a NetworkQoS has marked on an interface of a pod, with those that its limit has dropped.", ruleLabels, nil)
	droppedDesc     = prometheus.NewDesc("plumbline_networkqos_dropped_packets_total", "Packets that the limit of a NetworkQoS rule has dropped on an interface of a pod; one that the interface divides into segments counts as one.", ruleLabels, nil)
	rulesOmitted    = prometheus.NewDesc("plumbline_networkqos_rules_omitted", "Rules of NetworkQoS objects on interfaces of pods without counters here, as there are more than --rule-metrics.", nil, nil)
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
		send(droppedDesc, s.Dropped)
	}
}

// refresh reads the counters, as far as time permits.
func (m *RuleMetrics) refresh() {
	now := m.Monitor.Now()
	if !m.read.IsZero() && now.Sub(m.read) < fresh {
		return
	}
	boxes := slices.DeleteFunc(m.Monitor.list(), func(b box) bool { return b.gone || b.pod == "" || len(b.rules) == 0 })
	slices.Reverse(boxes) // of two sandboxes of one pod, the newer one has the name
	wanted := make([]int, len(boxes))
	m.hidden = 0
	for i := range boxes {
		wanted[i] = len(boxes[i].rules)
		m.hidden += wanted[i]
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	m.shown = nil
	sent, kept := map[[7]string]bool{}, map[ruleKey]*total{}
	for i, n := range shares(m.Rules, wanted) {
		m.hidden -= n
		b, of := &boxes[i], boxes[i].rules[:n]
		readings, err := m.Read(ctx, b.path, b.netns, of)
		for j, r := range of {
			key := ruleKey{b.id, r.Port.Index, r.Name}
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
			kept[key] = t
			labels := [7]string{b.namespace, b.pod, b.id.Origin().Topology, r.Port.Name}
			labels[4], labels[5] = splitRule(r.Name)
			if labels[6] = v1alpha1.BackendTC; t.onPF {
				labels[6] = v1alpha1.BackendPF
			}
			if !sent[labels] {
				sent[labels] = true
				m.shown = append(m.shown, ruleSeries{labels, t.RuleCounters})
			}
		}
	}
	m.totals, m.read = kept, m.Monitor.Now()
}

// splitRule divides "namespace/object[2]" into the object's name and the rule's number.
func splitRule(name string) (object, rule string) {
	_, name, _ = strings.Cut(name, "/")
	object, rule, _ = strings.Cut(name, "[")
	return object, strings.TrimSuffix(rule, "]")
}
