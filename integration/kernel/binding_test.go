package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/vfio"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/binding"
	"github.com/plumbline/plumbline/topology/fault"
)

// bound is a sandbox with a virtual function that is bound to vfio-pci.
type bound struct {
	*lane
	*foreignWriter
	engine  *reconcile.Reconciler
	sandbox reconcile.Sandbox
	id      string // of the function
	home    *netstate.Snapshot
	netns   string
}

const dpdk = "    - {name: dpdk0, type: vfio-pci, config: {vlan: 78}}\n"

func newBound(t *testing.T) *bound {
	t.Helper()
	l, path := newLane(t), newNetns(t)
	b := &bound{lane: l, foreignWriter: &foreignWriter{t, filepath.Base(path), filepath.Base(path)}, engine: l.engine(nil), netns: path}
	b.run("modprobe vfio-pci")
	b.home = l.state("")
	b.sandbox = box(path, parse(t, "t", dpdk))
	device := functions(t, map[string]string{"dpdk0": "enp3s0f0/1"})
	b.sandbox.Given, b.id = ops.Givens{}.WithDevices(device), device["dpdk0"]
	if _, err := b.engine.Ensure(ctxFor(t), b.sandbox); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bound) driver() string {
	to, _ := os.Readlink("/sys/bus/pci/devices/" + b.id + "/driver") // none
	return filepath.Base(to)
}

// node is the device node of the function's group, from the results.
func (b *bound) node() string {
	b.lane.t.Helper()
	rec, _, err := b.engine.Record(b.sandbox.ID)
	if err != nil || len(rec.Results) != 1 || rec.Results[0].Result.Devices == nil || len(rec.Results[0].Result.Devices.DeviceNodes) != 2 {
		b.lane.t.Fatalf("results: %v, %+v", err, rec.Results)
	}
	return rec.Results[0].Result.Devices.DeviceNodes[0]
}

func (b *bound) released(when string) {
	b.lane.t.Helper()
	if _, err := b.engine.AwaitRelease(ctxFor(b.lane.t), b.sandbox.ID); err != nil {
		b.lane.t.Fatalf("%s: release: %v", when, err)
	}
	b.mustEqual(b.home, "", when+", released")
}

// TestFunctionOpen: a process opens a function that is bound to vfio-pci. While it has
// it, the driver is not changed, and nothing waits in the kernel for it.
func TestFunctionOpen(t *testing.T) {
	if !hasCards() {
		return
	}
	b := newBound(t)
	device, err := vfio.Open(b.node(), b.id)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.engine.Release(ctxFor(t), b.sandbox.ID)
	if fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "a process has it open") {
		t.Errorf("release while it is open: %v", err)
	}
	if d := b.driver(); d != "vfio-pci" {
		t.Errorf("its driver is %q", d)
	}
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	b.released("once it is closed")
}

// TestFunctionRebound: another process binds the function to another driver. That is drift, and
// repaired unless the host uses the resulting interface.
func TestFunctionRebound(t *testing.T) {
	if !hasCards() {
		return
	}
	b := newBound(t)
	at := "/sys/bus/pci/devices/" + b.id
	b.run("echo " + b.id + " >" + at + "/driver/unbind; echo >" + at + "/driver_override; echo " + b.id + " >/sys/bus/pci/drivers_probe")
	st, err := b.engine.Check(ctxFor(t), b.sandbox.ID)
	if err != nil || st.State != reconcile.Drifted || len(st.Drift) != 2 || st.Drift[0].Field != "driver" || st.Drift[0].Have != "igbvf" || st.Drift[0].Want != "vfio-pci" || st.Drift[1].Field != "override" {
		t.Errorf("check: %v, %+v", err, st)
	}

	b.run("ip link add br9 type bridge; ip link set $(ls " + at + "/net) master br9")
	_, err = b.engine.Repair(ctxFor(t), b.sandbox.ID)
	if fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "bridge port of br9") || b.driver() != "igbvf" {
		t.Errorf("repair while the host uses it: %v, driver %q", err, b.driver())
	}
	b.run("ip link del br9")
	if _, err := b.engine.Repair(ctxFor(t), b.sandbox.ID); err != nil || b.driver() != "vfio-pci" {
		t.Errorf("repair: %v, driver %q", err, b.driver())
	}
	if device, err := vfio.Open(b.node(), b.id); err != nil {
		t.Error(err)
	} else if err := device.Close(); err != nil {
		t.Error(err)
	}

	b.run("echo " + b.id + " >" + at + "/driver/unbind")
	if _, err := b.engine.Repair(ctxFor(t), b.sandbox.ID); err != nil || b.driver() != "vfio-pci" {
		t.Errorf("repair of one without driver: %v, driver %q", err, b.driver())
	}
	b.run("echo " + b.id + " >" + at + "/driver/unbind; echo >" + at + "/driver_override")
	b.released("without driver")
}

