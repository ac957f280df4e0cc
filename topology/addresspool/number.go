package addresspool

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"net/netip"

	"go4.org/netipx"
)

// number is an address as an integer. An IPv4 address is below 2^32.
type number struct{ hi, lo uint64 }

func numberOf(a netip.Addr) number {
	if a.Is4() {
		b := a.As4()
		return number{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return number{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (n number) addr(is4 bool) netip.Addr {
	if is4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

func (n number) plus(m number) number {
	lo, carry := bits.Add64(n.lo, m.lo, 0)
	hi, _ := bits.Add64(n.hi, m.hi, carry)
	return number{hi, lo}
}

func (n number) minus(m number) number {
	lo, borrow := bits.Sub64(n.lo, m.lo, 0)
	hi, _ := bits.Sub64(n.hi, m.hi, borrow)
	return number{hi, lo}
}

func (n number) shiftLeft(by int) number {
	switch {
	case by >= 128:
		return number{}
	case by >= 64:
		return number{hi: n.lo << (by - 64)}
	case by == 0:
		return n
	}
	return number{n.hi<<by | n.lo>>(64-by), n.lo << by}
}

func (n number) shiftRight(by int) number {
	switch {
	case by >= 128:
		return number{}
	case by >= 64:
		return number{lo: n.hi >> (by - 64)}
	case by == 0:
		return n
	}
	return number{n.hi >> by, n.lo>>by | n.hi<<(64-by)}
}

// small is the number as one that can be counted with; all large ones are the same.
func (n number) small() uint64 {
	if n.hi != 0 || n.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return n.lo
}

func (n number) less(m number) bool { return n.hi < m.hi || n.hi == m.hi && n.lo < m.lo }

func (n number) big() *big.Int {
	hi := new(big.Int).Lsh(new(big.Int).SetUint64(n.hi), 64)
	return hi.Add(hi, new(big.Int).SetUint64(n.lo))
}

// Broadcast returns the broadcast address of an IPv4 network; networks of two have none (RFC 3021).
func Broadcast(p netip.Prefix) (a netip.Addr, has bool) {
	return netipx.PrefixLastIP(p), p.Addr().Is4() && p.Bits() < 31
}

// Subnet returns the network number index of those that are longer than base by bits.
func Subnet(base netip.Prefix, bits int, index uint64) (netip.Prefix, error) {
	switch {
	case !base.IsValid():
		return netip.Prefix{}, fmt.Errorf("the network has no prefix length")
	case base != base.Masked():
		return netip.Prefix{}, fmt.Errorf("%q has bits set behind its prefix length: write %q", base, base.Masked())
	case bits < 0 || base.Bits()+bits > base.Addr().BitLen():
		return netip.Prefix{}, fmt.Errorf("%q cannot be divided by %d bits: an address has %d", base, bits, base.Addr().BitLen())
	case bits < 64 && index >= 1<<bits:
		return netip.Prefix{}, fmt.Errorf("%q divided by %d bits has no network number %d, only %d", base, bits, index, uint64(1)<<bits)
	}
	length := base.Bits() + bits
	at := numberOf(base.Addr()).plus(number{lo: index}.shiftLeft(base.Addr().BitLen() - length))
	return netip.PrefixFrom(at.addr(base.Addr().Is4()), length), nil
}

// Span is a range of addresses of one family, both ends included.
type Span struct{ First, Last netip.Addr }

func spanOf(p netip.Prefix) Span { return Span{p.Masked().Addr(), netipx.PrefixLastIP(p)} }

// Contains reports whether an address is in the span.
func (s Span) Contains(a netip.Addr) bool {
	return a.BitLen() == s.First.BitLen() && s.First.Compare(a) <= 0 && a.Compare(s.Last) <= 0
}

// Overlaps reports whether two spans have an address in common.
func (s Span) Overlaps(o Span) bool {
	return s.First.BitLen() == o.First.BitLen() && s.First.Compare(o.Last) <= 0 && o.First.Compare(s.Last) <= 0
}

// size is the number of addresses, less one: all of IPv6 do not fit.
func (s Span) size() number { return numberOf(s.Last).minus(numberOf(s.First)) }

// cut returns what two spans have in common.
func (s Span) cut(o Span) (Span, bool) {
	if !s.Overlaps(o) {
		return Span{}, false
	}
	if o.First.Compare(s.First) > 0 {
		s.First = o.First
	}
	if o.Last.Compare(s.Last) < 0 {
		s.Last = o.Last
	}
	return s, true
}
