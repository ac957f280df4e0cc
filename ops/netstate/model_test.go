package netstate_test

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
)

// TestLastAddress holds what goes along with an IPv4 address, and what does not.
func TestLastAddress(t *testing.T) {
	one, two := netstate.Addr{Link: "data0", Address: "192.0.2.5/24"}, netstate.Addr{Link: "data0", Address: "192.0.3.6/24"}
	six := netstate.Addr{Link: "data0", Address: "2001:db8::5/64"}
	route := netstate.Route{Link: "data0", Dst: "198.51.100.0/24", Gateway: "192.0.2.1", Table: netstate.TableMain}
	route6 := netstate.Route{Link: "data0", Dst: "2001:db8:1::/48", Gateway: "2001:db8::1", Table: netstate.TableMain}
	other := netstate.Route{Link: "eth0", Dst: "203.0.113.0/24", Table: netstate.TableMain}
	for name, c := range map[string]struct {
		gone netstate.Object
		have []netstate.Object
		lost []netstate.Key
	}{
		"the last":    {one, []netstate.Object{one, six, route, route6, other}, []netstate.Key{route.Key()}},
		"one of two":  {one, []netstate.Object{one, two, route}, nil},
		"one of IPv6": {six, []netstate.Object{one, six, route, route6}, nil},
	} {
		s := netstate.NewSnapshot()
		for _, o := range c.have {
			s.Put(o)
		}
		var lost []netstate.Key
		for _, implied := range s.Apply(netstate.Change{Before: c.gone}) {
			lost = append(lost, implied.Key())
		}
		if !slices.Equal(lost, c.lost) {
			t.Errorf("%s: %v are lost, want %v", name, lost, c.lost)
		}
	}
}

// TestNeighborsAreLost holds what a link's changes do to its static neighbors, which
// a repair of the link has to recreate.
func TestNeighborsAreLost(t *testing.T) {
	up := netstate.Link{Name: "d0", LinkKind: "dummy", MTU: new(uint32(1500)), MAC: new("02:00:00:00:00:01"), Up: new(true), Master: new("")}
	child := netstate.Link{Name: "v0", LinkKind: "vlan", Parent: new("d0"), MTU: new(uint32(1500)), MAC: up.MAC, Up: new(true), Master: new("")}
	addr := netstate.Addr{Link: "d0", Address: "192.0.2.1/24"}
	v4, v6 := netstate.Neighbor{Link: "d0", Address: "192.0.2.9"}, netstate.Neighbor{Link: "d0", Address: "2001:db8::9"}
	onChild := netstate.Neighbor{Link: "v0", Address: "192.0.2.9"}
	rule := netstate.Rule{Family: netstate.IPv4, Priority: 1, OIF: "d0", Table: 7}
	for name, c := range map[string]struct {
		change netstate.Change
		left   []netstate.Object
	}{
		"down":              {netstate.Change{Before: netstate.Link{Name: "d0", Up: new(true)}, After: netstate.Link{Name: "d0", Up: new(false)}}, []netstate.Object{rule}},
		"another MAC":       {netstate.Change{Before: netstate.Link{Name: "d0", MAC: up.MAC}, After: netstate.Link{Name: "d0", MAC: new("02:00:00:00:00:02")}}, []netstate.Object{rule}},
		"another MTU":       {netstate.Change{Before: netstate.Link{Name: "d0", MTU: up.MTU}, After: netstate.Link{Name: "d0", MTU: new(uint32(1400))}}, []netstate.Object{v4, v6, onChild, rule}},
		"last IPv4 address": {netstate.Change{Before: addr}, []netstate.Object{v6, onChild, rule}},
		"link deleted":      {netstate.Change{Before: up}, []netstate.Object{rule}},
	} {
		t.Run(name, func(t *testing.T) {
			s := netstate.NewSnapshot(up, child, addr, v4, v6, onChild, rule)
			s.Apply(c.change)
			for _, o := range []netstate.Object{v4, v6, onChild, rule} {
				_, there := s.Get(o.Key())
				if want := slices.Contains(c.left, o); there != want {
					t.Errorf("%s: there %v, want %v", o.Key(), there, want)
				}
			}
		})
	}
}

