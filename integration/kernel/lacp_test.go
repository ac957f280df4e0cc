package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology/fault"
)

// partnerPatience bounds the wait for LACP, which needs up to six seconds to notice that a
// partner is silent, and two to use a port again.
const partnerPatience = patience

// watching returns a watcher whose events are caused by the kernel's notifications only.
func watching(t *testing.T) *watch.Watcher {
	t.Helper()
	w, err := watch.New(watch.Options{Resync: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- w.Run(t.Context()) }()
	t.Cleanup(func() {
		w.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestPartnerOfPort: a bond in a pod has a partner. One of its ports loses the partner and
// keeps its carrier, and gets the partner back. The kernel's notifications alone cause the
// reports.
func TestPartnerOfPort(t *testing.T) {
	l, path, far := newLane(t), newNetns(t), newNetns(t)
	s := &foreignWriter{t: t, ns: filepath.Base(far)}
	s.run(`for i in 1 2; do
		ip link add leg$i type veth peer name far$i netns $NS
	done
	$ip link add far0 type bond mode 802.3ad lacp_rate fast miimon 100
	for i in 1 2; do $ip link set far$i master far0; $ip link set far$i up; done
	$ip link set far0 up`)
	t.Cleanup(func() { s.run("ip link del leg1; ip link del leg2") })

	store, reg, err := parts(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan ports.Report, 100)
	var r *reconcile.Reconciler
	m := ports.New(ports.Options{
		Record:   func(id reconcile.SandboxID) (reconcile.Record, bool, error) { return r.Record(id) },
		Read:     l.host.Ports,
		ReadRDMA: l.host.RDMAPorts,
		Pod:      func(reconcile.SandboxID) (ports.Pod, bool) { return ports.Pod{Namespace: "default", Name: "p"}, true },
		Changed: func(r ports.Report) {
			select {
			case reports <- r:
			default:
				t.Error("too many reports")
			}
		},
		Now: time.Now,
	})
	r = reconcile.New(reconcile.Options{
		Registry: reg, Store: store, BootID: l.host.BootID(), Recorder: m,
		Open: func(path string) (reconcile.Domain, error) { return open(l.host, path) },
	})
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // before the host is closed
	running.Go(func() { m.Run(t.Context()) })
	w := watching(t)

	sb := box(path, parse(t, "lacp", `    - {name: left, type: host-device, config: {name: net1}}
    - {name: right, type: host-device, config: {name: net2}}
    - {name: bond0, type: bond, dependOn: [left, right], config: {mode: 802.3ad, miimon: 100, lacpRate: fast}}
`))
	sb.ID = reconcile.IDOfClaim("s", "c", "lacp")
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"left": "if:leg1", "right": "if:leg2"})
	if err := w.Add(sb.ID, path); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	running.Go(func() {
		for e := range w.Events() {
			if e.ID == sb.ID {
				_, _ = r.Check(t.Context(), e.ID) // which the monitor records
			}
		}
	})

	late := time.After(partnerPatience)
	await := func(what string, want map[string]ports.Verdict, severity ports.Severity) {
		t.Helper()
		var got ports.Report
		for {
			select {
			case got = <-reports:
			case <-late:
				t.Fatalf("%s: no such report; the last one: %+v\n%s", what, got, s.run("$ip -d link show; ip -n "+filepath.Base(path)+" -d link show"))
			}
			same := got.Topology.Name == "lacp" && got.Outcome.Topology == severity
			for i, p := range got.Ports {
				if v, named := want[p.Name]; named && got.Verdicts[i] != v {
					same = false
				}
			}
			if same {
				return
			}
		}
	}
	up, alone := ports.Verdict{Status: ports.Up, Reason: ports.Carrier}, ports.Verdict{Status: ports.Down, Reason: ports.NoPartner}
	await("both have a partner", map[string]ports.Verdict{"net1": up, "net2": up, "bond0": up}, ports.Fine)
	s.run("$ip link set far2 nomaster; $ip link set far2 up")
	await("the partner of one is lost", map[string]ports.Verdict{"net1": up, "net2": alone, "bond0": up}, ports.Degraded)
	s.run("$ip link set far2 down; $ip link set far2 master far0; $ip link set far2 up")
	await("it is back", map[string]ports.Verdict{"net1": up, "net2": up, "bond0": up}, ports.Fine)
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
}

// joinBond is a script that makes a link the port of a bond.
func joinBond(port, bond string) string {
	return strings.NewReplacer("PORT", port, "BOND", bond).Replace("ip link set PORT down; ip link set PORT master BOND; ip link set PORT up\n")
}

// bondOfHost makes two PFs at the ends of a wire ports of the bonds near0 and far0 with LACP.
func bondOfHost(t *testing.T, s *foreignWriter, near, far string) {
	t.Helper()
	s.run(`for b in near0 far0; do ip link add $b mtu 9000 type bond mode 802.3ad lacp_rate fast miimon 100; ip link set $b up; done
` + joinBond(near, "near0") + joinBond(far, "far0"))
	t.Cleanup(func() {
		s.run("ip link del near0; ip link del far0; for p in " + near + " " + far + "; do ip link set $p up mtu 9000; done")
		// A PF that was reset answers its functions again when they are brought up, and other
		// tests need that.
		s.run(`functions=$(basename -a /sys/class/net/` + near + `/device/virtfn*/net/* /sys/class/net/` + far + `/device/virtfn*/net/*)
		for f in $functions; do ip link set $f up; done
		for f in $functions; do until ip link show $f | grep -q LOWER_UP; do sleep 0.1; done; ip link set $f down; done`)
	})
}

// TestLinkStateFollowsLACP: the PF of a pod's virtual function is the port of a bond on the
// host, with a partner at the other end of the wire. When the partner falls silent, the PF keeps
// its carrier, and the link state of the function drifts. The card cannot change that state, and
// the error says so. The kernel's notifications alone cause the observations.
func TestLinkStateFollowsLACP(t *testing.T) {
	if !hasCards() {
		return // no virtual functions
	}
	const near, far = "enp3s0f0", "enp4s0f0"
	l, path := newLane(t), newNetns(t)
	s := &foreignWriter{t: t, ns: filepath.Base(path)}
	bondOfHost(t, s, near, far)
	w := watching(t)
	link, err := os.Readlink("/sys/class/net/" + near + "/device/virtfn0")
	if err != nil {
		t.Fatal(err)
	}
	id := filepath.Base(link)
	observed := func(host *kernel.Host) netstate.VF {
		d, err := open(host, path)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		snap, err := d.Observe(ctxFor(t), []netstate.Object{netstate.VF{ID: id}})
		if err != nil {
			t.Fatal(err)
		}
		vf, ok := netstate.Lookup(snap, netstate.VF{ID: id})
		if !ok {
			t.Fatalf("no VF %q", id)
		}
		return vf
	}
	late := time.After(partnerPatience)
	await := func(what string, agreed bool) netstate.VF {
		t.Helper()
		for {
			vf := observed(l.host)
			if vf.LACP == nil {
				t.Fatalf("%s: the PF of %+v is not the port of a bond with LACP", what, vf)
			}
			if vf.LACP.Agreed == agreed {
				return vf
			}
			select {
			case <-w.Events():
			case <-late:
				t.Fatalf("%s: %+v\n%s", what, vf.LACP, s.run("ip -d link show "+near+"; cat /proc/net/bonding/*"))
			}
		}
	}
	await("the partner agrees", true)

	r := l.engine(nil)
	sb := box(path, parse(t, "t", "    - {name: vf, type: sriov, config: {linkState: follow}}\n"))
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"vf": id})
	if rep, err := r.Ensure(ctxFor(t), sb); err != nil || len(rep.Notes) > 0 {
		t.Fatalf("%v, %q", err, rep.Notes)
	}
	// It must not be closed before: see integration/README.md.
	l.await("the function has a carrier", func() bool { return strings.Contains(s.run("$ip link show net1"), "LOWER_UP") })

	s.run("ip link set " + far + " nomaster; ip link set " + far + " up")
	await("the partner is silent", false)
	if !strings.Contains(s.run("ip link show "+near), "LOWER_UP") {
		t.Error("the PF has lost its carrier, too")
	}
	st, err := r.Check(ctxFor(t), sb.ID)
	if err != nil || len(st.Drift) != 1 || st.Drift[0].Step != "vf" || st.Drift[0].Field != "linkState" || st.Drift[0].Want != "disable" {
		t.Errorf("%v, %+v", err, st)
	}
	_, err = r.Repair(ctxFor(t), sb.ID)
	if fault.Of(err) != fault.Unsupported || !strings.Contains(err.Error(), `step "vf"`) || !strings.Contains(err.Error(), "linkState disable: the driver of the physical function does not have it") {
		t.Errorf("repair: %v", err)
	}

	s.run(joinBond(far, "far0"))
	if vf := await("the partner is back", true); vf.LACP.SettlesMillis == 0 {
		t.Errorf("it is stable at once: %+v", vf.LACP)
	}
	other, err := kernel.Open(kernel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if vf := observed(other); vf.LACP == nil || !vf.LACP.Agreed || vf.LACP.SettlesMillis != 0 {
		t.Errorf("a process that has just started: %+v", vf.LACP)
	}
	if rep, err := r.Repair(ctxFor(t), sb.ID); err != nil || !rep.Unchanged {
		t.Errorf("repair: %v, %+v", err, rep)
	}
	if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
		t.Errorf("%v, %+v", err, st)
	}
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
}
