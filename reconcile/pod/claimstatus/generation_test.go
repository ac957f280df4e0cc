package claimstatus

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/topology/claim"
)

// TestGeneration follows reports on generations, and holds that the controller reads
// what the node has written.
func TestGeneration(t *testing.T) {
	c := allocated(flagship, "vf0", "vf1")
	now := monday
	update := func(topologyName string, v verdict) {
		t.Helper()
		c.Status.Devices = entries(c, map[string]verdict{topologyName: v}, now)
	}
	check := func(when string, want claim.Report, steps int) {
		t.Helper()
		reports := claim.Reports(c)
		if len(reports) != 1 || reports[0].Node != "n1" {
			t.Fatalf("%s: reports %+v", when, reports)
		}
		want.Topology = flagship
		have := reports[0].Report
		if have.Topology != want.Topology || have.Generation != want.Generation || (have.Update == nil) != (want.Update == nil) || want.Update != nil && *have.Update != *want.Update {
			t.Errorf("%s: %+v, want %+v", when, have, want)
		}
		if n := len(decode(t, c.Status.Devices[0]).Steps); n != steps {
			t.Errorf("%s: %d steps, want %d", when, n, steps)
		}
	}
	held := &claim.Update{Generation: 3, State: claim.UpdateHeldBack, Message: "no device"}

	if reports := claim.Reports(c); len(reports) != 1 || reports[0].Generation != 0 || reports[0].Topology != flagship {
		t.Errorf("before the first report: %+v", reports)
	}
	update(flagship, attached(flagship, results(t)))
	check("without a generation", claim.Report{}, 5)
	update(flagship, verdict{runs: &claim.Report{Generation: 2}})
	check("with it", claim.Report{Generation: 2}, 5)
	update(flagship, verdict{runs: &claim.Report{Generation: 2, Update: held}})
	check("held back", claim.Report{Generation: 2, Update: held}, 5)
	update(flagship, attached(flagship, results(t))) // repaired
	check("a repair does not report it", claim.Report{Generation: 2, Update: held}, 5)
	v := attached(flagship, results(t)[:3])
	v.runs = &claim.Report{Generation: 3}
	update(flagship, v)
	check("updated", claim.Report{Generation: 3}, 1)
	update(every, verdict{bare: true, runs: &claim.Report{}})
	check("detached", claim.Report{}, 0)

	// A report on another topology is ignored.
	c.Status.Devices[0].Data.Raw = []byte(`{"topology":"another","generation":9}`)
	check("another's", claim.Report{}, 0)
	c.Status.Devices[0].Data.Raw = []byte(`{"topology":["` + flagship + `"],"generation":9}`)
	if reports := claim.Reports(c); reports[0].Generation != 0 {
		t.Errorf("invalid data is read as %+v", reports[0])
	}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{}
	c.Status.Allocation = nil
	if reports := claim.Reports(c); reports != nil {
		t.Errorf("of a claim that is not allocated: %+v", reports)
	}
}
