package hostengine_test

import (
	"errors"
	"testing"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/hostengine"
)

// TestWarn holds that DHCP leases which cannot be recorded are reported to who opens the engine.
func TestWarn(t *testing.T) {
	var told error
	base, err := hostengine.Open(hostengine.Options{StateDir: t.TempDir(), Warn: func(err error) { told = err }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = base.Close() })
	full := errors.New("no space left on device")
	if base.Leases.Warn(full); !errors.Is(told, full) {
		t.Errorf("told %v", told)
	}
}

// TestUserspaceDrivers holds that the inventory and the engine, which import nothing of one another, agree on which drivers give a
// device to user space.
func TestUserspaceDrivers(t *testing.T) {
	for _, driver := range []string{
		"vfio-pci", "mlx5_vfio_pci", "uio_pci_generic", "igb_uio", "pci-stub", "pciback", "xen-pciback", "igbvf", "mlx5_core", "uio_hv_generic",
	} {
		state := inventory.Device{Driver: driver}.State()
		if netstate.UserspaceDriver(driver) != (state == "userspace") {
			t.Errorf("driver %q: the inventory says %q, the engine %t", driver, state, netstate.UserspaceDriver(driver))
		}
	}
}
