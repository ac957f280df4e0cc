package hostports

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
)

// TestLostPorts holds which ports of the host nobody has: of whose record nothing is known, not even
// by a record of another version, and that lead to an address which a sandbox has without them, or none.
func TestLostPorts(t *testing.T) {
	port := func(host, to string) netstate.PortMapping { return netstate.PortMapping{Host: host, To: &to} }
	created := func(objects ...netstate.Object) (r reconcile.Record) {
		for _, o := range objects {
			r.History = append(r.History, netstate.Change{After: o})
		}
		return r
	}
	records := []reconcile.Record{
		created(netstate.Addr{Link: "eth0", Address: "192.0.2.5/24"}, port("0.0.0.0:80/tcp", "192.0.2.5:80")),
		created(netstate.Addr{Link: "eth0", Address: "192.0.2.6/24"}, netstate.Addr{Link: netstate.HostName("br0"), Address: "192.0.2.1/24"}),
		created(netstate.Addr{Link: "eth0", Address: "2001:db8::6/64"}),
		{History: []netstate.Change{{Before: port("0.0.0.0:90/tcp", "192.0.2.9:80")}}}, // being released
	}
	others := []*frame.OtherVersion{{Mentions: map[string]bool{"0.0.0.0:91/tcp": true}}}
	unused := func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.9") }
	for what, c := range map[string]struct {
		netstate.PortMapping
		lost bool
	}{
		"recorded":                                   {port("0.0.0.0:80/tcp", "192.0.2.5:80"), false},
		"recorded, and led elsewhere by others":      {port("0.0.0.0:80/tcp", "192.0.2.9:80"), false},
		"being released":                             {port("0.0.0.0:90/tcp", "192.0.2.9:80"), false},
		"recorded by another version":                {port("0.0.0.0:91/tcp", "192.0.2.9:80"), false},
		"recorded so, of an address of another":      {port("0.0.0.0:91/tcp", "192.0.2.6:80"), true},
		"of an address that is used without records": {port("0.0.0.0:92/tcp", "192.0.2.8:80"), false},
		"of an address of the host":                  {port("0.0.0.0:93/tcp", "192.0.2.1:80"), false},
		"of an unused address":                       {port("0.0.0.0:80/udp", "192.0.2.9:80"), true},
		"of an address of another":                   {port("0.0.0.0:94/tcp", "192.0.2.6:80"), true},
		"of an address of another, in IPv6":          {port("[::]:94/tcp", "[2001:db8::6]:80"), true},
		"another port of one that has some":          {port("192.0.2.1:80/tcp", "192.0.2.5:80"), true},
	} {
		var want []netstate.PortMapping
		if c.lost {
			want = []netstate.PortMapping{c.PortMapping}
		}
		if got := lostPorts([]netstate.PortMapping{c.PortMapping}, records, others, unused); !reflect.DeepEqual(got, want) {
			t.Errorf("a port %s: lost are %v, want %v", what, got, want)
		}
	}
}

// TestLostGuards holds which guards of ports nobody has: no record, not even one of another version.
func TestLostGuards(t *testing.T) {
	guard := func(port string) netstate.PortGuard { return netstate.PortGuard{Port: port} }
	guards := []netstate.PortGuard{guard("created"), guard("released"), guard("mentioned"), guard("lost")}
	records := []reconcile.Record{{History: []netstate.Change{{After: guard("created")}, {Before: guard("released")}}}}
	got := lostGuards(guards, records, []*frame.OtherVersion{{Mentions: map[string]bool{"mentioned": true}}})
	if want := []netstate.PortGuard{guard("lost")}; !reflect.DeepEqual(got, want) {
		t.Errorf("lost are %v, want %v", got, want)
	}
}
