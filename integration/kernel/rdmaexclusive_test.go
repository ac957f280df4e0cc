package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

// exclusiveMode has each RDMA device belong to one network namespace until the test ends.
func exclusiveMode(t *testing.T) {
	t.Helper()
	host := &foreignWriter{t, "", ""}
	host.run("modprobe -a rdma_rxe ib_uverbs rdma_ucm")
	mode := func(mode string) func() error {
		return func() error { // refused while there is another network namespace, and one ends later than its name
			out, err := host.try("rdma system set netns " + mode)
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	eventually.Succeeds(t, 30*time.Second, "exclusive mode", mode("exclusive"))
	t.Cleanup(func() { eventually.Succeeds(t, 30*time.Second, "shared mode", mode("shared")) })
}

// TestRDMAExclusive: on a node in exclusive mode a device that is made inside of a pod is the host's. Linux 7 moves it to the pod, where
// programs exchange data over it and no other namespace shows it. Linux 6.1 and 6.12 move none: the step is refused, and leaves
// nothing behind.
func TestRDMAExclusive(t *testing.T) {
	if !hasCards() {
		return
	}
	exclusiveMode(t)
	l, host := newLane(t), &foreignWriter{t, "", ""}
	moves := os.Getenv("PLUMBLINE_KERNEL") == "backports"

	t.Run("kernel", func(t *testing.T) {
		pod := &foreignWriter{t, filepath.Base(newNetns(t)), ""}
		pod.inside("ip link add e0 type veth peer name e1; ip link set e0 up; rdma link add rx0 type rxe netdev e0")
		here := func() bool { return strings.Contains(pod.run("ip netns exec $NS rdma dev"), "rx0") }
		if of := host.run("rdma dev"); !strings.Contains(of, "rx0") || here() {
			t.Errorf("a device that was made in the pod: the host has %q, the pod has it: %v", of, here())
		}
		out, err := pod.try("rdma dev set rx0 netns $NS")
		if !moves {
			if err == nil || !strings.Contains(out, "not supported") {
				t.Errorf("this kernel moves RDMA devices: %v %s", err, out)
			}
		} else if err != nil || !here() || strings.Contains(host.run("rdma dev"), "rx0") {
			t.Errorf("a move of an RDMA device to the pod: %v %s; the pod has it: %v", err, out, here())
		}
		pod.inside("ip link delete e0")
		eventually.True(t, 10*time.Second, "no RDMA device without its interface", func() bool {
			return !here() && !strings.Contains(host.run("rdma dev"), "rx0")
		})
	})

	host.run("rdma link add rxe1 type rxe netdev $(ls /sys/class/net/enp3s0f0/device/virtfn1/net)")
	t.Cleanup(func() { host.run("rdma link delete rxe1 2>/dev/null || true") })
	home := l.state("")
	refused := map[string]string{"{name: vf, type: rdma}": `a step of type rdma is applied before the pod has its own`}
	if !moves {
		refused["{name: vf, type: sriov, config: {name: rail0}}\n    - {name: roce, type: rxe, dependOn: [vf]}"] = `step "roce": update rdma-link "rail0": the kernel does not move RDMA device`
	}
	for steps, want := range refused {
		t.Run("refused", func(t *testing.T) {
			s := box(newNetns(t), parse(t, "t", "    - "+steps+"\n"))
			s.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"vf": "enp3s0f0/1"}))
			engine := l.engine(nil)
			released(t, engine, s.ID)
			if _, err := engine.Ensure(ctxFor(t), s); fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", steps, err, want)
			}
			eventually.True(t, 10*time.Second, "the RDMA device of the host", func() bool {
				all := strings.TrimSpace(host.run("ls /sys/class/infiniband"))
				return all == "rxe1"
			})
			l.mustEqual(home, "", "after the refusal")
		})
	}
	if !moves {
		return
	}
	t.Run("function", testExclusiveFunction)
	t.Run("pods", func(t *testing.T) { testExclusivePods(t, l) })
	eventually.True(t, 10*time.Second, "only the RDMA device of the host", func() bool { return strings.TrimSpace(host.run("ls /sys/class/infiniband")) == "rxe1" })
	l.mustEqual(home, "", "after the pods")

	crash := scenarios[0]
	for _, s := range scenarios {
		if s.name == "soft RoCE" {
			crash = s
		}
	}
	crash.disturbance = `ip netns exec $NS sh -c '` + strings.ReplaceAll(rdmaOn("rail0"), "'", `'"'"'`) + `rdma dev set $R name mine0'; $ip link set rail0 down`
	eachScenario(t, []scenario{crash}, diesAtEveryChange)
}

