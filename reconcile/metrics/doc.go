// Package metrics turns what the engine reports into Prometheus metrics. A
// Metrics is a reconcile.Recorder and a prometheus.Collector at once; the
// daemon that runs the loop registers it and serves it.
//
// The engine measures; this package only counts. No label names a sandbox, so the
// number of series is bounded by topologies, step types and the fields plumbline
// manages, not by pods. The state of one sandbox is in status and Events.
package metrics
