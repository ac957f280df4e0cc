package kernel_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile/kernel"
)

// linkRow is a link with all that is set at birth, and changes of every field that
// can change.
type linkRow struct {
	name    string
	before  []netstate.Object
	link    netstate.Link
	updates []netstate.Link // names are filled in
}

type fields = netstate.Link

var lowLink = up(netstate.Link{Name: "low", LinkKind: "dummy", MTU: new(uint32(9000))})

var linkRows = []linkRow{
	{
		name: "dummy",
		link: fields{Name: "d0", LinkKind: "dummy", MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:01"), TxQueueLen: new(uint32(77)), Up: new(true), Promisc: new(true), AllMulti: new(true), Alias: new("so called")},
		updates: []fields{
			{MTU: new(uint32(2000))},
			{MAC: new("02:00:00:00:00:02")},
			{TxQueueLen: new(uint32(500))},
			{Promisc: new(false)},
			{AllMulti: new(false)},
			{Alias: new("")},
			{Alias: new("another")},
			{Up: new(false)},
			{MTU: new(uint32(1500)), MAC: new("02:00:00:00:00:03"), TxQueueLen: new(uint32(1000)), Promisc: new(true), AllMulti: new(true), Alias: new("all"), Up: new(true)},
		},
	},
	{
		name:   "vlan",
		before: []netstate.Object{lowLink},
		link:   fields{Name: "v.100", LinkKind: "vlan", Parent: new("low"), VLAN: &netstate.VLAN{ID: new(uint16(100)), Protocol: new("802.1q")}, MTU: new(uint32(1400)), MAC: new("02:00:00:00:01:01"), Up: new(true)},
		updates: []fields{
			{MTU: new(uint32(9000))},
			{MAC: new("02:00:00:00:01:02")},
			{Up: new(false)},
		},
	},
	{
		name:   "vlan 802.1ad",
		before: []netstate.Object{lowLink},
		link:   fields{Name: "q", LinkKind: "vlan", Parent: new("low"), VLAN: &netstate.VLAN{ID: new(uint16(4094)), Protocol: new("802.1ad")}},
	},
	{
		name: "bond",
		link: fields{Name: "b0", LinkKind: "bond", MTU: new(uint32(9000)), MAC: new("02:00:00:00:02:01"), Up: new(true), Bond: &netstate.Bond{
			Mode: new("active-backup"), FailOverMAC: new("active"), MIIMonMillis: new(uint32(100)), UpDelayMillis: new(uint32(200)), DownDelayMillis: new(uint32(300)),
			XmitHashPolicy: new("layer3+4"), MinLinks: new(uint32(1)), AllPortsActive: new(true),
		}},
		updates: []fields{
			{Bond: &netstate.Bond{MIIMonMillis: new(uint32(50)), UpDelayMillis: new(uint32(0)), DownDelayMillis: new(uint32(100))}},
			{Bond: &netstate.Bond{XmitHashPolicy: new("vlan+srcmac")}},
			{Bond: &netstate.Bond{MinLinks: new(uint32(0)), AllPortsActive: new(false)}},
			{Bond: &netstate.Bond{MIIMonMillis: new(uint32(0)), UpDelayMillis: new(uint32(0)), DownDelayMillis: new(uint32(0))}},
			{Bond: &netstate.Bond{ARPIntervalMs: new(uint32(1000)), ARPIPTargets: []string{"192.0.2.1", "192.0.2.2"}}},
			{Bond: &netstate.Bond{ARPIPTargets: []string{"192.0.2.3"}}},
			{Bond: &netstate.Bond{ARPIntervalMs: new(uint32(0)), ARPIPTargets: []string{}, MIIMonMillis: new(uint32(100))}},
			{Up: new(false)},
			{Bond: &netstate.Bond{FailOverMAC: new("follow")}},
			{Bond: &netstate.Bond{Mode: new("802.3ad"), FailOverMAC: new("none")}},
			{Bond: &netstate.Bond{LACPRate: new("fast"), ADSelect: new("count")}},
			{MAC: new("02:00:00:00:02:02"), MTU: new(uint32(1500)), Up: new(true)},
		},
	},
	{
		name: "bond balance-alb",
		link: fields{Name: "b1", LinkKind: "bond", Bond: &netstate.Bond{Mode: new("balance-alb"), TLBDynamicLB: new(false)}},
		updates: []fields{
			{Bond: &netstate.Bond{TLBDynamicLB: new(true)}},
			{Bond: &netstate.Bond{Mode: new("balance-tlb")}},
			{Bond: &netstate.Bond{Mode: new("broadcast")}},
			{Bond: &netstate.Bond{Mode: new("balance-xor")}},
			{Bond: &netstate.Bond{Mode: new("balance-rr")}},
		},
	},
	{
		name: "bond 802.3ad",
		link: fields{Name: "b2", LinkKind: "bond", Up: new(true), Bond: &netstate.Bond{Mode: new("802.3ad"), MIIMonMillis: new(uint32(100)), LACPRate: new("fast"), ADSelect: new("bandwidth")}},
	},
	{
		name: "bond with ARP monitoring",
		link: fields{Name: "b3", LinkKind: "bond", Bond: &netstate.Bond{Mode: new("active-backup"), ARPIntervalMs: new(uint32(500)), ARPIPTargets: []string{"192.0.2.1"}}},
	},
	{
		name:    "vrf",
		link:    fields{Name: "blue", LinkKind: "vrf", VRF: &netstate.VRF{Table: new(uint32(1001))}, Up: new(true)},
		updates: []fields{{Up: new(false)}},
	},
	{
		name:   "ipvlan",
		before: []netstate.Object{lowLink},
		link:   fields{Name: "i0", LinkKind: "ipvlan", Parent: new("low"), IPVLAN: &netstate.IPVLAN{Mode: new("l3"), Flag: new("private")}, MTU: new(uint32(1400)), Up: new(true)},
		updates: []fields{
			{IPVLAN: &netstate.IPVLAN{Mode: new("l2")}},
			{IPVLAN: &netstate.IPVLAN{Mode: new("l3s"), Flag: new("vepa")}},
			{IPVLAN: &netstate.IPVLAN{Flag: new("bridge")}},
			{MTU: new(uint32(1500))},
		},
	},
	{
		name:   "macvlan",
		before: []netstate.Object{lowLink},
		link:   fields{Name: "m0", LinkKind: "macvlan", Parent: new("low"), MACVLAN: &netstate.MACVLAN{Mode: new("bridge"), BroadcastQueue: new(uint32(2000))}, MTU: new(uint32(1400)), MAC: new("02:00:00:00:03:01"), Up: new(true)},
		updates: []fields{
			{MACVLAN: &netstate.MACVLAN{Mode: new("private")}},
			{MACVLAN: &netstate.MACVLAN{Mode: new("vepa"), BroadcastQueue: new(uint32(1000))}},
			{MAC: new("02:00:00:00:03:02")},
		},
	},
	{
		name:   "vxlan",
		before: []netstate.Object{lowLink},
		link: fields{Name: "t0", LinkKind: "vxlan", Parent: new("low"), MTU: new(uint32(8950)), MAC: new("02:00:00:00:06:01"), VXLAN: &netstate.VXLAN{
			ID: new(uint32(1<<24 - 1)), Port: new(uint16(4789)), Family: new("ipv4"), Local: new("192.0.2.5"), Remote: new("192.0.2.6"), Group: new("0.0.0.0"),
			TTL: new(uint8(9)), Learning: new(false),
		}},
		updates: []fields{
			{VXLAN: &netstate.VXLAN{Local: new("192.0.2.7")}},
			{VXLAN: &netstate.VXLAN{Remote: new("192.0.2.8"), TTL: new(uint8(0)), Learning: new(true)}},
			{VXLAN: &netstate.VXLAN{Remote: new("0.0.0.0"), Group: new("239.1.1.1")}},
			{VXLAN: &netstate.VXLAN{Group: new("239.1.1.2"), Local: new("0.0.0.0")}},
			{VXLAN: &netstate.VXLAN{Group: new("0.0.0.0")}},
			{VXLAN: &netstate.VXLAN{Remote: new("192.0.2.8"), TTL: new(uint8(255))}, MTU: new(uint32(1400))},
			{Up: new(true)},
			{MAC: new("02:00:00:00:06:02")},
		},
	},
	{
		name: "vxlan without a parent",
		link: fields{Name: "t0", LinkKind: "vxlan", Parent: new(""), Up: new(true), VXLAN: &netstate.VXLAN{
			ID: new(uint32(0)), Port: new(uint16(8472)), Family: new("ipv4"), Local: new("0.0.0.0"), Remote: new("0.0.0.0"), Group: new("0.0.0.0"),
			TTL: new(uint8(0)), Learning: new(true),
		}},
		updates: []fields{{MTU: new(uint32(9000))}},
	},
	{
		name: "bridge",
		link: fields{Name: "br0", LinkKind: "bridge", Bridge: &netstate.Bridge{VLANFiltering: new(true), DefaultPVID: new(uint16(5))}, MTU: new(uint32(1400)), MAC: new("02:00:00:00:04:01"), Up: new(true)},
		updates: []fields{
			{Bridge: &netstate.Bridge{DefaultPVID: new(uint16(0))}},
			{Bridge: &netstate.Bridge{NoLinkLocalLearn: new(true)}},
			{Bridge: &netstate.Bridge{NoLinkLocalLearn: new(false)}},
			{Bridge: &netstate.Bridge{VLANFiltering: new(false), DefaultPVID: new(uint16(1))}},
			{MTU: new(uint32(9000))},
		},
	},
	{
		name: "veth",
		link: fields{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("e1")}, MTU: new(uint32(1400)), MAC: new("02:00:00:00:05:01"), Up: new(true)},
		updates: []fields{
			{MTU: new(uint32(1500))},
			{MAC: new("02:00:00:00:05:02")},
		},
	},
	{
		name: "veth to the host",
		link: fields{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("host:plabc")}, MTU: new(uint32(1400)), Up: new(true)},
	},
	{
		name:   "on the host",
		link:   fields{Name: "host:br0", LinkKind: "bridge", Up: new(true)},
		before: []netstate.Object{dummy("host:d0")},
	},
}