// TestDriverMissing: a driver that is not loaded is named, and the function keeps what
// it has.
func TestDriverMissing(t *testing.T) {
	if !hasCards() {
		return
	}
	l, path := newLane(t), newNetns(t)
	home := l.state("")
	sb := box(path, parse(t, "t", "    - {name: d, type: vfio-pci, config: {driver: igb_uio, allowUnprotectedDMA: true}}\n"))
	sb.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"d": "enp3s0f0/1"}))
	_, err := l.engine(nil).Ensure(ctxFor(t), sb)
	if fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), `driver "igb_uio" is not loaded: run modprobe igb_uio`) {
		t.Errorf("apply: %v", err)
	}
	l.mustEqual(home, "", "after it was refused")
}

// TestBindingAfterReboot: at a boot the kernel forgets bindings. A record of an earlier
// one restores nothing, and applying it again binds the function.
func TestBindingAfterReboot(t *testing.T) {
	if !hasCards() {
		return
	}
	b := newBound(t)
	store, reg, err := parts(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	boot := func(id string) *reconcile.Reconciler {
		return reconcile.New(reconcile.Options{
			Registry: reg, Store: store, BootID: id, External: []reconcile.ExternalDomain{bindings(nil)},
			Open: func(path string) (reconcile.Domain, error) { return open(b.host, path) },
		})
	}
	at := "/sys/bus/pci/devices/" + b.id
	reboot := func() {
		b.run("echo " + b.id + " >" + at + "/driver/unbind; echo >" + at + "/driver_override; echo " + b.id + " >/sys/bus/pci/drivers_probe")
		b.run("ip link set $(ls " + at + "/net) name enp3s0f0v1") // as the host does at its boot
	}
	reboot()
	if _, err := boot("second").Ensure(ctxFor(t), b.sandbox); err != nil || b.driver() != "vfio-pci" {
		t.Fatalf("after a reboot: %v, driver %q", err, b.driver())
	}
	rec, _, err := store.Get(b.sandbox.ID)
	if err != nil || len(rec.History) == 0 {
		t.Fatalf("the record: %v, %+v", err, rec)
	}
	reboot()
	before := b.state("")
	if rep, err := boot("third").Release(ctxFor(t), b.sandbox.ID); err != nil || len(rep.Changes) > 0 {
		t.Errorf("release after a reboot: %v, %v", err, rep.Changes)
	}
	b.mustEqual(before, "", "released after a reboot")
	b.run("ip link set enp3s0f0 vf 1 vlan 0") // a reboot would have reset it
}

// TestUIO: the node of a uio driver is known once it is bound.
func TestUIO(t *testing.T) {
	if !hasCards() {
		return
	}
	l, path := newLane(t), newNetns(t)
	(&foreignWriter{t, filepath.Base(path), filepath.Base(path)}).run("modprobe uio_pci_generic")
	home := l.state("")
	sb := box(path, parse(t, "t", "    - {name: d, type: vfio-pci, config: {driver: uio_pci_generic, allowUnprotectedDMA: true}}\n"))
	sb.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"d": "enp3s0f0/1"}))
	rep, err := l.engine(nil).Ensure(ctxFor(t), sb)
	if err != nil {
		t.Fatal(err)
	}
	if d := rep.Results[0].Result.Devices; d == nil || len(d.DeviceNodes) != 1 || !strings.HasPrefix(d.DeviceNodes[0], "/dev/uio") {
		t.Errorf("results: %+v", rep.Results[0].Result.Devices)
	} else if _, err := os.Stat(d.DeviceNodes[0]); err != nil {
		t.Error(err)
	}
	if _, err := l.engine(nil).AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(home, "", "released")
}

