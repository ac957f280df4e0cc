package addresspool

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestAgrees holds what is said of a pool that is divided otherwise than a step of type
// multi-nic-ipam expects.
func TestAgrees(t *testing.T) {
	l := layout(t, Spec{
		Subnets:   []v1alpha1.AddressSubnet{{Prefix: "192.168.0.0/16"}, {Prefix: "fd00::/64"}},
		HostBlock: 6, InterfaceBlock: 2, Exclude: []string{"192.168.0.0/24"},
	})
	for _, c := range []struct {
		says topology.IPAM
		want string // "" agrees
	}{
		{topology.IPAM{}, ""},
		{topology.IPAM{HostBlock: new(6), InterfaceBlock: new(2), ExcludeCIDRs: []string{"192.168.0.0/25"}, IPRange: topology.IPRange{Subnet: "192.168.0.0/16"}}, ""},
		{topology.IPAM{HostBlock: new(8), InterfaceBlock: new(2)}, `ipam.hostBlock: AddressPool "pool" has 6 bits, and the step says 8`},
		{topology.IPAM{HostBlock: new(6)}, `ipam.interfaceBlock: AddressPool "pool" has 2 bits, and the step says 0`},
		{topology.IPAM{IPRange: topology.IPRange{Subnet: "192.168.0.0/18"}}, `ipam.subnet: AddressPool "pool" has no subnet "192.168.0.0/18", only 192.168.0.0/16 and fd00::/64`},
		{topology.IPAM{ExcludeCIDRs: []string{"192.168.0.0/23"}}, `ipam.excludeCIDRs[0]: AddressPool "pool" allocates addresses of "192.168.0.0/23" in 192.168.0.0/16: add it to exclude there`},
	} {
		err := l.Agrees(c.says)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %q", c.says, err, c.want)
		}
	}
}
