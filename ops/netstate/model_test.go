package netstate_test

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestLastAddress holds what goes along with an IPv4 address, and what does not.
func TestLastAddress(t *testing.T) {
	one, two := netstate.Addr{Link: "data0", Address: "192.0.2.5/24"}, netstate.Addr{Link: "data0", Address: "192.0.2.6/24"}
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
