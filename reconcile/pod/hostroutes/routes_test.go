package hostroutes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func layoutOf(t *testing.T, name string, host, iface int, subnets ...string) *addresspool.Layout {
	t.Helper()
	spec := addresspool.Spec{Name: name, HostBlock: host, InterfaceBlock: iface}
	if host == 0 {
		spec.BlockSize = 16
	}
	for _, s := range subnets {
		spec.Subnets = append(spec.Subnets, v1alpha1.AddressSubnet{Prefix: s})
	}
	l, err := addresspool.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lease is one of a node with addresses "INTERFACE NETWORK ADDRESS".
func lease(pool, block, node string, hosts ...string) *v1alpha1.AddressLease {
	l := &v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{Pool: pool, Block: block, Node: node}}
	l.Name = addresspool.LeaseName(pool, prefix(block))
	for _, h := range hosts {
		f := strings.Fields(h)
		l.Spec.HostAddresses = append(l.Spec.HostAddresses, v1alpha1.HostAddress{Interface: int32(f[0][0] - '0'), Network: f[1], Address: f[2]})
	}
	return l
}

func TestRoutes(t *testing.T) {
	multi := layoutOf(t, "multi", 6, 2, "192.168.0.0/16")
	double := layoutOf(t, "double", 8, 1, "192.168.0.0/16", "fd00:1::/48")
	flat := layoutOf(t, "flat", 0, 0, "198.51.100.0/24")
	net1, net2 := prefix("10.0.1.0/24"), prefix("10.0.2.0/24")
	places := map[netip.Prefix]place{
		net1: {"host:eth1", netip.MustParseAddr("10.0.1.1")}, net2: {"host:eth2", netip.MustParseAddr("10.0.2.1")},
		prefix("fd00:a::/64"): {"host:eth1", netip.MustParseAddr("fd00:a::1")},
	}
	at := func(pool string, iface int, network netip.Prefix) site {
		return site{pool, iface, network, places[network]}
	}
	seed := []site{at("multi", 0, net1), at("multi", 1, net2)}
	excluding, err := addresspool.New(addresspool.Spec{Name: "flat", Subnets: []v1alpha1.AddressSubnet{{Prefix: "198.51.100.0/24", First: "198.51.100.2", Gateway: "198.51.100.30"}}, BlockSize: 16, Exclude: []string{"198.51.100.9", "198.51.100.64/28"}})
	if err != nil {
		t.Fatal(err)
	}
	many := make([]string, 40) // more than a lease can have
	for i := range many {
		many[i] = fmt.Sprintf("0 10.9.%d.0/24 10.9.%d.2", i, i)
	}
	other := lease("multi", "192.168.1.0/24", "b", "0 10.0.1.0/24 10.0.1.2", "1 10.0.2.0/24 10.0.2.2")
	changed := func(f func(l *v1alpha1.AddressLease)) *v1alpha1.AddressLease {
		l := other.DeepCopy()
		f(l)
		return l
	}
	for _, c := range []struct {
		name   string
		sites  []site
		layout *addresspool.Layout
		leases []*v1alpha1.AddressLease
		want   []string
	}{
		{"the example of seed 003", seed, multi, []*v1alpha1.AddressLease{other, lease("multi", "192.168.0.0/24", "a", "0 10.0.1.0/24 10.0.1.1")}, []string{
			"192.168.1.0/24 via 10.0.1.2 dev host:eth1", "192.168.65.0/24 via 10.0.2.2 dev host:eth2",
		}},
		{"a node on one of two networks", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "1 10.0.2.0/24 10.0.2.2")}, []string{
			"192.168.65.0/24 via 10.0.2.2 dev host:eth2",
		}},
		{"a network that this node is not on", nil, multi, []*v1alpha1.AddressLease{
			lease("multi", "192.168.1.0/24", "b", "0 10.0.3.0/24 10.0.3.2"),
		}, nil},
		{"two networks of one link for one interface: the first", []site{at("multi", 0, net1), {"multi", 0, prefix("10.0.3.0/24"), place{"host:eth1", netip.MustParseAddr("10.0.3.1")}}}, multi, []*v1alpha1.AddressLease{
			lease("multi", "192.168.1.0/24", "b", "0 10.0.1.0/24 10.0.1.2", "0 10.0.3.0/24 10.0.3.2"),
		}, []string{"192.168.1.0/24 via 10.0.1.2 dev host:eth1"}},
		{"two links for one interface: each", []site{at("multi", 0, net1), at("multi", 0, net2)}, multi, []*v1alpha1.AddressLease{
			lease("multi", "192.168.1.0/24", "b", "0 10.0.1.0/24 10.0.1.2", "0 10.0.2.0/24 10.0.2.2"),
		}, []string{"192.168.1.0/24 via 10.0.1.2 dev host:eth1", "192.168.1.0/24 via 10.0.2.2 dev host:eth2"}},
		{"IPv4 over a network of IPv4, IPv6 over one of IPv6", []site{at("double", 0, net1), at("double", 0, prefix("fd00:a::/64"))}, double, []*v1alpha1.AddressLease{
			lease("double", "192.168.1.0/25", "b", "0 10.0.1.0/24 10.0.1.2", "0 fd00:a::/64 fd00:a::2"),
		}, []string{"192.168.1.0/25 via 10.0.1.2 dev host:eth1", "fd00:1:0:100::/57 via fd00:a::2 dev host:eth1"}},
		{"a flat pool", []site{at("flat", 0, net1)}, flat, []*v1alpha1.AddressLease{
			lease("flat", "198.51.100.16/28", "b", "0 10.0.1.0/24 10.0.1.2"), lease("flat", "198.51.100.64/28", "b", "0 10.0.1.0/24 10.0.1.2"),
		}, []string{"198.51.100.16/28 via 10.0.1.2 dev host:eth1", "198.51.100.64/28 via 10.0.1.2 dev host:eth1"}},
		{"kept by nobody", seed, multi, []*v1alpha1.AddressLease{changed(func(l *v1alpha1.AddressLease) { l.Spec.Node = v1alpha1.KeptNode })}, nil},
		// What a node that lies may try:
		{"what the pool does not allocate", []site{at("flat", 0, net1)}, excluding, []*v1alpha1.AddressLease{
			lease("flat", "198.51.100.0/28", "b", "0 10.0.1.0/24 10.0.1.2"), lease("flat", "198.51.100.16/28", "b", "0 10.0.1.0/24 10.0.1.2"), lease("flat", "198.51.100.64/28", "b", "0 10.0.1.0/24 10.0.1.2"),
		}, []string{
			"198.51.100.10/31 via 10.0.1.2 dev host:eth1", "198.51.100.12/30 via 10.0.1.2 dev host:eth1", "198.51.100.16/29 via 10.0.1.2 dev host:eth1", "198.51.100.2/31 via 10.0.1.2 dev host:eth1",
			"198.51.100.24/30 via 10.0.1.2 dev host:eth1", "198.51.100.28/31 via 10.0.1.2 dev host:eth1", "198.51.100.31/32 via 10.0.1.2 dev host:eth1", "198.51.100.4/30 via 10.0.1.2 dev host:eth1", "198.51.100.8/32 via 10.0.1.2 dev host:eth1",
		}},
		{"addresses without end", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", append(many, "0 10.0.1.0/24 10.0.1.2")...)}, nil},
		{"IPv4 in IPv6", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "0 10.0.1.0/24 ::ffff:10.0.1.2", "1 ::ffff:10.0.2.0/120 10.0.2.2")}, nil},
		{"a block in IPv6", seed, multi, []*v1alpha1.AddressLease{lease("multi", "::ffff:192.168.1.0/120", "b", "0 10.0.1.0/24 10.0.1.2")}, nil},
		{"a block with bits behind its length", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.1/24", "b", "0 10.0.1.0/24 10.0.1.2")}, nil},
		{"a multicast network", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "0 224.0.0.0/4 224.0.0.5")}, nil},
		{"a network in another form", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "0 10.0.1.2/24 10.0.1.2")}, nil},
		{"another pool under its name", seed, multi, []*v1alpha1.AddressLease{changed(func(l *v1alpha1.AddressLease) { l.Spec.Pool = "other" })}, nil},
		{"a block under the name of another", seed, multi, []*v1alpha1.AddressLease{changed(func(l *v1alpha1.AddressLease) { l.Spec.Block = "192.168.2.0/24" })}, nil},
		{"more than a block", seed, multi, []*v1alpha1.AddressLease{lease("multi", "0.0.0.0/0", "b", "0 10.0.1.0/24 10.0.1.2")}, nil},
		{"a part of another interface as a block", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.65.0/24", "b", "0 10.0.1.0/24 10.0.1.2")}, nil},
		{"a next hop elsewhere", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "0 10.0.1.0/24 203.0.113.1")}, nil},
		{"this host as the next hop", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "0 10.0.1.0/24 10.0.1.1")}, nil},
		{"all hosts as the next hop", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "0 10.0.1.0/24 10.0.1.255", "1 10.0.2.0/24 10.0.2.0")}, nil},
		{"text", seed, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "0 10.0.1.0/24 x", "1 10.0.2.0/24 fe80::1%eth0")}, nil},
		{"an interface that the pool does not have", []site{at("multi", 7, net1)}, multi, []*v1alpha1.AddressLease{lease("multi", "192.168.1.0/24", "b", "7 10.0.1.0/24 10.0.1.2")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			routes, rules, beyond := routesOf("a", c.sites, map[string]pool{c.layout.Name: poolOf(c.layout, c.leases)})
			if beyond != 0 {
				t.Errorf("%d routes are beyond the bounds", beyond)
			}
			var have []string
			for _, r := range routes {
				text, ok := strings.CutSuffix(r.Key().ID, " table 28780 metric 1024")
				if !ok {
					t.Errorf("%s is not in our table", r.Key())
				}
				have = append(have, text)
			}
			slices.Sort(have)
			if diff := cmp.Diff(c.want, have); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, r := range rules {
				if r.From == "" || r.Table != netstate.HostTable {
					t.Errorf("a rule for what the host itself sends: %s", r.Key())
				}
			}
		})
	}
}