// testExclusivePods attaches two pods whose RDMA devices move to them.
func testExclusivePods(t *testing.T, l *lane) {
	host := &foreignWriter{t, "", ""}
	a, b := l.newRDMAPod(t, "enp3s0f0/1", "192.0.2.1"), l.newRDMAPod(t, "enp4s0f0/1", "192.0.2.2")
	in := func(p rdmaPod) string { return p.run("ip netns exec $NS rdma dev") }
	for i, p := range []rdmaPod{a, b} {
		other := []rdmaPod{b, a}[i]
		if here := in(p); !strings.Contains(here, p.RDMADevice) || strings.Contains(here, other.RDMADevice) || strings.Contains(host.run("rdma dev"), p.RDMADevice) {
			t.Errorf("the pod of %s sees %q, the host %q", p.RDMADevice, here, host.run("rdma dev"))
		}
		if of := strings.TrimSpace(read(t, "/sys/class/infiniband_verbs/"+filepath.Base(p.DeviceNodes[0])+"/ibdev")); of != p.RDMADevice {
			t.Errorf("device node %s is of %q, not of %q", p.DeviceNodes[0], of, p.RDMADevice)
		}
	}
	a.run("ip netns exec $NS ping -c 1 -W 10 192.0.2.2")
	if out, err := bandwidth(t, a, b, "ib_send_bw", "192.0.2.1"); err != nil || !strings.Contains(out, "remote address:") {
		t.Errorf("ib_send_bw: %v\n%s", err, out)
	}

	// The pod gives its device away. The next pass takes it back, and says that containers have another device node now.
	// The program takes no path. (ip netns attach would mount the folder over itself, and keep all namespaces.)
	host.run("touch /run/netns/own-of-host; mount --bind /proc/1/ns/net /run/netns/own-of-host")
	t.Cleanup(func() { host.run("umount /run/netns/own-of-host; rm /run/netns/own-of-host") })
	a.run("ip netns exec $NS rdma dev set " + a.RDMADevice + " netns own-of-host")
	status, err := a.engine.Check(ctxFor(t), a.id)
	if err != nil || !strings.Contains(fmt.Sprint(status.Drift), "netns") {
		t.Errorf("drift of a device that was given away: %v %v", status.Drift, err)
	}
	if _, err := a.engine.Repair(ctxFor(t), a.id); err != nil && fault.Of(err) != fault.NotReady {
		t.Errorf("repair: %v", err)
	}
	if !strings.Contains(in(a), a.RDMADevice) {
		t.Errorf("after the repair the pod sees %q", in(a))
	}
	a.release()
	// A pod that was killed: its namespace ends first, with its RDMA device.
	deleteNetns("/run/netns/" + b.ns)
	if report, err := b.engine.AwaitRelease(ctxFor(t), b.id); err != nil || report.Unclean != "" {
		t.Errorf("release of a pod that was killed: %v %s", err, report.Unclean)
	}
}

// recordedFunction is the recorded sysfs of a function of mlx5_core and of its RDMA device, on a node in exclusive mode, and in any network
// namespace: files and links as ib_uverbs_add_one (drivers/infiniband/core/uverbs_main.c) makes them. The name of the RDMA device is there
// for the host's namespace only, as in the entry "infiniband", which is left out.
var recordedFunction = map[string]string{
	"bus/pci/devices/0000:03:00.2/infiniband_verbs/uverbs2/ibdev":  "mlx5_2\n",
	"bus/pci/devices/0000:03:00.2/infiniband_verbs/uverbs2/uevent": "MAJOR=231\nMINOR=194\nDEVNAME=infiniband/uverbs2\n",
	"module/ib_core/parameters/netns_mode":                         "N\n",
}

