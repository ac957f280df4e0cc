package draplugin_test

import (
	"context"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
)

// TestHealth follows the two devices of a claim: both are shown, as each has a first CDI
// device of its own.
func TestHealth(t *testing.T) {
	g := newGiven(t)
	var mu sync.Mutex
	var known []ports.Report
	var changed table.Changes
	g.PortsChanged = &changed
	set := func(reports ...ports.Report) {
		mu.Lock()
		known = reports
		mu.Unlock()
		changed.Changed()
	}
	g.CDI = gate.Dir(filepath.Join(t.TempDir(), "cdi"))
	if err := g.WatchHealthStatus(t.Context(), nil); err == nil {
		t.Error("without ports there is no health")
	}
	g.Ports = func() []ports.Report {
		mu.Lock()
		defer mu.Unlock()
		return known
	}
	devices, err := g.prepare(allocated("c1", "p1", "0", "1"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"dra.networking/device=pci-0000-03-10-0", "dra.networking/device=pci-0000-03-10-1"} {
		if ids := devices[i].CDIDeviceIDs; !reflect.DeepEqual(ids, []string{want, "dra.networking/gate=c1"}) {
			t.Errorf("device %d has %q", i, ids)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	reports, done := make(chan kubeletplugin.DeviceHealthReport), make(chan error, 1)
	go func() { done <- g.WatchHealthStatus(ctx, reports) }()
	// next receives reports until one is about this many devices.
	next := func(devices int) map[string]kubeletplugin.DeviceHealth {
		t.Helper()
		for r := range reports {
			out := map[string]kubeletplugin.DeviceHealth{}
			for _, d := range r.Devices {
				if d.PoolName != "n" || d.LastUpdated.IsZero() {
					t.Errorf("%+v", d)
				}
				out[d.DeviceName] = d
			}
			if len(out) == devices {
				return out
			}
		}
		return nil
	}
	next(0) // at once, to replace the reports of an earlier agent
	report := func(sandbox, claim string, verdicts ...ports.Verdict) ports.Report {
		return ports.Report{
			Sandbox: reconcile.IDOfClaim(sandbox, claim, "pair"), Topology: &topology.Topology{Name: "pair"},
			Ports: []ports.Port{{Step: "vf0", Name: "net1"}, {Step: "vf1", Name: "net2"}}, Verdicts: verdicts,
		}
	}
	up, down, set1 := ports.Verdict{Status: ports.Up, Reason: ports.Carrier}, ports.Verdict{Status: ports.Down, Reason: ports.NoCarrier}, ports.Verdict{Status: ports.Unknown, Reason: ports.SetDown}
	set(report("s1", "c1", up, ports.Verdict{}))
	if got := next(1)["pci-0000-03-10-0"]; got.Health != kubeletplugin.HealthStatusHealthy {
		t.Errorf("%+v", got)
	}
	// The newer sandbox of the pod counts, and a claim that is not prepared has no devices.
	set(report("s1", "c1", down, down), report("s2", "c1", up, down), report("s3", "unknown", down, down))
	got := next(2)
	if d := got["pci-0000-03-10-0"]; d.Health != kubeletplugin.HealthStatusHealthy {
		t.Errorf("%+v", d)
	}
	if d := got["pci-0000-03-10-1"]; d.Health != kubeletplugin.HealthStatusUnhealthy || d.Message != `link "net2" has no carrier` {
		t.Errorf("%+v", d)
	}
	set()
	next(0)
	set(report("s2", "c1", set1, up))
	if d := next(2)["pci-0000-03-10-0"]; d.Health != kubeletplugin.HealthStatusUnknown {
		t.Errorf("%+v", d)
	}
	cancel()
	for range len(reports) {
		<-reports
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
