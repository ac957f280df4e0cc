package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Work is what the loop that repairs drift is at.
type Work struct {
	Running bool          // in this process
	Waiting int           // sandboxes whose turn has come, and no worker is free
	Busy    int           // sandboxes that are being looked at
	Delay   time.Duration // of the turn that has been due for longest
	Resync  time.Time     // when all that is wanted and known was read last; zero: never
}

// Health is asked when metrics are collected. What is nil is left out: a loop
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
	runningDesc    = describe("plumbline_loop_running", "1 while this process looks after drift; in a rolling update the agent before it may be the one that does.")
	waitingDesc    = describe("plumbline_turns_waiting", "Sandboxes whose turn to be looked at has come and for which no worker is free.")
	busyDesc       = describe("plumbline_turns_running", "Sandboxes that are being looked at.")
	delayDesc      = describe("plumbline_turn_delay_seconds", "How long the sandbox whose turn came first has been waiting for it.")
	resyncDesc     = describe("plumbline_last_resync_timestamp_seconds", "Unix time at which all that is wanted and recorded was last read without an error.")
	registeredDesc = describe("plumbline_kubelet_registered", "1 while kubelet has the plugin registered; without that no pod with a claim starts.")
	reportsDesc    = describe("plumbline_claim_reports_waiting", "Claims whose status is still to be written to the API server.")
	droppedDesc    = describe("plumbline_claim_reports_dropped_total", "Reports on claims that were dropped because too many were waiting.")
)

// Describe implements prometheus.Collector.
func (h Health) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningDesc, waitingDesc, busyDesc, delayDesc, resyncDesc, registeredDesc, reportsDesc, droppedDesc} {
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
