package addresspool

import (
	"cmp"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Bounds of a pool.
const (
	MaxSubnets       = 8
	MaxExcludes      = 64
	MaxRoutes        = 32
	MaxHostBits      = 16
	MaxInterfaceBits = 5 // as many interfaces as a node has: 32
	MaxBlockSize     = 4096
	maxText          = 128 // of one address, prefix or range
	maxBlockBits     = 60  // of the number of a block; that in all subnets is below 2^63
)

// Spec is a pool as it is written.
type Spec struct {
	// Name is in the names of the pool's leases.
	Name    string
	Subnets []v1alpha1.AddressSubnet
	// Exclude lists addresses, prefixes and ranges FIRST-LAST that are not allocated.
	Exclude []string
	// BlockSize is the number of addresses that a node takes at once: a power of two, 0
	// for the default. Only without HostBlock.
	BlockSize int
	// HostBlock and InterfaceBlock are numbers of bits: each node gets one block of each
	// interface's part of the subnet. Zero is none.
	HostBlock, InterfaceBlock int
	Routes                    []v1alpha1.AddressRoute
}

// Layout is a pool that was read and checked. It does not change.
type Layout struct {
	Name string
	// Switch is the logical switch on which alone its addresses are unique, "" in the cluster.
	Switch   string
	subnets  []subnet
	excludes []Span // sorted, of which none touches another
	hostBits int    // 0 is a flat pool
	ifBits   int
	routes   []Route
	local    bool // it is one node's, which has it without a lease
	literal  bool // it is all addresses that topologies have as literals
}

type subnet struct {
	prefix  netip.Prefix
	span    Span // what is allocated, if nothing excludes it
	gateway netip.Addr
	// blockBits is for a flat pool: 2^blockBits addresses are a block.
	blockBits int
}

func (s *subnet) is4() bool { return s.prefix.Addr().Is4() }

// of are the subnets of a family.
func (l *Layout) of(is4 bool) iter.Seq[*subnet] {
	return func(yield func(*subnet) bool) {
		for i := range l.subnets {
			if s := &l.subnets[i]; s.is4() == is4 && !yield(s) {
				return
			}
		}
	}
}

// New reads and checks a pool. The error is a contract.Errors: everything that is wrong, each with
// the path of its field.
func New(spec Spec) (*Layout, error) {
	l := &Layout{Name: spec.Name, hostBits: spec.HostBlock, ifBits: spec.InterfaceBlock}
	wrong := &problems{}
	switch n := len(spec.Subnets); {
	case n == 0:
		wrong.add("subnets", "is empty: name at least one")
	case n > MaxSubnets:
		wrong.add("subnets", "has %d entries, at most %d are accepted", n, MaxSubnets)
		return nil, wrong.err()
	}
	if n := len(spec.Exclude); n > MaxExcludes {
		wrong.add("exclude", "has %d entries, at most %d are accepted", n, MaxExcludes)
		return nil, wrong.err()
	}
	l.checkBits(spec, wrong)
	l.readSubnets(spec, wrong)
	excludes := l.readExcludes(spec.Exclude, wrong)
	l.readRoutes(spec.Routes, wrong)
	if len(*wrong) > 0 {
		return nil, wrong.err()
	}
	for _, r := range l.routes {
		if r.Gateway.IsValid() {
			excludes = append(excludes, Span{r.Gateway, r.Gateway})
		}
	}
	l.divide(spec.BlockSize, wrong)
	l.exclude(excludes, wrong, func(i int) string { return fmt.Sprintf("subnets[%d]", i) })
	if len(*wrong) > 0 {
		return nil, wrong.err()
	}
	return l, nil
}

// exclude excludes addresses, and those that subnets reserve. field is where a subnet is written.
func (l *Layout) exclude(excludes []Span, wrong *problems, field func(i int) string) {
	for i := range l.subnets {
		excludes = append(excludes, l.reserved(&l.subnets[i])...)
	}
	l.excludes = merge(excludes)
	for i := range l.subnets {
		if l.size(&l.subnets[i]) == (number{}) {
			wrong.add(field(i), "%q has no address left that could be allocated", l.subnets[i].prefix)
		}
	}
}

// checkBits refuses lengths of blocks that are not possible.
func (l *Layout) checkBits(spec Spec, wrong *problems) {
	if l.hostBits < 0 || l.hostBits > MaxHostBits {
		wrong.add("hostBlock", "%d is not from 1 to %d bits", l.hostBits, MaxHostBits)
	}
	if l.ifBits < 0 || l.ifBits > MaxInterfaceBits {
		wrong.add("interfaceBlock", "%d is not from 0 to %d bits", l.ifBits, MaxInterfaceBits)
	}
	if l.ifBits > 0 && l.hostBits == 0 {
		wrong.add("interfaceBlock", "needs hostBlock: without it all nodes would have the same block")
	}
	switch {
	case spec.BlockSize == 0:
	case l.hostBits > 0:
		wrong.add("blockSize", "follows from hostBlock: remove one of them")
	case spec.BlockSize < 0 || spec.BlockSize > MaxBlockSize || bits.OnesCount(uint(spec.BlockSize)) != 1:
		wrong.add("blockSize", "%d is not a power of two from 1 to %d", spec.BlockSize, MaxBlockSize)
	}
}

// readSubnets reads the subnets, of which none has addresses of another.
func (l *Layout) readSubnets(spec Spec, wrong *problems) {
	for i, s := range spec.Subnets {
		at := fmt.Sprintf("subnets[%d]", i)
		read, err := readSubnet(s, fields{at + ".prefix", at + ".first", at + ".last", at + ".gateway"})
		if err == nil && l.hostBits > 0 && (s.First != "" || s.Last != "") {
			err = fieldError(at, "first and last do not go with hostBlock, as each node has its own block: use exclude")
		}
		if err != nil {
			wrong.addError("", err)
			continue
		}
		if bits := read.prefix.Bits() + l.ifBits + l.hostBits; l.hostBits > 0 && bits > read.prefix.Addr().BitLen()-2 {
			wrong.add(at+".prefix", "%q leaves no addresses when it is divided by %d bits for interfaces and %d for nodes: "+
				"blocks would be of length /%d, at most /%d is possible",
				s.Prefix, l.ifBits, l.hostBits, bits, read.prefix.Addr().BitLen()-2)
			continue
		}
		for j := range l.subnets {
			other := &l.subnets[j]
			switch {
			case other.span.Overlaps(read.span):
				wrong.add(at, "shares addresses with %s: %q", other.prefix, s.Prefix)
			case l.hostBits > 0 && other.is4() == read.is4():
				wrong.add(at, "a pool with hostBlock has one subnet of each family, and %q is another: use a second pool", s.Prefix)
			}
		}
		l.subnets = append(l.subnets, read)
	}
}

// divide sets the size of the blocks of a flat pool.
func (l *Layout) divide(blockSize int, wrong *problems) {
	if l.hostBits > 0 {
		return
	}
	for i := range l.subnets {
		s := &l.subnets[i]
		size := l.blockSize(blockSize, s.is4())
		s.blockBits = bits.Len(uint(size)) - 1
		if l.count(s) == 0 {
			wrong.add(fmt.Sprintf("subnets[%d].prefix", i),
				"%q has more than 2^%d blocks of %d addresses: use a longer prefix, or a larger blockSize", s.prefix, maxBlockBits, size)
		}
	}
}

// blockSize is the number of addresses of a block in a flat pool. Where it is small each
// node takes single addresses, as otherwise few nodes would hold all of it.
func (l *Layout) blockSize(wanted int, is4 bool) int {
	if wanted > 0 {
		return wanted
	}
	for s := range l.of(is4) {
		if s.span.size().small() < 4096-1 {
			return 1
		}
	}
	return 16
}

// fields are the paths of a subnet's fields, for messages.
type fields struct{ prefix, first, last, gateway string }

func readSubnet(s v1alpha1.AddressSubnet, at fields) (out subnet, err error) {
	if len(s.Prefix) > maxText {
		return out, fieldError(at.prefix, "is longer than %d bytes", maxText)
	}
	p, err := netip.ParsePrefix(s.Prefix)
	switch {
	case err != nil:
		return out, fieldError(at.prefix, "%q is not a prefix such as 192.0.2.0/24", s.Prefix)
	case p != p.Masked():
		return out, fieldError(at.prefix, "%q has bits set behind its prefix length: write %q", s.Prefix, p.Masked())
	case p.Addr().Is4In6():
		return out, fieldError(at.prefix, "%q is IPv4 written as IPv6", s.Prefix)
	case p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsUnspecified() || p.Addr().IsLinkLocalUnicast():
		return out, fieldError(at.prefix, "%q has addresses that no pod can have", s.Prefix)
	case p.Bits() < 8:
		return out, fieldError(at.prefix, "%q is too large for one network: at least /8 is expected", s.Prefix)
	}
	out = subnet{prefix: p, span: spanOf(p)}
	within := func(field, text string, contains func(netip.Prefix, netip.Addr) bool) (netip.Addr, error) {
		if len(text) > maxText {
			return netip.Addr{}, fieldError(field, "is longer than %d bytes", maxText)
		}
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil || a.Zone() != "":
			return a, fieldError(field, "%q is not an IP address", text)
		case contains(p, a):
			return a, nil
		case field == at.gateway && !out.is4():
			return a, fieldError(field, "%q is not in %q: write an address in that network, or a link-local one such as fe80::1", text, p)
		}
		return a, fieldError(field, "%q is not in %q: write an address in that network", text, p)
	}
	if s.First != "" {
		if out.span.First, err = within(at.first, s.First, netip.Prefix.Contains); err != nil {
			return out, err
		}
	}
	if s.Last != "" {
		if out.span.Last, err = within(at.last, s.Last, netip.Prefix.Contains); err != nil {
			return out, err
		}
	}
	if out.span.First.Compare(out.span.Last) > 0 {
		return out, fieldError(at.first, "%q is behind the last, %q", s.First, out.span.Last)
	}
	if s.Gateway != "" {
		if out.gateway, err = within(at.gateway, s.Gateway, Reaches); err != nil {
			return out, err
		}
		if all, has := Broadcast(p); has && out.gateway == all {
			return out, fieldError(at.gateway, "%q is the broadcast address of %q, which no router has", s.Gateway, p)
		}
	}
	return out, nil
}

