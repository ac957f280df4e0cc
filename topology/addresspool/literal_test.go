package addresspool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestLiterals holds who has a literal address, and that its lease is idle when nobody has
// it any more.
func TestLiterals(t *testing.T) {
	l := Literals()
	x, y := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
	h := &Holdings{}
	if !h.AddLiteral(Literal("a", "ns/a", "ns/pod-a", []netip.Addr{x})) || h.AddLiteral(Literal("a", "ns/a", "ns/pod-a", []netip.Addr{x})) {
		t.Error("a claim is recorded not once")
	}
	if !h.AddLiteral(Literal("a", "ns/a", "ns/pod-a", []netip.Addr{y})) || h.AddLiteral(Literal("b", "ns/b", "ns/pod-b", nil)) {
		t.Error("an address of an edit is not recorded, or none is")
	}
	if got := h.Unleased(); !slices.Equal(got, []netip.Addr{x, y}) {
		t.Errorf("without a lease are %v", got)
	}
	for _, a := range []netip.Addr{x, y} {
		if err := l.Holds(single(a)); err != nil {
			t.Error(err)
		}
		h.Gain(l, single(a), "uid-"+a.String())
	}
	if got := h.Unleased(); len(got) > 0 || h.Lease(y) != "uid-2001:db8::9" {
		t.Errorf("with leases, without a lease are %v", got)
	}
	h.Lose(topology.LiteralPool, single(y))
	if got := h.Unleased(); !slices.Equal(got, []netip.Addr{y}) || h.Lease(y) != "" {
		t.Errorf("with one that is lost, without a lease are %v", got)
	}
	h.Gain(l, single(y), "again")
	h.AddLiteral(Literal("b", "ns/b", "ns/pod-b", []netip.Addr{x})) // it had the address before it was leased
	if got := h.WithLiteral(x); len(got) != 2 || got[1].Pod != "ns/pod-b" {
		t.Errorf("the address is that of %v", got)
	}
	h.GiveBack("a", 0, rest(0))
	if got := h.Idle(topology.LiteralPool, 0); len(got) != 1 || got[0].Block != single(y) {
		t.Errorf("idle are %v", got)
	}
	h.GiveBack("b", 0, rest(0))
	if got := h.Idle(topology.LiteralPool, 0); len(got) != 2 || !h.Drop(topology.LiteralPool, single(x), 0) || h.Lease(x) != "" {
		t.Errorf("idle are %v", got)
	}
	if err := l.Holds(netip.MustParsePrefix("192.0.2.0/31")); err == nil {
		t.Error("a block of two addresses is a literal")
	}
}

// TestGives holds which addresses of a pool pods may get: with hostBlock not the first and the last one of a node's
// block, so that a literal address can be one of these.
func TestGives(t *testing.T) {
	flat := layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", Gateway: "192.0.2.1"}}})
	divided := layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}, {Prefix: "2001:db8::/120"}}, HostBlock: 4, InterfaceBlock: 1})
	for _, c := range []struct {
		of   *Layout
		p    string
		want bool
	}{
		{flat, "192.0.2.7/32", true},
		{flat, "192.0.2.8/32", true},
		{flat, "192.0.2.1/32", false},
		{flat, "192.0.2.255/32", false},
		{divided, "192.0.2.7/32", false},
		{divided, "192.0.2.8/32", false},
		{divided, "192.0.2.9/32", true},
		{divided, "192.0.2.6/32", true},
		{divided, "192.0.2.8/30", true},
		{divided, "2001:db8::7/128", true},
		{divided, "2001:db8::8/128", false},
		{divided, "198.51.100.9/32", false},
	} {
		if _, got := c.of.Gives(netip.MustParsePrefix(c.p).Masked()); got != c.want {
			t.Errorf("hostBlock %d: %s may be a pod's: %v, want %v", c.of.hostBits, c.p, got, c.want)
		}
	}
}

// TestEnough holds which numbers of steps a pool can give addresses to at all: as many as an empty node with all blocks it
// may have gives.
func TestEnough(t *testing.T) {
	for _, c := range []struct {
		spec  Spec
		iface int
		most  int
		says  string
	}{
		{Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/29", Gateway: "192.0.2.1"}}}, 0, 5, `AddressPool "pool" has 5 IPv4 addresses, and 6 steps of a pod take one each`},
		{Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}, {Prefix: "2001:db8::/126"}}}, 0, 3, `AddressPool "pool" has 3 IPv6 addresses, and 4 steps of a pod take one each`},
		{Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}}, HostBlock: 5, InterfaceBlock: 0}, 0, 6, `AddressPool "pool" has 6 IPv4 addresses for each node, on interface 0, and 7 steps of a pod take one each`},
		{Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}, {Prefix: "2001:db8::/120"}}, HostBlock: 5, InterfaceBlock: 1}, 1, 2, `AddressPool "pool" has 2 IPv4 addresses for each node, on interface 1, and 3 steps of a pod take one each`},
	} {
		l := layout(t, c.spec)
		h := &Holdings{}
		g := l.Groups()
		for i := range g {
			for b := range g[i].Len() {
				if block, usable := g[i].At(b); usable && (l.Flat() || len(h.Blocks) == 0) {
					h.Gain(l, block, "uid")
				}
			}
		}
		var ifaces []int
		for n := range c.most {
			ifaces = append(ifaces, c.iface)
			if _, err := h.Take(l, Owner{Step: fmt.Sprint(n)}, c.iface, 0); err != nil || l.Enough(ifaces) != nil {
				t.Errorf("step %d of %d: %v, %v", n, c.most, err, l.Enough(ifaces))
			}
		}
		_, err := h.Take(l, Owner{Step: "more"}, c.iface, 0)
		if enough := l.Enough(append(ifaces, c.iface)); !errors.Is(err, ErrNone) || enough == nil || enough.Error() != c.says {
			t.Errorf("more than %d steps: %v, %v", c.most, err, enough)
		}
		if err := l.Enough([]int{l.Interfaces()}); !errors.Is(err, errInterface) {
			t.Errorf("interface %d: %v", l.Interfaces(), err)
		}
	}
}
