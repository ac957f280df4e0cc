package addresses_test

import (
	"flag"
	"testing"

	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/topology/addresspool"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestExposition holds the metric's name, labels and help.
func TestExposition(t *testing.T) {
	metricstest.Golden(t, *update, addresses.Metrics{Counts: func() []addresses.Count {
		return []addresses.Count{{Pool: "storage", Family: "ipv4", Count: addresspool.Count{Held: 16, Used: 3, Resting: 1, Free: 12}}}
	}})
}
