package claim_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology/claim"
)

// TestAddresses holds which addresses of a claim's status are those of its pod, and on which topology.
func TestAddresses(t *testing.T) {
	device := func(driver, data string, ips ...string) resourceapi.AllocatedDeviceStatus {
		d := resourceapi.AllocatedDeviceStatus{Driver: driver}
		if data != "" {
			d.Data = &runtime.RawExtension{Raw: []byte(data)}
		}
		if ips != nil {
			d.NetworkData = &resourceapi.NetworkDeviceData{InterfaceName: "net1", IPs: ips}
		}
		return d
	}
	const bond = `{"topology":"rail","steps":[{"name":"bond","type":"bond","result":{"interfaces":[{"name":"host0"},{"name":"bond0","sandbox":"/run/netns/p"}],
"ips":[{"address":"192.0.2.1/24","interface":1},{"address":"192.0.2.2/24","interface":0},{"address":"192.0.2.3/24"},{"address":"192.0.2.4/24","interface":7},{"address":"192.0.2.5/24","interface":-1}]}}]}`
	var many, most []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("198.51.100.%d/24", i))
		if i < 16 {
			most = append(most, fmt.Sprintf("198.51.100.%d", i))
		}
	}
	for name, c := range map[string]struct {
		devices []resourceapi.AllocatedDeviceStatus
		want    map[string][]string
	}{
		"of a device":                          {[]resourceapi.AllocatedDeviceStatus{device(claim.Driver, `{"topology":"rail"}`, "192.0.2.7/24", "2001:db8::7/64", "fe80::1/64")}, map[string][]string{"rail": {"192.0.2.7", "2001:db8::7"}}},
		"of a link on two devices":             {[]resourceapi.AllocatedDeviceStatus{device(claim.Driver, bond), device(claim.Driver, bond)}, map[string][]string{"rail": {"192.0.2.1"}}},
		"of two topologies":                    {[]resourceapi.AllocatedDeviceStatus{device(claim.Driver, bond), device(claim.Driver, `{"topology":"tail"}`, "192.0.2.1/24")}, map[string][]string{"rail": {"192.0.2.1"}, "tail": {"192.0.2.1"}}},
		"of another driver":                    {[]resourceapi.AllocatedDeviceStatus{device("gpu.example.com", `{"topology":"rail"}`, "192.0.2.7/24")}, nil},
		"of a topology that was not allocated": {[]resourceapi.AllocatedDeviceStatus{device(claim.Driver, `{"topology":"other"}`, "192.0.2.7/24")}, nil},
		"without data":                         {[]resourceapi.AllocatedDeviceStatus{device(claim.Driver, "", "192.0.2.7/24")}, nil},
		"what is no address":                   {[]resourceapi.AllocatedDeviceStatus{device(claim.Driver, `{"topology":"rail"}`, "192.0.2.7", "nowhere", "2001:db8::7%eth0/64"), device(claim.Driver, `7`, "192.0.2.7/24")}, nil},
		"more than are kept":                   {[]resourceapi.AllocatedDeviceStatus{device(claim.Driver, `{"topology":"rail"}`, many...)}, map[string][]string{"rail": most}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Devices: c.devices, Allocation: &resourceapi.AllocationResult{}}}
			for _, topology := range []string{"rail", "tail"} {
				o.Status.Allocation.Devices.Config = append(o.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
					Source: resourceapi.AllocationConfigSourceClass,
					DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
						Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(strings.ReplaceAll(`{"networkTopologyRef":{"name":"NAME","uid":"u","generation":1},"step":"vf0"}`, "NAME", topology))},
					}},
				})
			}
			var have map[string][]string
			for topology, addresses := range claim.Addresses(o) {
				for _, a := range addresses {
					if have == nil {
						have = map[string][]string{}
					}
					have[topology] = append(have[topology], a.String())
				}
			}
			if len(have)+len(c.want) > 0 && !reflect.DeepEqual(have, c.want) {
				t.Errorf("have %v, want %v", have, c.want)
			}
		})
	}
}
