// Package monitoring holds the chart's rules and dashboard to a real Prometheus:
// promtool tests what each alert is for, and on a node with pods, drift, contention and
// a pod that gets no network, every rule and every query of the dashboard has to return
// what is there. It draws the picture of the dashboard in docs from that.
//
// It has tests only, with the build tag of the cluster bench.
package monitoring
