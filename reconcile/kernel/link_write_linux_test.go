package kernel

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestUnknownKind holds what is reported where the kernel lacks a module; the virtual
// machine has all of them.
func TestUnknownKind(t *testing.T) {
	if other := fmt.Errorf("link \"Unknown device type\": %w", unix.EOPNOTSUPP); unknownKind(other) {
		t.Errorf("a name in the text is taken for the kernel's message: %v", other)
	}
	err := (&Sandbox{}).explainCreate(t.Context(), netstate.Link{Name: "d0", LinkKind: "dummy"}, fmt.Errorf("create: %w", &refused{unix.EOPNOTSUPP, "Unknown device type"}))
	want := `the kernel has no links of kind "dummy": install the module that modprobe finds as rtnl-link-dummy: create: operation not supported: Unknown device type`
	if fault.Of(err) != fault.Unsupported || err.Error() != want {
		t.Errorf("%s: %v", fault.Of(err), err)
	}
}
