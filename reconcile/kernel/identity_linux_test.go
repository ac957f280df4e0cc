package kernel

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// hw is a link as the kernel reports one of hardware.
func hw(index int, change func(*ifLink)) ifLink {
	w := ifLink{link: netstate.Link{Name: "x", LinkKind: "device", Index: index, Alias: new("")}, lowerNS: -1}
	if change != nil {
		change(&w)
	}
	return w
}

func on(bus, parent string) func(*ifLink) {
	return func(w *ifLink) { w.bus, w.parent = bus, parent }
}

func TestIsDevice(t *testing.T) {
	const vf = "0000:01:10.2"
	sb := &Sandbox{host: &Host{sysfs: sysfs{t.TempDir()}}}
	inside, outside := &conn{}, &conn{host: true}
	function := netstate.Device{ID: vf}
	vmbus := netstate.Device{ID: "if:eth1", LinkKind: "device", Parent: "vmbus/0000-11", PermMAC: "02:00:00:00:00:01", At: new("net1"), Index: 7}
	platform := netstate.Device{ID: "if:eth1", LinkKind: "device", PermMAC: "02:00:00:00:00:01", At: new("net1"), Index: 7}
	made := netstate.Device{ID: "if:d0", LinkKind: "dummy", At: new("net1"), Index: 7, HostIndex: 5}
	arriving := netstate.Device{ID: "if:d0", LinkKind: "dummy", At: new("x"), HostIndex: 5}
	old := netstate.Device{ID: "if:eth1", At: new("net1"), HostIndex: 5}
	alias := func(w *ifLink) { w.link.Alias, w.link.AltNames = new("plumbline:"+vf), []string{vf} }
	of := func(kind string, index int) ifLink {
		return hw(index, func(w *ifLink) { w.link.LinkKind = kind; alias(w) })
	}
	named := func(name string, w ifLink) ifLink {
		w.link.Name = name
		return w
	}
	address := func(f func(*ifLink), perm string) func(*ifLink) {
		return func(w *ifLink) { f(w); w.permMAC = perm }
	}
	for name, tc := range map[string]struct {
		c    *conn
		w    ifLink
		d    netstate.Device
		want bool
	}{
		"function":                           {inside, hw(3, on("pci", vf)), function, true},
		"function with an alias of another":  {inside, hw(3, func(w *ifLink) { on("pci", vf)(w); w.link.Alias = new("plumbline:nobody") }), function, true},
		"another function":                   {inside, hw(3, on("pci", "0000:01:10.3")), function, false},
		"a tap that looks like it":           {inside, of("tun", 3), function, false},
		"hardware that looks like it":        {inside, hw(3, alias), function, false},
		"InfiniBand":                         {inside, hw(3, func(w *ifLink) { on("pci", vf)(w); w.link.LinkKind = "ipoib" }), function, true},
		"a partition made on it":             {inside, hw(3, func(w *ifLink) { on("pci", vf)(w); w.link.LinkKind = "ipoib"; w.lower = 2 }), function, false},
		"its representor":                    {inside, hw(3, func(w *ifLink) { on("pci", vf)(w); w.portName = "pf0vf1" }), function, false},
		"its uplink":                         {inside, hw(3, func(w *ifLink) { on("pci", vf)(w); w.portName = "p0" }), function, true},
		"paravirtual":                        {inside, hw(9, address(on("vmbus", "0000-11"), "02:00:00:00:00:01")), vmbus, true},
		"paravirtual on another bus address": {inside, hw(7, address(on("vmbus", "0000-12"), "02:00:00:00:00:01")), vmbus, false},
		"paravirtual, a tap":                 {inside, of("tun", 7), vmbus, false},
		"without parent":                     {inside, hw(7, address(on("", ""), "02:00:00:00:00:01")), platform, true},
		"without parent, of another address": {inside, hw(7, address(on("", ""), "02:00:00:00:00:02")), platform, false},
		"without parent, a dummy":            {inside, of("dummy", 7), platform, false},
		"made":                               {inside, of("dummy", 7), made, true},
		"made, of another index":             {inside, of("dummy", 8), made, false},
		"made, of another kind":              {inside, of("veth", 7), made, false},
		"made, with its former index":        {inside, of("dummy", 5), made, false},
		"made, back on the host":             {outside, of("dummy", 5), made, true},
		"made, arriving with its index":      {inside, of("dummy", 5), arriving, true},
		"made, arriving with another":        {inside, of("dummy", 6), arriving, true}, // it has the name
		"old record":                         {inside, hw(5, nil), old, true},
		"old record, another index":          {inside, hw(7, nil), old, false},
		"old record, a tap":                  {inside, of("tun", 5), old, false},
		"old record, a veth of that name":    {inside, named("net1", of("veth", 5)), old, true},
		"old record, the pod's own veth":     {inside, named("eth0", of("veth", 5)), old, false},
		"old record, another veth renamed":   {inside, named("net1", of("veth", 6)), old, false},
		"no record":                          {inside, hw(5, nil), netstate.Device{ID: "if:eth1"}, false},
	} {
		if got := sb.isDevice(tc.c, tc.w, tc.d); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Several links of one function: the record's permanent address and index identify the
// device; without them nothing is assumed.
func TestSeveralLinksOfOneFunction(t *testing.T) {
	const pf = "0000:03:00.0"
	sb := &Sandbox{host: &Host{sysfs: sysfs{t.TempDir()}}}
	port := func(index int, perm string) ifLink {
		return hw(index, func(w *ifLink) { on("pci", pf)(w); w.permMAC = perm })
	}
	links := []ifLink{port(3, "02:00:00:00:00:01"), port(4, "02:00:00:00:00:02"), hw(9, nil), port(5, "02:00:00:00:00:02")}
	for index, d := range map[int]netstate.Device{
		3: {ID: pf, PermMAC: "02:00:00:00:00:01", Index: 5},
		5: {ID: pf, PermMAC: "02:00:00:00:00:02", Index: 5},
		4: {ID: pf, Index: 4},
	} {
		p, err := sb.among(&conn{}, links, d)
		if err != nil || p == nil || p.w.link.Index != index {
			t.Errorf("want %d, got %+v, %v", index, p, err)
		}
	}
	veth := func(index int, name string) ifLink {
		return hw(index, func(w *ifLink) { w.link.Name, w.link.LinkKind = name, "veth" })
	}
	cutOff := netstate.Device{ID: "if:v0", LinkKind: "veth", At: new("net1"), HostIndex: 3}
	if p, err := sb.among(&conn{}, []ifLink{veth(3, "eth0"), veth(8, "net1")}, cutOff); err != nil || p == nil || p.w.link.Index != 8 {
		t.Errorf("its index was the pod's already: got %+v, %v", p, err)
	}
	if p, err := sb.among(&conn{}, links, netstate.Device{ID: pf}); p != nil || fault.Of(err) != fault.Conflict {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err := sb.among(&conn{}, links, netstate.Device{ID: "0000:04:00.0"}); p != nil || err != nil {
		t.Errorf("got %+v, %v", p, err)
	}
}
