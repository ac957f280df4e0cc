//go:build igblink

package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
)

// TestLinkStateIsSet is TestLinkStateFollowsLACP with a driver that has link states, below the
// loop of a node: the function is disabled when the partner is lost, and enabled when it is back
// and stable. The effect in the driver is not tested: it only records the state. See
// integration/README.md.
func TestLinkStateIsSet(t *testing.T) {
	const near, far = "enp3s0f0", "enp4s0f0"
	s := &foreignWriter{t: t}
	// As the machine has set them up, see integration/machine/guest.
	s.run(`names=$(for d in /sys/bus/pci/drivers/igb/0000:*; do echo "${d##*/} $(basename $d/net/*)"; done)
	for d in /sys/bus/pci/drivers/igb/0000:*; do echo 0 >$d/sriov_numvfs; done
	rmmod igb
	insmod ../../.cache/igb.ko
	echo "$names" | while read -r d name; do
		d=/sys/bus/pci/devices/$d
		echo 0 >$d/sriov_drivers_autoprobe; echo 4 >$d/sriov_numvfs
		ip link set $(basename $d/net/*) name $name mtu 9000 up
	done
	echo "$names" | while read -r d name; do
		d=/sys/bus/pci/devices/$d
		until [ "$(cat /sys/class/net/$name/carrier)" = 1 ]; do sleep 0.1; done
		echo 1 >$d/sriov_drivers_autoprobe
		for v in $d/virtfn*; do
			basename $(readlink $v) >/sys/bus/pci/drivers_probe
			until [ -d $v/net ]; do sleep 0.1; done
			ip link set $(basename $v/net/*) name ${name}v${v##*virtfn}
		done
	done`)
	l, path := newLane(t), newNetns(t)
	s.ns = filepath.Base(path)
	bondOfHost(t, s, near, far)
	link, err := os.Readlink("/sys/class/net/" + near + "/device/virtfn0")
	if err != nil {
		t.Fatal(err)
	}
	id := filepath.Base(link)
	r := l.engine(nil)
	sb := box(path, parse(t, "t", "    - {name: vf, type: sriov, config: {linkState: follow}}\n"))
	sb.Given = ops.Givens{}.WithDevices(map[string]string{"vf": id})
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	l.loop(r)
	is := func(state string) func() bool {
		return func() bool {
			vf, ok := netstate.Lookup(l.state(path), netstate.VF{ID: id})
			return ok && *vf.LinkState == state
		}
	}
	// It must not be closed before: see integration/README.md.
	l.await("the function has a carrier", func() bool { return strings.Contains(s.run("$ip link show net1"), "LOWER_UP") })
	l.await("LACP uses the PF", is("auto"))
	s.run("ip link set " + far + " nomaster; ip link set " + far + " up")
	l.await("the partner is silent", is("disable"))
	l.disturb(path, netstate.Change{Before: netstate.VF{ID: id, LinkState: new("disable")}, After: netstate.VF{ID: id, LinkState: new("enable")}})
	s.run("ip link set " + far + " alias changed") // the kernel does not notify of link states
	l.await("another writer has enabled it", is("disable"))
	began := time.Now()
	s.run(joinBond(far, "far0"))
	l.await("the partner is back", is("auto"))
	if took := time.Since(began); took < 5*time.Second {
		t.Errorf("followed after %v", took)
	}
	s.run("ip link set " + far + " alias ''; ip link set " + far + " nomaster; ip link set " + far + " up")
	l.await("the partner is silent again", is("disable"))
	if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
		t.Error(err)
	}
	l.await("released", is("auto"))
}