// TestUnconfined: what no IOMMU confines is refused. The machine is another one for it
// (integration/vm --iommu). Its kernels have no VFIO without an IOMMU, and say so.
func TestUnconfined(t *testing.T) {
	refusals := map[string][]struct{ config, want string }{
		"off": {
			{"", "has no IOMMU group"},
			{"allowUnprotectedDMA: true", `driver "vfio-pci" does not take it without an IOMMU: turn the IOMMU on`},
		},
		"shared": {
			{"", "shares IOMMU group"},
			{"allowUnprotectedDMA: true", "shares IOMMU group"}, // a container must not reach what is another's
		},
	}[os.Getenv("PLUMBLINE_IOMMU")]
	if !hasCards() || refusals == nil {
		return
	}
	l, path := newLane(t), newNetns(t)
	(&foreignWriter{t, filepath.Base(path), filepath.Base(path)}).run("modprobe vfio-pci")
	home := l.state("")
	for _, r := range refusals {
		sb := box(path, parse(t, "t", "    - {name: d, type: vfio-pci, config: {"+r.config+"}}\n"))
		sb.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"d": "enp3s0f0/1"}))
		_, err := l.engine(nil).Ensure(ctxFor(t), sb)
		if fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), r.want) {
			t.Errorf("config {%s}: %v, want %q", r.config, err, r.want)
		}
		l.mustEqual(home, "", "after it was refused")
	}
}

// TestBoundAgain: a function is bound to the driver that it has, which makes another interface; and after a crash in between, without a
// driver, to the one that its IDs choose. The card has no GUIDs, which is said.
func TestBoundAgain(t *testing.T) {
	if !hasCards() {
		return
	}
	newLane(t)
	id := functions(t, map[string]string{"vf": "enp3s0f0/1"})["vf"]
	dir := "/sys/bus/pci/devices/" + id
	link := func() (name, index string) {
		names, _ := filepath.Glob(dir + "/net/*")
		if len(names) != 1 {
			t.Fatalf("interfaces of %s: %v", id, names)
		}
		number, err := os.ReadFile(names[0] + "/ifindex")
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Base(names[0]), strings.TrimSpace(string(number))
	}
	own, first := link()
	host := binding.Open(binding.Options{})
	for _, unbound := range []bool{false, true} {
		if unbound {
			if err := os.WriteFile(dir+"/driver/unbind", []byte(id), 0); err != nil {
				t.Fatal(err)
			}
		}
		err := host.Apply(ctxFor(t), netstate.Change{After: netstate.Binding{ID: id, PortGUID: new("00:02:c9:03:00:21:6e:78")}})
		if fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "its driver has read the portGUID (unknown), and 00:02:c9:03:00:21:6e:78 was set") {
			t.Errorf("unbound %v: %v", unbound, err)
		}
		to, _ := os.Readlink(dir + "/driver")
		now, index := link()
		if filepath.Base(to) != "igbvf" || index == first {
			t.Errorf("unbound %v: driver %q, interface %s with index %s, before %s", unbound, to, now, index, first)
		}
		if now != own {
			if out, err := exec.CommandContext(t.Context(), "ip", "link", "set", now, "name", own).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		first = index
	}
	if override, err := os.ReadFile(dir + "/driver_override"); err != nil || strings.TrimSpace(string(override)) != "(null)" {
		t.Errorf("driver_override %q: %v", override, err)
	}
}
