package representor

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// switchdev is a mode of devlink for the switch of a card.
const switchdev = "switchdev"

// Mode returns the mode of the switch of a device: "switchdev", "legacy", or "" if its driver has
// none. phys_switch_id does not say it: some drivers have that in both modes.
func Mode(bus, device string) (string, error) {
	d, err := netlink.DevLinkGetDeviceByName(bus, device)
	for _, none := range []error{unix.ENODEV, unix.ENOENT, unix.EOPNOTSUPP} {
		if errors.Is(err, none) {
			return "", nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("devlink device %s/%s: %w", bus, device, err)
	}
	return d.Attrs.Eswitch.Mode, nil
}
