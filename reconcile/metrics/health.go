package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Work is the state of the loop that repairs drift.
type Work struct {
	Running bool          // in this process
	Waiting int           // sandboxes that are due and wait for a worker
	Busy    int           // workers that have a sandbox
	Delay   time.Duration // of the sandbox that has been due for longest
	Resync  time.Time     // last complete read of wanted topologies and records; zero: never
}

// Health is read when metrics are collected. A nil function is left out: a loop
// without a cluster has no kubelet.
type Health struct {
	Loop func() Work
	// Registered reports whether kubelet has accepted the plugin.
	Registered func() bool
	// Reports returns how many claims have a status that is not written yet, and
	// how many reports were dropped.
	Reports func() (waiting int, dropped uint64)
}

var _ prometheus.Collector = Health{}

func describe(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }

var (
	runningDesc = describe("plumbline_loop_running",
		"1 while this process repairs drift; during a rolling update the previous agent may.")
	waitingDesc    = describe("plumbline_queue_depth", "Sandboxes that wait for a free worker.")
	busyDesc       = describe("plumbline_workers_busy", "Workers that are checking or repairing a sandbox.")
	delayDesc      = describe("plumbline_queue_oldest_seconds", "Waiting time of the oldest sandbox in the work queue.")
	resyncDesc     = describe("plumbline_last_resync_timestamp_seconds", "Unix time of the last complete read of topologies and records.")
	registeredDesc = describe("plumbline_kubelet_registered",
		"1 while the agent is registered with the kubelet; otherwise no pod with a claim starts.")
	reportsDesc = describe("plumbline_claim_reports_waiting", "Claims whose status is not yet written to the API server.")
	droppedDesc = describe("plumbline_claim_reports_dropped_total", "Claim status reports dropped because the queue was full.")
)

// Describe implements prometheus.Collector.
func (h Health) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		runningDesc, waitingDesc, busyDesc, delayDesc, resyncDesc, registeredDesc, reportsDesc,
		droppedDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (h Health) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	if h.Loop != nil {
		work := h.Loop()
		gauge(runningDesc, truth(work.Running))
		gauge(waitingDesc, float64(work.Waiting))
		gauge(busyDesc, float64(work.Busy))
		gauge(delayDesc, work.Delay.Seconds())
		if !work.Resync.IsZero() {
			gauge(resyncDesc, float64(work.Resync.UnixMilli())/1000)
		}
	}
	if h.Registered != nil {
		gauge(registeredDesc, truth(h.Registered()))
	}
	if h.Reports != nil {
		waiting, dropped := h.Reports()
		gauge(reportsDesc, float64(waiting))
		ch <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(dropped))
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
