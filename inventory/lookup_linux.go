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

// LookupRepresentor returns the representor of a virtual function whose PF is
// in switchdev mode: the port to plug into Open vSwitch.
func LookupRepresentor(d Device) (string, error) {
	if d.PF == nil || d.PF.VFIndex < 0 || d.PF.IfName == "" {
		return "", fmt.Errorf("device %q: representor: not a virtual function of a PF with an interface here", d.Name)
	}
	name, err := sriovnet.GetVfRepresentor(d.PF.IfName, d.PF.VFIndex)
	if err != nil {
		return "", fmt.Errorf("device %q: representor of %s: %w", d.Name, d.PF, err)
	}
	return name, nil
}