// readExcludes reads what is not allocated of subnets that have been read.
func (l *Layout) readExcludes(texts []string, wrong *problems) (excludes []Span) {
	for i, text := range texts {
		at := fmt.Sprintf("exclude[%d]", i)
		s, err := parseSpan(text)
		switch {
		case err != nil:
			wrong.add(at, "%v", err)
			continue
		case len(*wrong) == 0 && !slices.ContainsFunc(l.subnets, func(n subnet) bool { return spanOf(n.prefix).Overlaps(s) }):
			wrong.add(at, "%q is in none of the pool's subnets", text)
		}
		excludes = append(excludes, s)
	}
	return excludes
}

// parseSpan reads an address, a prefix or a range FIRST-LAST.
func parseSpan(text string) (Span, error) {
	if len(text) > maxText {
		return Span{}, fmt.Errorf("is longer than %d bytes", maxText)
	}
	bad := fmt.Errorf("%q is not an address, a prefix or a range such as 192.0.2.1-192.0.2.9", text)
	if from, to, ok := strings.Cut(text, "-"); ok {
		a, err := netip.ParseAddr(strings.TrimSpace(from))
		b, err2 := netip.ParseAddr(strings.TrimSpace(to))
		if err != nil || err2 != nil || a.Zone() != "" || b.Zone() != "" || a.BitLen() != b.BitLen() {
			return Span{}, bad
		}
		if a.Compare(b) > 0 {
			return Span{}, fmt.Errorf("%q ends before it begins", text)
		}
		return Span{a, b}, nil
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		if p != p.Masked() {
			return Span{}, fmt.Errorf("%q has bits set behind its prefix length: write %q", text, p.Masked())
		}
		return spanOf(p), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return Span{}, bad
	}
	return Span{a, a}, nil
}

