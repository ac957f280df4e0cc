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
	refused := fmt.Errorf("%w: Unknown device type", unix.EOPNOTSUPP)
	err := (&Sandbox{}).explainCreate(t.Context(), netstate.Link{Name: "d0", LinkKind: "dummy"}, refused)
	want := `the kernel has no links of kind "dummy": install the module that modprobe finds as rtnl-link-dummy: operation not supported: Unknown device type`
	if fault.Of(err) != fault.Unsupported || err.Error() != want {
		t.Errorf("%s: %v", fault.Of(err), err)
	}
}
