package nriplugin

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/plumbline/plumbline/topology/fault"
)

// Metrics counts hooks.
type Metrics struct {
	prometheus.Collector // both of these

	hooks     *prometheus.HistogramVec
	connected prometheus.Gauge
}

// NewMetrics returns empty metrics.
func NewMetrics() *Metrics {
	all := prometheus.NewRegistry()
	return &Metrics{
		Collector: all,
		hooks: promauto.With(all).NewHistogramVec(prometheus.HistogramOpts{
			Name: "plumbline_hook_duration_seconds", Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
			Help: "Duration of a hook of the container runtime, or of an attachment that continued after it (BehindGate); " +
				"outcome is Success or the error kind.",
		}, []string{"hook", "outcome"}),
		connected: promauto.With(all).NewGauge(prometheus.GaugeOpts{
			Name: "plumbline_runtime_connected",
			Help: "1 while the agent is connected to the container runtime; otherwise pods with claims wait.",
		}),
	}
}

// Hook counts a hook, with the kind of its error; "" is none.
func (m *Metrics) Hook(name string, outcome fault.Kind, took time.Duration) {
	label := cmp.Or(string(outcome), "Success")
	m.hooks.WithLabelValues(name, label).Observe(took.Seconds())
}

// Connected records whether the runtime is connected.
func (m *Metrics) Connected(up bool) {
	if up {
		m.connected.Set(1)
	} else {
		m.connected.Set(0)
	}
}
