package all_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// addSeeds adds the first inputs of a target that draws from two random numbers.
// draw has a law hold for random topologies. Without -fuzz these are the first n, of which the short form takes a sample.
func draw(f *testing.F, n int, law func(t *testing.T, reg *ops.Registry, g *generator)) {
	f.Helper()
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(i)
	}
	for _, seed := range effort.Sample(f, 4, seeds) {
		f.Add(seed, seed*7919)
	}
	reg, err := all.Registry()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		law(t, reg, &generator{Rand: rand.New(rand.NewPCG(a, b)), given: ops.Givens{}})
	})
}

// FuzzLaws holds the laws on random topologies and random drift.
func FuzzLaws(f *testing.F) {
	draw(f, 200, func(t *testing.T, reg *ops.Registry, g *generator) {
		t.Helper()
		c := g.build(t)
		contracts, err := contract.NewSet(contractsOf(reg)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := topology.Validate(t.Context(), c.Topology, contracts); err != nil {
			t.Fatalf("generated an invalid topology: %v", err)
		}
		// No input takes more than a part of a second: the limit ends those that
		// would never end, so that the run names them.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		refused := topology.Validate(ctx, c.Topology, ops.Giving(reg, c.Given))
		err = optest.Hold(ctx, t, reg, c, g.others, func(w *optest.World, history []netstate.Change) { g.drift(w, history) })
		// A contradiction between random steps is a fine answer: the planner says
		// whose. Anything else it says is a law broken.
		if err != nil && !errors.As(err, new(*ops.StepError)) {
			t.Error(err)
		}
		if err == nil && refused != nil {
			t.Errorf("refused, though this node takes it: %v", refused)
		}
		if t.Failed() {
			t.Logf("%s\ngiven: %+v", g.text.String(), c.Given)
		}
	})
}

// FuzzTwoTopologies holds the laws for two random topologies of one pod that want objects of the
// namespace, and routes to the same destinations.
func FuzzTwoTopologies(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, seed*7919)
	}
	reg, err := all.Registry()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		g := &generator{Rand: rand.New(rand.NewPCG(a, b))}
		have := []netstate.Object{
			netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new(""), MAC: new("00:00:00:00:00:00")},
			netstate.Sysctl{Path: "net/core/somaxconn", Value: new([]string{"128", "500"}[g.IntN(2)])},
		}
		if g.IntN(2) == 0 {
			have = append(have, g.podNetwork()...)
		}
		var text [2]string
		var cases [2]*optest.Case
		for i := range cases {
			text[i] = g.ofNamespace(i)
			top, err := topology.Decode([]byte(text[i]))
			if err != nil {
				t.Fatalf("%v\n%s", err, text[i])
			}
			cases[i] = &optest.Case{Name: top.Name, Topology: top, Have: have}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := optest.Beside(ctx, t, reg, cases[0], cases[1]); err != nil && !errors.As(err, new(*ops.StepError)) {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(text[0], text[1])
		}
	})
}

// ofNamespace draws a topology with objects of the namespace as a whole.
func (g *generator) ofNamespace(i int) string {
	out := fmt.Sprintf("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t%d}\nspec:\n  steps:\n", i)
	link := fmt.Sprintf("d%d", i)
	out += fmt.Sprintf("    - {name: d, type: dummy, config: {name: %s%s%s}}\n", link, g.routes(i), g.maybe("rules: [{priority: 100, from: 203.0.113.0/24, table: 7}]"))
	if g.IntN(3) > 0 {
		out += fmt.Sprintf("    - {name: t, type: tuning, dependOn: [d], config: {dev: %s, sysctl: {net.core.somaxconn: \"%d\"}}}\n", link, []int{500, 500, 700}[g.IntN(3)])
	}
	if g.IntN(2) == 0 && !strings.Contains(out, "sourceRouting") {
		out += fmt.Sprintf("    - {name: v, type: vrf, dependOn: [d], config: {vrfname: red%s%s}}\n", g.maybe("table: 1001"), []string{"", "", ", leak: true"}[g.IntN(3)])
	}
	return out
}

func contractsOf(reg *ops.Registry) []contract.Contract {
	var out []contract.Contract
	for _, typ := range reg.Types() {
		c, _ := reg.Contract(typ)
		out = append(out, c)
	}
	return out
}

