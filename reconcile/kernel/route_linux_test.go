package kernel_test

import (
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/topology/fault"
)

// routed is a bench with two links that have subnets.
func routed(t testing.TB) *bench {
	b := newBench(t)
	for _, l := range []string{"d0", "d1"} {
		b.create(up(dummy(l)))
	}
	for _, a := range []netstate.Addr{
		{Link: "d0", Address: "192.0.2.1/24"},
		{Link: "d0", Address: "2001:db8::1/64", NoDAD: new(true)},
		{Link: "d1", Address: "198.51.100.1/24"},
		{Link: "d1", Address: "2001:db8:1::1/64", NoDAD: new(true)},
	} {
		b.create(a)
	}
	return b
}

func TestRoutes(t *testing.T) {
	type r = netstate.Route
	main := netstate.TableMain
	for _, tc := range []struct {
		name   string
		route  r
		update r // only fields
	}{
		{"default", r{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: main}, r{MTU: new(uint32(1400))}},
		{"default over a link", r{Link: "d0", Dst: "0.0.0.0/0", Table: main, Metric: 4096}, r{Scope: new("global")}},
		{"on the link", r{Link: "d0", Dst: "203.0.113.0/24", Table: main}, r{Source: new("192.0.2.1")}},
		{"scope host", r{Link: "d0", Dst: "203.0.113.1/32", Table: main, Scope: new("host")}, r{}},
		{"all there is", r{Link: "d0", Dst: "203.0.113.0/24", Gateway: "192.0.2.2", Table: 1001, Metric: 77, Source: new("192.0.2.1"), MTU: new(uint32(1300)), AdvMSS: new(uint32(1200)), OnLink: new(true)}, r{MTU: new(uint32(0)), AdvMSS: new(uint32(1000))}},
		{"onlink", r{Link: "d0", Dst: "203.0.113.0/24", Gateway: "203.0.113.254", Table: main, OnLink: new(true)}, r{}},
		{"a big table", r{Link: "d0", Dst: "203.0.113.0/24", Table: 4000000000}, r{}},
		{"IPv6 next hop", r{Link: "d0", Dst: "203.0.113.0/24", Gateway: "2001:db8::2", Table: main}, r{}},
		{"v6 default", r{Link: "d0", Dst: "::/0", Gateway: "2001:db8::2", Table: main, Metric: 1024}, r{MTU: new(uint32(1400))}},
		{"v6 link-local gateway", r{Link: "d0", Dst: "::/0", Gateway: "fe80::1", Table: main, Metric: 4096}, r{AdvMSS: new(uint32(1200))}},
		{"v6 on the link", r{Link: "d0", Dst: "2001:db8:2::/48", Table: main, Metric: 1024}, r{Source: new("2001:db8::1")}},
		{"v6 multicast", r{Link: "d0", Dst: "ff00::/8", Table: 1001, Metric: 7}, r{}},
		{"v6 all there is", r{Link: "d0", Dst: "2001:db8:2::/48", Gateway: "2001:db8::2", Table: 1001, Metric: 7, Source: new("2001:db8::1"), MTU: new(uint32(1300)), AdvMSS: new(uint32(1200)), OnLink: new(true)}, r{MTU: new(uint32(1400)), Source: new("")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := routed(t)
			start := b.observe()
			b.create(tc.route)
			b.holds(tc.route)
			if got, _ := netstate.Lookup(b.observe(), tc.route); got.Protocol != netstate.RouteProtocol {
				t.Errorf("protocol %d", got.Protocol)
			}
			b.refused(fault.Conflict, netstate.Change{After: tc.route}, "file exists")
			want := netstate.Merge(tc.route, tc.update)
			before := b.observe()
			if c := b.update(want); c.After != nil {
				b.holds(want)
				b.apply(netstatetest.Inverse(c))
				same(t, before, b.observe())
			}
			b.remove(tc.route)
			b.absent(tc.route)
			same(t, start, b.observe())
			b.remove(tc.route)
		})
	}
}

