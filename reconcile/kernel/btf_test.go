package kernel

import (
	"encoding/binary"
	"errors"
	"testing"
)

// rawBTF is type information as the kernel lays it out.
func rawBTF(types []uint32, names string) []byte {
	var out []byte
	word := func(words ...uint32) {
		for _, w := range words {
			out = binary.NativeEndian.AppendUint32(out, w)
		}
	}
	out = append(binary.NativeEndian.AppendUint16(nil, btfMagic), 1, 0)
	word(24, 0, uint32(4*len(types)), uint32(4*len(types)), uint32(len(names)))
	word(types...)
	return append(out, names...)
}

func TestBTF(t *testing.T) {
	const names = "\x00list\x00next\x00prev\x00device\x00upper\x00f\x00"
	const list, next, prev, device, upper, f = 1, 6, 11, 16, 23, 29
	raw := rawBTF([]uint32{
		list, btfStruct<<24 | 2, 16, next, 0, 0, prev, 0, 64, // 1
		0, btfUnion<<24 | 2, 24, 0, 3, 0, prev, 0, 0, // 2: without a name, in it the next
		0, btfStruct<<24 | 2 | 1<<31, 24, f, 0, 4<<24 | 32, upper, 4, 64, // 3: with a bit field
		0, btfConst << 24, 1, // 4
		device, btfStruct<<24 | 2, 32, f, 0, 0, 0, 2, 64, // 5
		f, btfFunc << 24, 0, // 6
	}, names)
	b, err := parseBTF(raw)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := b.find(btfFunc, "f"); id != 6 || err != nil {
		t.Errorf("function: %d, %v", id, err)
	}
	for _, tc := range []struct {
		structure string
		path      []string
		want      int16
	}{
		{"list", []string{"prev"}, 8},
		{"device", []string{"upper"}, 16},
		{"device", []string{"upper", "prev"}, 24},
		{"device", []string{"prev"}, 8},
	} {
		if at, err := b.offset(tc.structure, tc.path...); at != tc.want || err != nil {
			t.Errorf("%s %v: at %d, %v", tc.structure, tc.path, at, err)
		}
	}
	for _, path := range [][]string{{"device", "next"}, {"device", "prev", "next"}, {"upper"}, {"ist"}} {
		if at, err := b.offset(path[0], path[1:]...); !errors.Is(err, errBTF) {
			t.Errorf("%v: at %d, %v", path, at, err)
		}
	}
	for cut := range raw {
		if b, err := parseBTF(raw[:cut]); err == nil {
			t.Errorf("%d of %d bytes: %d types", cut, len(raw), len(b.at))
		}
	}
}
