package follower

import (
	"maps"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/inventory"
)

// TestOthers holds by which attributes another driver's device is taken for one of ours.
func TestOthers(t *testing.T) {
	ours := []inventory.Device{{ID: "0000:01:00.0", IfName: "eth1"}, {ID: "if:usb0", IfName: "usb0"}, {ID: "0000:01:10.0"}}
	for name, c := range map[string]struct {
		driver, attribute, value string
		want                     map[string]string
	}{
		"the standard's address":   {"a.example.com", "resource.kubernetes.io/pciBusID", "0000:01:10.0", map[string]string{"0000:01:10.0": "a.example.com"}},
		"in capital letters":       {"a.example.com", "pciAddress", "0000:01:10.0", map[string]string{"0000:01:10.0": "a.example.com"}},
		"an interface":             {"k8s.ovn.org", "k8s.ovn.org/ifName", "usb0", map[string]string{"if:usb0": "k8s.ovn.org"}},
		"no interface":             {"k8s.ovn.org", "k8s.ovn.org/ifName", "", nil},
		"the nearest card":         {"gpu.example.com", "nearestNIC", "0000:01:00.0", nil},
		"the PF":                   {"a.example.com", "pfPciAddress", "0000:01:00.0", nil},
		"a GPU":                    {"gpu.example.com", "resource.kubernetes.io/pciBusID", "0000:02:00.0", nil},
		"our own, of another pool": {inventory.Driver, "ifName", "eth1", nil},
	} {
		slice := &resourceapi.ResourceSlice{}
		slice.Spec.Driver = c.driver
		slice.Spec.Devices = []resourceapi.Device{{Name: "x", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			resourceapi.QualifiedName(c.attribute): {StringValue: &c.value}, "else": {BoolValue: new(true)},
		}}}
		kept, err := identitiesOnly(slice)
		if err != nil {
			t.Fatal(err)
		}
		if have := others(ours, []*resourceapi.ResourceSlice{kept.(*resourceapi.ResourceSlice)}); !maps.Equal(have, c.want) {
			t.Errorf("%s: %v, want %v", name, have, c.want)
		}
	}
	two := []*resourceapi.ResourceSlice{}
	for _, driver := range []string{"b.example.com", "a.example.com"} {
		s := &resourceapi.ResourceSlice{}
		s.Spec.Driver = driver
		s.Spec.Devices = []resourceapi.Device{{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"ifName": {StringValue: new("eth1")}}}}
		two = append(two, s)
	}
	if have := others(ours, two); have["0000:01:00.0"] != "a.example.com" {
		t.Errorf("of two drivers: %v", have)
	}
}
