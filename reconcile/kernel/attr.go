package kernel

import (
	"encoding/binary"
	"iter"
	"net"

	"golang.org/x/sys/unix"
)

// attributes walks netlink attributes: type without its flag bits, and value.
// Malformed input ends the walk; the kernel does not send it.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	const header, typeMask = 4, 0x3fff
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= header {
			size := int(binary.NativeEndian.Uint16(b))
			typ := binary.NativeEndian.Uint16(b[2:]) & typeMask
			if size < header || size > len(b) {
				return
			}
			if !yield(typ, b[header:size]) {
				return
			}
			b = b[min((size+3)&^3, len(b)):]
		}
	}
}

// attribute returns the value of the first attribute of a type, with more types of one within it; nil without one.
func attribute(b []byte, path ...uint16) []byte {
	for _, want := range path {
		within := b
		b = nil
		for typ, v := range attributes(within) {
			if typ == want {
				b = v
				break
			}
		}
	}
	return b
}

// option reads an attribute that may be missing.
func option[T any](b []byte, typ uint16, read func([]byte) T) *T {
	v := attribute(b, typ)
	if v == nil {
		return nil
	}
	return new(read(v))
}

// optionWord reads one whose number has a word; it may be missing, too.
func optionWord[T uint8 | uint16 | uint32](b []byte, typ uint16, read func([]byte) T, of words) *string {
	n := option(b, typ, read)
	if n == nil {
		return nil
	}
	return of.word(uint32(*n))
}

// The readers below give zero for a value that is too short.

func isSet(b []byte) bool  { return u8(b) != 0 }
func u8(b []byte) uint8    { return orZeros(b, 1)[0] }
func u16(b []byte) uint16  { return binary.NativeEndian.Uint16(orZeros(b, 2)) }
func u32(b []byte) uint32  { return binary.NativeEndian.Uint32(orZeros(b, 4)) }
func u64(b []byte) uint64  { return binary.NativeEndian.Uint64(orZeros(b, 8)) }
func be16(b []byte) uint16 { return binary.BigEndian.Uint16(orZeros(b, 2)) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(orZeros(b, 4)) }

var zeros [8]byte

// orZeros returns b, or zeros if it has less than n bytes, of at most 8.
func orZeros(b []byte, n int) []byte {
	if len(b) < n {
		return zeros[:]
	}
	return b
}

func text(b []byte) string { return unix.ByteSliceToString(b) }

func mac(b []byte) string { return net.HardwareAddr(b).String() }

// words translates between the kernel's numbers and the names in objects.
type words map[uint32]string

// word returns a pointer to the word for a number, nil when there is none.
func (w words) word(n uint32) *string {
	if s, ok := w[n]; ok {
		return &s
	}
	return nil
}

func (w words) number(s string) (uint32, bool) {
	for n, word := range w {
		if word == s {
			return n, true
		}
	}
	return 0, false
}