// generator draws a topology and drift.
type generator struct {
	*rand.Rand
	text  strings.Builder
	tops  []port // what steps are stacked on
	links []port // all there are, for steps that name one
	given ops.Givens
	n     int
}

// port is a step and a link of the sandbox that it makes.
type port struct{ step, link string }

func (g *generator) step(typ, link string, deps []port, config string) port {
	g.n++
	p := port{fmt.Sprintf("s%d", g.n), link}
	fmt.Fprintf(&g.text, "    - name: %s\n      type: %s\n", p.step, typ)
	if len(deps) > 0 {
		names := make([]string, len(deps))
		for i, d := range deps {
			names[i] = d.step
		}
		fmt.Fprintf(&g.text, "      dependOn: [%s]\n", strings.Join(names, ", "))
	}
	fmt.Fprintf(&g.text, "      config: {%s}\n", config)
	g.give(typ, p.step)
	if link != "" {
		g.tops = append(g.tops, p)
		g.links = append(g.links, p)
	}
	return p
}

// give gives addresses to some of the steps that take any. Some are wrong: an address that
// two steps of one link have, and IPv6 where the MTU is too low.
func (g *generator) give(typ, step string) {
	if typ == "vrf" || typ == "vfio-pci" || typ == "rdma" || typ == "rxe" || g.IntN(4) > 0 {
		return
	}
	n := g.n
	if g.IntN(16) == 0 {
		n = 0
	}
	given := ops.Given{Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.%d.5/24", n))}}
	if g.IntN(3) == 0 {
		given.Addresses = append(given.Addresses, netip.MustParsePrefix(fmt.Sprintf("2001:db8:ff:%d::5/64", n)))
	}
	g.given[step] = given
}

// take returns a link to stack on. Now and then it stays to be taken again.
func (g *generator) take() (port, bool) {
	if len(g.tops) == 0 {
		return port{}, false
	}
	i := g.IntN(len(g.tops))
	p := g.tops[i]
	if g.IntN(4) > 0 {
		g.tops = slices.Delete(g.tops, i, i+1)
	}
	return p, true
}

func (g *generator) maybe(format string, args ...any) string {
	if g.IntN(2) == 0 {
		return ""
	}
	return ", " + fmt.Sprintf(format, args...)
}

// mtu is one of few, so that steps agree as often as they do not.
func (g *generator) mtu() string {
	if g.IntN(3) > 0 {
		return ""
	}
	return fmt.Sprintf(", mtu: %d", []int{1300, 1500, 2000, 4000}[g.IntN(4)])
}

// master is, at times, another link than the last one of the dependencies.
func (g *generator) master() string {
	if g.IntN(3) > 0 {
		return ""
	}
	return ", master: " + g.links[g.IntN(len(g.links))].link
}

// lower is the link that a tunnel sends through, at times none (the routes decide).
func (g *generator) lower() string {
	if g.IntN(3) == 0 {
		return ", routed: true"
	}
	return g.master()
}

func (g *generator) build(t *testing.T) *optest.Case {
	g.text.WriteString("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n")
	c := &optest.Case{Name: "random"}
	devices := map[string]string{}
	c.Have = append(c.Have, netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new(""), MAC: new("00:00:00:00:00:00")})
	if g.IntN(2) == 0 {
		c.Have = append(c.Have, g.podNetwork()...)
	}
	for i := range 1 + g.IntN(4) {
		g.root(c, devices, i)
	}
	for range g.IntN(8) {
		g.stack()
	}
	top, err := topology.Decode([]byte(g.text.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, g.text.String())
	}
	c.Topology, c.Given = top, g.given.WithDevices(devices)
	for i := range max(0, g.IntN(6)-2) {
		c.Filters = append(c.Filters, netstate.Filter{
			Pref: uint16(20000 + 2*i), Handle: 1, Family: new(netstate.IPv4), To: new(fmt.Sprintf("10.0.%d.0/24", i)), Protocol: new(""), Port: new(uint16(0)),
			DSCP: new(uint8(g.IntN(64))), Policer: new(uint16(0)), Rate: new(uint64(0)), BurstNanos: new(uint64(0)),
		})
		c.Rules = append(c.Rules, netstate.LogicalRule{
			Rule: fmt.Sprintf("ai/q[%d]", i), Direction: new(netstate.FromPort), Priority: new(uint16(29000 - i)), Match: new(fmt.Sprintf("ip4.dst == 10.0.%d.0/24", i)),
			DSCP: new(uint8(g.IntN(64))), Rate: new(uint32(g.IntN(2) * 1000)), Burst: new(uint32(0)),
		})
	}
	if g.IntN(3) == 0 { // a rule that physical functions enforce, if no other is before it
		for i, family := range []string{netstate.IPv4, netstate.IPv6} {
			c.Filters = append(c.Filters, netstate.Filter{
				Rule: "ai/all[0]", Pref: uint16(20100 + i), Handle: 1, Family: &family, To: new(""), Protocol: new(""), Port: new(uint16(0)),
				DSCP: new(uint8(0)), Policer: new(uint16(1)), Rate: new(uint64(1_250_000)), BurstNanos: new(uint64(64_000_000)),
			})
		}
	}
	return c
}

