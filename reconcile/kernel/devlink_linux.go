package kernel

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SwitchMode returns the mode of the switch of a device: "switchdev", "legacy", or "" if its driver has
// none, in the namespace of the calling thread. phys_switch_id does not say it: some drivers have that in both modes.
func SwitchMode(bus, device string) (string, error) {
	h, err := netlink.NewHandle(unix.NETLINK_GENERIC)
	if err != nil {
		return "", fmt.Errorf("devlink: %w", err)
	}
	defer h.Close()
	d, err := h.DevLinkGetDeviceByName(bus, device)
	if isAny(err, unix.ENODEV, unix.ENOENT, unix.EOPNOTSUPP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("devlink device %s/%s: %w", bus, device, err)
	}
	return d.Attrs.Eswitch.Mode, nil
}
