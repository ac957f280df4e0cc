package addresspool

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestRoutes holds which routes and gateways a pod gets with its addresses, and that the
// gateway of a route is not given away.
func TestRoutes(t *testing.T) {
	flat := layout(t, Spec{
		Subnets: []v1alpha1.AddressSubnet{
			{Prefix: "192.0.2.0/29", Gateway: "192.0.2.1"}, {Prefix: "198.51.100.0/24"}, {Prefix: "2001:db8::/64"},
		},
		Routes: []v1alpha1.AddressRoute{
			{Destination: "10.1.0.0/16", Gateway: "198.51.100.7"},
			{Destination: "10.1.0.0/16"},
			{Destination: "0.0.0.0/0", Gateway: "192.0.2.2"},
			{Destination: "2001:db8:9::/48"},
			{Destination: "::/0", Gateway: "2001:db8::9"},
		},
	})
	parts := layout(t, Spec{
		Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.168.0.0/16", Gateway: "192.168.0.1"}}, HostBlock: 6, InterfaceBlock: 2,
		Routes: []v1alpha1.AddressRoute{{Destination: "10.1.0.0/16"}},
	})
	local := layout(t, Spec{
		Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", Gateway: "192.0.2.1"}, {Prefix: "2001:db8::/64", Gateway: "fe80::1"}, {Prefix: "2001:db8:1::/64"}},
		Routes:  []v1alpha1.AddressRoute{{Destination: "::/0"}, {Destination: "2001:db8:8::/48", Gateway: "fe80::2"}},
	})
	localParts := layout(t, Spec{
		Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64", Gateway: "fe80::1"}}, HostBlock: 6, InterfaceBlock: 2, Routes: []v1alpha1.AddressRoute{{Destination: "::/0"}},
	})
	for _, c := range []struct {
		layout *Layout
		given  string
		want   string
	}{
		{local, "192.0.2.3/24 2001:db8::5/64", "[192.0.2.1 fe80::1] [{::/0 fe80::1} {2001:db8:8::/48 fe80::2}]"},
		{local, "192.0.2.3/24", "[192.0.2.1] []"},
		{local, "2001:db8:1::5/64", "[] [{::/0 invalid IP} {2001:db8:8::/48 fe80::2}]"},
		{localParts, "2001:db8:0:0:c000::1/66", "[fe80::1] [{::/0 fe80::1}]"}, // each link has such addresses of its own
		{flat, "192.0.2.3/29", "[192.0.2.1] [{10.1.0.0/16 192.0.2.1} {0.0.0.0/0 192.0.2.2}]"},
		{flat, "198.51.100.3/24", "[] [{10.1.0.0/16 198.51.100.7}]"},
		{flat, "198.51.100.3/24 2001:db8::5/64", "[] [{10.1.0.0/16 198.51.100.7} {2001:db8:9::/48 invalid IP} {::/0 2001:db8::9}]"},
		{parts, "192.168.1.1/18", "[192.168.0.1] [{10.1.0.0/16 192.168.0.1}]"},
		{parts, "192.168.65.1/18", "[] [{10.1.0.0/16 invalid IP}]"},
	} {
		var given []netip.Prefix
		for a := range strings.FieldsSeq(c.given) {
			given = append(given, netip.MustParsePrefix(a))
		}
		if have := fmt.Sprint(c.layout.Gateways(given), c.layout.Routes(given)); have != c.want {
			t.Errorf("%s:\nhave %s\nwant %s", c.given, have, c.want)
		}
	}
	if n := flat.Size(true); n != 257 {
		t.Errorf("%d addresses of IPv4 can be given away, want 257: no gateway, of whatever route", n)
	}
}

// TestRoutesRefused holds what is refused of routes.
func TestRoutesRefused(t *testing.T) {
	many := make([]v1alpha1.AddressRoute, MaxRoutes+1)
	for _, c := range []struct {
		routes []v1alpha1.AddressRoute
		want   string
	}{
		{[]v1alpha1.AddressRoute{{Destination: "default"}}, `routes[0].destination: "default" is not a prefix such as 10.0.0.0/8`},
		{[]v1alpha1.AddressRoute{{Destination: "10.1.0.0/8"}}, `write "10.0.0.0/8"`},
		{[]v1alpha1.AddressRoute{{Destination: "::ffff:10.0.0.0/104"}}, "is not a prefix"},
		{[]v1alpha1.AddressRoute{{Destination: "224.0.0.0/4"}}, "is not routed"},
		{[]v1alpha1.AddressRoute{{Destination: "2001:db8::/32"}}, "of which the pool has no subnet"},
		{[]v1alpha1.AddressRoute{{Destination: "192.0.2.0/24"}}, "is on the link: remove the route"},
		{[]v1alpha1.AddressRoute{{Destination: "10.0.0.0/8"}, {Destination: "11.0.0.0/8", Gateway: "192.0.3.1"}}, `routes[1].gateway: "192.0.3.1" is in none of the pool's subnets`},
		{[]v1alpha1.AddressRoute{{Destination: "10.0.0.0/8", Gateway: "169.254.1.1"}}, `routes[0].gateway: "169.254.1.1" is in none of the pool's subnets`},
		{[]v1alpha1.AddressRoute{{Destination: "10.0.0.0/8", Gateway: "fe80::1"}}, "are of different families"},
		{[]v1alpha1.AddressRoute{{Destination: "10.0.0.0/8", Gateway: "2001:db8::1"}}, "are of different families"},
		{[]v1alpha1.AddressRoute{{Destination: "10.0.0.0/8", Gateway: "192.0.2.1%eth0"}}, "is not an IP address"},
		{[]v1alpha1.AddressRoute{{Destination: "10.0.0.0/8", Gateway: strings.Repeat("1", 1000)}}, "gateway: is longer than 128 bytes"},
		{many, "routes: has 33 entries, at most 32"},
	} {
		_, err := New(Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}}, Routes: c.routes})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %q", c.routes, err, c.want)
		}
	}
}