// root adds one root step, with its device.
func (g *generator) root(c *optest.Case, devices map[string]string, i int) {
	link := fmt.Sprintf("r%d", i)
	switch g.IntN(7) {
	case 0, 1:
		g.step("dummy", link, nil, "name: "+link+g.mtu()+g.maybe("mac: \"02:00:00:00:01:%02x\"", i)+g.routes(i))
	case 2:
		if len(c.Have) == 1 {
			c.Have = append(c.Have, netstate.Link{
				Name: netstate.HostName("br0"), LinkKind: "bridge", MAC: new("02:00:00:00:03:00"), MTU: new(uint32(1500)),
				Up: new(true), Master: new(""), Bridge: &netstate.Bridge{VLANFiltering: new(false)},
			})
		}
		g.step("bridge", link, nil, "bridge: br0, ifName: "+link+g.mtu())
	case 3:
		c.Have = append(c.Have,
			netstate.Sysctl{Path: netstate.HostName("net/ipv4/ip_forward"), Value: new("1")},
			netstate.Sysctl{Path: netstate.HostName("net/ipv6/conf/all/forwarding"), Value: new("1")})
		g.step("ptp", link, nil, "name: "+link+g.mtu()+g.maybe("isDefaultGateway: true")+g.maybe("ipMasq: true, ipMasqExcept: [10.0.0.0/8]")+g.maybe("addresses: [10.9.%d.2/24, \"2001:db8:9::%d/64\"]", i, i+2))
	case 4:
		if !slices.ContainsFunc(c.Have, func(o netstate.Object) bool { return o.Key().Kind == netstate.KindChassis }) {
			c.Have = append(c.Have, netstate.Chassis{ID: "local", Name: new("node-1"), Int: new("br-int"), Networks: []string{"localnet1"}})
		}
		g.step("ovn-k8s-cni-overlay", link, nil, "ifName: "+link+", name: "+[]string{"blue, topology: layer2", "localnet1, topology: localnet", "localnet1, topology: localnet, vlanID: 200"}[g.IntN(3)]+
			g.maybe("addresses: [203.0.%d.9/24]", 100+i))
	default:
		id := fmt.Sprintf("0000:%02x:10.0", i+1)
		host := netstate.HostName(fmt.Sprintf("eth%d", i))
		mac, up := fmt.Sprintf("02:00:00:00:00:%02x", i), g.IntN(2) == 0
		c.Have = append(c.Have,
			netstate.Device{ID: id, At: &host, MAC: &mac, MTU: new(uint32(1500)), Up: &up},
			netstate.Link{Name: host, LinkKind: "device", DeviceID: id, MAC: &mac, MTU: new(uint32(1500)), Up: &up, Master: new(""), TxQueueLen: new(uint32(1000))},
			netstate.VF{
				ID: id, MAC: &mac, VLAN: new(uint16(0)), QoS: new(uint8(0)), Protocol: new("802.1q"), SpoofCheck: new(true), Trust: new(g.IntN(2) == 0),
				LinkState: new([]string{"auto", "enable", "disable"}[g.IntN(3)]), LACP: g.lacp(), PF: "host:pf",
				MinTxRateMbps: new(uint32(0)), MaxTxRateMbps: new(uint32(0)),
			})
		if g.IntN(3) == 0 { // what the host is configured to have there
			c.Have = append(c.Have, netstate.Addr{Link: host, Address: fmt.Sprintf("172.16.%d.5/24", i)},
				foreignRoute(host, netstate.Route{Dst: fmt.Sprintf("172.17.%d.0/24", i), Gateway: fmt.Sprintf("172.16.%d.1", i)}, 4))
		}
		if g.IntN(4) == 0 {
			c.Have = append(c.Have, netstate.RDMALink{Link: host, Name: new(fmt.Sprintf("rxe%d", i)), Type: new("rxe")})
		}
		c.Appears = append(c.Appears, netstate.Ethtool{Link: link, Class: "feature", Name: "rx-checksum", Value: new("off")})
		if g.IntN(6) == 0 { // a node in exclusive mode
			d := c.Have[slices.IndexFunc(c.Have, func(o netstate.Object) bool { return o.Key() == netstate.DeviceKey(id) })].(netstate.Device)
			d.RDMA, d.RDMAExclusive = []netstate.RDMADevice{{Name: "mlx5_0", Nodes: []string{"/dev/infiniband/uverbs0"}}}, true
			c.Have = append(slices.DeleteFunc(c.Have, func(o netstate.Object) bool { return o.Key() == d.Key() }), d,
				netstate.RDMANetns{ID: id, Netns: new(netstate.RDMAOfHost), Name: new("mlx5_0")})
			devices[g.step("sriov", link, nil, "ifName: "+link+g.mtu()).step] = id
			return
		}
		if g.IntN(6) == 0 {
			g.infiniband(c, devices, id, link)
			return
		}
		switch g.IntN(7) {
		case 0:
			g.bound(c, devices, i, id)
			return
		case 3:
			g.hasRDMA(c, id)
			devices[g.step("rdma", "", nil, []string{"", "rdmaDevice: mlx5_0"}[g.IntN(2)]).step] = id
			return
		case 1, 2:
			devices[g.step("host-device", link, nil, "name: "+link+g.routes(i)).step] = id
			return
		}
		vf := g.step("sriov", link, nil, "ifName: "+link+g.mtu()+g.routes(i)+g.maybe("trust: on")+g.maybe("vlan: %d", g.IntN(100))+g.maybe("linkState: follow"))
		if devices[vf.step] = id; g.IntN(4) == 0 {
			g.hasRDMA(c, id)
			g.step("rdma", "", []port{vf}, []string{"", "rdmaDevice: mlx5_0"}[g.IntN(2)])
		}
	}
}

