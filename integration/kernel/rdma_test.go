package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// newRDMALane is a lane on a host with the modules of soft RoCE, and without the RDMA devices of other tests.
func newRDMALane(t *testing.T) (*lane, *foreignWriter) {
	t.Helper()
	l, host := newLane(t), &foreignWriter{t, "", ""}
	host.run("modprobe -a rdma_rxe ib_uverbs rdma_ucm")
	host.run("for l in $(ls /sys/class/infiniband); do rdma link delete $l; done")
	return l, host
}

// TestRDMADevice: a step of type rdma gives the device nodes of the function's RDMA device and of no other. A function that is
// moved does not give those of soft RoCE on its interface, which ends with the move.
func TestRDMADevice(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newRDMALane(t)
	for name, function := range map[string]string{"rxe1": "1", "rxe2": "2"} {
		host.run("rdma link add " + name + " type rxe netdev $(ls /sys/class/net/enp3s0f0/device/virtfn" + function + "/net)")
		t.Cleanup(func() { host.run("rdma link delete " + name + " 2>/dev/null || true") })
	}
	home := l.state("")
	sandbox := func(steps string) (ensure func() (topology.Devices, error), release func()) {
		path := newNetns(t)
		engine := l.engine(nil)
		s := box(path, parse(t, "t", steps))
		s.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"ib": "enp3s0f0/1"}))
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
	if _, err := ensure(); fault.Of(err) != fault.Invalid || !strings.Contains(err.Error(), `"rxe2" is not an RDMA device`) {
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

// TestSharedRDMADevice: two pods with links on one device of the host get its RDMA device, and each the GID of its own address,
// although their interfaces have one name. A link that does not ask for it brings none.
func TestSharedRDMADevice(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newRDMALane(t)
	host.run("rdma link add rxe1 type rxe netdev enp3s0f0")
	t.Cleanup(func() { host.run("rdma link delete rxe1") })
	home := l.state("")
	engine := l.engine(nil)
	pf := strings.TrimSpace(host.run("basename $(readlink -f /sys/class/net/enp3s0f0/device)"))
	for _, kind := range []string{"macvlan", "ipvlan"} {
		var boxes []reconcile.SandboxID
		for n, config := range []string{"rdma: true, require: {gid: {type: RoCEv2, family: IPv4}, state: ACTIVE}", "rdma: true, require: {gid: {type: RoCEv2, family: IPv4}}", "rdma: false"} {
			address := fmt.Sprintf("192.0.2.%d", 5+n)
			s := box(newNetns(t), parse(t, "t", "    - {name: m, type: "+kind+", config: {addresses: ["+address+"/24], "+config+"}}\n"))
			s.Given = ops.Givens{}.WithDevices(map[string]string{"m": pf})
			boxes = append(boxes, s.ID)
			report, err := engine.Ensure(ctxFor(t), s)
			if err != nil {
				t.Errorf("%s: %s: %v", kind, config, err)
				continue
			}
			got := stepDevices(report.Results, "m")
			if config == "rdma: false" {
				if len(got.DeviceNodes) > 0 {
					t.Errorf("%s: %s: %+v", kind, config, got)
				}
				continue
			}
			if got.RDMADevice != "rxe1" || len(got.DeviceNodes) != 2 || got.PCIAddress != "" || got.GIDIndex == nil {
				t.Errorf("%s: %s: %+v", kind, config, got)
				continue
			}
			gid := strings.TrimSpace(read(t, fmt.Sprintf("/sys/class/infiniband/rxe1/ports/1/gids/%d", *got.GIDIndex)))
			if want := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:c000:02%02x", 5+n); gid != want {
				t.Errorf("%s: GID %d is %s, not %s", kind, *got.GIDIndex, gid, want)
			}
		}
		for _, id := range boxes {
			if _, err := engine.Release(ctxFor(t), id); err != nil {
				t.Errorf("release: %v", err)
			}
		}
		l.mustEqual(home, "", "after the release of "+kind)
	}
}

// TestDeviceNodes: a step gives the device nodes that its topology names, of the function that it was given: the clock of a physical
// function, and not of another one, and what the management of a subnet uses. A virtual function of this card has no clock.
func TestDeviceNodes(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newRDMALane(t)
	host.run("modprobe -a ib_umad vhost_net tun")
	host.run("rdma link add rxe1 type rxe netdev enp3s0f1; rdma link add rxe2 type rxe netdev $(ls /sys/class/net/enp3s0f1/device/virtfn1/net)")
	t.Cleanup(func() { host.run("rdma link delete rxe1; rdma link delete rxe2") })
	clock := "/dev/" + strings.TrimSpace(host.run("ls /sys/class/net/enp3s0f1/device/ptp"))
	home := l.state("")
	ensure := func(device, nodes string) (topology.Devices, error) {
		s := box(newNetns(t), parse(t, "t", "    - {name: ib, type: rdma, config: {deviceNodes: "+nodes+"}}\n"))
		s.Given = ops.Givens{}.WithDevices(map[string]string{"ib": device})
		engine := l.engine(nil)
		report, err := engine.Ensure(ctxFor(t), s)
		if _, err := engine.Release(ctxFor(t), s.ID); err != nil {
			t.Errorf("release: %v", err)
		}
		return stepDevices(report.Results, "ib"), err
	}
	pf := strings.TrimSpace(host.run("basename $(readlink -f /sys/class/net/enp3s0f1/device)"))
	got, err := ensure(pf, "[ptp, umad, vhost-net, tun]")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.DeviceNodes) != 6 || !slices.Contains(got.DeviceNodes, clock) || got.RDMADevice != "rxe1" {
		t.Errorf("results: %+v, the clock is %s", got, clock)
	}
	for _, node := range got.DeviceNodes {
		if info, err := os.Stat(node); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			t.Errorf("device node %s: %v %v", node, info, err)
		}
		if name := filepath.Base(node); strings.HasPrefix(name, "umad") {
			if of := strings.TrimSpace(read(t, "/sys/class/infiniband_mad/"+name+"/ibdev")); of != "rxe1" {
				t.Errorf("device node %s is of %s", node, of)
			}
		}
	}
	vf := functions(t, map[string]string{"ib": "enp3s0f1/1"})["ib"]
	refused := map[string]string{"[ptp]": "has no device node ptp: choose a device whose driver has a PTP clock"}
	if os.Getenv("PLUMBLINE_KERNEL") != "oldstable" { // Linux 6.1 makes one for each port
		refused["[issm]"] = `RDMA device "rxe2" has no device node issm`
	}
	for nodes, want := range refused {
		if _, err := ensure(vf, nodes); fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), want) {
			t.Errorf("%s of a virtual function: %v, want %s", nodes, err, want)
		}
	}
	l.mustEqual(home, "", "after the release")
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
