package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Bandwidth is the share of a claim in the bandwidth of a physical function, in bit/s.
type Bandwidth struct {
	Namespace, Pod, Claim, Topology, Step string
	// Reserved is the amount that the scheduler counted, Enforced the limit that the physical function sets
	// for the virtual function: negative if it cannot be read, 0 for no limit.
	Reserved, Enforced float64
}

// Bandwidths is read when metrics are collected. There is one for each virtual function of
// the node at most.
type Bandwidths func() []Bandwidth

var _ prometheus.Collector = Bandwidths(nil)

var (
	bandwidthLabels = []string{"namespace", "pod", "claim", "topology", "step"}
	reservedDesc    = prometheus.NewDesc("plumbline_bandwidth_reserved_bytes_per_second",
		"Bandwidth of a physical function reserved by the pod's claim.", bandwidthLabels, nil)
	enforcedDesc = prometheus.NewDesc("plumbline_bandwidth_enforced_bytes_per_second",
		"Rate limit that the physical function enforces on the pod's virtual function; 0: no limit.", bandwidthLabels, nil)
)

// Describe implements prometheus.Collector.
func (Bandwidths) Describe(ch chan<- *prometheus.Desc) { ch <- reservedDesc; ch <- enforcedDesc }

// Collect implements prometheus.Collector.
func (read Bandwidths) Collect(ch chan<- prometheus.Metric) {
	sent := map[Bandwidth]bool{} // a duplicate metric would fail the whole scrape
	for _, b := range read() {
		of := b
		of.Reserved, of.Enforced = 0, 0
		if sent[of] {
			continue
		}
		sent[of] = true
		labels := []string{b.Namespace, b.Pod, b.Claim, b.Topology, b.Step}
		ch <- prometheus.MustNewConstMetric(reservedDesc, prometheus.GaugeValue, b.Reserved/8, labels...)
		if b.Enforced >= 0 {
			ch <- prometheus.MustNewConstMetric(enforcedDesc, prometheus.GaugeValue, b.Enforced/8, labels...)
		}
	}
}
