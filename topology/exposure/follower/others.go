package follower

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/inventory"
)

// Names of attributes, without their domain and in lower case, by which drivers say
// which PCI function and which interface a device is: those of the standard and of the
// network drivers whose source was read (k8s.ovn.org, dra.net, sriovnetwork.*).
// Attributes of other names may describe a neighbour: a GPU's nearest card, or the PF
// of a function.
var (
	pciNames       = []string{"pcibusid", "pciaddress", "pcideviceaddress", "bdf"}
	interfaceNames = []string{"ifname", "interfacename", "netdevname"}
)

// identitiesOnly reduces a slice to what Others reads.
func identitiesOnly(v any) (any, error) {
	s, ok := v.(*resourceapi.ResourceSlice)
	if !ok {
		return v, nil
	}
	out := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}}
	out.Spec.Driver, out.Spec.NodeName = s.Spec.Driver, s.Spec.NodeName
	for _, d := range s.Spec.Devices {
		kept := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for name, a := range d.Attributes {
			if a.StringValue != nil && slices.Contains(slices.Concat(pciNames, interfaceNames), lastPart(name)) {
				kept[name] = a
			}
		}
		if len(kept) > 0 {
			out.Spec.Devices = append(out.Spec.Devices, resourceapi.Device{Name: d.Name, Attributes: kept})
		}
	}
	return out, nil
}

// lastPart is the name of an attribute without its domain, in lower case.
func lastPart(name resourceapi.QualifiedName) string {
	s := string(name)
	return strings.ToLower(s[strings.LastIndexByte(s, '/')+1:])
}

// Others says by device ID which other driver publishes a device on this node.
func (f *Follower) Others(devices []inventory.Device) map[string]string {
	var found []*resourceapi.ResourceSlice
	for _, v := range f.slices.GetStore().List() {
		if s, ok := v.(*resourceapi.ResourceSlice); ok {
			found = append(found, s)
		}
	}
	return others(devices, found)
}

func others(devices []inventory.Device, found []*resourceapi.ResourceSlice) map[string]string {
	byPCI, byInterface := map[string]string{}, map[string]string{}
	for _, s := range found {
		if s.Spec.Driver == inventory.Driver {
			continue
		}
		for _, d := range s.Spec.Devices {
			for name, a := range d.Attributes {
				if a.StringValue == nil || *a.StringValue == "" {
					continue
				}
				switch part := lastPart(name); {
				case slices.Contains(pciNames, part):
					first(byPCI, strings.ToLower(*a.StringValue), s.Spec.Driver)
				case slices.Contains(interfaceNames, part):
					first(byInterface, *a.StringValue, s.Spec.Driver)
				}
			}
		}
	}
	out := map[string]string{}
	for _, d := range devices {
		if driver := byPCI[d.PCIAddress()]; driver != "" && d.PCIAddress() != "" {
			out[d.ID] = driver
		} else if driver := byInterface[d.IfName]; driver != "" && d.IfName != "" {
			out[d.ID] = driver
		}
	}
	return out
}

// first keeps the first driver by name, so that the answer does not change.
func first(m map[string]string, key, driver string) {
	if have, ok := m[key]; !ok || driver < have {
		m[key] = driver
	}
}
