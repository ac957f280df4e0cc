package kernel

import (
	"bytes"
	"encoding/binary"
	"iter"
	"net"
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

// The readers below give zero for a value that is too short.

func u8(b []byte) uint8 {
	if len(b) < 1 {
		return 0
	}
	return b[0]
}

func u16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(b)
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func be16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

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

// be32 is 0 if the value is too short, as u32.
func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
