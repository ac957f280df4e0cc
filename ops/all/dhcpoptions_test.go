package all_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
)

// TestOffered: routes and the MTU of a server are those of a link whose step requests them; what steps want counts more, and no
// offer makes a plan fail.
func TestOffered(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const request = "request: [{option: classless-static-routes}, {option: interface-mtu}]"
	routes := []netstate.LeasedRoute{{Destination: "10.9.0.0/16", Gateway: "192.0.2.1"}, {Destination: "198.51.100.0/24"}}
	withDefault := append(routes[:2:2], netstate.LeasedRoute{Destination: "0.0.0.0/0", Gateway: "192.0.2.7"})
	for _, c := range []struct {
		name, ipam, more string
		routes           []netstate.LeasedRoute
		mtu              uint32
		want, not, note  string
	}{
		{"given", request, "", routes, 1400, "+ route 10.9.0.0/16 via 192.0.2.1 dev d1; + route 198.51.100.0/24 dev d1; mtu 1400", "0.0.0.0/0", ""},
		{"given, and the default route", request + ", acceptDefaultRoute: true, priority: 7", "", withDefault, 0, "+ route 0.0.0.0/0 via 192.0.2.7 dev d1 metric 7; + route 10.9.0.0/16", "192.0.2.1 dev d1 metric", ""},
		{"a default route that is not accepted", request, "", withDefault, 0, "+ route 10.9.0.0/16", "0.0.0.0/0", ""},
		{"routes replace the router", request + ", acceptDefaultRoute: true", "", routes, 0, "+ route 10.9.0.0/16", "0.0.0.0/0", "offers no router"},
		{"a route of a step", request, "  - {name: z, type: dummy, config: {name: d2, addresses: [203.0.113.5/24], routes: [{dst: 10.9.0.0/16, gw: 203.0.113.1}]}}\n", routes, 0, "+ route 10.9.0.0/16 via 203.0.113.1 dev d2; + route 198.51.100.0/24 dev d1", "10.9.0.0/16 via 192.0.2.1", "the route to 10.9.0.0/16 that the DHCP server 192.0.2.1 gives is not used"},
		{"an MTU of a step", request, "  - {name: z, type: tuning, dependOn: [a], config: {dev: d1, mtu: 1450}}\n", nil, 1400, "mtu 1450", "1400", ""},
		{"a larger MTU", request, "", nil, 9000, "+ address", "9000", ""},
		{"a link above that needs more", request, "  - {name: z, type: vlan, dependOn: [a], config: {id: 7, name: v7, mtu: 1450}}\n", nil, 1400, "mtu 1450", "1400", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := steps(t, "\n  - {name: a, type: dummy, config: {name: d1, ipam: {type: dhcp, "+c.ipam+"}}}\n"+c.more)
			have := netstate.NewSnapshot(netstate.DHCPLease{Link: "d1", Active: new(true), Requested: new("121,26"), Address: "192.0.2.9/24", Server: "192.0.2.1", Router: "192.0.2.1", Routes: c.routes, MTU: c.mtu})
			withoutIPv6(have)
			p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/blue", Have: have})
			if err != nil {
				t.Fatal(err)
			}
			for want := range strings.SplitSeq(c.want, "; ") {
				if !strings.Contains(p.String(), want) {
					t.Errorf("%q is missing:\n%s", want, p)
				}
			}
			if c.not != "" && strings.Contains(p.String(), c.not) {
				t.Errorf("has %q:\n%s", c.not, p)
			}
			if has := slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, c.note) }); c.note != "" && !has {
				t.Errorf("the notes are %q, want %q", p.Notes, c.note)
			}
		})
	}
}
