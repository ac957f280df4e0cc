package kernel_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// TestRefusals provokes the kernel's refusals: each has its kind, names object
// and reason, ends with the kernel's message, and changes nothing.
func TestRefusals(t *testing.T) {
	type l = netstate.Link
	create := func(o l) netstate.Change { return netstate.Change{After: o} }
	update := func(name string, before, after l) netstate.Change {
		before.Name, after.Name = name, name
		return netstate.Change{Before: before, After: after}
	}
	vlan := func(name, parent string, id uint16) l {
		return l{Name: name, LinkKind: "vlan", Parent: &parent, VLAN: &netstate.VLAN{ID: &id}}
	}
	tunnel := func(name, parent string, id uint32, port uint16, up bool) l {
		return l{Name: name, LinkKind: "vxlan", Parent: &parent, Up: &up, VXLAN: &netstate.VXLAN{ID: &id, Port: &port, Family: new("ipv4"), Local: new("192.0.2.5")}}
	}
	b := newBench(t)
	for _, link := range []l{
		up(l{Name: "low", LinkKind: "dummy", MAC: new("02:00:00:00:00:01")}), dummy("down"), vlan("v1", "low", 1), vlan("v2", "down", 2),
		{Name: "bond0", LinkKind: "bond", Bond: &netstate.Bond{Mode: new("active-backup")}},
		up(dummy("busy")),
		{Name: "m0", LinkKind: "macvlan", Parent: new("low"), MACVLAN: &netstate.MACVLAN{Mode: new("bridge")}},
		{Name: "m1", LinkKind: "macvlan", Parent: new("low"), MAC: new("02:00:00:00:00:01"), MACVLAN: &netstate.MACVLAN{Mode: new("bridge")}},
		{Name: "blue", LinkKind: "vrf", VRF: &netstate.VRF{Table: new(uint32(100))}},
		tunnel("t1", "low", 1, 4789, false),
	} {
		b.create(link)
	}
	start := b.observe()
	for name, tc := range map[string]struct {
		change netstate.Change
		kind   fault.Kind
		words  []string
	}{
		"name taken":                {create(dummy("low")), fault.Conflict, []string{`create link "low"`, "file exists"}},
		"VLAN id taken":             {create(vlan("v3", "low", 1)), fault.Conflict, []string{`create link "v3"`, `VLAN 1 on "low" in the sandbox`, "file exists"}},
		"other end taken":           {create(l{Name: "e0", LinkKind: "veth", Veth: &netstate.Veth{Peer: new("low")}}), fault.Conflict, []string{`other end, "low" in the sandbox`, "file exists"}},
		"no parent":                 {create(vlan("v3", "nowhere", 3)), fault.NotReady, []string{`no link "nowhere" in the sandbox`}},
		"no parent on the host":     {create(vlan("v3", "host:nowhere", 3)), fault.NotReady, []string{`no link "nowhere" on the host`}},
		"parent not said":           {create(l{Name: "v3", LinkKind: "vlan"}), fault.Invalid, []string{"needs a parent"}},
		"parent is down":            {create(up(vlan("v3", "down", 3))), fault.NotReady, []string{`parent "down" in the sandbox is down`}},
		"MTU above parent's":        {create(l{Name: "v3", LinkKind: "vlan", Parent: new("low"), VLAN: &netstate.VLAN{ID: new(uint16(3))}, MTU: new(uint32(9000))}), fault.Invalid, []string{"mtu 9000 exceeds the 1500 of its parent"}},
		"MTU above parent's, later": {update("v1", l{MTU: new(uint32(1500))}, l{MTU: new(uint32(9000))}), fault.Invalid, []string{`update link "v1"`, "mtu 9000"}},
		"VLAN id 4095":              {create(vlan("v3", "low", 4095)), fault.Invalid, []string{"numerical result out of range"}},
		"ipvlan beside macvlan":     {create(l{Name: "i0", LinkKind: "ipvlan", Parent: new("low"), IPVLAN: &netstate.IPVLAN{Mode: new("l2")}}), fault.NotReady, []string{"device or resource busy"}},
		"macvlan's MAC taken":       {update("m1", l{Up: new(false)}, l{Up: new(true)}), fault.Conflict, []string{`update link "m1"`, `"low" in the sandbox or another macvlan of it`, "has mac 02:00:00:00:00:01", "address already in use"}},
		"VRF table 0":               {create(l{Name: "red", LinkKind: "vrf", VRF: &netstate.VRF{Table: new(uint32(0))}}), fault.Internal, []string{"Invalid VRF table id"}},
		"kind unknown to us":        {create(l{Name: "w", LinkKind: "wireguard"}), fault.Unsupported, []string{"wireguard"}},
		"device made":               {create(l{Name: "w", LinkKind: "device"}), fault.Unsupported, []string{"cannot be created"}},
		"mode unknown":              {create(l{Name: "b", LinkKind: "bond", Bond: &netstate.Bond{Mode: new("fast")}}), fault.Invalid, []string{`mode: "fast" is not one of balance-rr, active-backup`}},
		"MAC is none":               {create(l{Name: "d", LinkKind: "dummy", MAC: new("02:00")}), fault.Invalid, []string{"not a MAC address"}},
		"name too long":             {create(dummy("a-name-of-16-byte")), fault.Invalid, []string{"numerical result out of range"}},
		"MIIMon and ARP":            {create(l{Name: "b", LinkKind: "bond", Bond: &netstate.Bond{Mode: new("active-backup"), MIIMonMillis: new(uint32(100)), ARPIntervalMs: new(uint32(100))}}), fault.Internal, []string{"MII monitoring"}},
		"port is up":                {update("busy", l{Master: new("")}, l{Master: new("bond0")}), fault.NotReady, []string{"a bond takes only a port that is down"}},
		"no master":                 {update("busy", l{Master: new("")}, l{Master: new("nowhere")}), fault.NotReady, []string{`no link "nowhere"`}},
		"master elsewhere":          {update("busy", l{Master: new("")}, l{Master: new("host:bond0")}), fault.Invalid, []string{"different namespaces"}},
		"up above down":             {update("v2", l{Up: new(false)}, l{Up: new(true)}), fault.NotReady, []string{"the link below it is down"}},
		"VXLAN id taken":            {create(tunnel("t2", "low", 1, 4789, false)), fault.Conflict, []string{`create link "t2"`, "VXLAN 1 on UDP port 4789", "file exists"}},
		"VXLAN id changed":          {update("t1", l{VXLAN: &netstate.VXLAN{ID: new(uint32(1))}}, l{VXLAN: &netstate.VXLAN{ID: new(uint32(9))}}), fault.Invalid, []string{"recreated"}},
		"VXLAN to a name":           {update("t1", l{VXLAN: &netstate.VXLAN{Local: new("192.0.2.5")}}, l{VXLAN: &netstate.VXLAN{Local: new("node-7")}}), fault.Invalid, []string{`local: "node-7" is not an IP address`}},
		"VXLAN without room":        {update("t1", l{MTU: new(uint32(1450))}, l{MTU: new(uint32(1451))}), fault.Invalid, []string{`update link "t1"`, "mtu 1451 and 50 bytes of headers exceed the 1500 of its parent", "invalid argument"}},
		"VLAN id changed":           {update("v1", l{VLAN: &netstate.VLAN{ID: new(uint16(1))}}, l{VLAN: &netstate.VLAN{ID: new(uint16(9))}}), fault.Invalid, []string{"recreated"}},
		"VRF table changed":         {update("blue", l{VRF: &netstate.VRF{Table: new(uint32(100))}}, l{VRF: &netstate.VRF{Table: new(uint32(9))}}), fault.Invalid, []string{"recreated"}},
		"no such link":              {update("nowhere", l{}, l{Up: new(true)}), fault.NotReady, []string{`update link "nowhere"`, "no link"}},
		"lo into a VRF":             {update("lo", l{Master: new("")}, l{Master: new("blue")}), fault.Unsupported, []string{"operation not supported"}},
		"a part of an update":       {update("busy", l{MTU: new(uint32(1500)), TxQueueLen: new(uint32(1000)), Master: new(""), Alias: new("")}, l{MTU: new(uint32(1400)), TxQueueLen: new(uint32(1)), Alias: new("x"), Master: new("bond0")}), fault.NotReady, []string{"port that is down"}},
		"what comes after birth":    {create(l{Name: "d", LinkKind: "dummy", Port: &netstate.Port{Hairpin: new(true)}}), fault.Unsupported, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b.TB = t
			b.refused(tc.kind, tc.change, tc.words...)
			same(t, start, b.observe())
		})
	}
}
