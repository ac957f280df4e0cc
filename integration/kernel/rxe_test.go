package kernel

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestSoftRoCE: a pod gets the device nodes of the soft RoCE device that a step makes on its function. The one that the
// host had there ends with the move, and is made again at release.
func TestSoftRoCE(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newRDMALane(t)
	host.run("rdma link add rxe9 type rxe netdev $(ls /sys/class/net/enp3s0f0/device/virtfn1/net)")
	t.Cleanup(func() { host.run("rdma link delete rxe9 2>/dev/null || true") })
	was := host.run("rdma link show rxe9/1")
	home := l.state("")
	path := newNetns(t)
	s := box(path, parse(t, "t", `
    - {name: vf, type: sriov, config: {name: rail0, addresses: [192.0.2.5/24]}}
    - {name: roce, type: rxe, dependOn: [vf]}
`))
	s.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"vf": "enp3s0f0/1"}))
	engine := l.engine(nil)
	release := released(t, engine, s.ID)
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

	release()
	eventually.True(t, 10*time.Second, "only the RDMA device of the host", func() bool { return devices() == "rxe9" })
	if is := host.run("rdma link show rxe9/1"); is != was {
		t.Errorf("after the release the host has %q, not %q", is, was)
	}
	l.mustEqual(home, "", "after the release")
}

// TestRequiredGID: a pod is attached only with a GID of its address, whose index is the one that the kernel has for it. One
// that the device does not have is refused, with those that it has; a running pod that has lost its GID is reported.
func TestRequiredGID(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newLane(t), &foreignWriter{t, "", ""}
	host.run("modprobe -a rdma_rxe ib_uverbs rdma_ucm")
	home := l.state("")
	path := newNetns(t)
	pod := &foreignWriter{t, filepath.Base(path), ""}
	const port = "/sys/class/infiniband/%s/ports/1/gids/%d"
	requiring := func(what string) reconcile.Sandbox {
		s := box(path, parse(t, "t", `
    - {name: vf, type: sriov, config: {name: rail0, addresses: [192.0.2.5/24, "2001:db8::5/64"]}}
    - {name: roce, type: rxe, dependOn: [vf], config: {require: {`+what+`}}}
`))
		s.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"vf": "enp3s0f0/1"}))
		return s
	}
	s, engine := requiring("gid: {type: RoCEv2, family: IPv4, scope: global}, state: ACTIVE, minRate: 1Gbps, mtu: 1024"), l.engine(nil)
	release := released(t, engine, s.ID)
	refused := map[string]string{
		"gid: {type: RoCEv1}":                  `no GID of "rail0" is RoCEv1, global: it has 0 RoCEv2 fe80::`,
		"gid: {family: IPv6}, minRate: 40Gbps": `its port has 2.5Gbps, less than 40Gbps`,
		"mtu: 4096":                            `the MTU 1500 of "rail0" is too small for packets with 4096 bytes of payload: set at least 4192`,
	}
	// A refusal comes when the engine has waited long enough, so the short form tries one.
	for _, what := range effort.Sample(t, 3, slices.Sorted(maps.Keys(refused))) {
		want := refused[what]
		if _, err := engine.Ensure(ctxFor(t), requiring(what)); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), want) {
			t.Errorf("require %s: %v, want %s", what, err, want)
		}
		l.mustEqual(home, "", "after the refusal")
	}

	report, err := engine.Ensure(ctxFor(t), s)
	if err != nil {
		t.Fatal(err)
	}
	got := stepDevices(report.Results, "roce")
	if got.GIDIndex == nil {
		t.Fatalf("no index of a GID: %+v", got)
	}
	if gid := strings.TrimSpace(read(t, fmt.Sprintf(port, got.RDMADevice, *got.GIDIndex))); gid != "0000:0000:0000:0000:0000:ffff:c000:0205" {
		t.Errorf("GID %d is %s", *got.GIDIndex, gid)
	}
	drift := func() string {
		t.Helper()
		status, err := engine.Check(ctxFor(t), s.ID)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(status.State, status.Drift)
	}
	if is := drift(); !strings.Contains(is, "InSync") {
		t.Errorf("after the attachment: %s", is)
	}
	for by, back := range map[string]string{
		"ip -n $NS link set rail0 down":                   "ip -n $NS link set rail0 up",
		"ip -n $NS address delete 192.0.2.5/24 dev rail0": "ip -n $NS address add 192.0.2.5/24 dev rail0",
	} {
		pod.run(by)
		eventually.True(t, 10*time.Second, "drift after "+by, func() bool { return strings.Contains(drift(), "what it requires of "+got.RDMADevice) })
		pod.run(back)
		eventually.Succeeds(t, 20*time.Second, "as required, after "+back, func() error {
			_, err := engine.Ensure(ctxFor(t), s)
			return err
		})
	}

	// The address comes back behind another one, which has taken its entry.
	pod.run("ip -n $NS address delete 192.0.2.5/24 dev rail0; ip -n $NS address add 2001:db8::99/64 dev rail0 nodad")
	eventually.True(t, 10*time.Second, "the other address in the entry", func() bool {
		return strings.HasSuffix(strings.TrimSpace(read(t, fmt.Sprintf(port, got.RDMADevice, *got.GIDIndex))), ":0099")
	})
	if _, err := engine.Ensure(ctxFor(t), s); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), fmt.Sprintf("containers were told %d", *got.GIDIndex)) {
		t.Errorf("with another index: %v", err)
	}
	pod.run("ip -n $NS address delete 2001:db8::99/64 dev rail0")
	eventually.Succeeds(t, time.Minute, "the GID where it was", func() error {
		_, err := engine.Ensure(ctxFor(t), s)
		return err
	})
	release()
	l.mustEqual(home, "", "after the release")
}

// released returns what releases a sandbox, and does so at the end of a test that fails before: a pod that is left keeps its
// function. It is called after newNetns, so that the namespace is there until then.
func released(t *testing.T, engine *reconcile.Reconciler, id reconcile.SandboxID) (release func()) {
	t.Helper()
	release = func() {
		t.Helper()
		if report, err := engine.Release(ctxFor(t), id); err != nil || report.Unclean != "" {
			t.Errorf("release: %v %s", err, report.Unclean)
		}
	}
	t.Cleanup(release)
	return release
}

// stepDevices are the devices of a step besides interfaces.
func stepDevices(results []topology.StepResult, step string) topology.Devices {
	for _, r := range results {
		if r.Name == step && r.Result.Devices != nil {
			return *r.Result.Devices
		}
	}
	return topology.Devices{}
}
