package kernel

import (
	"os"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRDMADevice: a step of type rdma gives the device nodes of the function's RDMA device and of no other. A function that is
// moved does not give those of soft RoCE on its interface, which ends with the move.
func TestRDMADevice(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newLane(t), &foreignWriter{t, "", ""}
	host.run("modprobe -a rdma_rxe ib_uverbs rdma_ucm")
	host.run("for l in $(ls /sys/class/infiniband); do rdma link delete $l; done") // of other tests
	for name, function := range map[string]string{"rxe1": "1", "rxe2": "2"} {
		host.run("rdma link add " + name + " type rxe netdev $(ls /sys/class/net/enp3s0f0/device/virtfn" + function + "/net)")
		t.Cleanup(func() { host.run("rdma link delete " + name + " 2>/dev/null || true") })
	}
	home := l.state("")
	sandbox := func(steps string) (ensure func() (topology.Devices, error), release func()) {
		path := newNetns(t)
		engine := l.engine(nil)
		s := box(path, parse(t, "t", steps))
		s.Given = ops.GivenDevices(functions(t, map[string]string{"ib": "enp3s0f0/1"}))
		return func() (topology.Devices, error) {
				report, err := engine.Ensure(ctxFor(t), s)
				if err != nil || report.Results[0].Result.Devices == nil {
					return topology.Devices{}, err
				}
				return *report.Results[0].Result.Devices, nil
			}, func() {
				if _, err := engine.Release(ctxFor(t), s.ID); err != nil {
					t.Errorf("release: %v", err)
				}
			}
	}

	ensure, release := sandbox("    - {name: ib, type: rdma}\n")
	got, err := ensure()
	if err != nil {
		t.Fatal(err)
	}
	if got.RDMADevice != "rxe1" || len(got.DeviceNodes) != 2 || got.DeviceNodes[1] != "/dev/infiniband/rdma_cm" {
		t.Errorf("results: %+v", got)
	}
	for _, node := range got.DeviceNodes {
		if info, err := os.Stat(node); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			t.Errorf("device node %s: %v %v", node, info, err)
		}
	}
	if of := strings.TrimSpace(read(t, "/sys/class/infiniband_verbs/"+strings.TrimPrefix(got.DeviceNodes[0], "/dev/infiniband/")+"/ibdev")); of != "rxe1" {
		t.Errorf("device node %s is of %s", got.DeviceNodes[0], of)
	}
	release()
	l.mustEqual(home, "", "after the release")

	ensure, release = sandbox("    - {name: ib, type: rdma, config: {rdmaDevice: rxe2}}\n")
	if _, err := ensure(); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), `"rxe2" is no RDMA device`) {
		t.Errorf("the RDMA device of another function: %v", err)
	}
	release()

	ensure, release = sandbox("    - {name: ib, type: sriov, config: {rdma: true}}\n")
	if _, err := ensure(); fault.Of(err) != fault.Unsupported {
		t.Errorf("soft RoCE of a function that is moved: %v", err)
	}
	release()
	ensure, release = sandbox("    - {name: ib, type: sriov}\n")
	if got, err := ensure(); err != nil || len(got.DeviceNodes) != 0 {
		t.Errorf("soft RoCE of a function that is moved: %+v %v", got, err)
	}
	release()
}

// read returns the content of a file.
func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