// testExclusiveFunction moves the RDMA device of a function of which sysfs is recorded. For the kernel it is one of soft RoCE, on an interface
// of the host, which stays there.
func testExclusiveFunction(t *testing.T) {
	const id = "0000:03:00.2"
	root := t.TempDir()
	for file, content := range recordedFunction {
		file = filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	l := laneOn(t, kernel.Options{Sysfs: root})
	pod := &foreignWriter{t, filepath.Base(newNetns(t)), filepath.Base(newNetns(t))}
	pod.run("ip link add d0 type dummy; ip link set d0 up; rdma link add mlx5_2 type rxe netdev d0")
	t.Cleanup(func() { pod.run("ip link delete d0") })
	sb, err := l.host.Sandbox("/run/netns/" + pod.ns)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	at := func() netstate.RDMANetns {
		t.Helper()
		s, err := sb.Observe(ctxFor(t), []netstate.Object{netstate.RDMANetns{ID: id}})
		if err != nil {
			t.Fatal(err)
		}
		got, _ := netstate.Lookup(s, netstate.RDMANetns{ID: id})
		return got
	}
	want := func(when, netns, name string) {
		t.Helper()
		if got := at(); got.Netns == nil || *got.Netns != netns || *got.Name != name {
			t.Errorf("%s: %+v, want %s %s", when, got, netns, name)
		}
	}
	move := func(to string) error {
		after := netstate.RDMANetns{ID: id, Netns: &to, Name: new("mlx5_2")}
		return sb.Apply(ctxFor(t), netstate.Change{Before: at(), After: after})
	}
	want("at first", netstate.RDMAOfHost, "mlx5_2")
	if err := move(netstate.RDMAOfSandbox); err != nil {
		t.Fatal(err)
	}
	want("moved", netstate.RDMAOfSandbox, "mlx5_2")
	if here, there := pod.run("ip netns exec $NS rdma dev"), pod.run("rdma dev"); !strings.Contains(here, "mlx5_2") || strings.Contains(there, "mlx5_2") {
		t.Errorf("the pod sees %q, the host %q", here, there)
	}

	recorded := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "bus/pci/devices/0000:03:00.2/infiniband_verbs/uverbs2/ibdev"), []byte(name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pod.run("ip netns exec $NS rdma dev set mlx5_2 name mine0")
	recorded("mine0")
	want("renamed by the pod", netstate.RDMAOfSandbox, "mine0")
	pod.run("ip link add d1 type dummy; ip link set d1 up; rdma link add mlx5_2 type rxe netdev d1")
	t.Cleanup(func() { pod.run("ip link delete d1 2>/dev/null || true") })
	if err := move(netstate.RDMAOfHost); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `another RDMA device of the node is called "mlx5_2"`) {
		t.Errorf("a return while another device has the name: %v", err)
	}
	recorded("mlx5_2x") // a device that has the name mine0 of another one gives it up
	want("while another device has the name", netstate.RDMAOfHost, "mlx5_2x")
	pod.run("rdma link delete mlx5_2; ip link delete d1") // without its interface it would end a moment later
	if err := move(netstate.RDMAOfHost); err != nil {
		t.Fatal(err)
	}
	if there := pod.run("rdma dev"); !strings.Contains(there, "mlx5_2") {
		t.Errorf("after its return the host has %q", there)
	}

	recorded("mlx5_2")
	pod.run("rdma dev set mlx5_2 netns $OTHER")
	want("in another namespace", netstate.RDMAOfOther, "mlx5_2")
	if err := move(netstate.RDMAOfHost); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "is in another network namespace") {
		t.Errorf("a move from another namespace: %v", err)
	}
	deleteNetns("/run/netns/" + pod.other)
	eventually.True(t, 20*time.Second, "the RDMA device on the host", func() bool { return *at().Netns == netstate.RDMAOfHost })
}