func poolOf(layout *addresspool.Layout, leases []*v1alpha1.AddressLease) pool {
	p := pool{layout: layout}
	for _, l := range leases {
		if one, ok := read(l); ok {
			p.leases = append(p.leases, one)
		}
	}
	return p
}

// TestBounds: a node that leases without end has so many routes and no more, and takes none from
// others.
func TestBounds(t *testing.T) {
	layout := layoutOf(t, "pool", 16, 0, "10.0.0.0/8")
	var leases []*v1alpha1.AddressLease
	for i := range 2 * maxOfNode {
		leases = append(leases, lease("pool", fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255), "hostile", "0 172.16.0.0/16 172.16.0.2"))
	}
	leases = append(leases, lease("pool", "10.200.0.0/24", "b", "0 172.16.0.0/16 172.16.0.3"))
	sites := []site{{"pool", 0, prefix("172.16.0.0/16"), place{"host:eth1", netip.MustParseAddr("172.16.0.1")}}}
	routes, _, beyond := routesOf("a", sites, map[string]pool{"pool": poolOf(layout, leases)})
	if len(routes) != maxOfNode+1 || beyond != maxOfNode || routes[maxOfNode].Gateway != "172.16.0.3" {
		t.Errorf("%d routes, %d beyond the bounds; the last one is %s", len(routes), beyond, routes[len(routes)-1].Key())
	}
}

