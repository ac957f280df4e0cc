package kernel

import (
	"encoding/binary"
	"testing"
)

// TestRSSOfAnotherSize: a record of a table or a key of another size is refused, with both sizes.
func TestRSSOfAnotherSize(t *testing.T) {
	data := make([]byte, rssHeader+4*4+2)
	binary.NativeEndian.PutUint32(data[8:], 4)
	binary.NativeEndian.PutUint32(data[12:], 2)
	for value, want := range map[string]string{
		"1 even:2 0a0b":   "",
		"1 even:2 0a0b0c": "the record has a key of 3 bytes, there are 2",
		"1 0,1 0a0b":      "the record has a table of 2 entries, there are 4",
	} {
		err := putRSS(data, value)
		if err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%q: got %v, want %q", value, err, want)
		}
	}
	if data[16] != 1 || binary.NativeEndian.Uint32(data[rssHeader+4:]) != 1 || data[len(data)-1] != 0x0b {
		t.Errorf("wrote %x", data)
	}
}