// Several routes to one destination are several objects: each is created, changed and
// deleted without touching the others.
func TestRoutesInCompany(t *testing.T) {
	main := netstate.TableMain
	for name, group := range map[string][]netstate.Route{
		"two gateways": {
			{Link: "d0", Dst: "203.0.113.0/24", Gateway: "192.0.2.2", Table: main},
			{Link: "d1", Dst: "203.0.113.0/24", Gateway: "198.51.100.2", Table: main},
		},
		"two gateways on one link": {
			{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: main},
			{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.3", Table: main},
			{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.4", Table: main},
		},
		"metrics": {
			{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: main},
			{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: main, Metric: 100},
			{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: main, Metric: 200},
		},
		"tables": {
			{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: main},
			{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: 100},
		},
		"v6 next hops": {
			{Link: "d0", Dst: "::/0", Gateway: "2001:db8::2", Table: main, Metric: 1024},
			{Link: "d0", Dst: "::/0", Gateway: "2001:db8::3", Table: main, Metric: 1024},
			{Link: "d1", Dst: "::/0", Gateway: "2001:db8:1::2", Table: main, Metric: 1024},
		},
		"v6 links": {
			{Link: "d0", Dst: "2001:db8:3::/48", Table: main, Metric: 1024},
			{Link: "d1", Dst: "2001:db8:3::/48", Table: main, Metric: 1024},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range group {
				change, others := group[i:i+1], append(slices.Clone(group[:i]), group[i+1:]...)
				if name == "v6 next hops" {
					change, others = group, nil // the kernel reports those of the first for all
				}
				b := routed(t)
				start := b.observe()
				b.create(objects(group)...)
				full := b.observe()
				var done []netstate.Change
				for _, r := range change {
					r.MTU = new(uint32(1333))
					done = append(done, b.update(r))
				}
				b.haveMTU(1333, change)
				b.haveMTU(0, others)
				for _, c := range slices.Backward(done) {
					b.apply(netstatetest.Inverse(c))
				}
				same(t, full, b.observe())
				b.remove(group[i])
				b.absent(group[i])
				b.remove(group[i]) // the others stay
				for j, r := range group {
					if i != j {
						b.holds(r)
						b.remove(r)
						b.absent(r)
					}
				}
				same(t, start, b.observe())
			}
		})
	}
}

func objects[T netstate.Object](of []T) []netstate.Object {
	var out []netstate.Object
	for _, o := range of {
		out = append(out, o)
	}
	return out
}

func (b *bench) haveMTU(want uint32, routes []netstate.Route) {
	b.Helper()
	for _, r := range routes {
		b.holds(r)
		if got, _ := netstate.Lookup(b.observe(), r); *got.MTU != want {
			b.Errorf("%s has mtu %d, want %d", r.Key(), *got.MTU, want)
		}
	}
}

// A foreign route of the same destination keeps its place before ours.
func TestRouteIsAppended(t *testing.T) {
	b := routed(t)
	foreign := netstate.Route{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: 254, Protocol: unix.RTPROT_STATIC}
	ours := netstate.Route{Link: "d1", Dst: "0.0.0.0/0", Gateway: "198.51.100.2", Table: 254}
	b.create(foreign, ours)
	got, _ := netstate.Lookup(b.observe(), foreign)
	if got.Protocol != unix.RTPROT_STATIC {
		t.Errorf("protocol %d", got.Protocol)
	}
	before := b.observe()
	b.remove(ours)
	b.create(ours)
	same(t, before, b.observe())
	// A delete with our protocol leaves the foreign one.
	b.remove(netstate.Route{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: 254, Protocol: netstate.RouteProtocol})
	b.holds(foreign)
}

// A connected route belongs to the kernel, and its internal routes are not listed.
func TestKernelRoutes(t *testing.T) {
	b := routed(t)
	for _, r := range netstate.All[netstate.Route](b.observe()) {
		if r.Protocol != unix.RTPROT_KERNEL || r.Gateway != "" {
			t.Errorf("%s of protocol %d", r.Key(), r.Protocol)
		}
		switch r.Dst {
		case "192.0.2.0/24", "198.51.100.0/24", "2001:db8::/64", "2001:db8:1::/64":
		default:
			t.Errorf("unexpected %s", r.Key())
		}
	}
	b.holds(netstate.Route{Link: "d0", Dst: "192.0.2.0/24", Table: 254, Scope: new("link"), Source: new("192.0.2.1")})
	b.holds(netstate.Route{Link: "d0", Dst: "2001:db8::/64", Table: 254, Metric: 256})
}

// A route of a VRF is in the table of the VRF.
func TestRouteInVRF(t *testing.T) {
	b := routed(t)
	b.create(up(netstate.Link{Name: "blue", LinkKind: "vrf", VRF: &netstate.VRF{Table: new(uint32(1001))}}))
	b.update(netstate.Link{Name: "d0", Master: new("blue")})
	r := netstate.Route{Link: "d0", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: 1001}
	b.create(r)
	b.holds(r)
	b.holds(netstate.Route{Link: "d0", Dst: "192.0.2.0/24", Table: 1001})
}

func TestRouteRefused(t *testing.T) {
	b := routed(t)
	b.create(dummy("down"))
	create := func(r netstate.Route) netstate.Change {
		r.Table = 254
		return netstate.Change{After: r}
	}
	b.refused(fault.NotReady, create(netstate.Route{Link: "d0", Dst: "0.0.0.0/0", Gateway: "203.0.113.1"}), "203.0.113.1", "not reachable")
	b.refused(fault.NotReady, create(netstate.Route{Link: "d0", Dst: "::/0", Gateway: "2001:db8:9::1", Metric: 1024}), "2001:db8:9::1", "not reachable")
	b.refused(fault.NotReady, create(netstate.Route{Link: "down", Dst: "203.0.113.0/24"}), `"down" in the sandbox is down`)
	b.refused(fault.NotReady, create(netstate.Route{Link: "nowhere", Dst: "203.0.113.0/24"}), `no link "nowhere"`)
	b.refused(fault.NotReady, create(netstate.Route{Link: "d0", Dst: "203.0.113.0/24", Source: new("203.0.113.1")}), "must be an address of the sandbox")
	b.refused(fault.Invalid, create(netstate.Route{Link: "d0", Dst: "203.0.113.0"}), "not a prefix")
	b.refused(fault.Invalid, create(netstate.Route{Link: "d0", Dst: "203.0.113.0/24", Scope: new("near")}), "near", "global")
}

// Routes and addresses of the host are queried one by one.
func TestHostRoutes(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("host:d0")))
	for _, r := range []netstate.Route{
		{Link: "host:d0", Dst: "203.0.113.0/24", Table: 254, Metric: 5},
		{Link: "host:d0", Dst: "2001:db8:4::/48", Table: 100, Metric: 1024},
	} {
		b.absent(r)
		b.create(r)
		b.holds(r)
		r.MTU = new(uint32(1400))
		b.update(r)
		b.holds(r)
		b.remove(r)
		b.absent(r)
	}
	b.absent(netstate.Route{Link: "host:nowhere", Dst: "203.0.113.0/24", Table: 254})
	b.absent(netstate.Addr{Link: "host:nowhere", Address: "203.0.113.1/24"})
	b.refused(fault.NotReady, netstate.Change{
		Before: netstate.Route{Link: "host:d0", Dst: "203.0.113.0/24", Table: 254, MTU: new(uint32(0))},
		After:  netstate.Route{Link: "host:d0", Dst: "203.0.113.0/24", Table: 254, MTU: new(uint32(1400))},
	}, "no longer exists")
}