// TestLinkKinds creates each link, observes it, makes each of the changes and reverses
// it, and deletes the link.
func TestLinkKinds(t *testing.T) {
	for _, tc := range linkRows {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			b.create(tc.before...)
			start := b.observe()
			b.create(tc.link)
			b.holds(tc.link)
			for _, u := range tc.updates {
				u.Name = tc.link.Name
				before := b.observe(u)
				c := b.update(u)
				b.holds(u)
				b.apply(netstatetest.Inverse(c))
				same(t, before, b.observe(u))
				b.apply(c)
				b.holds(u)
			}
			b.remove(tc.link)
			b.absent(tc.link)
			same(t, start, b.observe())
			b.remove(tc.link) // again: deleting what does not exist is no error
		})
	}
}

// TestLinkByAlternativeName: alternative names have up to 127 bytes, an interface's own 15.
func TestLinkByAlternativeName(t *testing.T) {
	b := newBench(t)
	b.create(netstate.Link{Name: "host:eth1", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("host:eth2")}})
	names := []string{"rail0", "of-15-bytes-012", "of-16-bytes-0123", strings.Repeat("x", 127)}
	b.update(netstate.Device{ID: "if:eth1", AltNames: names})
	for _, name := range names {
		called := netstate.Link{Name: "host:" + name}
		got := b.observe(called)
		l, ok := got.Link(called.Name)
		own, named := got.Link("host:eth1")
		if !ok || !named || l.Index != own.Index || !slices.Contains(own.AltNames, name) {
			t.Errorf("%q: %v %v, %v %v", name, ok, l, named, own)
		}
		absent := netstate.Link{Name: "host:" + name[1:]}
		if _, ok := b.observe(absent).Link(absent.Name); ok {
			t.Errorf("%q exists", absent.Name)
		}
	}
}

