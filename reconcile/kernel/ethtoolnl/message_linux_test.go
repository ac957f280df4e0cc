package ethtoolnl

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// wire reads bytes that are written as hexadecimal lines with comments.
func wire(t testing.TB, text string) []byte {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are little endian")
	}
	var out []byte
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		b, err := hex.DecodeString(strings.Join(strings.Fields(line), ""))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

func TestEncode(t *testing.T) {
	for _, tc := range []struct {
		name    string
		encode  func() ([]byte, uint8, error)
		command uint8
		want    string
	}{
		{"get rings", get(Ring), 15, `
			0c00 0180            # ETHTOOL_A_RINGS_HEADER
			  0800 0100 04000000 # ETHTOOL_A_HEADER_DEV_INDEX
		`},
		{"get features", get(Feature), 11, `
			1400 0180 0800 0100 04000000 0800 0300 01000000 # ETHTOOL_FLAG_COMPACT_BITSETS: bits without their names
		`},
		{"set ring", set(Ring, "rx", 512), 16, `
			1400 0180
			  0800 0100 04000000
			  0800 0300 02000000 # ETHTOOL_A_HEADER_FLAGS: omit the reply
			0800 0600 00020000   # ETHTOOL_A_RINGS_RX
		`},
		{"set a switch", set(Coalesce, "adaptive-rx", 1), 20, `
			1400 0180 0800 0100 04000000 0800 0300 02000000
			0500 0b00 01 000000  # ETHTOOL_A_COALESCE_USE_ADAPTIVE_RX, one byte
		`},
		{"feature on", set(Feature, "rx-gro", 1), 12, `
			1400 0180 0800 0100 04000000 0800 0300 02000000
			1c00 0380            # ETHTOOL_A_FEATURES_WANTED
			  1800 0380          # ETHTOOL_A_BITSET_BITS, without NOMASK: only these
			    1400 0180        # ETHTOOL_A_BITSET_BITS_BIT
			      0b00 0200 72782d67726f00 00 # its name
			      0400 0300      # set
		`},
		{"feature off", set(Feature, "rx-gro", 0), 12, `
			1400 0180 0800 0100 04000000 0800 0300 02000000
			1800 0380 1400 0380 1000 0180 0b00 0200 72782d67726f00 00
		`},
		{"private flag on", set(PrivateFlag, "legacy-rx", 1), 14, `
			1400 0180 0800 0100 04000000 0800 0300 02000000
			2000 0280            # ETHTOOL_A_PRIVFLAGS_FLAGS
			  1c00 0380 1800 0180
			    0e00 0200 6c65676163792d727800 0000 # its name
			    0400 0300        # set
		`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, command, err := tc.encode()
			if err != nil {
				t.Fatal(err)
			}
			if want := wire(t, tc.want); !bytes.Equal(got, want) {
				t.Errorf("got\n%swant\n%s", hex.Dump(got), hex.Dump(want))
			}
			if command != tc.command {
				t.Errorf("command %d, want %d", command, tc.command)
			}
		})
	}
}

func get(c Class) func() ([]byte, uint8, error) {
	return func() ([]byte, uint8, error) {
		m, err := encodeGet(c, 4)
		return m.Data, m.Header.Command, err
	}
}

func set(c Class, name string, value uint32) func() ([]byte, uint8, error) {
	return func() ([]byte, uint8, error) {
		m, err := encodeSet(c, 4, name, value)
		return m.Data, m.Header.Command, err
	}
}

func TestEncodeUnknown(t *testing.T) {
	if _, err := encodeSet(Ring, 4, "no-such-ring", 1); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	if _, err := encodeSet("no-such-class", 4, "rx", 1); err == nil {
		t.Error("no error")
	}
	if _, err := encodeGet("no-such-class", 4); err == nil {
		t.Error("no error")
	}
}