// TestMTUOfNestedBonds: a bond gives its MTU to its ports, and a port that is a bond
// to its own (bond_enslave and bond_change_mtu set it by dev_set_mtu).
func TestMTUOfNestedBonds(t *testing.T) {
	link := func(name, kind, master string, mtu uint32) netstate.Link {
		return netstate.Link{Name: name, LinkKind: kind, MTU: &mtu, Up: new(false), Master: &master}
	}
	for name, change := range map[string]netstate.Change{
		"changed": {Before: netstate.Link{Name: "outer", MTU: new(uint32(1300))}, After: netstate.Link{Name: "outer", MTU: new(uint32(1400))}},
		"joined":  {Before: netstate.Link{Name: "inner", Master: new("")}, After: netstate.Link{Name: "inner", Master: new("outer")}},
	} {
		t.Run(name, func(t *testing.T) {
			outer, want := link("outer", "bond", "", 1300), uint32(1400)
			inner := link("inner", "bond", "outer", 1300)
			if name == "joined" {
				inner, want = link("inner", "bond", "", 1500), 1300
			}
			s := netstate.NewSnapshot(outer, inner, link("port", "dummy", "inner", *inner.MTU))
			s.Apply(change)
			if port, _ := s.Link("port"); *port.MTU != want {
				t.Errorf("the port of the inner bond has %d, want %d", *port.MTU, want)
			}
		})
	}
}

// TestKeptOnDown holds what a link loses when it goes down: its IPv6 addresses only
// where they are not to be kept.
func TestKeptOnDown(t *testing.T) {
	for value, left := range map[string]int{"0": 1, "1": 2} {
		s := netstate.NewSnapshot(
			netstate.Link{Name: "d0", LinkKind: "dummy", Up: new(true)},
			netstate.Sysctl{Path: "net/ipv6/conf/d0/keep_addr_on_down", Value: &value},
			netstate.Addr{Link: "d0", Address: "192.0.2.5/24"}, netstate.Addr{Link: "d0", Address: "2001:db8::5/64"},
			netstate.Addr{Link: "d0", Address: "fe80::5/64", Kernel: true},
		)
		s.Apply(netstate.Change{Before: netstate.Link{Name: "d0", Up: new(true)}, After: netstate.Link{Name: "d0", Up: new(false)}})
		if got := netstate.All[netstate.Addr](s); len(got) != left {
			t.Errorf("keep_addr_on_down %s leaves %v", value, got)
		}
	}
}

// TestPortsOfBond holds what a bond does to its ports, and not to those of a bridge: it
// gives them its MAC and MTU, and closes one that leaves.
func TestPortsOfBond(t *testing.T) {
	const old, fresh = "02:00:00:00:00:01", "02:00:00:00:00:02"
	port := func(name, master, mac string, up bool) netstate.Link {
		return netstate.Link{Name: name, LinkKind: "dummy", MTU: new(uint32(1500)), MAC: &mac, Up: &up, Master: &master}
	}
	master := func(name, kind string) netstate.Link {
		return netstate.Link{Name: name, LinkKind: kind, MTU: new(uint32(1500)), MAC: new(old), Up: new(true), Master: new("")}
	}
	world := func() *netstate.Snapshot {
		return netstate.NewSnapshot(
			master("bond0", "bond"), port("a", "bond0", old, true), port("b", "bond0", old, false),
			master("br0", "bridge"), port("c", "br0", "02:00:00:00:00:0c", true), port("d", "", "02:00:00:00:00:0d", true),
		)
	}
	for name, c := range map[string]struct {
		change netstate.Change
		mac    map[string]string
		mtu    map[string]uint32
		down   []string
		lost   []netstate.Key // implied changes
	}{
		"MAC of the bond":    {change: netstate.Change{Before: netstate.Link{Name: "bond0", MAC: new(old)}, After: netstate.Link{Name: "bond0", MAC: new(fresh)}}, mac: map[string]string{"a": fresh, "b": fresh}},
		"MAC of the bridge":  {change: netstate.Change{Before: netstate.Link{Name: "br0", MAC: new(old)}, After: netstate.Link{Name: "br0", MAC: new(fresh)}}},
		"MTU of the bond":    {change: netstate.Change{Before: netstate.Link{Name: "bond0", MTU: new(uint32(1500))}, After: netstate.Link{Name: "bond0", MTU: new(uint32(1400))}}, mtu: map[string]uint32{"a": 1400, "b": 1400}},
		"a port leaves":      {change: netstate.Change{Before: netstate.Link{Name: "a", Master: new("bond0")}, After: netstate.Link{Name: "a", Master: new("")}}, down: []string{"a"}, lost: []netstate.Key{netstate.LinkKey("a")}},
		"one that was down":  {change: netstate.Change{Before: netstate.Link{Name: "b", Master: new("bond0")}, After: netstate.Link{Name: "b", Master: new("")}}},
		"it leaves a bridge": {change: netstate.Change{Before: netstate.Link{Name: "c", Master: new("br0")}, After: netstate.Link{Name: "c", Master: new("")}}},
	} {
		s, was := world(), world()
		var lost []netstate.Key
		for _, implied := range s.Apply(c.change) {
			lost = append(lost, implied.Key())
		}
		if !slices.Equal(lost, c.lost) {
			t.Errorf("%s: implied changes of %v, want %v", name, lost, c.lost)
		}
		for _, link := range []string{"a", "b", "c", "d"} {
			l, _ := s.Link(link)
			before, _ := was.Link(link)
			mac, mtu, up := *before.MAC, *before.MTU, *before.Up && !slices.Contains(c.down, link)
			if m, changed := c.mac[link]; changed {
				mac = m
			}
			if m, changed := c.mtu[link]; changed {
				mtu = m
			}
			left := c.change.Key() == netstate.LinkKey(link) && link != "c" // its own MAC and MTU are observed again
			if !left && (l.MAC == nil || *l.MAC != mac || l.MTU == nil || *l.MTU != mtu) || left && (l.MAC != nil || l.MTU != nil) || *l.Up != up {
				t.Errorf("%s: %s has %+v, want MAC %s, MTU %d, up %t", name, link, l, mac, mtu, up)
			}
		}
	}
}

