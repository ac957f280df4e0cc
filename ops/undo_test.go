package ops

import (
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestReturnsToHost holds which change of a device returns it to the host: undoing it moves
// the device, with all that belongs to its link.
func TestReturnsToHost(t *testing.T) {
	at := func(name string) netstate.Device { return netstate.Device{ID: "1", At: &name} }
	for name, c := range map[string]struct {
		change netstate.Change
		want   bool
	}{
		"returns":          {netstate.Change{Before: at("net1"), After: at(netstate.HostName("eth7"))}, true},
		"moves to the pod": {netstate.Change{Before: at(netstate.HostName("eth7")), After: at("net1")}, false},
		"is nowhere":       {netstate.Change{Before: netstate.Device{ID: "1"}, After: at("net1")}, false},
		"is none":          {netstate.Change{Before: netstate.Link{Name: "net1"}}, false},
	} {
		if have := returnsToHost(c.change); have != c.want {
			t.Errorf("a device that %s: %t", name, have)
		}
	}
}

// TestLinkMovedToHost: a link that the kernel has moved to the host at the end of the sandbox's namespace is deleted there, under its name
// or that of its index, if its alias says that it is ours. The host's own links stay.
func TestLinkMovedToHost(t *testing.T) {
	made := netstate.Link{Name: "ib0.8001", LinkKind: netstate.InfiniBandKind, Parent: new("host:ib0"), Index: 7}
	history := netstate.Coalesce(nil, netstate.Change{After: made}, netstate.Change{
		Before: netstate.Link{Name: made.Name, Alias: new("")}, After: netstate.Link{Name: made.Name, Alias: new("pl0")},
	})
	on := func(name, kind, alias string) netstate.Link {
		return netstate.Link{Name: netstate.HostName(name), LinkKind: kind, Parent: new("host:ib0"), Alias: &alias, Index: 41}
	}
	device := on("ib0.8001", made.LinkKind, "pl0")
	device.Parent = nil
	for name, c := range map[string]struct {
		host []netstate.Link
		want string
	}{
		"its name":          {[]netstate.Link{on("ib0.8001", made.LinkKind, "pl0")}, "- link host:ib0.8001"},
		"its name is taken": {[]netstate.Link{on("ib0.8001", made.LinkKind, ""), on("dev7", made.LinkKind, "pl0")}, "- link host:dev7"},
		"another's":         {[]netstate.Link{on("ib0.8001", made.LinkKind, "pl1"), on("dev7", made.LinkKind, "")}, ""},
		"a device's":        {[]netstate.Link{device}, ""},
		"another kind":      {[]netstate.Link{on("ib0.8001", "vlan", "pl0")}, ""},
		"it has ended":      {nil, ""},
	} {
		have := netstate.NewSnapshot()
		for _, l := range c.host {
			have.Put(l)
		}
		var changes []netstate.Change
		for range 3 {
			var missing []netstate.Object
			if changes, missing = Undo(have, history); len(missing) == 0 {
				break
			}
			for _, o := range missing {
				have.PutAbsent(o.Key())
			}
		}
		var said []string
		for _, change := range changes {
			said = append(said, change.String())
		}
		if got := strings.Join(said, "; "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestReachable holds which gateway the kernel would refuse: a plan with such a route
// could not be undone or applied again.
func TestReachable(t *testing.T) {
	now := netstate.NewSnapshot(
		netstate.Addr{Link: "net1", Address: "192.0.2.5/24"},
		netstate.Addr{Link: "net2", Address: "198.51.100.5/24"},
		netstate.Route{Link: "net1", Dst: "203.0.113.0/24", Table: netstate.TableMain},
		netstate.Route{Link: "net1", Dst: "10.0.0.0/8", Gateway: "192.0.2.1", Table: netstate.TableMain},
	)
	for name, c := range map[string]struct {
		route netstate.Route
		want  bool
	}{
		"in the subnet of an address":   {netstate.Route{Link: "net1", Gateway: "192.0.2.1"}, true},
		"of another link":               {netstate.Route{Link: "net1", Gateway: "198.51.100.1"}, false},
		"behind a route without":        {netstate.Route{Link: "net1", Gateway: "203.0.113.1"}, true},
		"behind a route with a gateway": {netstate.Route{Link: "net1", Gateway: "10.0.0.1"}, false},
		"said to be on the link":        {netstate.Route{Link: "net1", Gateway: "10.0.0.1", OnLink: new(true)}, true},
		"said not to be":                {netstate.Route{Link: "net1", Gateway: "10.0.0.1", OnLink: new(false)}, false},
		"IPv6":                          {netstate.Route{Link: "net1", Gateway: "2001:db8::1"}, true},
		"none":                          {netstate.Route{Link: "net1"}, true},
	} {
		if have := reachable(now, c.route); have != c.want {
			t.Errorf("a gateway %s: reachable %t", name, have)
		}
	}
}

// TestFallbackNames: a device whose own name is taken on the host gets the first name that is free there. The names of the host
// are known only if they were asked for.
func TestFallbackNames(t *testing.T) {
	for _, c := range []struct {
		home  string
		taken []string
		want  string
	}{
		{"eth2", nil, "eth2"},
		{"eth2", []string{"eth2"}, "eth2-1"},
		{"eth2", []string{"eth2", "eth2-1", "eth2-2"}, "eth2-3"},
		{"enp129s0f0v1234", strings.Fields("enp129s0f0v1234 enp129s0f0v12-1 enp129s0f0v12-2 enp129s0f0v12-3 enp129s0f0v12-4 enp129s0f0v12-5 enp129s0f0v12-6 enp129s0f0v12-7 enp129s0f0v12-8 enp129s0f0v12-9"), "enp129s0f0v1-10"},
	} {
		home, inside := netstate.HostName(c.home), "net1"
		history := []netstate.Change{{Before: netstate.Device{ID: "1", At: &home}, After: netstate.Device{ID: "1", At: &inside}}}
		have, host := netstate.NewSnapshot(netstate.Link{Name: inside, LinkKind: "device", DeviceID: "1"}, netstate.Device{ID: "1", At: &inside}), netstate.NewSnapshot()
		for _, name := range c.taken {
			host.Put(netstate.Link{Name: netstate.HostName(name), LinkKind: "dummy"})
		}
		var changes []netstate.Change
		for range 32 { // as planUndo in package reconcile
			var missing []netstate.Object
			if changes, missing = Undo(have, history); len(missing) == 0 {
				break
			}
			for _, o := range missing {
				have.PutAbsent(o.Key())
				if l, there := host.Get(o.Key()); there {
					have.Put(l)
				}
			}
		}
		if len(changes) != 1 || *changes[0].After.(netstate.Device).At != netstate.HostName(c.want) {
			t.Errorf("%s, where the host has %v, returns by %v, want the name %q", c.home, c.taken, changes, c.want)
			continue
		}
		// The next undo finds it there, and leaves it.
		if !have.Known(netstate.Link{Name: netstate.HostName(c.want)}) || c.want != c.home && !fallbackOf(netstate.HostName(c.want), home) {
			t.Errorf("%q is no fallback of %q", c.want, c.home)
		}
	}
	if fallbackOf(netstate.HostName("eth2-b"), netstate.HostName("eth2")) || fallbackOf(netstate.HostName("eth20-1"), netstate.HostName("eth2")) {
		t.Error("any name is a fallback")
	}
}

// TestSurvivor holds what of a link's is recreated: not what the kernel makes again. On the host only what NetworkManager has made
// in the kernel's name is recorded.
func TestSurvivor(t *testing.T) {
	home := netstate.HostName("eth2")
	now := netstate.NewSnapshot(netstate.Link{Name: "net1"}, netstate.Link{Name: home})
	route := func(link string, protocol int) netstate.Object {
		return netstate.Route{Link: link, Dst: "192.0.2.0/24", Table: netstate.TableMain, Metric: 100, Protocol: protocol}
	}
	for _, c := range []struct {
		o    netstate.Object
		want bool
	}{
		{route("net1", 4), true},
		{route("net1", netstate.RouteProtocolKernel), false},
		{route(home, netstate.RouteProtocolKernel), true},
		{route(netstate.HostName("eth3"), netstate.RouteProtocolKernel), false},
		{netstate.Addr{Link: home, Address: "192.0.2.5/24"}, true},
		{netstate.Addr{Link: home, Address: "fe80::5/64", Kernel: true}, false},
	} {
		if _, again := survivor(now, c.o); again != c.want {
			t.Errorf("%+v: recreated %t", c.o, again)
		}
	}
}