// TestFunctionsTooLong: kernels that have no room in one answer for the functions of a link list them in a dump, and a link whose
// functions cannot be listed at all is one without.
func TestFunctionsTooLong(t *testing.T) {
	hostNS := newNetns(t)
	sent, tooLong := 0, 0
	host, err := kernel.Open(kernel.Options{Netns: hostNS.path(), Disturb: func(m kernel.Message) error {
		if m.Answered {
			return nil
		}
		if sent++; sent <= tooLong {
			return unix.EMSGSIZE
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	newBenchOn(t, host).create(netstate.Link{Name: "host:eth1", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("host:eth2")}})
	for _, tooLong = range []int{0, 1, 2} { // with the first answer, and with the dump
		sent = 0
		if macs, err := host.FunctionMACs(t.Context(), "eth1"); err != nil || len(macs) > 0 || sent != tooLong+1 {
			t.Errorf("%d answers are too long: %v, %v, with %d messages", tooLong, macs, err, sent)
		}
	}
}

// TestMACsAboveLink: what stands on a link has the MAC that the model predicts when the link joins a bond or leaves one, or
// one of them gets another MAC.
func TestMACsAboveLink(t *testing.T) {
	type l = netstate.Link
	port := func(link, from, to string) netstate.Change {
		return netstate.Change{Before: l{Name: link, Master: &from}, After: l{Name: link, Master: &to}}
	}
	mac := func(link, mac string) netstate.Change {
		return netstate.Change{Before: l{Name: link}, After: l{Name: link, MAC: &mac}}
	}
	const other, own = "02:00:00:00:00:77", "02:00:00:00:00:05"
	for name, changes := range map[string][]netstate.Change{
		"join a bond, change its MAC, leave":       {port("d0", "", "b0"), mac("b0", other), port("d0", "b0", "")},
		"join a bond of another MAC":               {mac("b0", other), port("d0", "", "b0")},
		"exchange all ports":                       {port("e0", "b0", ""), port("d0", "", "b0"), port("d0", "b0", ""), mac("e0", other), port("e0", "", "b0")},
		"change the MAC":                           {mac("d0", other)},
		"give a VLAN its own, then change the MAC": {mac("d0", other), mac("v0", own), mac("d0", "02:00:00:00:00:78")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			vlan := func(name, on string, id uint16) l {
				return up(l{Name: name, LinkKind: "vlan", Parent: &on, VLAN: &netstate.VLAN{ID: &id}})
			}
			b.create(up(dummy("d0")), dummy("e0"), up(l{Name: "b0", LinkKind: "bond", Bond: &netstate.Bond{Mode: new("active-backup")}}))
			b.create(l{Name: "o0", LinkKind: "vlan", Parent: new("d0"), MAC: new(own), VLAN: &netstate.VLAN{ID: new(uint16(9))}})
			b.create(vlan("v0", "d0", 5), vlan("q0", "v0", 6), vlan("w0", "b0", 5))
			b.apply(port("e0", "", "b0"))
			model, left := b.observe(), false
			for i, c := range changes {
				set := c.After.(l)
				if set.Master != nil {
					down := netstate.Change{Before: l{Name: set.Name, Up: new(true)}, After: l{Name: set.Name, Up: new(false)}}
					b.apply(down)
					model.Apply(down)
				}
				model.Apply(c)
				b.apply(c)
				have := b.observe()
				left = left || set.Master != nil && *set.Master == "" // the model does not know what MAC the port gets
				for _, link := range []string{"d0", "v0", "q0", "o0", "b0", "w0"} {
					want, _ := model.Link(link)
					is, _ := have.Link(link)
					if want.MAC != nil && *want.MAC != *is.MAC || want.MAC == nil && !left {
						t.Errorf("%d: %s: %s has %s, the model says %v", i, c, link, *is.MAC, netstate.Value(want, "mac"))
					}
				}
			}
		})
	}
}
