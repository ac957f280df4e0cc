package kernel_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/topology/fault"
)

// device observes a device.
func (b *bench) device(id string) netstate.Device {
	b.Helper()
	d, ok := b.observe(netstate.Device{ID: id}).Device(id)
	if !ok {
		b.Fatalf("device %q is not there", id)
	}
	return d
}

// move is the change that takes a device from where it is.
func (b *bench) move(id, to string) netstate.Change {
	b.Helper()
	return netstate.Change{Before: b.device(id), After: netstate.Device{ID: id, At: &to}}
}

// everything lists the links on both sides with one of a few names.
func (b *bench) everything(ids ...string) *netstate.Snapshot {
	b.Helper()
	var queried []netstate.Object
	for _, id := range ids {
		queried = append(queried, netstate.Device{ID: id})
	}
	for _, n := range []string{"eth1", "net1", "spare"} {
		queried = append(queried, netstate.Link{Name: "host:" + n})
	}
	return b.observe(queried...)
}

func TestDeviceMoves(t *testing.T) {
	for _, alias := range []string{"", "uplink to rack 7"} {
		b := newBench(t)
		b.create(up(netstate.Link{Name: "host:eth1", LinkKind: "dummy", MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:01"), Alias: &alias}))
		start := b.everything("if:eth1")

		there := b.move("if:eth1", "net1")
		b.apply(there)
		b.holds(netstate.Link{Name: "net1", LinkKind: "dummy", MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:01"), Up: new(false), Alias: &alias})
		b.absent(netstate.Link{Name: "host:eth1"})
		b.holds(netstate.Device{ID: "if:eth1", At: new("net1")})
		// Another view finds it too, by the facts in the record.
		s, err := b.open().Observe(t.Context(), b.recorded(netstate.Device{ID: "if:eth1"}))
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := s.Device("if:eth1"); !ok || *d.At != "net1" {
			t.Errorf("got %+v", d)
		}
		// In the sandbox everything may change, even the name, by another writer.
		b.update(netstate.Link{Name: "net1", MTU: new(uint32(1300)), MAC: new("02:00:00:00:00:02"), Up: new(true), Alias: new("something else")})
		b.holds(netstate.Device{ID: "if:eth1", At: new("net1")})
		b.update(netstate.Link{Name: "net1", Alias: &alias})

		b.apply(netstatetest.Inverse(there))
		same(t, start, b.everything("if:eth1"))
		b.holds(netstate.Link{Name: "host:eth1", Up: new(true), Alias: &alias})
		b.absent(netstate.Link{Name: "net1"})
	}
}

// A device that was renamed in the sandbox is found.
func TestDeviceWasRenamed(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("host:eth1")))
	start := b.everything("if:eth1")
	there := b.move("if:eth1", "net1")
	b.apply(there)
	other := &bench{TB: b.TB, ctx: b.ctx, host: b.host, ns: b.ns, Sandbox: b.open(), moved: slices.Clone(b.moved)}
	other.update(netstate.Device{ID: "if:eth1", At: new("mine")})
	b.apply(netstatetest.Inverse(there)) // it has observed it as net1
	same(t, start, b.everything("if:eth1"))
}

// Values that a pod can set on a link are no evidence: an alias, a name, an alternative name,
// and for a device that is no hardware not even kind and name.
func TestForgedDevice(t *testing.T) {
	for _, forged := range []netstate.Link{
		{Name: "evil", LinkKind: "dummy", Alias: new("plumbline:if:eth1")},
		{Name: "net1", LinkKind: "dummy"},
		{Name: "net1", LinkKind: "bridge"},
	} {
		b := newBench(t)
		b.create(up(dummy("host:eth1")))
		there := b.move("if:eth1", "net1")
		b.apply(there)
		b.moved[0].After = b.device("if:eth1") // a record has the index of its arrival
		b.create(dummy("next"))                // takes the index that a new link would have
		device, _ := b.observe().Link("net1")
		b.remove(device)
		b.create(forged)
		sandbox := b.everything()
		b.absent(netstate.Device{ID: "if:eth1"})
		b.refused(fault.Gone, netstatetest.Inverse(there), "does not exist any more")
		same(t, sandbox, b.everything())
		b.absent(netstate.Link{Name: "host:eth1"})
	}
}

// A link that a pod created on a device would keep working after the move, also if it
// has another name.
func TestUppersAreDeleted(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("host:eth1")))
	start := b.everything("if:eth1")
	b.apply(b.move("if:eth1", "net1"))
	b.update(netstate.Link{Name: "net1", Up: new(true)})
	b.create(netstate.Link{Name: "up0", LinkKind: "macvlan", Parent: new("net1"), MACVLAN: &netstate.MACVLAN{Mode: new("bridge")}, Up: new(true)})
	b.create(netstate.Link{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("host:e1")}})
	before, _ := start.Device("if:eth1")
	b.apply(netstate.Change{Before: b.device("if:eth1"), After: before})
	b.absent(netstate.Link{Name: "up0"})
	b.holds(netstate.Link{Name: "e0", LinkKind: "veth"})
	b.remove(netstate.Link{Name: "e0"})
	same(t, start, b.everything("if:eth1"))
}

