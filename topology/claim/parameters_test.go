package claim_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
)

// TestParameters holds that what a claim sets is found for the same topology before its devices are allocated and after,
// and that a claim says nothing else.
func TestParameters(t *testing.T) {
	of := func(name string) (*resourceapi.DeviceClass, error) {
		raw := `{"networkTopologyRef":{"name":"` + name + `"},"step":"net1"}`
		class := &resourceapi.DeviceClass{}
		class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(raw)}},
		}}}
		return class, nil
	}
	const net1 = `{"parameters":[{"addresses":["192.0.2.7"],"step":"net1"}]}`
	want := []topology.Parameters{{Step: "net1", Addresses: []string{"192.0.2.7"}}}
	for _, c := range []struct {
		name, raw string
		requests  []string // of the config
		of        string   // the topology that has the parameters
		want      string   // the error
	}{
		{"of a request", net1, []string{"a"}, "red", ""},
		{"of alternatives", net1, []string{"b"}, "blue", ""},
		{"of an alternative", net1, []string{"b/x"}, "blue", ""},
		{"spelt with spaces", strings.ReplaceAll(net1, ":", ": "), []string{"a"}, "red", ""},
		{"of another driver's request", net1, []string{"gpu"}, "", ""},
		{"of all requests", net1, nil, "", `its requests are for the NetworkTopologies "red" and "blue": name in requests those of one of them`},
		{"of two topologies", net1, []string{"a", "b"}, "", `its requests are for the NetworkTopologies "red" and "blue"`},
		{"a topology", `{"networkTopologyRef":{"name":"green"},"step":"net1"}`, []string{"a"}, "", `may have parameters only: the DeviceClass decides which topology and step a device is for: json: unknown field "networkTopologyRef"`},
		{"another key of a config", `{"parameters":[{"step":"net1","vlan":7}]}`, []string{"a"}, "", `unknown field "vlan"`},
		{"nothing", `{}`, []string{"a"}, "", "parameters is missing"},
		{"two values", net1 + net1, []string{"a"}, "", "more than one JSON value"},
		{"keys in another order", `{"parameters":[{"step":"net1","mac":"02:00:00:00:00:01"}]}`, []string{"a"}, "", `write the keys in alphabetical order and without empty values, as {"parameters":[{"mac":"02:00:00:00:00:01","step":"net1"}]}`},
		{"many", `{"parameters":[` + strings.Repeat(`{"step":"x"},`, 32) + `{"step":"x"}]}`, []string{"a"}, "", "parameters has 33 entries, at most 32 are accepted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			opaque := resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(c.raw)}}}
			spec := &resourceapi.DeviceClaim{
				Requests: []resourceapi.DeviceRequest{exactly("a", "red"), {Name: "b", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "x", DeviceClassName: "blue"}, {Name: "y", DeviceClassName: "blue"}}}},
				Config:   []resourceapi.DeviceClaimConfiguration{{Requests: c.requests, DeviceConfiguration: opaque}},
			}
			demands, err := claim.Requests(spec, of)
			contains(t, err, c.want)
			for _, d := range demands {
				if err == nil && (d.Topology.Name == c.of) != cmp.Equal(d.Parameters, want) {
					t.Errorf("before the allocation, %q has %v", d.Topology.Name, d.Parameters)
				}
			}

			rc := &resourceapi.ResourceClaim{}
			rc.Status.Allocation = &resourceapi.AllocationResult{}
			all := &rc.Status.Allocation.Devices
			for request, name := range map[string]string{"a": "red", "b/x": "blue"} {
				class, _ := of(name)
				all.Results = append(all.Results, resourceapi.DeviceRequestAllocationResult{Request: request, Driver: claim.Driver, Device: name})
				all.Config = append(all.Config, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClass, Requests: []string{request}, DeviceConfiguration: class.Spec.Config[0].DeviceConfiguration})
			}
			all.Config = append(all.Config, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim, Requests: c.requests, DeviceConfiguration: opaque})
			assigned, err := claim.Allocated(rc)
			if c.want != "" && strings.Contains(c.want, `"red" and "blue"`) {
				contains(t, err, "its requests are for the NetworkTopologies") // in the order of the allocation
			} else {
				contains(t, err, c.want)
			}
			for _, a := range assigned {
				if (a.Topology.Name == c.of) != cmp.Equal(a.Parameters, want) {
					t.Errorf("allocated, %q has %v", a.Topology.Name, a.Parameters)
				}
			}
		})
	}
}

func contains(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
