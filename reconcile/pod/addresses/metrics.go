package addresses

import "github.com/prometheus/client_golang/prometheus"

// Metrics says what the node has of each pool. It is a prometheus.Collector.
type Metrics struct{ Counts func() []Count }

var addressesDesc = prometheus.NewDesc("plumbline_pool_addresses",
	"Leased addresses of a pool on this node: used, resting after use, or free.",
	[]string{"pool", "family", "state"}, nil)

// Describe implements prometheus.Collector.
func (Metrics) Describe(ch chan<- *prometheus.Desc) { ch <- addressesDesc }

// Collect implements prometheus.Collector.
func (m Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.Counts() {
		for state, n := range map[string]uint64{"used": c.Used, "resting": c.Resting, "free": c.Free} {
			ch <- prometheus.MustNewConstMetric(addressesDesc, prometheus.GaugeValue, float64(n), c.Pool, c.Family, state)
		}
	}
}
