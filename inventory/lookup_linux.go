package inventory

import (
	"fmt"

	"github.com/k8snetworkplumbingwg/sriovnet"
)

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
