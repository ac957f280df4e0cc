package filters

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// States of an object on a node.
const (
	stateInPlace  = "InPlace"  // in all pods of the node that it covers
	stateUpdating = "Updating" // not yet
	stateFailing  = "Failing"  // not, with a reason that the status of the object has
)

var objectsDesc = prometheus.NewDesc("plumbline_networkqos_objects",
	"NetworkQoS objects that cover pods of the node, by whether their rules are in place in all of these.", []string{"state"}, nil)

// Describe implements prometheus.Collector.
func (*Follower) Describe(ch chan<- *prometheus.Desc) { ch <- objectsDesc }

// Collect implements prometheus.Collector.
func (f *Follower) Collect(ch chan<- prometheus.Metric) {
	states := f.states.Load()
	if states == nil {
		return // it is not known yet, or nothing is enforced
	}
	for state, n := range *states {
		ch <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, float64(n), state)
	}
}

// statesOf counts objects of a report by state.
func statesOf(r *v1alpha1.NetworkQoSReport) map[string]int {
	out := map[string]int{stateInPlace: 0, stateUpdating: 0, stateFailing: 0}
	for i := range r.Objects {
		switch o := &r.Objects[i]; {
		case o.Problem != "":
			out[stateFailing]++
		case o.InPlace < o.Pods:
			out[stateUpdating]++
		default:
			out[stateInPlace]++
		}
	}
	return out
}
