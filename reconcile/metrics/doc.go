// Package metrics turns what the engine reports into Prometheus metrics. A
// Metrics is a reconcile.Recorder and a prometheus.Collector at once; the
// daemon that runs the loop registers it and serves it.
//
// Everything is measured by the engine; this package counts and never asks. No
// label names a sandbox, so the number of series is bounded by topologies,
// step types and the fields plumbline manages, not by pods. What one sandbox
// is like is the business of status and of events.
package metrics