// TestPortOfUnknownMAC: a bond whose MAC is not known, as it is that of a port that another bond has released, gives it to the next port.
func TestPortOfUnknownMAC(t *testing.T) {
	at := "b"
	s := netstate.NewSnapshot(
		netstate.Link{Name: "bond0", LinkKind: "bond", MTU: new(uint32(1500)), Up: new(true), Master: new("")},
		netstate.Link{Name: "a", LinkKind: "dummy", Up: new(true), Master: new("bond0")},
		netstate.Link{Name: at, LinkKind: "device", DeviceID: "1", MAC: new("02:00:00:00:00:0b"), Up: new(false), Master: new("")},
		netstate.Device{ID: "1", At: &at, MAC: new("02:00:00:00:00:0b")},
	)
	s.Apply(netstate.Change{Before: netstate.Link{Name: at, Master: new("")}, After: netstate.Link{Name: at, Master: new("bond0")}})
	l, _ := s.Link(at)
	if d, _ := s.Device("1"); l.MAC != nil || d.MAC != nil {
		t.Errorf("the port is foreseen with a MAC: %+v, %+v", l, d)
	}
}

// TestDeviceTakesItsSettings holds that what lives on the link of a device that moves
// goes along, and what lives on another link stays.
func TestDeviceTakesItsSettings(t *testing.T) {
	ring := func(link string) netstate.Ethtool {
		return netstate.Ethtool{Link: link, Class: "ring", Name: "rx", Value: new("512")}
	}
	device := netstate.Device{ID: "0000:01:10.0", At: new("net1"), MTU: new(uint32(1500)), MAC: new("02:00:00:00:00:01")}
	link := func(name string) netstate.Link {
		return netstate.Link{Name: name, LinkKind: "device", MTU: new(uint32(1500)), MAC: new("02:00:00:00:00:01"), Up: new(false), Master: new("")}
	}
	moved := device
	moved.At = new(netstate.HostName("eth7"))
	s := netstate.NewSnapshot(device, link("net1"), link("net2"), ring("net1"), ring("net2"))
	s.Apply(netstate.Change{Before: device, After: moved})
	for name, want := range map[string]bool{"net1": false, "net2": true, netstate.HostName("eth7"): true} {
		if _, there := s.Get(ring(name).Key()); there != want {
			t.Errorf("setting of %q: there %t, want %t", name, there, want)
		}
	}
}

