package kernel_test

import (
	"testing"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/topology/fault"
)

func TestAddresses(t *testing.T) {
	for _, place := range []string{"", "host:"} {
		b := newBench(t)
		link := place + "d0"
		b.create(up(dummy(link)))
		for _, a := range []netstate.Addr{
			{Address: "192.0.2.1/24"},
			{Address: "192.0.2.2/24"}, // a secondary
			{Address: "192.0.2.1/16"}, // the same address with another prefix
			{Address: "198.51.100.1/32"},
			{Address: "198.51.100.2/31"},
			{Address: "2001:db8::1/64", NoDAD: new(true)},
			{Address: "2001:db8::2/64", NoDAD: new(false)},
			{Address: "2001:db8::3/128"},
			{Address: "203.0.113.1/24", NoPrefixRoute: new(true)},
			{Address: "2001:db8:1::1/64", NoPrefixRoute: new(true), NoDAD: new(true)},
			{Address: "fe80::1234/64"},
		} {
			a.Link = link
			b.create(a)
			b.holds(a)
			if got, _ := netstate.Lookup(b.observe(a), a); got.Kernel {
				t.Errorf("%s counts as the kernel's", a.Key())
			}
			b.refused(fault.Conflict, netstate.Change{After: a}, "create address", a.Address, "file exists")
		}
		for _, a := range netstate.All[netstate.Addr](b.observe()) {
			if a.Kernel {
				continue
			}
			b.remove(a)
			b.absent(a)
			b.remove(a)
		}
		b.remove(netstate.Addr{Link: "nowhere", Address: "192.0.2.1/24"})
	}
}

// The kernel deletes a leased address when its time is over. The time can be changed; nothing else can be
// made or changed by that.
func TestLeasedAddresses(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("d0")))
	leased := netstate.Addr{Link: "d0", Address: "192.0.2.1/24", Expires: kernel.SinceBoot() + 1000}
	b.create(leased, netstate.Addr{Link: "d0", Address: "198.51.100.1/24"})
	b.holds(leased)
	b.refused(fault.NotReady, netstate.Change{After: netstate.Addr{Link: "d0", Address: "203.0.113.1/24", Expires: 1}}, "has expired")
	ends := func(a netstate.Addr) {
		t.Helper()
		a.Expires = kernel.SinceBoot() + 1
		if err := b.host.Prolong(b.ctx, b.ns.path(), b.NetnsID(), a); err != nil {
			t.Fatal(err)
		}
	}
	ends(netstate.Addr{Link: "d0", Address: "203.0.113.1/24"}) // does not exist
	ends(netstate.Addr{Link: "d0", Address: "198.51.100.1/24"})
	leased.Expires += 1000
	if err := b.host.Prolong(b.ctx, b.ns.path(), reconcile.NetnsID{Inode: 1}, leased); fault.Of(err) != fault.Gone {
		t.Errorf("in another namespace: %v", err)
	}
	if err := b.host.Prolong(b.ctx, b.ns.path(), b.NetnsID(), leased); err != nil {
		t.Error(err)
	}
	b.holds(leased)
	ends(leased)
	eventually.True(t, patience, "the kernel deletes the address", func() bool {
		_, there := b.observe().Get(leased.Key())
		return !there
	})
	b.holds(netstate.Addr{Link: "d0", Address: "198.51.100.1/24"})
	b.absent(netstate.Addr{Link: "d0", Address: "203.0.113.1/24"})
}

// Addresses that the kernel adds by itself are distinguished from those of a user.
func TestKernelAddresses(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("d0")))
	b.update(netstate.Link{Name: "lo", Up: new(true)})
	eventually.True(t, patience, "the link gets its link-local address", func() bool {
		for _, a := range netstate.All[netstate.Addr](b.observe()) {
			if !a.Kernel {
				t.Errorf("%s does not count as the kernel's", a.Key())
			}
			if a.Link == "d0" {
				return true
			}
		}
		return false
	})
	b.holds(netstate.Addr{Link: "lo", Address: "127.0.0.1/8"})
	b.holds(netstate.Addr{Link: "lo", Address: "::1/128"})
}

func TestAddressRefused(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("d0")), up(netstate.Link{Name: "small", LinkKind: "dummy", MTU: new(uint32(1200))}))
	create := func(link, address string) netstate.Change {
		return netstate.Change{After: netstate.Addr{Link: link, Address: address}}
	}
	b.refused(fault.NotReady, create("nowhere", "192.0.2.1/24"), `no link "nowhere" in the sandbox`)
	b.refused(fault.NotReady, create("host:nowhere", "192.0.2.1/24"), `no link "nowhere" on the host`)
	b.refused(fault.Invalid, create("d0", "192.0.2.1"), "not an address with a prefix")
	b.refused(fault.Invalid, create("small", "2001:db8::1/64"), "MTU of 1200", "1280")
	b.create(netstate.Sysctl{Path: "net/ipv6/conf/d0/disable_ipv6", Value: new("1")})
	b.refused(fault.Unsupported, create("d0", "2001:db8::1/64"), "IPv6 is disabled", "disable_ipv6")
}

// IPv6 has one prefix per address.
func TestAddressTakenWithOtherPrefix(t *testing.T) {
	b := newBench(t)
	b.create(up(dummy("d0")), netstate.Addr{Link: "d0", Address: "2001:db8::1/64"})
	b.refused(fault.Conflict, netstate.Change{After: netstate.Addr{Link: "d0", Address: "2001:db8::1/48"}})
}
