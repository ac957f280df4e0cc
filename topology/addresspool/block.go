package addresspool

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/plumbline/plumbline/topology"
)

// Flat reports whether a node takes as many blocks as it needs. Otherwise it has one.
func (l *Layout) Flat() bool { return l.hostBits == 0 }

// Interfaces is the number of parts that a node's block has.
func (l *Layout) Interfaces() int { return 1 << l.ifBits }

// Single reports whether a block of the pool is one address, so that a lease is of that alone.
func (l *Layout) Single() bool {
	return l.Flat() && slices.ContainsFunc(l.subnets, func(s subnet) bool { return s.blockBits == 0 })
}

// Families are the families of addresses in the pool: is it IPv4?
func (l *Layout) Families() []bool {
	var out []bool
	for _, is4 := range []bool{true, false} {
		if slices.ContainsFunc(l.subnets, func(s subnet) bool { return s.is4() == is4 }) {
			out = append(out, is4)
		}
	}
	return out
}

// Groups are the sorts of blocks of which a node needs one each: one per family in a
// flat pool. Otherwise a block is of both families.
func (l *Layout) Groups() []Group {
	if !l.Flat() {
		return []Group{{l, l.subnets[0].is4()}}
	}
	var out []Group
	for _, is4 := range l.Families() {
		out = append(out, Group{l, is4})
	}
	return out
}

// Group is a sequence of blocks.
type Group struct {
	layout *Layout
	is4    bool
}

// GroupOf returns the group whose blocks have addresses of a family.
func GroupOf(l *Layout, is4 bool) Group {
	groups := l.Groups()
	if i := slices.IndexFunc(groups, func(g Group) bool { return g.is4 == is4 }); i >= 0 {
		return groups[i]
	}
	return groups[0] // a block is of both families
}

// IPv4 reports of which family the names of the group's blocks are.
func (g Group) IPv4() bool { return g.is4 }

// count is the number of blocks of a subnet, 0 for too many.
func (l *Layout) count(s *subnet) uint64 {
	if !l.Flat() {
		return 1 << l.hostBits
	}
	first := numberOf(s.span.First).shiftRight(s.blockBits)
	n := numberOf(s.span.Last).shiftRight(s.blockBits).minus(first)
	if n.hi != 0 || n.lo >= 1<<maxBlockBits {
		return 0
	}
	return n.lo + 1
}

// Len is the number of blocks, with those that have nothing to give.
func (g Group) Len() uint64 {
	var n uint64
	for s := range g.layout.of(g.is4) {
		n = min(n+g.layout.count(s), math.MaxInt64)
	}
	return n
}

// before is the number of blocks of a family in the subnets before one.
func (l *Layout) before(s *subnet) (n uint64) {
	for o := range l.of(s.is4()) {
		if o == s {
			break
		}
		n += l.count(o)
	}
	return n
}

// At returns a block. It is not usable if everything in it is excluded.
func (g Group) At(index uint64) (block netip.Prefix, usable bool) {
	l := g.layout
	for s := range l.of(g.is4) {
		if n := l.count(s); index >= n {
			index -= n
			continue
		}
		if l.Flat() {
			at := numberOf(s.span.First).shiftRight(s.blockBits).plus(number{lo: index}).shiftLeft(s.blockBits)
			block = netip.PrefixFrom(at.addr(g.is4), s.prefix.Addr().BitLen()-s.blockBits)
		} else {
			block = l.part(s, 0, index)
		}
		return block, l.usable(block)
	}
	return netip.Prefix{}, false
}

// Numbers are numbers of blocks, in order.
type Numbers []run

type run struct{ first, count uint64 }

// Len is how many there are.
func (n Numbers) Len() (all uint64) {
	for _, r := range n {
		all += r.count
	}
	return min(all, math.MaxInt64)
}

// At returns one of them.
func (n Numbers) At(i uint64) uint64 {
	for _, r := range n {
		if i < r.count {
			return r.first + i
		}
		i -= r.count
	}
	return math.MaxUint64
}