// TestTunnelMTU holds that a tunnel is created with an MTU that leaves room for its
// headers, and keeps it when the link below gets another one, which a VLAN does not.
func TestTunnelMTU(t *testing.T) {
	s := netstate.NewSnapshot(netstate.Link{Name: "d0", LinkKind: "dummy", MTU: new(uint32(1500))})
	create := func(l netstate.Link) { s.Apply(netstate.Change{After: l}) }
	tunnel := func(name, family string, parent *string, mtu *uint32) netstate.Link {
		return netstate.Link{Name: name, LinkKind: "vxlan", Parent: parent, MTU: mtu, VXLAN: &netstate.VXLAN{Family: &family}}
	}
	create(tunnel("four", "ipv4", new("d0"), nil))
	create(tunnel("six", "ipv6", new("d0"), new(uint32(1500))))
	create(tunnel("routed", "ipv4", new(""), nil))
	create(netstate.Link{Name: "vlan", LinkKind: "vlan", Parent: new("d0"), VLAN: &netstate.VLAN{ID: new(uint16(5))}})
	want := map[string]uint32{"four": 1450, "six": 1430, "routed": 1500, "vlan": 1500}
	check := func(when string) {
		t.Helper()
		for name, mtu := range want {
			if l, _ := s.Link(name); l.MTU == nil || *l.MTU != mtu {
				t.Errorf("%s, %s has MTU %s, want %d", when, name, netstate.FormatValue(netstate.Value(l, "mtu")), mtu)
			}
		}
	}
	check("created")
	s.Apply(netstate.Change{Before: netstate.Link{Name: "d0", MTU: new(uint32(1500))}, After: netstate.Link{Name: "d0", MTU: new(uint32(1400))}})
	want["vlan"] = 1400
	check("with less below")
}

// TestStackedOverhead holds that one row is enough for a kind of link that stands on another one and adds to its packets, such as
// macsec (drivers/net/macsec.c: SecTAG with SCI, 16 bytes, and ICV, 16 bytes): its MTU is less at birth, and follows.
func TestStackedOverhead(t *testing.T) {
	netstate.AddLinkKind(t, "macsec", netstate.LinkTraits{
		Stacked: true, Encapsulates: true, RxHandler: true, Overhead: func(netstate.Link) uint32 { return 32 },
	})
	s := netstate.NewSnapshot(netstate.Link{Name: "d0", LinkKind: "dummy", MTU: new(uint32(1500))})
	mtus := func(when string, want ...uint32) {
		t.Helper()
		for i, name := range []string{"d0", "s0", "v0", "s1"} {
			if l, _ := s.Link(name); l.MTU == nil || *l.MTU != want[i] {
				t.Errorf("%s, %s has MTU %s, want %d", when, name, netstate.FormatValue(netstate.Value(l, "mtu")), want[i])
			}
		}
	}
	s.Apply(netstate.Change{After: netstate.Link{Name: "s0", LinkKind: "macsec", Parent: new("d0")}})
	s.Apply(netstate.Change{After: netstate.Link{Name: "v0", LinkKind: "vlan", Parent: new("s0")}})
	s.Apply(netstate.Change{After: netstate.Link{Name: "s1", LinkKind: "macsec", Parent: new("v0")}})
	mtus("created", 1500, 1468, 1468, 1436)
	set := func(before, after uint32) []netstate.Change {
		return s.Apply(netstate.Change{Before: netstate.Link{Name: "d0", MTU: &before}, After: netstate.Link{Name: "d0", MTU: &after}})
	}
	if implied := set(1500, 1400); len(implied) != 3 {
		t.Errorf("three links follow: %v", implied)
	}
	mtus("with less below", 1400, 1368, 1368, 1336)
	set(1400, 9000)
	mtus("with more below", 9000, 1368, 1368, 1336)
	if phrase := netstate.KindPhrase("macsec"); phrase != "a macsec link" {
		t.Errorf("messages call it %s", phrase)
	}
}