// A pod in the host's user namespace creates a link on a free device of the host. The
// next pod does not get the device together with that link.
func TestReceiverFromOutside(t *testing.T) {
	for kind, data := range map[string][]byte{
		"macvlan": nl.NewRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(4)).Serialize(), // bridge
		"ipvlan":  nl.NewRtAttr(nl.IFLA_IPVLAN_MODE, nl.Uint16Attr(0)).Serialize(),  // l2
	} {
		b := newBench(t)
		b.create(up(dummy("host:eth1")))
		start := b.everything("if:eth1")
		there := b.move("if:eth1", "net1")
		attacker := newBenchOn(t, b.host)
		attacker.create(netstate.Link{Name: "eth0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("host:e1")}})
		device, _ := start.Device("if:eth1")
		attacker.inPod("eth0", func(_ *netlink.Handle, l netlink.Link) error {
			r := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
			r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
			r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("spy")))
			r.AddData(nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(device.Index))))
			r.AddData(nl.NewRtAttr(unix.IFLA_LINK_NETNSID, nl.Uint32Attr(uint32(l.Attrs().NetNsID))))
			info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
			info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind))
			info.AddRtAttr(nl.IFLA_INFO_DATA, data)
			r.AddData(info)
			_, err := r.Execute(unix.NETLINK_ROUTE, 0)
			return err
		})
		b.refused(fault.NotReady, there, "upper.receiver", kind)
		after := b.everything("if:eth1")
		if d, _ := after.Device("if:eth1"); d.At == nil || *d.At != "host:eth1" || !*d.Up {
			t.Errorf("%s: the device: %+v", kind, d)
		}
		attacker.remove(netstate.Link{Name: "spy", LinkKind: kind})
		b.apply(there)
		b.holds(netstate.Link{Name: "net1"})
	}
}

// Alternative names that the pod adds after the observation are not moved to the host.
func TestAltNamesGivenLate(t *testing.T) {
	for _, recorded := range [][]string{{}, nil} {
		b := newBench(t)
		b.create(up(dummy("host:eth1")))
		start := b.everything("if:eth1")
		before := b.device("if:eth1")
		b.apply(b.move("if:eth1", "net1"))
		seen := b.device("if:eth1")
		b.inPod("net1", func(h *netlink.Handle, l netlink.Link) error { return h.LinkAddAltName(l, "late") })
		before.AltNames = recorded
		b.apply(netstate.Change{Before: seen, After: before})
		same(t, start, b.everything("if:eth1"))
	}
}