// Usable returns the numbers of the blocks that have something to give, without looking at each: a pool may exclude nearly
// all of its addresses. With hostBlock these are all blocks, which are few.
func (g Group) Usable() (out Numbers) {
	l := g.layout
	if !l.Flat() {
		return Numbers{{0, g.Len()}}
	}
	for s := range l.of(g.is4) {
		next, before, n := uint64(0), l.before(s), l.count(s)
		for _, x := range l.excludes { // none touches another, so that what is excluded of a block is in one
			if x, ok := s.span.cut(x); ok {
				from, to := l.covered(s, x)
				if from > next {
					out = append(out, run{before + next, from - next})
				}
				next = max(next, to)
			}
		}
		if next < n {
			out = append(out, run{before + next, n - next})
		}
	}
	return out
}

// covered returns the numbers in a subnet of the first block of which a part of it has all, and of the first one behind those.
func (l *Layout) covered(s *subnet, part Span) (from, to uint64) {
	first, one := numberOf(s.span.First).shiftRight(s.blockBits), number{lo: 1}
	if part.First != s.span.First {
		up := one.shiftLeft(s.blockBits).minus(one)
		from = numberOf(part.First).plus(up).shiftRight(s.blockBits).minus(first).lo
	}
	if to = l.count(s); part.Last != s.span.Last {
		to = numberOf(part.Last).plus(one).shiftRight(s.blockBits).minus(first).lo
	}
	return from, max(from, to)
}

// part is the block of a node on one interface.
func (l *Layout) part(s *subnet, iface int, host uint64) netip.Prefix {
	whole, _ := Subnet(s.prefix, l.ifBits, uint64(iface))
	out, _ := Subnet(whole, l.hostBits, host)
	return out
}

func (l *Layout) usable(block netip.Prefix) bool {
	if l.Flat() {
		r, err := l.Range(block, block.Addr().Is4(), 0)
		return err == nil && r.first(nil).IsValid()
	}
	for _, is4 := range l.Families() {
		for i := range l.Interfaces() {
			if r, err := l.Range(block, is4, i); err != nil || !r.first(nil).IsValid() {
				return false
			}
		}
	}
	return true
}

// Holds reports whether a block is one of the pool's.
func (l *Layout) Holds(block netip.Prefix) error {
	if l.literal {
		if !block.IsSingleIP() {
			return fmt.Errorf("%q is not one address", block)
		}
		return nil
	}
	_, _, err := l.find(block)
	return err
}

// Number returns the number of a block in its group.
func (l *Layout) Number(block netip.Prefix) (uint64, error) {
	_, n, err := l.find(block)
	return n, err
}

// find returns the subnet and the number of a block.
func (l *Layout) find(block netip.Prefix) (*subnet, uint64, error) {
	if !block.IsValid() || block != block.Masked() {
		return nil, 0, fmt.Errorf("%q is not a block", block)
	}
	for i := range l.subnets {
		s := &l.subnets[i]
		length := s.prefix.Addr().BitLen() - s.blockBits
		if !l.Flat() {
			length = s.prefix.Bits() + l.ifBits + l.hostBits
		}
		if s.prefix.Addr().BitLen() != block.Addr().BitLen() || block.Bits() != length || !spanOf(block).Overlaps(s.span) {
			continue
		}
		if l.Flat() {
			first := numberOf(s.span.First).shiftRight(s.blockBits)
			return s, l.before(s) + numberOf(block.Addr()).shiftRight(s.blockBits).minus(first).lo, nil
		}
		host := numberOf(block.Addr()).minus(numberOf(s.prefix.Addr())).shiftRight(block.Addr().BitLen() - length)
		if s != &l.subnets[0] || host.hi != 0 || host.lo >= 1<<l.hostBits {
			break // it is that of another interface
		}
		return s, host.lo, nil
	}
	return nil, 0, fmt.Errorf("%q is not a block of AddressPool %q", block, l.Name)
}

// parts returns all that the lease of a block is for, if that is more than the block.
func (l *Layout) parts(block netip.Prefix) []netip.Prefix {
	_, host, err := l.find(block)
	if l.Flat() || err != nil || len(l.subnets) == 1 && l.ifBits == 0 {
		return nil
	}
	var out []netip.Prefix
	for i := range l.subnets {
		for iface := range l.Interfaces() {
			out = append(out, l.part(&l.subnets[i], iface, host))
		}
	}
	return out
}