// TestDefaultVLAN: a port is in the default VLAN of its bridge, as its PVID, until another VLAN is that, and in none
// when it leaves (br_vlan.c).
func TestDefaultVLAN(t *testing.T) {
	port := netstate.Link{Name: "p0", LinkKind: "veth", Master: new("")}
	for pvid, want := range map[uint16]string{1: "1 untagged, 5 pvid", 9: "5 pvid, 9 untagged", 0: "5 pvid"} {
		s := netstate.NewSnapshot(port)
		vlans := func() string {
			var out []string
			for _, v := range netstate.All[netstate.BridgeVLAN](s) {
				if v.Link != "p0" {
					continue
				}
				text := fmt.Sprint(v.VID)
				if *v.PVID {
					text += " pvid"
				}
				if *v.Untagged {
					text += " untagged"
				}
				out = append(out, text)
			}
			return strings.Join(out, ", ")
		}
		join := netstate.Change{Before: netstate.Link{Name: "p0", Master: new("")}, After: netstate.Link{Name: "p0", Master: new("br0")}}
		s.Apply(netstate.Change{After: netstate.Link{Name: "br0", LinkKind: "bridge", Bridge: &netstate.Bridge{DefaultPVID: &pvid}}})
		s.Apply(join)
		s.Apply(netstate.Change{After: netstate.BridgeVLAN{Link: "p0", VID: 5, PVID: new(true), Untagged: new(false)}})
		if got := vlans(); got != want {
			t.Errorf("default %d: %q, want %q", pvid, got, want)
		}
		s.Apply(netstatetest.Inverse(join))
		if got := vlans(); got != "" {
			t.Errorf("default %d: %q after it left", pvid, got)
		}
	}
}

// TestSecondaryAddresses: with an IPv4 address go those in its network, unless the kernel is known to promote one of them, and
// with the last one the routes.
func TestSecondaryAddresses(t *testing.T) {
	first, second := netstate.Addr{Link: "d0", Address: "192.0.2.5/24"}, netstate.Addr{Link: "d0", Address: "192.0.2.100/24"}
	route := netstate.Route{Link: "d0", Dst: "198.51.100.0/24", Gateway: "192.0.2.1", Table: netstate.TableMain}
	from := netstate.Route{Link: "d1", Dst: "203.0.113.0/24", Table: netstate.TableMain, Source: new("192.0.2.100")}
	apart := []netstate.Object{ // other networks, links and families
		netstate.Addr{Link: "d0", Address: "192.0.2.7/25"}, netstate.Addr{Link: "d1", Address: "192.0.2.8/24"}, netstate.Addr{Link: "d0", Address: "2001:db8::5/64"},
	}
	setting := func(of, value string) netstate.Object {
		return netstate.Sysctl{Path: "net/ipv4/conf/" + of + "/promote_secondaries", Value: &value}
	}
	for name, c := range map[string]struct {
		beside []netstate.Object
		lost   []netstate.Object
	}{
		"unknown":           {nil, []netstate.Object{second, from, route}},
		"other networks":    {apart, []netstate.Object{second, from}},
		"known to go":       {[]netstate.Object{setting("d0", "0"), setting("all", "0")}, []netstate.Object{second, from, route}},
		"promoted":          {[]netstate.Object{setting("d0", "1")}, nil},
		"promoted anywhere": {[]netstate.Object{setting("all", "1")}, nil},
	} {
		s := netstate.NewSnapshot(append(c.beside, netstate.Link{Name: "d0"}, first, second, route, from)...)
		var lost []netstate.Object
		for _, implied := range s.Apply(netstate.Change{Before: first}) {
			lost = append(lost, implied.Before)
			if _, there := s.Get(implied.Key()); there {
				t.Errorf("%s: %s is there", name, implied.Key())
			}
		}
		if !reflect.DeepEqual(lost, c.lost) {
			t.Errorf("%s: %v go too, want %v", name, lost, c.lost)
		}
	}
}

// TestAddressBesideManyRoutes: the end of an address that no other one depends on copies no routes, of which a pod may have many.
func TestAddressBesideManyRoutes(t *testing.T) {
	s := netstate.NewSnapshot(netstate.Addr{Link: "d0", Address: "198.51.100.1/24"})
	for i := range 5000 {
		s.Put(netstate.Route{Link: "d0", Dst: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), Table: netstate.TableMain})
	}
	gone := netstate.Addr{Link: "d0", Address: "192.0.2.1/24"}
	var before, after runtime.MemStats
	const times = 20
	runtime.ReadMemStats(&before)
	for range times {
		s.Put(gone)
		if lost := s.Apply(netstate.Change{Before: gone}); len(lost) > 0 {
			t.Fatalf("lost %v", lost)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / times; each > 50_000 {
		t.Errorf("%d bytes for each address beside 5000 routes", each)
	}
}
