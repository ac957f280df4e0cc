package kernel

import (
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// TestScopesOfIPv6Routes: the kernel has no scopes of IPv6 routes, and a topology that names one is applied all the same.
func TestScopesOfIPv6Routes(t *testing.T) {
	l, path := newLane(t), newNetns(t)
	sb := box(path, parse(t, "t", `
    - {name: d, type: dummy, config: {name: d0, addresses: [{address: "2001:db8::5/64", gateway: "2001:db8::1"}], routes: [{dst: "2001:db8:1::/64", scope: link}, {dst: "2001:db8:2::/64", scope: host}, {dst: "ff00::/8", table: 1001, metric: 7}]}}
`))
	start, r := l.state(path), l.engine(nil)
	if _, err := r.Ensure(ctxFor(t), sb); err != nil {
		t.Fatal(err)
	}
	l.inSync(r, sb.ID)
	if _, err := r.Release(ctxFor(t), sb.ID); err != nil {
		t.Fatal(err)
	}
	l.mustEqual(start, path, "released")
}

// TestSecondaryAddresses: without promote_secondaries the kernel deletes, with an IPv4 address, those that were added later in
// its network, and with the last address all routes. What a program of the pod has of them stays when an address of ours changes.
func TestSecondaryAddresses(t *testing.T) {
	for _, promote := range []string{"0", "1"} {
		t.Run("promote_secondaries "+promote, func(t *testing.T) {
			steps := func(address string) string {
				return `
- {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01", addresses: [` + address + `]}}
`
			}
			p := updateCase{before: steps("192.0.2.5/24")}.attached(t)
			address := netstate.Addr{Link: "d0", Address: "192.0.2.100/24"}
			route := netstate.Route{Link: "d0", Dst: "198.51.100.0/24", Gateway: "192.0.2.1", Table: netstate.TableMain, Source: new("192.0.2.100")}
			setting := netstate.Sysctl{Path: "net/ipv4/conf/d0/promote_secondaries", Value: &promote}
			all := netstate.Sysctl{Path: "net/ipv4/conf/all/promote_secondaries", Value: new("0")}
			p.disturb(p.path, netstate.Change{After: all}, netstate.Change{After: setting}, netstate.Change{After: address}, netstate.Change{After: route})
			p.updated(steps("192.0.2.6/24"))
			now := p.state(p.path)
			for _, o := range []netstate.Object{address, route, netstate.Addr{Link: "d0", Address: "192.0.2.6/24"}} {
				if _, there := now.Get(o.Key()); !there {
					t.Errorf("%s is gone", o.Key())
				}
			}
			p.holds("updated", 2, now)
			if _, err := p.engine(nil).Release(ctxFor(t), p.sandbox); err != nil {
				t.Fatal(err)
			}
			if left := netstate.All[netstate.Addr](p.state(p.path)); len(left) > 0 {
				t.Errorf("released, and the sandbox has %v", left)
			}
		})
	}
}
