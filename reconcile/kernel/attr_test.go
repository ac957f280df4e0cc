package kernel

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

func TestAttributes(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes below are little endian")
	}
	b := []byte{
		5, 0, 3, 0, 'a', 0, 0, 0, // a byte, padded
		4, 0, 4, 0x80, // empty, marked as nested
		8, 0, 5, 0, 1, 2, 3, 4,
	}
	type pair struct {
		typ   uint16
		value []byte
	}
	var got []pair
	for typ, v := range attributes(b) {
		got = append(got, pair{typ, v})
	}
	want := []pair{{3, []byte("a")}, {4, []byte{}}, {5, []byte{1, 2, 3, 4}}}
	if !slices.EqualFunc(got, want, func(a, b pair) bool { return a.typ == b.typ && bytes.Equal(a.value, b.value) }) {
		t.Errorf("got %v", got)
	}
	for _, broken := range [][]byte{{1}, {3, 0, 1, 0}, {9, 0, 1, 0, 0, 0, 0, 0}} {
		for typ := range attributes(broken) {
			t.Errorf("attribute %d in %v", typ, broken)
		}
	}
}

func TestShortValues(t *testing.T) {
	for _, b := range [][]byte{nil, {1}, {1, 2, 3}} {
		if u32(b) != 0 || len(b) < 2 && (u16(b) != 0 || be16(b) != 0) || len(b) < 1 && u8(b) != 0 {
			t.Errorf("%v is read beyond its end", b)
		}
	}
	if text([]byte("eth0\x00rest")) != "eth0" || text([]byte("eth0")) != "eth0" {
		t.Error("text does not end at its end")
	}
}

func TestWords(t *testing.T) {
	w := words{0: "none", 2: "follow"}
	if n, ok := w.number("follow"); !ok || n != 2 {
		t.Errorf("got %d, %v", n, ok)
	}
	if _, ok := w.number("other"); ok || w.word(1) != nil || *w.word(0) != "none" {
		t.Error("a word for what has none")
	}
}