// TestForeignRouteIsKept: a route of others that the kernel has kept is not created a second time with less than it has. One that it has not
// kept is created, beside another one to its destination.
func TestForeignRouteIsKept(t *testing.T) {
	b := routed(t)
	list := func() (out []string) {
		b.as(func(h *netlink.Handle) error {
			all, err := h.RouteListFiltered(unix.AF_INET, &netlink.Route{Protocol: unix.RTPROT_STATIC}, netlink.RT_FILTER_PROTOCOL)
			for _, r := range all {
				out = append(out, r.String())
			}
			return err
		})
		return out
	}
	b.as(func(h *netlink.Handle) error {
		var hops []*netlink.NexthopInfo
		for link, gw := range map[string]string{"d0": "192.0.2.2", "d1": "198.51.100.2"} {
			l, err := h.LinkByName(link)
			if err != nil {
				return err
			}
			hops = append(hops, &netlink.NexthopInfo{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(gw)})
		}
		_, dst, err := net.ParseCIDR("203.0.113.0/24")
		if err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{Dst: dst, MultiPath: hops, Protocol: unix.RTPROT_STATIC})
	})
	start := list()
	if len(start) != 1 {
		t.Fatalf("routes %v", start)
	}
	route := func(link, gateway string) netstate.Route {
		return netstate.Route{Link: link, Dst: "203.0.113.0/24", Gateway: gateway, Table: netstate.TableMain, Protocol: unix.RTPROT_STATIC}
	}
	for _, r := range []netstate.Route{route("d0", "192.0.2.2"), route("d1", "198.51.100.2")} {
		b.apply(netstate.Change{After: r, Foreign: true})
	}
	if got := list(); !slices.Equal(got, start) {
		t.Errorf("routes %v, were %v", got, start)
	}
	lost := route("d0", "192.0.2.9")
	b.apply(netstate.Change{After: lost, Foreign: true})
	b.holds(lost)
	b.remove(lost)
	b.apply(netstate.Change{After: lost, Foreign: true})
	b.holds(lost)
}
