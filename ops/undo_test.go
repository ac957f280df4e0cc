package ops

import (
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