// The replies are of igbvf on Linux 6.12; that of its features is shortened. It has no
// private flags: those are as Documentation/networking/ethtool-netlink.rst has them.
func TestDecode(t *testing.T) {
	const header = `1c00 0180 0800 0100 04000000 0f00 0200 656e7033733066307630 00 00 # index, "enp3s0f0v0"
		`
	names := make([]string, 41)
	names[5], names[14], names[15], names[16], names[40] = "highdma", "rx-gro", "rx-lro", "not-of-this-kernel", "rx-hash"
	for _, tc := range []struct {
		class Class
		reply string
		want  []Setting
	}{
		{Ring, header + `
			0800 0200 00100000   # RX_MAX
			0800 0600 00040000   # RX
			0800 0500 00100000   # TX_MAX
			0800 0900 00040000   # TX
			0500 0d00 00 000000  # TX_PUSH
			0500 0e00 00 000000  # RX_PUSH
		`, []Setting{{Name: "rx", Value: 1024}, {Name: "tx", Value: 1024}, {Name: "tx-push"}, {Name: "rx-push"}}},
		{Coalesce, header + `
			0800 0200 03000000   # RX_USECS
		`, []Setting{{Name: "rx-usecs", Value: 3}}},
		{Feature, header + `
			2400 0280                               # HW, with a mask of the features there are
			  0800 0200 29000000                    # SIZE
			  0c00 0400 20400000 00010000           # VALUE: 5 and 14 could be switched, 40 can
			  0c00 0500 20f00000 00010000           # MASK: 5, 12 without a name, 13 unknown, 14, 15, 40
			1c00 0480                               # ACTIVE
			  0400 0100                             # NOMASK
			  0800 0200 29000000
			  0c00 0400 20400000 00000000
			1c00 0580                               # NOCHANGE
			  0400 0100
			  0800 0200 29000000
			  0c00 0400 20000000 00000000
		`, []Setting{{"highdma", 1, true}, {"rx-gro", 1, false}, {"rx-lro", 0, true}, {"rx-hash", 0, false}}},
		{PrivateFlag, header + `
			4400 0280                   # FLAGS, with a mask: every bit is listed
			  0800 0200 02000000        # SIZE
			  3800 0380                 # BITS
			    1c00 0180 0800 0100 00000000 0e00 0200 6c65676163792d727800 0000        # 0 legacy-rx
			    1800 0180 0800 0100 01000000 0600 0200 7800 0000 0400 0300              # 1 x, on
		`, []Setting{{Name: "legacy-rx"}, {Name: "x", Value: 1}}},
	} {
		got, err := decode(tc.class, wire(t, tc.reply), names)
		if err != nil {
			t.Fatalf("%s: %v", tc.class, err)
		}
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.class, got, tc.want)
		}
	}
}

// TestFeatureNames holds how the names of features are asked for and read.
func TestFeatureNames(t *testing.T) {
	m := encodeFeatureNames()
	if want := wire(t, `
		0400 0180          # ETHTOOL_A_STRSET_HEADER, of no device
		1000 0280          # ETHTOOL_A_STRSET_STRINGSETS
		  0c00 0180        # ETHTOOL_A_STRINGSETS_STRINGSET
		    0800 0100 04000000 # ID: ETH_SS_FEATURES
	`); m.Header.Command != 1 || !bytes.Equal(m.Data, want) {
		t.Errorf("command %d, got\n%swant\n%s", m.Header.Command, hex.Dump(m.Data), hex.Dump(want))
	}
	got, err := decodeFeatureNames(wire(t, `
		5400 0280
		  5000 0180
		    0800 0100 04000000 # ID
		    0800 0200 40000000 # COUNT
		    3c00 0380          # STRINGS
		      1400 0180 0800 0100 02000000 0700 0200 7462 0000
		      1400 0180 0800 0100 00000000 0700 0200 7461 0000
		      1000 0180 0800 0100 ffffffff 0400 0200
	`))
	if want := []string{"ta", "", "tb"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("names %q, error %v, want %q", got, err, want)
	}
}

// FuzzDecode holds that no reply makes the decoder panic.
func FuzzDecode(f *testing.F) {
	f.Add("ring", []byte{8, 0, 6, 0, 0, 4, 0, 0})
	m, _ := encodeSet(Feature, 4, "rx-gro", 1)
	f.Add("feature", m.Data)
	m, _ = encodeSet(PrivateFlag, 4, "legacy-rx", 1)
	f.Add("private-flag", m.Data)
	f.Fuzz(func(_ *testing.T, class string, b []byte) {
		_, _ = decode(Class(class), b, []string{"rx-gro", "", "rx-lro"})
		_, _ = decodeFeatureNames(b)
	})
}
