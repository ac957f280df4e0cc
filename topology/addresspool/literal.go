package addresspool

import (
	"net"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/topology"
)

// Literals is a layout without blocks of its own: each address that is written in a
// topology is one, which a node leases when a claim needs it.
func Literals() *Layout { return &Layout{Name: topology.LiteralPool, literal: true} }

// Literal returns the grant of a claim's literal addresses.
func Literal(claim, of, pod string, addresses []netip.Addr) Grant {
	g := Grant{Owner: Owner{Claim: claim}, Of: of, Pod: pod, Pool: topology.LiteralPool}
	for _, a := range addresses {
		g.Addresses = append(g.Addresses, single(a))
	}
	return g
}

// macs is where MAC addresses are among literal ones: in multicast addresses of the reserved scope 0 (RFC 4291, section 2.7),
// which no interface has and no pool allocates.
var macs = netip.MustParsePrefix("ff00::/80")

// OfMAC returns what stands for a MAC address of 6 octets among literal addresses, so that one pod has it at a time.
func OfMAC(mac net.HardwareAddr) netip.Addr {
	b := macs.Addr().As16()
	copy(b[10:], mac)
	return netip.AddrFrom16(b)
}

// LiteralText names a literal address, or the MAC address that it stands for.
func LiteralText(a netip.Addr) string {
	if b := a.As16(); macs.Contains(a) {
		return "MAC address " + net.HardwareAddr(b[10:]).String()
	}
	return "address " + a.String()
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// AddLiteral records what a claim has of literal addresses, in addition to what is recorded
// already, and reports whether that has changed anything.
func (h *Holdings) AddLiteral(g Grant) (changed bool) {
	if len(g.Addresses) == 0 {
		return false
	}
	i := slices.IndexFunc(h.Grants, func(have Grant) bool { return have.Owner == g.Owner })
	if i < 0 {
		h.Grants = append(h.Grants, g)
		return true
	}
	have := &h.Grants[i]
	for _, a := range g.Addresses {
		if !slices.Contains(have.Addresses, a) {
			have.Addresses, changed = append(have.Addresses, a), true
		}
	}
	if have.Pod != g.Pod {
		have.Pod, changed = g.Pod, true
	}
	return changed
}

// WithLiteral returns what claims have of a literal address: several only if they had it
// before it was leased.
func (h *Holdings) WithLiteral(a netip.Addr) []Grant {
	var out []Grant
	for _, g := range h.Grants {
		if g.Pool == topology.LiteralPool && slices.Contains(g.Addresses, single(a)) {
			out = append(out, g)
		}
	}
	return out
}

// Lease returns the UID of the lease of a literal address; none if the node has none.
func (h *Holdings) Lease(a netip.Addr) string {
	if i := h.index(topology.LiteralPool, single(a)); i >= 0 && !h.Blocks[i].Lost {
		return h.Blocks[i].Lease
	}
	return ""
}

// Unleased returns the literal addresses that claims have without a lease of this node.
func (h *Holdings) Unleased() []netip.Addr {
	var out []netip.Addr
	for _, g := range h.Grants {
		for _, a := range g.Addresses {
			if g.Pool == topology.LiteralPool && h.Lease(a.Addr()) == "" && !slices.Contains(out, a.Addr()) {
				out = append(out, a.Addr())
			}
		}
	}
	return out
}
