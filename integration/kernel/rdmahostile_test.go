package kernel

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// softPod is a pod with a soft RoCE device on a link that its topology makes.
type softPod struct {
	*foreignWriter
	engine *reconcile.Reconciler
	id     reconcile.SandboxID
	name   string // of the RDMA device
}

func (l *lane) newSoftPod(t *testing.T) softPod {
	t.Helper()
	path := newNetns(t)
	s, engine := box(path, parse(t, "t", "    - {name: d, type: dummy, config: {name: d0}}\n    - {name: roce, type: rxe, dependOn: [d]}\n")), l.engine(nil)
	released(t, engine, s.ID)
	report, err := engine.Ensure(ctxFor(t), s)
	if err != nil {
		t.Fatal(err)
	}
	return softPod{&foreignWriter{t, filepath.Base(path), ""}, engine, s.ID, stepDevices(report.Results, "roce").RDMADevice}
}

// repair repairs the pod, and returns what that says. The record names no device node but that of the RDMA device on the pod's link.
func (p softPod) repair() string {
	p.t.Helper()
	_, err := p.engine.Repair(ctxFor(p.t), p.id)
	rec, _, unread := p.engine.Record(p.id)
	if unread != nil {
		p.t.Fatal(unread)
	}
	own := strings.TrimSpace(p.run(rdmaOn("d0") + "echo $R"))
	for _, node := range stepDevices(rec.Results, "roce").DeviceNodes {
		if name := filepath.Base(node); name != "rdma_cm" {
			if of := strings.TrimSpace(read(p.t, "/sys/class/infiniband_verbs/"+name+"/ibdev")); of != own {
				p.t.Errorf("containers of the pod get %s of RDMA device %q, and the pod's own is %q", node, of, own)
			}
		}
	}
	if err == nil {
		if own != p.name {
			p.t.Errorf("after the repair the pod has RDMA device %q, not %q", own, p.name)
		}
		return ""
	}
	if kind := fault.Of(err); kind != fault.Conflict && kind != fault.NotReady {
		p.t.Errorf("repair: kind %q: %v", kind, err)
	}
	return err.Error()
}

// TestHostileRDMAPod: a pod with NET_ADMIN renames and deletes RDMA devices of its node, those of another pod too, and makes its own
// under their names. A repair gives no pod a device node of another one, leaves the devices of the others alone, and says what it
// waits for; when the hostile pod is repaired, too, each has its own again.
func TestHostileRDMAPod(t *testing.T) {
	if !hasCards() {
		return
	}
	l, _ := newRDMALane(t)
	hostile, victim := l.newSoftPod(t), l.newSoftPod(t)
	inPod := "ip netns exec $NS "
	rows := []struct{ name, acts, says, then string }{
		{
			"exchanges the names",
			inPod + "rdma dev set " + victim.name + " name mine0; " + inPod + "rdma dev set " + hostile.name + " name " + victim.name + "; " + inPod + "rdma dev set mine0 name " + hostile.name,
			"is called", "",
		},
		{
			"takes the other's name",
			inPod + "rdma dev set " + victim.name + " name mine0; " + inPod + "rdma dev set " + hostile.name + " name " + victim.name,
			"is called", "",
		},
		{
			"makes a device with the other's name",
			inPod + "rdma link delete " + victim.name + "; " + inPod + "rdma link delete " + hostile.name + "; " + inPod + "rdma link add " + victim.name + " type rxe netdev d0",
			"or one of the node is called", "create the pod again",
		},
		{"deletes both", inPod + "rdma link delete " + victim.name + "; " + inPod + "rdma link delete " + hostile.name, "", "create the pod again"},
	}
	for _, row := range effort.Sample(t, 2, rows) {
		hostile.run(row.acts)
		before := strings.TrimSpace(hostile.run(rdmaOn("d0") + "echo $R"))
		if said := victim.repair(); row.says != "" && !strings.Contains(said, row.says) {
			t.Errorf("a pod that %s: the other is repaired, which says %q, want %q", row.name, said, row.says)
		}
		if now := strings.TrimSpace(hostile.run(rdmaOn("d0") + "echo $R")); now != before {
			t.Errorf("a pod that %s: its device %q is called %q after a repair of the other", row.name, before, now)
		}
		for range 2 { // a name is free when the other device has its own
			hostile.repair()
			victim.repair()
		}
		for _, p := range []softPod{hostile, victim} {
			if said := p.repair(); said != "" && (row.then == "" || !strings.Contains(said, row.then)) {
				t.Errorf("a pod that %s: at the end a repair says %q", row.name, said)
			}
			if own := strings.TrimSpace(p.run(rdmaOn("d0") + "echo $R")); own != p.name {
				t.Errorf("a pod that %s: at the end the pod's device is called %q, not %q", row.name, own, p.name)
			}
		}
	}
}

// TestSoftRoCEAfterReboot: a boot ends namespaces and RDMA devices in software. The record of the pod from before restores nothing,
// its release makes no RDMA device on the host, and the pod gets one that is made again.
func TestSoftRoCEAfterReboot(t *testing.T) {
	if !hasCards() {
		return
	}
	l, host := newRDMALane(t)
	home := l.state("")
	host.run("rdma link add rxe9 type rxe netdev $(ls /sys/class/net/enp3s0f0/device/virtfn1/net)")
	given := ops.Givens{}.WithDevices(functions(t, map[string]string{"vf": "enp3s0f0/1"}))
	store, reg, err := parts(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	boot := func(id string) *reconcile.Reconciler {
		return reconcile.New(reconcile.Options{
			Registry: reg, Store: store, BootID: id,
			Open: func(path string) (reconcile.Domain, error) { return open(l.host, path) },
		})
	}
	attach := func(engine *reconcile.Reconciler, before bool) (path string, id reconcile.SandboxID) {
		t.Helper()
		path = newNetns(t)
		s := box(path, parse(t, "t", "    - {name: vf, type: sriov, config: {name: rail0, addresses: [192.0.2.5/24]}}\n    - {name: roce, type: rxe, dependOn: [vf]}\n"))
		s.Given, s.AppliedBefore = given, before
		report, err := engine.Ensure(ctxFor(t), s)
		if err != nil {
			t.Fatal(err)
		}
		if got := stepDevices(report.Results, "roce"); len(got.DeviceNodes) != 2 {
			t.Errorf("results: %+v", got)
		}
		l.inSync(engine, s.ID)
		return path, s.ID
	}
	path, first := attach(boot("first"), false)
	deleteNetns(path)
	at := "/sys/bus/pci/devices/" + given["vf"].Device
	// As the host does at its boot.
	host.run("until ls " + at + "/net | grep -q .; do sleep 0.1; done; ip link set $(ls " + at + "/net) name enp3s0f0v1")

	path, second := attach(boot("second"), true)
	if rep, err := boot("second").AwaitRelease(ctxFor(t), first); err != nil || len(rep.Changes) > 0 {
		t.Errorf("release of the record from before the reboot: %v, %v", err, rep.Changes)
	}
	l.inSync(boot("second"), second)
	if _, err := boot("second").AwaitRelease(ctxFor(t), second); err != nil {
		t.Fatal(err)
	}
	deleteNetns(path)
	if left := strings.TrimSpace(host.run("ls /sys/class/infiniband")); left != "" {
		t.Errorf("RDMA devices of the host after the release: %s", left)
	}
	l.mustEqual(home, "", "after the release")
}