// hasRDMA gives a device an RDMA device.
func (g *generator) hasRDMA(c *optest.Case, id string) {
	for j, o := range c.Have {
		if d, ok := o.(netstate.Device); ok && d.ID == id {
			d.RDMA = []netstate.RDMADevice{{Name: "mlx5_0", Nodes: []string{"/dev/infiniband/uverbs0"}}}
			c.Have[j] = d
		}
	}
}

// lacp is the state of a physical function in LACP.
func (g *generator) lacp() *netstate.LACPPort {
	return []*netstate.LACPPort{nil, {}, {Agreed: true}, {Agreed: true, SettlesMillis: 1000}}[g.IntN(4)]
}

// bound adds a root step that takes the device away from the kernel.
func (g *generator) bound(c *optest.Case, devices map[string]string, i int, id string) {
	for j, o := range c.Have {
		if d, ok := o.(netstate.Device); ok && d.ID == id {
			d.Driver = "igbvf"
			c.Have[j] = d
		}
	}
	c.Have = append(c.Have, netstate.Binding{
		ID: id, Driver: new("igbvf"), Override: new([]string{"", "igbvf"}[g.IntN(2)]), PF: "0000:01:00.0", Group: fmt.Sprint(i), Nodes: []string{"/dev/uio0"},
	})
	driver := []string{"driver: vfio-pci", "driver: uio_pci_generic, allowUnprotectedDMA: true"}[g.IntN(2)]
	devices[g.step("vfio-pci", "", nil, driver+g.maybe("trust: on")+g.maybe("linkState: follow")+g.maybe("mac: \"02:00:00:00:04:%02x\"", i)).step] = id
}

