package ports

import "github.com/prometheus/client_golang/prometheus"

// driverTotal is a counter that is a sum. It is unknown until something was added: a driver that does not count has not counted nothing.
type driverTotal struct {
	value uint64
	known bool
}

func (t *driverTotal) add(n uint64) { t.value, t.known = t.value+n, true }

// send sends a known total of a sandbox.
func (t driverTotal) send(ch chan<- prometheus.Metric, desc *prometheus.Desc, of box, step, name string) {
	if t.known {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(t.value),
			of.pod.Namespace, of.pod.Name, of.pod.Claim, of.id.Origin().Topology, step, name)
	}
}
