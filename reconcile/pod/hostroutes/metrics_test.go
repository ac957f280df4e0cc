package hostroutes_test

import (
	"flag"
	"testing"

	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestExposition holds the names, labels and help of the metrics.
func TestExposition(t *testing.T) {
	metricstest.Golden(t, *update, hostroutes.New(hostroutes.Options{}))
}
