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
