package node

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/sysfstest"
	"github.com/plumbline/plumbline/ops/netstate"
)

// TestDeviceIDs holds that package inventory, which names devices, and package netstate,
// by which the kernel finds them again, agree on which IDs are PCI addresses. Neither
// may import the other.
func TestDeviceIDs(t *testing.T) {
	devices, _ := inventory.Discover(sysfstest.Open(t, "../../inventory/testdata/tree/others.txtar"), inventory.Options{})
	pci, virtual := 0, 0
	for _, d := range devices {
		name, cut := strings.CutPrefix(d.ID, netstate.VirtualPrefix)
		switch has := (netstate.Device{ID: d.ID}).HasPCIAddress(); {
		case has && d.PCIAddress() == d.ID:
			pci++
		case !has && d.PCIAddress() == "" && cut && name == d.IfName:
			virtual++
		default:
			t.Errorf("device %q has the PCI address %q: to netstate that is %t", d.ID, d.PCIAddress(), has)
		}
	}
	if pci == 0 || virtual == 0 {
		t.Errorf("%d PCI functions and %d other devices: want both", pci, virtual)
	}
}