// infiniband adds a step that takes a function of InfiniBand, whose driver may have read another GUID, and one of a partition on it.
func (g *generator) infiniband(c *optest.Case, devices map[string]string, id, link string) {
	guid := func(n int) string { return fmt.Sprintf("00:02:c9:03:00:00:%02x:%02x", n, g.n) }
	own := []string{"", guid(1)}[g.IntN(2)]
	c.Have = append(slices.DeleteFunc(c.Have, func(o netstate.Object) bool { return o.Key().Kind == netstate.KindRDMALink }),
		netstate.Binding{ID: id, Driver: new("mlx5_core"), Override: new(""), PF: "0000:01:00.0", NodeGUID: &own, PortGUID: &own})
	for j, o := range c.Have {
		switch o := o.(type) {
		case netstate.Device:
			if o.ID == id {
				o.LinkKind, o.MAC, o.Driver, o.PortGUID = netstate.InfiniBandKind, nil, "mlx5_core", own
				c.Have[j] = o
			}
		case netstate.Link:
			if o.DeviceID == id {
				o.LinkKind, o.MAC = netstate.InfiniBandKind, new("02:00:00:00:00:fe") // the kernel's, see World.settle
				c.Have[j] = o
			}
		case netstate.VF:
			if o.ID == id {
				o.MAC, o.NodeGUID, o.PortGUID = nil, &own, &own
				c.Have[j] = o
			}
		}
	}
	config := []string{"", fmt.Sprintf(", portGUID: %q", guid(2)), fmt.Sprintf(", nodeGUID: %q, portGUID: %q", guid(3), guid(2))}[g.IntN(3)]
	p := g.step("sriov", link, nil, "ifName: "+link+config+g.maybe("trust: on"))
	devices[p.step] = id
	unused := func() { g.tops, g.links = g.tops[:len(g.tops)-1], g.links[:len(g.links)-1] }
	unused() // by steps for Ethernet
	sub := fmt.Sprintf("l%d", g.n+1)
	g.step("ipoib", sub, []port{p}, "name: "+sub+g.maybe("pkey: \"0x80%02x\"", g.n)+g.mtu()+g.maybe("mode: connected"))
	if config != "" {
		unused() // by steps that would set what this stage brings up
	}
}

// stack adds one derived step.
func (g *generator) stack() {
	p, ok := g.take()
	if !ok {
		return
	}
	link := fmt.Sprintf("l%d", g.n+1)
	switch g.IntN(10) {
	case 0, 1:
		if q, ok := g.take(); ok && q.link != p.link {
			g.step("bond", link, []port{p, q}, fmt.Sprintf("name: %s, mode: %s%s%s", link, []string{"active-backup", "balance-rr", "802.3ad"}[g.IntN(3)],
				g.maybe("miimon: 100"), g.mtu()))
		}
	case 2, 3:
		g.step("vlan", link, []port{p}, fmt.Sprintf("id: %d, name: %s%s%s%s", 1+g.IntN(4000), link, g.master(), g.mtu(), g.maybe("addresses: [192.0.2.%d/24]", g.n+1)))
	case 4:
		g.step("vrf", "", []port{p}, fmt.Sprintf("vrfname: vrf%d%s", g.IntN(2), []string{"", "", ", leak: true"}[g.IntN(3)]))
	case 5:
		g.step("macvlan", link, []port{p}, "name: "+link+g.master()+g.mtu()+g.maybe("mac: \"02:00:00:00:02:%02x\"", g.n))
	case 6:
		g.step("ipvlan", link, []port{p}, "name: "+link+g.master()+g.mtu())
	case 7:
		g.step("vxlan", link, []port{p}, fmt.Sprintf("id: %d, name: %s%s%s%s", 1+g.IntN(3), link, g.lower(), g.mtu(),
			[]string{"", ", remote: 192.0.2.9", ", local: \"2001:db8::5\"", ", ttl: 9", ", remotes: [192.0.2.9, 192.0.2.10]"}[g.IntN(5)]))
	case 8:
		if q, ok := g.take(); ok && q.link != p.link {
			g.step("bridge", link, []port{p, q}, "name: "+link+g.mtu())
		}
	default:
		on := g.links[g.IntN(len(g.links))].link
		if g.IntN(5) == 0 {
			g.step("rxe", "", []port{p}, "netdev: "+on)
			return
		}
		g.step("tuning", "", []port{p}, fmt.Sprintf("dev: %s, addresses: [\"2001:db8:%d::1/64\", 198.51.%d.1/24], routes: [{dst: 203.0.%d.0/24, gw: 198.51.%d.2}]%s%s%s%s",
			on, g.n, g.n, g.n, g.n, g.mtu(), g.maybe("txQLen: 9"), g.maybe("sysctl: {net.ipv4.conf.IFNAME.rp_filter: 2}"), g.maybe("ethtool: {features: {rx-checksum: on}}")+
				g.maybe("sourceRouting: true")+[]string{"", ", dad: wait", ", dad: off", ", ipam: {type: slaac}", ", dad: optimistic, ipam: {type: slaac, acceptDefaultRoute: true}", ", ipam: {type: dhcp}", ", ipam: {type: dhcp, acceptDefaultRoute: true}", ", ipam: {type: dhcp, request: [{option: '121'}, {option: '26'}]}"}[g.IntN(8)]+g.maybe("neighbors: [{address: 198.51.%d.9, mac: \"02:00:00:00:09:09\"}]", g.n)+
				g.maybe("rules: [{priority: 100, from: 198.51.%d.0/24, table: 7}]", g.n)))
	}
}

