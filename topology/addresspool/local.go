package addresspool

import (
	"fmt"
	"net/netip"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// maxRanges bounds the ranges of a pool in the spelling of host-local.
const maxRanges = 16

// Local reads ipam of type host-local. The layout has no blocks: all of it is the node's. As
// in the CNI plugin, a gateway that is not given is the first address of its subnet. Each
// error has the path of its field in ipam.
func Local(c topology.IPAM) (*Layout, error) {
	l := &Layout{Name: topology.LocalPool, local: true}
	wrong := &problems{}
	of := map[bool]int{} // the set that a family is of
	sets, n := c.Sets(), 0
	for i, set := range sets {
		for j, r := range set {
			at := fmt.Sprintf("ranges[%d][%d].", i, j)
			if len(sets) > len(c.Ranges) {
				if at = ""; i > 0 {
					at = fmt.Sprintf("ranges[%d][%d].", i-1, j)
				}
			}
			if n++; n > maxRanges {
				return nil, fieldError("ranges", "has more than %d", maxRanges)
			}
			s, err := readSubnet(v1alpha1.AddressSubnet{Prefix: r.Subnet, First: r.RangeStart, Last: r.RangeEnd, Gateway: r.Gateway},
				fields{at + "subnet", at + "rangeStart", at + "rangeEnd", at + "gateway"})
			if err != nil {
				wrong.addError("", err)
				continue
			}
			if s.prefix.Addr().BitLen()-s.prefix.Bits() < 2 && !s.gateway.IsValid() {
				wrong.add(at+"subnet",
					"%q is too small: its first address is the gateway's. Name another as gateway, or use a larger subnet", s.prefix)
				continue
			}
			if !s.gateway.IsValid() {
				s.gateway = s.prefix.Addr().Next()
			}
			if other, has := of[s.is4()]; has && other != i {
				wrong.add(at+"subnet", "%q is of the family of another set: a step gets one address of each family. "+
					"Put both into one set, or use a second step", s.prefix)
				continue
			}
			of[s.is4()] = i
			for k := range l.subnets {
				if l.subnets[k].span.Overlaps(s.span) {
					wrong.add(at+"subnet", "shares addresses with %s: %q", l.subnets[k].prefix, s.prefix)
				}
			}
			l.subnets = append(l.subnets, s)
		}
	}
	if n == 0 {
		wrong.add("subnet", "is missing: host-local needs subnet, or ranges with a subnet each")
	}
	excludes := l.readExcludes(c.Exclude, wrong)
	if len(*wrong) > 0 {
		return nil, wrong.err()
	}
	l.exclude(excludes, wrong, func(int) string { return "subnet" })
	if len(*wrong) > 0 {
		return nil, wrong.err()
	}
	return l, nil
}

// Kept returns those of the addresses that a pool of a node would give, or would if they were not excluded, with the
// prefix lengths that it gives them now. There is none of a family that has no address of these: another one would be given.
func (l *Layout) Kept(addresses []netip.Prefix) (out []netip.Prefix) {
	for _, is4 := range l.Families() {
		a := netip.Prefix{}
		for _, p := range addresses {
			for s := range l.of(is4) {
				if s.span.Contains(p.Addr()) && p.Addr() != s.gateway {
					a = netip.PrefixFrom(p.Addr(), s.prefix.Bits())
				}
			}
		}
		out = append(out, a)
	}
	return out
}

// ranges returns what a node allocates of one family: of its blocks, or of a pool of its own.
func (h *Holdings) ranges(l *Layout, is4 bool, iface int) []Range {
	var out []Range
	if l.local {
		for s := range l.of(is4) {
			out = append(out, Range{s.span, s.prefix.Bits(), l.excludes})
		}
		return out
	}
	for _, b := range h.Blocks {
		if b.Pool != l.Name || b.Lost || b.For != "" || b.Kept != nil {
			continue
		}
		// A block of another family, or of a pool of this name that was divided otherwise,
		// has nothing to give.
		if r, err := l.Range(b.Block, is4, iface); err == nil {
			out = append(out, r)
		}
	}
	return out
}