// reserved returns the addresses of a subnet that are never allocated: its gateway; of IPv4 the address of the
// network and the broadcast address (RFC 1122 section 3.2.1.3), unless there are two addresses at most (RFC 3021); of
// IPv6 the anycast address of its routers (RFC 4291 section 2.6.1).
func (l *Layout) reserved(s *subnet) []Span {
	var out []Span
	if s.gateway.IsValid() {
		out = append(out, Span{s.gateway, s.gateway})
	}
	if s.prefix.Addr().BitLen()-s.prefix.Bits() <= 1 {
		return out
	}
	whole := spanOf(s.prefix)
	out = append(out, Span{whole.First, whole.First})
	if s.is4() {
		out = append(out, Span{whole.Last, whole.Last})
	}
	return out
}

// Without returns the layout with further addresses that are not allocated.
func (l *Layout) Without(addresses []netip.Addr) *Layout {
	var excludes []Span
	for _, a := range addresses {
		if slices.ContainsFunc(l.subnets, func(s subnet) bool { return s.span.Contains(a) }) {
			excludes = append(excludes, Span{a, a})
		}
	}
	if excludes == nil {
		return l
	}
	out := *l
	out.excludes = merge(append(excludes, l.excludes...))
	return &out
}

// merge sorts spans and joins those that overlap or touch.
func merge(spans []Span) []Span {
	slices.SortFunc(spans, func(a, b Span) int {
		return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last))
	})
	var out []Span
	for _, s := range spans {
		if n := len(out); n > 0 && out[n-1].First.BitLen() == s.First.BitLen() {
			next := out[n-1].Last.Next() // invalid behind the last address there is
			if !next.IsValid() || s.First.Compare(next) <= 0 {
				if s.Last.Compare(out[n-1].Last) > 0 {
					out[n-1].Last = s.Last
				}
				continue
			}
		}
		out = append(out, s)
	}
	return out
}
