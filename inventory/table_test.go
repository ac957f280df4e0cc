package inventory_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/plumbline/plumbline/inventory"
)

// TestTableControlCharacters: a pod can rename RDMA devices and interfaces of the node; the names do not control the terminal of who lists them.
func TestTableControlCharacters(t *testing.T) {
	var out strings.Builder
	d := inventory.Device{Name: "pci-0000-03-00-2", IfName: "\x1b[31mx", RDMA: true, RDMADevices: []string{"mlx5_2\x1b]0;owned\x07\nFORGED  LINE"}}
	if err := inventory.Table(&out, []inventory.Listed{{Device: d}}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(out.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("%q", out.String())
	}
}
