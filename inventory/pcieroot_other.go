//go:build !linux

package inventory

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// pcieRoot follows the rule of the DRA library, which has it for Linux only;
// the same golden files hold both to it.
func pcieRoot(sys fs.ReadLinkFS, address string) (string, error) {
	target, err := sys.ReadLink(path.Join(pciDir, address))
	if err != nil {
		return "", err
	}
	parts := strings.Split(path.Join(pciDir, target), "/")
	if parts[0] != "devices" || len(parts) < 2 || !strings.HasPrefix(parts[1], "pci") || len(strings.Split(address, ":")[0]) != 4 {
		return "", fmt.Errorf("device %q: no root complex in %q", address, target)
	}
	return parts[1], nil
}
