package addresspool

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/topology"
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
	flat := layout(t, Spec{Subnets: []SubnetSpec{{Prefix: "192.0.2.0/24", Gateway: "192.0.2.1"}}})
	divided := layout(t, Spec{Subnets: []SubnetSpec{{Prefix: "192.0.2.0/24"}, {Prefix: "2001:db8::/120"}}, HostBlock: 4, InterfaceBlock: 1})
	for _, c := range []struct {
		of   *Layout
		p    string
		want bool
	}{
		{flat, "192.0.2.7/32", true}, {flat, "192.0.2.8/32", true}, {flat, "192.0.2.1/32", false}, {flat, "192.0.2.255/32", false},
		{divided, "192.0.2.7/32", false}, {divided, "192.0.2.8/32", false}, {divided, "192.0.2.9/32", true}, {divided, "192.0.2.6/32", true},
		{divided, "192.0.2.8/30", true}, {divided, "2001:db8::7/128", true}, {divided, "2001:db8::8/128", false},
		{divided, "198.51.100.9/32", false},
	} {
		if _, got := c.of.Gives(netip.MustParsePrefix(c.p).Masked()); got != c.want {
			t.Errorf("hostBlock %d: %s may be a pod's: %v, want %v", c.of.hostBits, c.p, got, c.want)
		}
	}
}