// Routed returns the prefixes that other nodes route to the node with the lease of a block, of one family and on one
// interface. Addresses that the pool does not allocate are left out, since they may be elsewhere: a route to the
// whole block would send packets for a gateway to that node.
func (l *Layout) Routed(block netip.Prefix, is4 bool, iface int) ([]netip.Prefix, error) {
	s, part, err := l.portion(block, is4, iface)
	if err != nil {
		return nil, err
	}
	whole := spanOf(part)
	span, _ := whole.cut(s.span)
	var without netipx.IPSetBuilder
	cut := span != whole
	for _, x := range l.excludes {
		// No host has the address of the network or that for broadcasts.
		if x.First == x.Last && x.First != s.gateway &&
			(x.First == s.prefix.Addr() || s.is4() && x.First == netipx.PrefixLastIP(s.prefix)) {
			continue
		}
		if x.Overlaps(span) {
			cut = true
			without.AddRange(netipx.IPRangeFrom(x.First, x.Last))
		}
	}
	if !cut {
		return []netip.Prefix{part}, nil
	}
	excluded, err := without.IPSet()
	if err != nil {
		return nil, err
	}
	var out netipx.IPSetBuilder
	out.AddRange(netipx.IPRangeFrom(span.First, span.Last))
	out.RemoveSet(excluded)
	set, err := out.IPSet()
	if err != nil {
		return nil, err
	}
	return set.Prefixes(), nil
}

// Prefixes returns the subnets of a family.
func (l *Layout) Prefixes(is4 bool) []netip.Prefix {
	var out []netip.Prefix
	for s := range l.of(is4) {
		out = append(out, s.prefix)
	}
	return out
}

// Range is the part of a block that can be given on one interface.
type Range struct {
	Span
	// Bits is the prefix length of addresses from it.
	Bits     int
	excludes []Span
}

// errInterface is an interface that the pool has no part for.
var errInterface = errors.New("no such interface")

// has returns an error if the pool has no part for an interface.
func (l *Layout) has(iface int) error {
	if iface < 0 || iface >= l.Interfaces() {
		return fmt.Errorf("%s: %w: %d is not from 0 to %d", Title(l.Name), errInterface, iface, l.Interfaces()-1)
	}
	return nil
}

// portion returns what a block is of one family and on one interface, and the subnet of that, with which it has addresses in common.
func (l *Layout) portion(block netip.Prefix, is4 bool, iface int) (*subnet, netip.Prefix, error) {
	s, index, err := l.find(block)
	if err := cmp.Or(err, l.has(iface)); err != nil {
		return nil, block, err
	}
	family := map[bool]string{true: "IPv4", false: "IPv6"}[is4]
	if l.Flat() {
		if s.is4() != is4 {
			return nil, block, fmt.Errorf("block %q of AddressPool %q has no %s addresses", block, l.Name, family)
		}
		return s, block, nil
	}
	i := slices.IndexFunc(l.subnets, func(s subnet) bool { return s.is4() == is4 })
	if i < 0 {
		return nil, block, fmt.Errorf("AddressPool %q has no %s addresses", l.Name, family)
	}
	return &l.subnets[i], l.part(&l.subnets[i], iface, index), nil
}

// Range returns what a block gives of one family on one interface.
func (l *Layout) Range(block netip.Prefix, is4 bool, iface int) (Range, error) {
	s, part, err := l.portion(block, is4, iface)
	if err != nil {
		return Range{}, err
	}
	span, _ := spanOf(part).cut(s.span)
	if l.Flat() {
		return Range{span, s.prefix.Bits(), l.excludes}, nil
	}
	// The first and the last address of a node's block are those of its network.
	span.First = span.First.Next()
	if is4 {
		span.Last = span.Last.Prev()
	}
	return Range{span, s.prefix.Bits() + l.ifBits, l.excludes}, nil
}

// first returns the first address that is neither excluded nor taken, or none. It takes
// as many steps as there are taken addresses and excludes.
func (r Range) first(taken func(netip.Addr) bool) netip.Addr {
	a := r.First
	rest := r.excludes
	for a.IsValid() && a.Compare(r.Last) <= 0 {
		for len(rest) > 0 && (rest[0].First.BitLen() != a.BitLen() || rest[0].Last.Compare(a) < 0) {
			rest = rest[1:]
		}
		if len(rest) > 0 && rest[0].Contains(a) {
			a = rest[0].Last.Next() // invalid behind the last address there is
			continue
		}
		if taken == nil || !taken(a) {
			return a
		}
		a = a.Next()
	}
	return netip.Addr{}
}

