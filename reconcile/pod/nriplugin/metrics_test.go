package nriplugin_test

import (
	"flag"
	"testing"
	"time"

	"github.com/plumbline/plumbline/reconcile/metrics/metricstest"
	"github.com/plumbline/plumbline/reconcile/pod/nriplugin"
	"github.com/plumbline/plumbline/topology/fault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestExposition(t *testing.T) {
	m := nriplugin.NewMetrics()
	m.Connected(true)
	m.Hook("RunPodSandbox", "", 40*time.Millisecond)
	m.Hook("RunPodSandbox", fault.NotReady, 1500*time.Millisecond)
	metricstest.Golden(t, *update, m)
}
