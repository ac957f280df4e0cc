package inventory

import (
	"io/fs"

	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// pcieRoot asks the DRA library, so that a GPU driver using it and we find the
// same root for devices that share one.
func pcieRoot(sys fs.ReadLinkFS, address string) (string, error) {
	a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(address, deviceattribute.WithFS(sys))
	if err != nil {
		return "", err
	}
	return *a.Value.StringValue, nil
}