// TestOrder: no destination is without a route while its next hop changes, and nothing is deleted
// while something is unknown.
func TestOrder(t *testing.T) {
	old := netstate.Route{Link: "host:eth1", Dst: "192.168.1.0/24", Gateway: "10.0.1.2", Table: netstate.HostTable, Metric: metric}
	now := old
	now.Gateway = "10.0.1.3"
	rule := netstate.Rule{Family: netstate.IPv4, From: "192.168.0.0/16", Priority: netstate.HostTable, Table: netstate.HostTable}
	for complete, want := range map[bool][]netstate.Action{
		true:  {netstate.Create, netstate.Delete, netstate.Delete},
		false: {netstate.Create},
	} {
		var have []netstate.Action
		for _, c := range changes([]netstate.Route{old}, []netstate.Route{now}, []netstate.Rule{rule}, nil, complete) {
			have = append(have, c.Action())
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("complete %t (-want +got):\n%s", complete, diff)
		}
	}
}

func TestNeeds(t *testing.T) {
	decoded, err := topology.Decode([]byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: multi-nic}
spec:
  steps:
    - {name: net1, type: ipvlan, config: {masterNets: [10.0.1.0/24, 10.0.2.0/24], ipam: {type: multi-nic-ipam, hostBlock: 6, interfaceBlock: 2, vlanMode: L3}}}
    - {name: l3s, type: ipvlan, config: {masterNet: 10.0.3.0/24, mode: l3s, ipam: {type: pool, pool: p}}}
    - {name: l2, type: ipvlan, config: {masterNet: 10.0.3.0/24, ipam: {type: pool, pool: p}}}
    - {name: named, type: ipvlan, config: {master: eth1, mode: l3, ipam: {type: pool, pool: p}}}
    - {name: device, type: ipvlan, config: {mode: l3, ipam: {type: pool, pool: p}}}
    - {name: uplink, type: ipvlan, config: {mode: l3, ipam: {type: pool, pool: p, interface: 1}}}
    - {name: inside, type: ipvlan, config: {master: net1-0, linkInContainer: true, mode: l3, ipam: {type: pool, pool: p}}}
    - {name: above, type: ipvlan, dependOn: [macvlan], config: {mode: l3, ipam: {type: pool, pool: p}}}
    - {name: literal, type: ipvlan, config: {masterNet: 10.0.3.0/24, mode: l3, addresses: [192.0.2.1/24]}}
    - {name: macvlan, type: macvlan, config: {masterNet: 10.0.3.0/24, ipam: {type: pool, pool: p}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Need{
		{Pool: "multi-nic", Network: prefix("10.0.1.0/24")},
		{Pool: "multi-nic", Interface: 1, Network: prefix("10.0.2.0/24")},
		{Pool: "p", Master: "0000:01:10.0"},
		{Pool: "p", Master: "host:eth1"},
		{Pool: "p", Network: prefix("10.0.3.0/24")},
		{Pool: "p", Interface: 1, Master: netstate.DefaultRouteDevice},
	}
	device := claims.Device{Device: claim.Device{Step: "device"}, Host: inventory.Device{ID: "0000:01:10.0"}}
	if have := unique(needsOf(decoded, &claims.Topology{Devices: []claims.Device{device}})); !slices.Equal(want, have) {
		t.Errorf("have %v, want %v", have, want)
	}
}
