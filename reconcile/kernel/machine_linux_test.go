package kernel

import (
	"os"
	"testing"
)

// InMachine skips a test that changes namespaces or devices, unless it runs in the
// virtual machine of integration/vm, which has everything it needs.
func InMachine(t testing.TB) {
	t.Helper()
	if os.Getenv("PLUMBLINE_LANE") == "" {
		t.Skip("changes the kernel's state: runs in the machine of integration/vm")
	}
}