// Size is the number of addresses that the pool can give of one family, at most 2^63-1.
func (l *Layout) Size(is4 bool) uint64 { return l.total(is4).small() }

func (l *Layout) total(is4 bool) (n number) {
	for s := range l.of(is4) {
		n = n.plus(l.size(s))
	}
	return n
}

// BlockSize is the number of addresses that one block can give of one family, on all
// interfaces, at most 2^63-1.
func (l *Layout) BlockSize(block netip.Prefix, is4 bool) uint64 {
	return l.blockAll(block, is4).small()
}

func (l *Layout) blockAll(block netip.Prefix, is4 bool) (n number) {
	for i := range l.Interfaces() {
		if r, err := l.Range(block, is4, i); err == nil {
			n = n.plus(r.size())
		}
	}
	return n
}

// Enough returns an error if a node can never hold enough addresses for a pod with steps on these interfaces, one of
// each family for each step, even if all addresses were free.
func (l *Layout) Enough(ifaces []int) error {
	steps := map[int]int{}
	for _, iface := range ifaces {
		if err := l.has(iface); err != nil {
			return err
		}
		steps[iface]++
	}
	for _, iface := range slices.Sorted(maps.Keys(steps)) {
		for _, is4 := range l.Families() {
			family, most, of := map[bool]string{true: "IPv4", false: "IPv6"}[is4], l.total(is4), ""
			if !l.Flat() {
				most, of = l.nodeMost(is4), fmt.Sprintf(" for each node, on interface %d", iface)
			}
			if number := (number{lo: uint64(steps[iface])}); most.less(number) {
				return fmt.Errorf("%s has %d %s addresses%s, and %d steps of a pod take one each", Title(l.Name), most.small(), family, of,
					steps[iface])
			}
		}
	}
	return nil
}

// nodeMost is how many addresses a node's block has on one interface if none of them is excluded.
func (l *Layout) nodeMost(is4 bool) (most number) {
	for s := range l.of(is4) {
		whole := number{lo: 1}.shiftLeft(s.prefix.Addr().BitLen() - s.prefix.Bits() - l.ifBits - l.hostBits)
		if most = whole.minus(number{lo: 1}); is4 {
			most = most.minus(number{lo: 1})
		}
	}
	return most
}

// Leased is how much of one family of a pool is leased.
type Leased struct {
	Size, Leased uint64 // at most 2^63-1
	// Exhausted and Low are exact where Size and Leased are not: there is nothing left, or a tenth.
	Exhausted, Low bool
	Text           string // such as "12 of 254 addresses"
}

// Leased returns how much of one family is leased with these blocks. An IPv6 pool has more addresses than 64 bits can count.
func (l *Layout) Leased(is4 bool, blocks []netip.Prefix) Leased {
	var leased number
	for _, b := range blocks {
		leased = leased.plus(l.blockAll(b, is4))
	}
	size := l.total(is4)
	have, all := leased.big(), size.big()
	low := new(big.Int).Sub(all, new(big.Int).Quo(all, big.NewInt(10)))
	return Leased{size.small(), leased.small(), have.Cmp(all) >= 0, have.Cmp(low) >= 0, fmt.Sprintf("%v of %v addresses", have, all)}
}

func (r Range) size() number {
	n := r.Span.size().plus(number{lo: 1})
	for _, x := range r.excludes {
		if x, ok := r.cut(x); ok {
			n = n.minus(x.size().plus(number{lo: 1}))
		}
	}
	return n
}

func (l *Layout) size(s *subnet) number {
	n := Range{Span: s.span, excludes: l.excludes}.size()
	if l.Flat() {
		return n
	}
	// The first and the last address of each block, unless they are excluded anyway.
	bits := s.prefix.Addr().BitLen() - s.prefix.Bits() - l.ifBits - l.hostBits
	for _, ends := range []bool{false, true} {
		if ends && !s.is4() {
			continue
		}
		reserved := number{lo: 1}.shiftLeft(l.ifBits + l.hostBits)
		for _, x := range l.excludes {
			if x, ok := s.span.cut(x); ok {
				reserved = reserved.minus(starts(s, x, bits, ends))
			}
		}
		n = n.minus(reserved)
	}
	return n
}