func TestDeviceIsRenamed(t *testing.T) {
	for _, place := range []string{"", "host:"} {
		b := newBench(t)
		b.create(up(dummy("host:eth1")))
		if place == "" {
			b.apply(b.move("if:eth1", "old"))
			b.update(netstate.Link{Name: "old", Up: new(true)})
		}
		before := b.everything("if:eth1")
		c := b.update(netstate.Device{ID: "if:eth1", At: new(place + "net1"), MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:07")})
		b.holds(netstate.Link{Name: place + "net1", MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:07"), Up: new(true)})
		if place == "" { // on the host it would have to be found by its name
			b.apply(netstatetest.Inverse(c))
			same(t, before, b.everything("if:eth1"))
		}
	}
}

// A name that is taken on the other side leaves the device where it was, as it
// was, whichever of its names it is.
func TestDeviceNameIsTaken(t *testing.T) {
	for _, taken := range []string{"net1", "eth1", "other"} {
		b := newBench(t)
		b.create(up(netstate.Link{Name: "host:eth1", LinkKind: "dummy", MAC: new("02:00:00:00:00:01")}))
		b.update(netstate.Device{ID: "if:eth1", AltNames: []string{"other", "third"}})
		b.create(up(dummy(taken)))
		before := b.everything("if:eth1")
		c := b.move("if:eth1", "net1")
		c.After = netstate.Merge(c.After.(netstate.Device), netstate.Device{MTU: new(uint32(1400)), MAC: new("02:00:00:00:00:02")})
		switch taken {
		case "eth1": // the old name may be taken: it is not needed there
			b.apply(c)
			b.holds(netstate.Link{Name: "net1", MTU: new(uint32(1400))})
			continue
		case "net1":
			b.refused(fault.Conflict, c, `"net1" in the sandbox`, `stays "eth1" on the host`, "dummy")
		default:
			b.refused(fault.Conflict, c, "file exists")
		}
		same(t, before, b.everything("if:eth1"))
	}
}

// The same on the return to the host; the sandbox's link stays up.
func TestDeviceNameIsTakenOnHost(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("host:eth1")))
	there := b.move("if:eth1", "net1")
	b.apply(there)
	b.update(netstate.Link{Name: "net1", Up: new(true), MTU: new(uint32(1400))})
	b.create(dummy("host:eth1"))
	before := b.everything("if:eth1")
	b.refused(fault.Conflict, netstatetest.Inverse(there), `"eth1" on the host`, `stays "net1" in the sandbox`)
	same(t, before, b.everything("if:eth1"))
	// Under another name it can be moved.
	back := netstatetest.Inverse(there)
	back.After = netstate.Merge(back.After.(netstate.Device), netstate.Device{At: new("host:eth1-1")})
	b.apply(back)
	b.holds(netstate.Link{Name: "host:eth1-1", Up: new(true), MTU: new(uint32(1500))})
}

// If the driver refuses a setting after the move, the device is moved back: move and
// settings are one message but not atomic.
func TestDeviceSettingIsRefused(t *testing.T) {
	b := newBench(t)
	b.create(up(netstate.Link{Name: "host:eth1", LinkKind: "dummy", MAC: new("02:00:00:00:00:01")}))
	b.update(netstate.Device{ID: "if:eth1", AltNames: []string{"net1", "other"}})
	before := b.everything("if:eth1")
	for _, want := range []netstate.Device{
		{MTU: new(uint32(4000000000))},
		{MAC: new("01:00:00:00:00:01")}, // a multicast address
	} {
		c := b.move("if:eth1", "net1")
		c.After = netstate.Merge(c.After.(netstate.Device), want)
		if err := b.Apply(t.Context(), c); err == nil {
			t.Errorf("%s: no error", c)
		}
		same(t, before, b.everything("if:eth1"))
	}
}

// The target name may be one of the device's own alternative names: udev adds such
// names. It is restored on the host.
func TestDeviceAltNames(t *testing.T) {
	b := newBench(t)
	b.create(dummy("host:eth1"))
	b.update(netstate.Device{ID: "if:eth1", AltNames: []string{"net1", "enp1s0"}})
	start := b.everything("if:eth1")
	there := b.move("if:eth1", "net1")
	b.apply(there)
	b.holds(netstate.Device{ID: "if:eth1", AltNames: []string{"enp1s0"}})
	b.update(netstate.Device{ID: "if:eth1", AltNames: []string{"foreign"}})
	b.apply(netstatetest.Inverse(there))
	same(t, start, b.everything("if:eth1"))
	b.update(netstate.Device{ID: "if:eth1", AltNames: []string{}})
	b.holds(netstate.Device{ID: "if:eth1", AltNames: []string{}})
}

func TestDeviceIsGone(t *testing.T) {
	b := newBench(t)
	b.create(dummy("host:eth1"))
	c := b.move("if:eth1", "net1")
	b.remove(netstate.Link{Name: "host:eth1"})
	b.refused(fault.Gone, c, "does not exist any more")
	b.absent(netstate.Device{ID: "if:eth1"})
	b.absent(netstate.Device{ID: "0000:ff:1f.7"})
	b.refused(fault.Gone, netstate.Change{Before: netstate.Device{ID: "0000:ff:1f.7"}, After: netstate.Device{ID: "0000:ff:1f.7", At: new("net1")}})
}

// Some links cannot change their namespace.
func TestDeviceCannotMove(t *testing.T) {
	b := newBench(t)
	b.create(up(netstate.Link{Name: "host:eth1", LinkKind: "bridge"}))
	before := b.everything("if:eth1")
	b.refused(fault.Unsupported, b.move("if:eth1", "net1"), "bridge", "cannot change its namespace")
	same(t, before, b.everything("if:eth1"))
}

// A device is described with what the host uses it for.
func TestDeviceUse(t *testing.T) {
	b := newBench(t)
	for _, l := range []netstate.Link{
		up(dummy("host:free")), up(dummy("host:up4")), up(dummy("host:up6")), up(dummy("host:port")), dummy("host:leg"), up(dummy("host:routed")),
		{Name: "host:br0", LinkKind: "bridge"},
		{Name: "host:bond0", LinkKind: "bond"},
	} {
		b.create(l)
	}
	b.update(netstate.Link{Name: "host:port", Master: new("host:br0")})
	b.update(netstate.Link{Name: "host:leg", Master: new("host:bond0")})
	b.absent(netstate.Device{ID: "default-route"})
	b.create(
		netstate.Addr{Link: "host:up4", Address: "192.0.2.1/24"},
		netstate.Route{Link: "host:up4", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: 254},
		netstate.Addr{Link: "host:routed", Address: "203.0.113.1/24"},
		netstate.Route{Link: "host:routed", Dst: "198.51.100.0/24", Gateway: "203.0.113.2", Table: 254},
		netstate.Addr{Link: "host:up6", Address: "2001:db8:7::1/64", NoDAD: new(true)},
		netstate.Route{Link: "host:up6", Dst: "::/0", Gateway: "2001:db8:7::2", Table: 254, Metric: 1024},
	)
	for name, use := range map[string]string{
		"free": "", "routed": "", "up4": "default route", "up6": "default route",
		"port": "bridge port of br0", "leg": "bond port of bond0",
	} {
		if d := b.device("if:" + name); d.Use != use {
			t.Errorf("%s: use %q, want %q", name, d.Use, use)
		}
	}
	if d := b.device("default-route"); *d.At != "host:up4" {
		t.Errorf("default route over %s", *d.At)
	}
	// A default route that a router has advertised withholds a link only if no other
	// link is known to be the host's own.
	const advertised = 9 // RTPROT_RA
	b.create(
		netstate.Addr{Link: "host:free", Address: "2001:db8:8::1/64", NoDAD: new(true)},
		netstate.Route{Link: "host:free", Dst: "::/0", Gateway: "2001:db8:8::2", Table: 254, Metric: 2048, Protocol: advertised},
	)
	if d := b.device("if:free"); d.Use != "" {
		t.Errorf("an advertised default route beside a configured one: use %q", d.Use)
	}
	b.remove(netstate.Route{Link: "host:up6", Dst: "::/0", Gateway: "2001:db8:7::2", Table: 254, Metric: 1024})
	if d := b.device("if:free"); d.Use != "default route" {
		t.Errorf("the only default route of IPv6, advertised: use %q", d.Use)
	}
	b.create(netstate.Route{Link: "host:up6", Dst: "::/0", Gateway: "2001:db8:7::2", Table: 254, Metric: 1024})
	b.remove(netstate.Route{Link: "host:up4", Dst: "0.0.0.0/0", Gateway: "192.0.2.2", Table: 254})
	if d := b.device("default-route"); *d.At != "host:up6" {
		t.Errorf("default route over %s", *d.At)
	}
}

// The interface of a network is that of the host which has an address in it, and never one
// of the sandbox. Where two have one, neither is meant.
func TestDeviceOfNetwork(t *testing.T) {
	const id = "net:10.0.1.0/24"
	b := newBench(t)
	b.create(up(dummy("host:eth7")), up(dummy("host:eth8")), up(dummy("eth9")), netstate.Addr{Link: "eth9", Address: "10.0.1.9/24"})
	b.absent(netstate.Device{ID: id})
	b.create(
		netstate.Addr{Link: "host:eth7", Address: "10.0.1.7/24"}, netstate.Addr{Link: "host:eth7", Address: "10.0.2.7/24"},
		netstate.Addr{Link: "host:eth8", Address: "10.0.1.8/25"}, // another network, of which some addresses are in it
	)
	if d := b.device(id); *d.At != "host:eth7" {
		t.Errorf("the network is on %s", *d.At)
	}
	networks, err := b.Networks(b.ctx)
	if err != nil || fmt.Sprint(networks["eth7"]) != "[10.0.1.0/24 10.0.2.0/24]" || fmt.Sprint(networks["eth8"]) != "[10.0.1.0/25]" || networks["eth9"] != nil {
		t.Errorf("networks of the host: %v, %v", networks, err)
	}
	b.create(netstate.Addr{Link: "host:eth8", Address: "10.0.1.88/24"})
	if _, err := b.Observe(b.ctx, []netstate.Object{netstate.Device{ID: id}}); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `"eth7" and "eth8"`) {
		t.Errorf("a network of two interfaces: %v", err)
	}
	b.remove(netstate.Addr{Link: "host:eth7", Address: "10.0.1.7/24"})
	if d := b.device(id); *d.At != "host:eth8" {
		t.Errorf("the network moved, and is on %s", *d.At)
	}
}

// The interface of an address is that of the host which has it, and never one of the sandbox.
func TestDeviceOfAddress(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("host:eth7")), up(dummy("eth9")), netstate.Addr{Link: "eth9", Address: "10.0.1.7/24"})
	for _, id := range []string{"addr:10.0.1.7", "addr:2001:db8::7"} {
		b.absent(netstate.Device{ID: id})
	}
	b.create(netstate.Addr{Link: "host:eth7", Address: "10.0.1.7/24"}, netstate.Addr{Link: "host:eth7", Address: "2001:db8::7/64"})
	for _, id := range []string{"addr:10.0.1.7", "addr:2001:db8::7"} {
		if d := b.device(id); *d.At != "host:eth7" {
			t.Errorf("%s is on %s", id, *d.At)
		}
	}
	b.absent(netstate.Device{ID: "addr:10.0.1.8"})
}

