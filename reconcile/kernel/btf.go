package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// btf is the kernel's description of its own types, as /sys/kernel/btf/vmlinux has it
// (Documentation/bpf/btf.rst). Only what hasUpper needs is read of it.
type btf struct {
	types, names []byte
	at           []uint32 // where a type begins, by its ID; the ID 0 is void
}

const (
	btfMagic     = 0xeb9f
	btfStruct    = 4
	btfUnion     = 5
	btfTypedef   = 8
	btfVolatile  = 9
	btfConst     = 10
	btfFunc      = 12
	btfTypeBytes = 12
)

// btfTail is how many bytes follow a type: some, and some for each of its parts.
var btfTail = [...]struct{ fixed, each uint32 }{
	1: {4, 0}, 3: {12, 0}, btfStruct: {0, 12}, btfUnion: {0, 12}, 6: {0, 8},
	13: {0, 8}, 14: {4, 0}, 15: {0, 12}, 17: {4, 0}, 19: {0, 12},
}

var errBTF = errors.New("the kernel's type information cannot be read")

func parseBTF(raw []byte) (*btf, error) {
	if len(raw) < 24 || binary.NativeEndian.Uint16(raw) != btfMagic {
		return nil, errBTF
	}
	section := func(at int) ([]byte, bool) {
		begin := uint64(u32(raw[4:])) + uint64(u32(raw[at:]))
		end := begin + uint64(u32(raw[at+4:]))
		if end > uint64(len(raw)) {
			return nil, false
		}
		return raw[begin:end], true
	}
	types, ok := section(8)
	names, more := section(16)
	if !ok || !more {
		return nil, errBTF
	}
	b := &btf{types: types, names: names, at: make([]uint32, 1, len(types)/20)}
	for at := uint32(0); at < uint32(len(types)); {
		if uint32(len(types))-at < btfTypeBytes {
			return nil, errBTF
		}
		b.at = append(b.at, at)
		info := u32(types[at+4:])
		kind := info >> 24 & 0x1f
		if int(kind) >= len(btfTail) {
			return nil, fmt.Errorf("%w: type of kind %d", errBTF, kind)
		}
		tail := btfTail[kind]
		at += btfTypeBytes + tail.fixed + tail.each*(info&0xffff)
		if at > uint32(len(types)) {
			return nil, errBTF
		}
	}
	return b, nil
}

func (b *btf) kind(id uint32) uint32 { return u32(b.types[b.at[id]+4:]) >> 24 & 0x1f }

// find returns the ID of a type.
func (b *btf) find(kind uint32, name string) (uint32, error) {
	// Each name is there once, so its place tells it from all others.
	place := bytes.Index(b.names, append(append([]byte{0}, name...), 0)) + 1
	if place > 0 {
		for id, at := range b.at {
			if u32(b.types[at:]) == uint32(place) && b.kind(uint32(id)) == kind && id > 0 {
				return uint32(id), nil
			}
		}
	}
	return 0, fmt.Errorf("%w: it has no %q", errBTF, name)
}

// offset returns where in a structure a member of a member is, in bytes.
func (b *btf) offset(structure string, path ...string) (int16, error) {
	id, err := b.find(btfStruct, structure)
	if err != nil {
		return 0, err
	}
	var bits uint32
	for _, name := range path {
		at, typ, ok := b.member(id, name, 8)
		if !ok {
			return 0, fmt.Errorf("%w: %q has no %q", errBTF, structure, name)
		}
		bits += at
		id = typ
	}
	if bits%8 != 0 || bits/8 > 1<<15-1 {
		return 0, fmt.Errorf("%w: where %q has %q", errBTF, structure, path)
	}
	return int16(bits / 8), nil
}

// member finds a member also in the members that have no name. Depth bounds how many
// of these are in one another.
func (b *btf) member(id uint32, name string, depth int) (bits, typ uint32, ok bool) {
	for range 8 {
		if id == 0 || int(id) >= len(b.at) || depth == 0 {
			return 0, 0, false
		}
		if k := b.kind(id); k != btfTypedef && k != btfVolatile && k != btfConst {
			break
		}
		id = u32(b.types[b.at[id]+8:])
	}
	if k := b.kind(id); k != btfStruct && k != btfUnion {
		return 0, 0, false
	}
	info := u32(b.types[b.at[id]+4:])
	members := b.types[b.at[id]+btfTypeBytes:]
	for i := range info & 0xffff {
		m := members[12*i:]
		at, typ := u32(m[8:]), u32(m[4:])
		if info>>31 != 0 {
			at &= 0xffffff // the rest is the size of a bit field
		}
		switch b.name(u32(m)) {
		case name:
			return at, typ, true
		case "":
			if inner, typ, ok := b.member(typ, name, depth-1); ok {
				return at + inner, typ, true
			}
		}
	}
	return 0, 0, false
}

func (b *btf) name(at uint32) string {
	if at >= uint32(len(b.names)) {
		return ""
	}
	name, _, _ := bytes.Cut(b.names[at:], []byte{0})
	return string(name)
}