// starts counts the blocks of which the first address is in a span, or the last.
func starts(s *subnet, x Span, bits int, ends bool) number {
	up := number{}
	if !ends {
		up = number{lo: 1}.shiftLeft(bits).minus(number{lo: 1})
	}
	before := func(n number) number { return n.minus(numberOf(s.prefix.Addr())).plus(up).shiftRight(bits) }
	return before(numberOf(x.Last).plus(number{lo: 1})).minus(before(numberOf(x.First)))
}

// Overlaps returns the first subnets that two pools have in common, unless their addresses are on different switches.
func (l *Layout) Overlaps(o *Layout) (mine, theirs netip.Prefix, ok bool) {
	if l.Switch != o.Switch {
		return mine, theirs, false
	}
	for i := range l.subnets {
		for j := range o.subnets {
			if l.subnets[i].span.Overlaps(o.subnets[j].span) {
				return l.subnets[i].prefix, o.subnets[j].prefix, true
			}
		}
	}
	return mine, theirs, false
}

// Shared is a subnet of a pool that has addresses of another pool's; the zero value is none.
type Shared struct {
	Mine, Theirs netip.Prefix
	Pool         string // the other one
}

// SharedAmong returns, by pool, a subnet that shares addresses with another pool's: with the one before it, so that a pool that is
// added or deleted changes what its neighbours share alone. Pools on different switches share none (Overlaps).
func SharedAmong(layouts map[string]*Layout) map[string]Shared {
	type part struct {
		on, pool string
		*subnet
	}
	var all []part
	for name, l := range layouts {
		for i := range l.subnets {
			all = append(all, part{l.Switch, name, &l.subnets[i]})
		}
	}
	slices.SortFunc(all, func(x, y part) int {
		return cmp.Or(cmp.Compare(x.on, y.on), x.span.First.Compare(y.span.First), -x.span.Last.Compare(y.span.Last),
			cmp.Compare(x.pool, y.pool))
	})
	out := map[string]Shared{}
	var before, last part // the one that begins before, and the one that ends last
	for _, s := range all {
		for _, other := range []part{before, last} {
			if other.subnet == nil || other.on != s.on || other.pool == s.pool || !other.span.Overlaps(s.span) {
				continue
			}
			for _, of := range [][2]part{{s, other}, {other, s}} {
				if _, known := out[of[0].pool]; !known {
					out[of[0].pool] = Shared{of[0].prefix, of[1].prefix, of[1].pool}
				}
			}
			break
		}
		if before = s; last.subnet == nil || last.on != s.on || last.span.Last.Less(s.span.Last) {
			last = s
		}
	}
	return out
}

// Gives returns the subnet of which the pool gives addresses that are in p; not ok for none.
func (l *Layout) Gives(p netip.Prefix) (subnet netip.Prefix, ok bool) {
	a, subnet := l.From(p.Masked().Addr())
	return subnet, p.Contains(a)
}

// From returns the first address that the pool gives at an address or after it, of its family, and its subnet; invalid for none.
func (l *Layout) From(at netip.Addr) (first netip.Addr, subnet netip.Prefix) {
	for s := range l.of(at.Is4()) {
		r := Range{Span: s.span, excludes: l.excludes}
		if r.First.Less(at) {
			r.First = at
		}
		var reserved func(netip.Addr) bool
		if !l.Flat() {
			reserved = func(a netip.Addr) bool { return l.ends(s, a) }
		}
		if a := r.first(reserved); a.IsValid() && (!first.IsValid() || a.Less(first)) {
			first, subnet = a, s.prefix
		}
	}
	return first, subnet
}

// ends reports whether an address is the first of a node's block, or of IPv4 the last: those of its network.
func (l *Layout) ends(s *subnet, a netip.Addr) bool {
	block, err := a.Prefix(s.prefix.Bits() + l.ifBits + l.hostBits)
	return err == nil && (a == block.Addr() || s.is4() && a == netipx.PrefixLastIP(block))
}

// LeaseName is the name of a block's lease. Two blocks never have one name: what comes
// before the address is that of the pool, and the address has no form that the end of a
// name could complete.
//
// The name of a literal address has another end than those of blocks.
func LeaseName(pool string, block netip.Prefix) string {
	text := block.Addr().StringExpanded()
	if block.Addr().Is6() {
		text = strings.ReplaceAll(text, ":", "-")
	}
	if pool == topology.LiteralPool {
		return text + ".literal"
	}
	return fmt.Sprintf("%s-%s-%d", pool, text, block.Bits())
}
