package filters

import (
	"flag"
	"testing"

	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMetrics holds that each object is counted once, by the worst that is known of it, and that nothing is said before a node has compared.
func TestMetrics(t *testing.T) {
	f := New(Options{})
	if got := metricstest.Exposition(t, f); got != "" {
		t.Errorf("before anything is known:\n%s", got)
	}
	states := statesOf(&v1alpha1.NetworkQoSReport{Objects: []v1alpha1.QoSReport{
		{Pods: 2, InPlace: 2},
		{Pods: 1, InPlace: 1},
		{Pods: 1, InPlace: 1},
		{Pods: 2, InPlace: 1},
		{Pods: 1},
		{Pods: 2, InPlace: 1, Problem: "no cls_flower"},
	}})
	f.states.Store(&states)
	metricstest.Golden(t, *update, f)
}
