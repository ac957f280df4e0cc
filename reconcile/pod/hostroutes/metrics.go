package hostroutes

import "github.com/prometheus/client_golang/prometheus"

var (
	routesDesc  = prometheus.NewDesc("plumbline_host_routes", "Host routes to pods of other nodes.", nil, nil)
	missingDesc = prometheus.NewDesc("plumbline_host_routes_missing",
		"Host routes and rules to pods of other nodes that could not be set.", nil, nil)
	refusedDesc = prometheus.NewDesc("plumbline_host_routes_refused",
		"Pod CIDRs of other nodes without a route; the agent's log says why.", nil, nil)
	changesDesc = prometheus.NewDesc("plumbline_host_route_changes_total",
		"Host routes and rules to pods of other nodes, created and deleted.", []string{"action"}, nil)
)

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(ch chan<- *prometheus.Desc) {
	ch <- routesDesc
	ch <- missingDesc
	ch <- refusedDesc
	ch <- changesDesc
}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	s := k.State()
	ch <- prometheus.MustNewConstMetric(routesDesc, prometheus.GaugeValue, float64(s.Routes))
	ch <- prometheus.MustNewConstMetric(missingDesc, prometheus.GaugeValue, float64(s.Missing))
	ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.GaugeValue, float64(s.Refused))
	ch <- prometheus.MustNewConstMetric(changesDesc, prometheus.CounterValue, float64(s.Created), "create")
	ch <- prometheus.MustNewConstMetric(changesDesc, prometheus.CounterValue, float64(s.Deleted), "delete")
}
