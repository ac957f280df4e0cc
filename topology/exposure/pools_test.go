package exposure_test

import (
	"fmt"
	"testing"

	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestPools holds which pools a policy names, and which names it refuses.
func TestPools(t *testing.T) {
	for pool, want := range map[string]string{
		"tenants": "[{a 0 tenants}] <nil>",
		"":        "[] <nil>",
		"Tenants": `[{a 0 Tenants}] DeviceExposurePolicy "p": spec.physicalNetworks[1].addressPool: "Tenants" is no name of an AddressPool: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
	} {
		o := &v1alpha1.DeviceExposurePolicy{}
		o.Name = "p"
		o.Spec.PhysicalNetworks = []v1alpha1.PhysicalNetwork{{Name: "b"}, {Name: "a", AddressPool: pool}}
		p := exposure.New(o)
		if have := fmt.Sprint(p.Pools(), " ", p.Err); have != want {
			t.Errorf("pool %q: %s\nwant %s", pool, have, want)
		}
	}
}
