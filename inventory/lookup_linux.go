package inventory

import (
	"fmt"

	"github.com/k8snetworkplumbingwg/sriovnet"
)

// LookupIfName returns the interface a PCI function has now, in the network
// namespace /sys belongs to: after a driver was bound, the name is wanted at
// once and nothing else.
func LookupIfName(pciAddress string) (string, error) {
	names, err := sriovnet.GetNetDevicesFromPci(pciAddress)
	if err != nil {
		return "", fmt.Errorf("device %q: interface: %w", pciAddress, err)
	}
	if len(names) != 1 {
		return "", fmt.Errorf("device %q: want one interface, have %q", pciAddress, names)
	}
	return names[0], nil
}

// LookupUplink returns the interface of a PF in switchdev mode, where its
// function has many: for Options.UplinkOf. A PF that is in no such mode is an
// error.
func LookupUplink(pciAddress string) (string, error) {
	name, err := sriovnet.GetUplinkRepresentor(pciAddress)
	if err != nil {
		return "", fmt.Errorf("device %q: uplink: %w", pciAddress, err)
	}
	return name, nil
}
