//go:build cluster && soak

package controlplane_test

import (
	"testing"

	"github.com/plumbline/plumbline/integration/cluster"
)

// TestScheduledAsBefore is TestScheduled on a control plane with the APIs and the features
// of the oldest version of Kubernetes that is supported.
func TestScheduledAsBefore(t *testing.T) {
	as := []string{"--emulated-version=1.36"}
	testScheduled(t, cluster.Options{APIServer: as, ControllerManager: as, Scheduler: as})
}