// podNetwork has the objects that another program made in the sandbox before: the interface of the
// pod's own network, with the routes of the cluster.
func (g *generator) podNetwork() []netstate.Object {
	eth0 := netstate.Link{Name: "eth0", LinkKind: "veth", MAC: new("02:e0:00:00:00:01"), MTU: new(uint32(1500)), Up: new(true), Master: new("")}
	out := []netstate.Object{eth0, netstate.Addr{Link: "eth0", Address: "10.244.0.5/24"}, netstate.Addr{Link: "eth0", Address: "fd00:244::5/64"}}
	for _, r := range []netstate.Route{
		{Dst: "0.0.0.0/0", Gateway: "10.244.0.1"},
		{Dst: "::/0", Gateway: "fd00:244::1", Metric: 1024},
		{Dst: "203.0.113.0/24", Gateway: "10.244.0.1"},
		{Dst: "2001:db8:77::/48", Gateway: "fd00:244::1", Metric: 1024},
	} {
		if g.IntN(4) > 0 {
			out = append(out, foreignRoute("eth0", r, 4))
		}
	}
	return out
}

// foreignRoute is a route of another program, or of the kernel (rtm_protocol in
// include/uapi/linux/rtnetlink.h: 3 boot, 4 static, 9 ra).
func foreignRoute(link string, r netstate.Route, protocol int) netstate.Route {
	r.Link, r.Protocol = link, protocol
	if r.Table == 0 {
		r.Table = netstate.TableMain
	}
	return r
}

// others adds what another program of the pod, and a router, may add at any time: routes and
// rules, on links of the pod and of ours.
func (g *generator) others(w *optest.World) []netstate.Object {
	links := w.LinksWhere(func(l netstate.Link) bool { return !netstate.OnHost(l.Name) && l.Name != "lo" })
	var out []netstate.Object
	for range g.IntN(5) {
		if len(links) == 0 {
			break
		}
		link := links[g.IntN(len(links))].Name
		out = append(out, []netstate.Object{
			foreignRoute(link, netstate.Route{Dst: "::/0", Gateway: "fe80::99", Metric: 1024}, 9),
			foreignRoute(link, netstate.Route{Dst: "2001:db8:77::/48", Gateway: "fe80::99", Metric: 1024}, 9),
			foreignRoute(link, netstate.Route{Dst: "0.0.0.0/0", Metric: 5000}, 3),
			foreignRoute(link, netstate.Route{Dst: "0.0.0.0/0"}, 3),
			foreignRoute(link, netstate.Route{Dst: "203.0.113.0/24"}, 3),
			foreignRoute(link, netstate.Route{Dst: "203.0.113.0/24", Table: 7}, 3),
			netstate.Rule{Family: netstate.IPv4, Priority: 99, From: "203.0.113.0/24", Table: 7},
		}[g.IntN(7)])
	}
	return slices.DeleteFunc(out, func(o netstate.Object) bool { _, there := w.Get(o.Key()); return there })
}

// routes are, at times, those of a step: with metrics of its own or without, and those that
// the pod's network has too.
func (g *generator) routes(i int) string {
	if g.IntN(3) > 0 {
		return ""
	}
	var out []string
	for _, r := range []string{
		fmt.Sprintf("{dst: 0.0.0.0/0, gw: 10.8.%d.1%s}", i, g.maybe("metric: 100")),
		fmt.Sprintf("{dst: \"::/0\", gw: \"2001:db8:8:%d::1\"%s}", i, g.maybe("metric: 1024")),
		fmt.Sprintf("{dst: 203.0.113.0/24, gw: 10.8.%d.1%s}", i, g.maybe("table: 7")),
		"{dst: \"2001:db8:77::/48\"}",
	} {
		if g.IntN(2) == 0 {
			out = append(out, r)
		}
	}
	return fmt.Sprintf(", addresses: [10.8.%d.2/24, \"2001:db8:8:%d::2/64\"], routes: [%s]%s", i, i, strings.Join(out, ", "), g.maybe("sourceRouting: true"))
}