// A bridge of the host is observed with its ports, by a query for those only.
func TestHostBridgePorts(t *testing.T) {
	b := newBench(t)
	b.create(netstate.Link{Name: "host:br0", LinkKind: "bridge"}, dummy("host:a"), dummy("host:b"), dummy("host:c"))
	for _, p := range []string{"host:b", "host:a"} {
		b.update(netstate.Link{Name: p, Master: new("host:br0")})
	}
	br, _ := b.observe(netstate.Link{Name: "host:br0"}).Link("host:br0")
	if !slices.Equal(br.Ports, []string{"a", "b"}) {
		t.Errorf("ports %v", br.Ports)
	}
	b.holds(netstate.Link{Name: "host:a", Master: new("host:br0")})
}

// A link of the host is found by its alternative name: no other link can take that
// name.
func TestHostLinkByAltName(t *testing.T) {
	b := newBench(t)
	b.create(dummy("host:eth1"))
	b.update(netstate.Device{ID: "if:eth1", AltNames: []string{"enp1s0"}})
	b.holds(netstate.Link{Name: "host:enp1s0", LinkKind: "dummy"})
	b.refused(fault.Conflict, netstate.Change{After: dummy("host:enp1s0")})
}

// Links of the sandbox whose parent or other end is on the host are observed with that
// name, and the other way round.
func TestNamesAcrossNamespaces(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("host:low")))
	for _, l := range []netstate.Link{
		{Name: "v0", LinkKind: "vlan", Parent: new("host:low"), VLAN: &netstate.VLAN{ID: new(uint16(5))}, Up: new(true)},
		{Name: "m0", LinkKind: "macvlan", Parent: new("host:low"), MACVLAN: &netstate.MACVLAN{Mode: new("bridge")}, Up: new(true)},
		{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("host:e1")}, Up: new(true)},
	} {
		b.create(l)
		b.holds(l)
	}
	b.holds(netstate.Link{Name: "host:e1", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("e0")}})
	// A parent in a third namespace has no name: it is in none of our namespaces.
	third := newBench(t)
	b.create(dummy("host:third"))
	b.create(netstate.Link{Name: "v1", LinkKind: "vlan", Parent: new("host:third"), VLAN: &netstate.VLAN{ID: new(uint16(5))}})
	third.Sandbox, _ = b.host.Sandbox(third.ns.path())
	defer third.Close()
	third.apply(third.move("if:third", "away"))
	if l, ok := b.observe().Link("v1"); !ok || l.Parent != nil {
		t.Errorf("got %+v", l)
	}
}

// Until 6.13 the kernel also looks up the name of a new link in the namespace of its
// parent.
func TestParentOnHostWithTheSameName(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("host:low")), dummy("host:net1"))
	link := netstate.Link{Name: "net1", LinkKind: "macvlan", Parent: new("host:low"), MACVLAN: &netstate.MACVLAN{Mode: new("bridge")}, MTU: new(uint32(1400)), Up: new(true)}
	b.create(link)
	b.holds(link)
	b.refused(fault.Conflict, netstate.Change{After: link}, "file exists")
	for _, l := range netstate.All[netstate.Link](b.observe()) {
		if strings.HasPrefix(l.Name, "pl") {
			t.Errorf("%s was left behind", l.Name)
		}
	}
}
