package inventory

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Sharing is how a device is offered to several claims at once. Such a device stays on
// the host and is used there.
//
// It has a name of its own in the ResourceSlice. Under one name the scheduler would give
// a device to one claim alone while others have shares of it, as soon as the device is
// no longer marked as shared: it does not count shares as use.
type Sharing struct {
	// Suffix ends the name under which the device is shared; it begins with "-".
	Suffix string `json:"suffix"`
	// By are the step types that may use the device; none is every one that uses
	// devices where they are.
	By []string `json:"by,omitempty"`
	// Capacity is consumed by shares, beside the number of shares.
	Capacity map[string]resourceapi.DeviceCapacity `json:"capacity,omitempty"`
	// Functions says that the device is a PF whose functions are allocated as shares: a
	// claim gets one, and which one is decided on the node.
	Functions bool `json:"functions,omitempty"`
	// Whole says that the device is offered as a whole, too, until one of both is taken.
	Whole bool `json:"whole,omitempty"`
}

// The capacity that each shared device has: each allocation takes one.
const (
	CapacityShares = "shares"
	// CapacityFunctions is the capacity of a PF whose functions are allocated as shares, one for
	// each allocation. CapacityBandwidth is in bit/s, and limits the function.
	CapacityFunctions = "vfs"
	CapacityBandwidth = "bandwidth"
	// MaxShares is the default number of shares. It is more than the number of pods that a
	// node can have.
	MaxShares = 1024
)

// ByAny is the value of AttrSharedBy of a device that every step type may use which uses
// devices where they are.
const ByAny = "any"

// AsShared returns the device as it is offered by its Exposure's Sharing.
func (d Device) AsShared() Device {
	d.Shared = d.Exposure.Sharing
	d.Name = d.shareBase() + d.Shared.Suffix
	return d
}

// SharedByName reports whether only a policy that names the device shares it: all software but bonds,
// bridges and VLANs, since most veths and the like are of pods.
func (d Device) SharedByName() bool {
	return d.Kind == KindVirtual && d.DevType != "bond" && d.DevType != "bridge" && d.DevType != "vlan"
}

// Forms returns the devices, each followed by the form in which it is shared, if it is.
func Forms(devices []Device) []Device {
	var out []Device
	for _, d := range devices {
		out = append(out, d)
		if d.Exposure.Sharing != nil {
			out = append(out, d.AsShared())
		}
	}
	return out
}

// shareBase begins the names of a device that is shared. An interface name may be the
// beginning of another one with a dash, so a hash distinguishes those.
func (d Device) shareBase() string {
	ifName, ok := strings.CutPrefix(d.ID, ifPrefix)
	if !ok {
		return d.Name
	}
	sum := sha256.Sum256([]byte(ifName))
	hash := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimSuffix(d.Name, hash) + hash
}

// Named returns the device that is published under a name, as a whole or shared.
func Named(devices []Device, name string) (Device, bool) {
	i := slices.IndexFunc(devices, func(d Device) bool { return d.Name == name })
	if i < 0 {
		i = slices.IndexFunc(devices, func(d Device) bool { return strings.HasPrefix(name, d.shareBase()+"-") })
	}
	if i < 0 {
		return Device{}, false
	}
	return devices[i], true
}

// sharedBy is the value of AttrSharedBy.
func (d Device) sharedBy() string {
	if d.Shared == nil {
		return ""
	}
	return cmp.Or(strings.Join(d.Shared.By, ","), ByAny)
}

// Capacity returns the capacities of a shared device for its ResourceSlice, nil for a device that is allocated as a whole. Each has a
// default: without one, a claim that names no amount would get everything.
func Capacity(d Device) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	if d.Shared == nil {
		return nil
	}
	out := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{CapacityShares: OneEach(MaxShares)}
	if d.Shared.Functions {
		out[CapacityFunctions] = OneEach(int64(d.NumVFs))
	}
	for name, c := range d.Shared.Capacity {
		out[resourceapi.QualifiedName(name)] = *c.DeepCopy()
	}
	return out
}

// OneEach is a capacity of which each allocation takes one.
func OneEach(value int64) resourceapi.DeviceCapacity {
	one := func() *resource.Quantity { return resource.NewQuantity(1, resource.DecimalSI) }
	return resourceapi.DeviceCapacity{
		Value: *resource.NewQuantity(value, resource.DecimalSI),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    one(),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: one(), Max: one()},
		},
	}
}
