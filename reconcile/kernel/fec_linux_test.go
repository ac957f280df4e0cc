//go:build netdevsim

package kernel_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/mdlayher/ethtool"
	"github.com/vishvananda/netlink"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// A card's forward error correction, which a pod can change, is restored on the host.
// Debian does not build the one driver that has it without hardware: netdevsim.ko has
// to be built from Debian's linux-source for the kernel of the machine first.
func TestErrorCorrectionIsRestored(t *testing.T) {
	b := newBench(t)
	hostNS := b.hostNS
	for _, load := range [][]string{{"modprobe", "-a", "psample", "macsec", "udp_tunnel"}, {"insmod", "../../.cache/netdevsim.ko"}} {
		if out, err := exec.Command(load[0], load[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", load, err, out)
		}
	}
	const rs, baseR = 1 << 3, 1 << 4
	var name string
	set := func(link string, modes ethtool.FECModes) error {
		client, err := ethtool.New()
		if err != nil {
			return err
		}
		defer client.Close()
		return client.SetFEC(ethtool.FEC{Interface: ethtool.Interface{Name: link}, Modes: modes})
	}
	if err := kernel.Within(hostNS.path(), func() error {
		if err := os.WriteFile("/sys/bus/netdevsim/new_device", []byte("77 1"), 0); err != nil {
			return err
		}
		all, err := net.Interfaces()
		for _, i := range all {
			if i.Flags&net.FlagLoopback == 0 {
				name = i.Name
			}
		}
		return errors.Join(err, set(name, rs))
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile("/sys/bus/netdevsim/del_device", []byte("77"), 0) })
	start := b.settingsOf("if:" + name)
	if !slices.Contains(start.Settings, "ethtool.fec=0x8 auto=false") {
		t.Fatalf("no forward error correction in %v", start.Settings)
	}
	b.apply(netstate.Change{Before: start, After: netstate.Device{ID: "if:" + name, At: new("net1")}})
	b.inPod("net1", func(*netlink.Handle, netlink.Link) error { return set("net1", baseR) })
	b.apply(netstate.Change{Before: b.device("if:" + name), After: start})
	if got := b.settingsOf("if:" + name); len(start.Settings.Differing(got.Settings)) > 0 {
		t.Errorf("differs in %v", start.Settings.Differing(got.Settings))
	}
}
