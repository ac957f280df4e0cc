package inventory_test

import (
	"flag"
	"io/fs"
	"net"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/sysfstest"
)

var capture = flag.String("capture", "", "write what discovery reads of this machine's /sys to this file")

// TestDiscoverHere reads the machine the test runs on. Its data, kept as
// text and unpacked, must give the same devices: so fixtures are as good as
// machines.
func TestDiscoverHere(t *testing.T) {
	root, err := os.OpenRoot("/sys")
	if err != nil {
		t.Skip(err)
	}
	defer root.Close()
	recorder := sysfstest.NewRecorder(os.DirFS("/sys").(fs.ReadLinkFS))
	have, err := inventory.Discover(recorder, inventory.Options{})
	if err != nil {
		t.Error(err)
	}
	archive := recorder.Archive()
	if *capture != "" {
		if err := os.WriteFile(*capture, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	unpacked, _ := sysfstest.Unpack(t, archive)
	again, err := inventory.Discover(unpacked, inventory.Options{})
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(have, again); diff != "" {
		t.Errorf("from the recorded tree (-machine +recorded):\n%s", diff)
	}
	rooted, err := inventory.Discover(root.FS(), inventory.Options{})
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(have, rooted); diff != "" {
		t.Errorf("through os.Root (-os.DirFS +os.Root):\n%s", diff)
	}

	// /sys shows the network namespace it was mounted in, net.Interfaces the
	// one we are in; in a container they may differ.
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if _, err := os.Stat("/sys/class/net/" + i.Name); err != nil || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		found := false
		for _, d := range have {
			if d.IfName != i.Name {
				continue
			}
			found = true
			if d.MTU != i.MTU || d.MAC != i.HardwareAddr.String() || d.Up != (i.Flags&net.FlagUp != 0) {
				t.Errorf("device %q: MTU, MAC, up: have %d %s %t, the kernel says %d %s %t", d.Name, d.MTU, d.MAC, d.Up, i.MTU, i.HardwareAddr, i.Flags&net.FlagUp != 0)
			}
		}
		if !found {
			t.Errorf("interface %q is not among the devices", i.Name)
		}
	}
}