// drift changes a few of our objects from outside.
func (g *generator) drift(w *optest.World, history []netstate.Change) {
	for range g.IntN(4) {
		if len(history) == 0 {
			return
		}
		o := history[g.IntN(len(history))].Object()
		have, ok := w.Get(o.Key())
		if !ok {
			continue
		}
		switch have := have.(type) {
		case netstate.Link:
			switch {
			case netstate.OnHost(have.Name):
			case g.IntN(3) == 0 && have.DeviceID == "":
				w.Apply(netstate.Change{Before: have})
			case g.IntN(2) == 0:
				w.Apply(netstate.Change{Before: netstate.Link{Name: have.Name, Up: have.Up}, After: netstate.Link{Name: have.Name, Up: new(false)}})
			default:
				w.Apply(netstate.Change{Before: netstate.Link{Name: have.Name, MTU: have.MTU}, After: netstate.Link{Name: have.Name, MTU: new(uint32(1280))}})
			}
		case netstate.Clsact:
			w.Apply(netstate.Change{Before: have})
		case netstate.Filter:
			if g.IntN(2) == 0 {
				w.Apply(netstate.Change{Before: have})
			} else {
				w.Apply(netstate.Change{Before: netstate.Filter{Link: have.Link, Pref: have.Pref, Handle: have.Handle, DSCP: have.DSCP}, After: netstate.Filter{Link: have.Link, Pref: have.Pref, Handle: have.Handle, DSCP: new(uint8(1))}})
			}
		case netstate.LogicalPort:
			if g.IntN(2) == 0 {
				w.Apply(netstate.Change{Before: have})
			} else {
				w.Apply(netstate.Change{Before: netstate.LogicalPort{Name: have.Name, VLAN: have.VLAN}, After: netstate.LogicalPort{Name: have.Name, VLAN: new(uint16(7))}})
			}
		case netstate.LogicalRule:
			if g.IntN(2) == 0 {
				w.Apply(netstate.Change{Before: have})
			} else {
				w.Apply(netstate.Change{Before: netstate.LogicalRule{Port: have.Port, Rule: have.Rule, Match: have.Match}, After: netstate.LogicalRule{Port: have.Port, Rule: have.Rule, Match: new("ip6")}})
			}
		case netstate.RDMANetns:
			after := []netstate.RDMANetns{{ID: have.ID, Name: new("other")}, {ID: have.ID, Netns: new(netstate.RDMAOfHost)}}[g.IntN(2)]
			if c, differs := netstate.NewUpdate("", have, after); differs {
				w.Apply(c)
			}
		case netstate.OVSPort, netstate.DHCPLease, netstate.RDMALink:
			w.Apply(netstate.Change{Before: have})
		case netstate.Binding:
			switch n := g.IntN(3); {
			case n == 0:
				w.Apply(netstate.Change{Before: have, After: netstate.Binding{ID: have.ID, Override: new("")}})
			case n == 1 && o.(netstate.Binding).Driver == nil: // that of a function whose GUIDs are set is not ours
			case n == 1:
				w.Apply(netstate.Change{Before: have, After: netstate.Binding{ID: have.ID, Driver: new("igbvf")}})
			default:
				w.Apply(netstate.Change{Before: have, After: netstate.Binding{ID: have.ID, Driver: new("")}})
			}
		case netstate.VF:
			wanted := o.(netstate.VF)
			if wanted.LinkState != nil {
				w.Apply(netstate.Change{Before: netstate.VF{ID: have.ID, LinkState: have.LinkState}, After: netstate.VF{ID: have.ID, LinkState: new("enable")}})
			}
			if wanted.Trust != nil {
				w.Apply(netstate.Change{Before: netstate.VF{ID: have.ID, Trust: have.Trust}, After: netstate.VF{ID: have.ID, Trust: new(!*have.Trust)}})
			}
		default:
			if have.Traits().Phase > netstate.PhaseLinks {
				w.Apply(netstate.Change{Before: have})
			}
		}
	}
}
