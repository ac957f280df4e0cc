package kernel

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/topology"
)

// TestSoftRoCE: a pod gets the device nodes of the soft RoCE device that a step makes on its function. The one that the
// host had there ends with the move, and is made again at release.
func TestSoftRoCE(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newLane(t), &foreignWriter{t, "", ""}
	host.run("modprobe -a rdma_rxe ib_uverbs rdma_ucm")
	host.run("for l in $(ls /sys/class/infiniband); do rdma link delete $l; done") // of other tests
	host.run("rdma link add rxe9 type rxe netdev $(ls /sys/class/net/enp3s0f0/device/virtfn1/net)")
	t.Cleanup(func() { host.run("rdma link delete rxe9 2>/dev/null || true") })
	was := host.run("rdma link show rxe9/1")
	home := l.state("")
	path := newNetns(t)
	s := box(path, parse(t, "t", `
    - {name: vf, type: sriov, config: {name: rail0, addresses: [192.0.2.5/24]}}
    - {name: roce, type: rxe, dependOn: [vf]}
`))
	s.Given = ops.GivenDevices(functions(t, map[string]string{"vf": "enp3s0f0/1"}))
	engine := l.engine(nil)
	report, err := engine.Ensure(ctxFor(t), s)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(report.Notes, func(n string) bool { return strings.Contains(n, `"rxe9"`) }) {
		t.Errorf("no note says that rxe9 ends: %q", report.Notes)
	}
	got := stepDevices(report.Results, "roce")
	if len(got.DeviceNodes) != 2 || got.DeviceNodes[1] != "/dev/infiniband/rdma_cm" {
		t.Fatalf("results: %+v", got)
	}
	for _, node := range got.DeviceNodes {
		if info, err := os.Stat(node); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			t.Errorf("device node %s: %v %v", node, info, err)
		}
	}
	if of := strings.TrimSpace(read(t, "/sys/class/infiniband_verbs/"+strings.TrimPrefix(got.DeviceNodes[0], "/dev/infiniband/")+"/ibdev")); of != got.RDMADevice {
		t.Errorf("device node %s is of %q, not of %q", got.DeviceNodes[0], of, got.RDMADevice)
	}
	devices := func() string { return strings.TrimSpace(host.run("ls /sys/class/infiniband")) }
	eventually.True(t, 10*time.Second, "only the RDMA device of the pod", func() bool { return devices() == got.RDMADevice })

	if _, err := engine.Release(ctxFor(t), s.ID); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, 10*time.Second, "only the RDMA device of the host", func() bool { return devices() == "rxe9" })
	if is := host.run("rdma link show rxe9/1"); is != was {
		t.Errorf("after the release the host has %q, not %q", is, was)
	}
	l.mustEqual(home, "", "after the release")
}

// stepDevices is what a step gives besides interfaces.
func stepDevices(results []topology.StepResult, step string) topology.Devices {
	for _, r := range results {
		if r.Name == step && r.Result.Devices != nil {
			return *r.Result.Devices
		}
	}
	return topology.Devices{}
}
