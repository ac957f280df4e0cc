//go:build netdevsim

package representor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/representor"
)

// TestRepresentorsOfKernel (see TestErrorCorrectionIsRestored for netdevsim.ko): representors that a driver of the kernel makes are found by what devlink and
// sysfs have, under any name, and in mode switchdev only. Its functions carry no packets.
func TestRepresentorsOfKernel(t *testing.T) {
	run := func(program string, arguments ...string) string {
		t.Helper()
		out, err := exec.Command(program, arguments...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", program, strings.Join(arguments, " "), err, out)
		}
		return string(out)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	run("modprobe", "-a", "psample", "macsec", "udp_tunnel")
	run("insmod", "../../.cache/netdevsim.ko")
	const bus = "/sys/bus/netdevsim/"
	write(bus+"new_device", "5 1")
	t.Cleanup(func() { _ = os.WriteFile(bus+"del_device", []byte("5"), 0) })
	device := filepath.Join(bus, "devices/netdevsim5")
	write(filepath.Join(device, "sriov_numvfs"), "3")

	mode := func(want string) {
		t.Helper()
		if got, err := kernel.SwitchMode("netdevsim", "netdevsim5"); err != nil || got != want {
			t.Errorf("mode %q %v, want %q", got, err, want)
		}
	}
	find := func(index int) string {
		t.Helper()
		got, err := representor.Find(device, index)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	mode("legacy")
	if got := find(1); got != "" {
		t.Errorf("in mode legacy %q was found", got)
	}
	run("devlink", "dev", "eswitch", "set", "netdevsim/netdevsim5", "mode", "switchdev")
	mode("switchdev")
	name := find(1)
	if name == "" {
		t.Fatalf("no representor was found in mode switchdev: %s", run("sh", "-c", "grep -s . "+device+"/net/*/phys_*"))
	}
	run("ip", "link", "set", name, "name", "any")
	if got := find(1); got != "any" {
		t.Errorf("renamed to %q, found %q", "any", got)
	}
	if other := find(2); other == "" || other == "any" {
		t.Errorf("of function 2 %q was found", other)
	}
	if got := find(7); got != "" {
		t.Errorf("of a function that does not exist %q was found", got)
	}
	if got, err := kernel.SwitchMode("pci", "0000:ff:1f.7"); got != "" || err != nil {
		t.Errorf("of no device: %q %v", got, err)
	}
}
