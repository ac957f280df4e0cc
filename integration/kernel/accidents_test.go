package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestPathReused: another pod's namespace is mounted at the path. Nothing is
// done in it, and the devices of the old one are restored to the host.
func TestPathReused(t *testing.T) {
	for _, p := range scenarios {
		if p.devices != nil && !hasCards() {
			continue // no PCI there; the other lane runs it
		}
		t.Run(p.name, func(t *testing.T) {
			s := p.fixture(t)
			s.prepare("release")
			deleteNetns(s.path)
			if _, err := namespace.Add(filepath.Base(s.path)); err != nil {
				t.Fatal(err)
			}
			s.run("$ip link set lo up; $ip link add data0 type dummy; $ip address add 192.0.2.9/24 dev data0")
			others := s.state(s.path)
			st, err := s.undisturbed.Check(ctxFor(t), s.sandbox.ID)
			if err != nil || st.State != reconcile.StateFailed || st.Kind != fault.Gone || !errors.Is(st.Err, reconcile.ErrReplaced) {
				t.Errorf("check: %v, %+v", err, st)
			}
			if rep, err := s.undisturbed.Repair(ctxFor(t), s.sandbox.ID); !errors.Is(err, reconcile.ErrReplaced) || fault.Of(err) != fault.Gone {
				t.Errorf("repair: %v, %v", err, rep.Changes)
			}
			spared := func(when string) {
				for _, d := range netstatetest.Differences(others, s.state(s.path)) {
					if !s.moved(d) { // a device of the sandbox returns later
						t.Errorf("%s: in the other namespace: %s", when, d)
					}
				}
			}
			spared("after a repair")
			if _, err := s.undisturbed.AwaitRelease(ctxFor(t), s.sandbox.ID); err != nil {
				t.Fatalf("release: %v", err)
			}
			spared("after release")
			s.mustEqual(s.home, "", "after release")
		})
	}
}

// TestClockJumps: the machine's clock is set hours ahead and back while the loop
// runs. Drift is still repaired by its notification, since no periodic check is due, and no
// sandbox is mistaken for another writer.
func TestClockJumps(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	r := l.engine(nil)
	sb := box(path, parse(t, "t", "    - {name: a, type: dummy, config: {name: a0, mtu: 1400}}\n"))
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	l.loopEvery(1000*time.Hour, r)
	damage := netstate.Change{Before: netstate.Link{Name: "a0", MTU: new(uint32(1400))}, After: netstate.Link{Name: "a0", MTU: new(uint32(1300))}}
	shift := func(by time.Duration) {
		now := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
		if err := unix.Settimeofday(&now); err != nil {
			t.Fatal(err)
		}
	}
	for _, by := range []time.Duration{5 * time.Hour, -12 * time.Hour, 7 * time.Hour} {
		shift(by)
		l.disturb(path, damage)
		l.await(fmt.Sprintf("the clock moved by %v: it is repaired", by), func() bool {
			a0, ok := l.state(path).Link("a0")
			return ok && *a0.MTU == 1400
		})
		if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
			t.Errorf("the clock moved by %v: %v, %+v", by, err, st)
		}
	}
}

// TestUnplugged: a card is taken out of a running sandbox and put in again.
func TestUnplugged(t *testing.T) {
	if !hasCards() {
		return // no PCI there
	}
	const card = "enp4s0f1"
	device, err := os.Readlink("/sys/class/net/" + card + "/device")
	if os.IsNotExist(err) {
		t.Fatalf("there is no %s: this test wants four cards (--nics quad)", card)
	}
	pf := filepath.Base(device)
	l, path, other := newLane(t), newNetns(t), newNetns(t)
	s := &foreignWriter{t, filepath.Base(path), filepath.Base(other)}
	r := l.engine(nil)
	home := l.state("")
	sb := box(path, parse(t, "t", `
    - {name: vf, type: sriov, config: {mac: "02:00:00:00:00:0a", vlan: 5, mtu: 2000}}
    - {name: up, type: vlan, dependOn: [vf], config: {id: 9, name: up0, addresses: [192.0.2.5/24]}}
    - {name: d, type: dummy, config: {name: d0}}
`))
	sb.Given = ops.Givens{}.WithDevices(functions(t, map[string]string{"vf": card + "/0"}))
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}

	s.run("echo 1 >/sys/bus/pci/devices/" + pf + "/remove")
	gone := l.state(path)
	st, err := r.Check(ctxFor(t), sb.ID)
	if err != nil || st.State != reconcile.StateFailed || st.Kind != fault.Gone || !strings.Contains(st.Failure, sb.Given["vf"].Device) || !strings.Contains(st.Failure, `step "vf"`) {
		t.Errorf("unplugged: %v, %+v", err, st)
	}
	if rep, err := r.Repair(ctxFor(t), sb.ID); fault.Of(err) != fault.Gone || len(rep.Changes) > 0 {
		t.Errorf("unplugged, repair: %v, %v", err, rep.Changes)
	}
	l.mustEqual(gone, path, "unplugged, repair")

	// As the bench did it at first: functions before the card is opened, and
	// their drivers after it has carrier.
	s.run(fmt.Sprintf(`
echo 1 >/sys/bus/pci/rescan
cd /sys/bus/pci/devices/%[1]s
until [ -d net ]; do sleep 0.1; done
echo 0 >sriov_drivers_autoprobe
echo 4 >sriov_numvfs
ip link set "$(ls net)" name %[2]s mtu 9000 up
until [ "$(cat net/%[2]s/carrier)" = 1 ]; do sleep 0.1; done
echo 1 >sriov_drivers_autoprobe
for n in 0 1 2 3; do
	vf=$(basename "$(readlink virtfn$n)")
	echo "$vf" >/sys/bus/pci/drivers_probe
	until [ -d virtfn$n/net ]; do sleep 0.1; done
	ip link set "$(ls virtfn$n/net)" name %[2]sv$n
done
`, pf, card))
	if _, err := r.Repair(ctxFor(t), sb.ID); err != nil {
		t.Fatalf("plugged in again, repair: %v", err)
	}
	if st, err := r.Check(ctxFor(t), sb.ID); err != nil || st.State != reconcile.InSync {
		t.Fatalf("plugged in again: %v, %+v", err, st)
	}
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, d := range netstatetest.Differences(home, l.state("")) {
		if !strings.Contains(d, " mac: ") { // a card gives its functions new ones when it starts
			left = append(left, d)
		}
	}
	if len(left) > 0 {
		t.Errorf("after release: %v", left)
	}
}
