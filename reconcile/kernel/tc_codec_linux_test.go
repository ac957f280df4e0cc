package kernel

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/plumbline/plumbline/ops/netstate"
)

// drawFilter draws a filter as a rule may want it.
func drawFilter(rng *rand.Rand) netstate.Filter {
	f := netstate.Filter{
		Pref: uint16(1 + rng.IntN(65535)), Handle: 1 + uint32(rng.IntN(5000)), Family: new([]string{netstate.IPv4, netstate.IPv6}[rng.IntN(2)]),
		To: new(""), Protocol: new(""), Port: new(uint16(0)), DSCP: new(uint8(rng.IntN(64))),
		Policer: new(uint16(0)), Rate: new(uint64(0)), BurstNanos: new(uint64(0)), Fragment: new(false), Goto: new(uint32(0)),
	}
	if rng.IntN(4) == 0 {
		f.Chain = rng.Uint32N(1 << 28)
	}
	if rng.IntN(3) > 0 {
		a := netip.AddrFrom4([4]byte{byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())})
		if *f.Family == netstate.IPv6 {
			a = netip.MustParseAddr(fmt.Sprintf("2001:db8:%x:%x:%x::%x", rng.IntN(1<<16), rng.IntN(1<<16), rng.IntN(1<<16), rng.IntN(1<<16)))
		}
		*f.To = netip.PrefixFrom(a, 1+rng.IntN(a.BitLen())).Masked().String()
	}
	if rng.IntN(3) > 0 {
		*f.Protocol = []string{"tcp", "udp", "sctp"}[rng.IntN(3)]
		*f.Port = uint16(rng.IntN(2) * (1 + rng.IntN(65535)))
	}
	if rng.IntN(2) == 0 {
		*f.Policer = uint16(1 + rng.IntN(netstate.MaxPolicers))
		*f.Rate = 1 + rng.Uint64N([]uint64{1000, 1 << 30, 1 << 39}[rng.IntN(3)])
		*f.BurstNanos = netstate.BurstUnit * (1 + uint64(rng.Uint32N(1<<32-1)))
		if *f.Port == 0 && rng.IntN(3) == 0 {
			f.Fragment, f.DSCP = new(true), nil
		}
	}
	if rng.IntN(8) == 0 {
		f.Goto, f.DSCP, f.Policer, f.Rate, f.BurstNanos = new(f.Chain^(1+rng.Uint32N(1<<28-1))), nil, nil, nil, nil
	}
	return f
}

// TestFilterCodec holds that an encoded filter is decoded unchanged, so that no drift is seen
// where there is none.
func TestFilterCodec(t *testing.T) {
	for seed := range uint64(2000) {
		want := drawFilter(rand.New(rand.NewPCG(seed, 0)))
		index := 1 + int(seed)*997
		parts, err := encodeFilter(want, index)
		if err != nil {
			t.Fatalf("seed %d: %+v: %v", seed, want, err)
		}
		got, at, ok := decodeFilter(sent(parts...))
		if !ok || at != index || !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: read as %v of link %d, %v, want %v of link %d", seed, netstate.Fields(got), at, ok, netstate.Fields(want), index)
		}
	}
}

// TestEncodeFilter holds the bytes of the actions against tc(8): "pedit ex munge ip dsfield
// set 0xb8 retain 0xfc pipe csum ip4h pipe police index … conform-exceed drop/pipe".
func TestEncodeFilter(t *testing.T) {
	f := netstate.Filter{
		Pref: 20000, Handle: 1, Family: new(netstate.IPv4), To: new("192.0.2.0/25"), Protocol: new("tcp"), Port: new(uint16(2049)),
		DSCP: new(uint8(46)), Policer: new(uint16(1)), Rate: new(uint64(1250000)), BurstNanos: new(uint64(64000)),
	}
	parts, err := encodeFilter(f, 7)
	if err != nil {
		t.Fatal(err)
	}
	got := sent(parts...)
	table := 4 + sizeofRateTable
	start := len(got)
	for i := range got[:len(got)-table] {
		if binary.NativeEndian.Uint16(got[i:]) == uint16(table) && binary.NativeEndian.Uint16(got[i+2:]) == nl.TCA_POLICE_RATE {
			start = i
		}
	}
	got = append(got[:start:start], got[start+table:]...)
	sameBytes(t, wire(t, `
		00 00 0000 07000000 01000000 f3ffffff 0800 204e # link 7, handle 1, egress, ETH_P_IP, pref 20000
		0b00 0100 666c6f776572 00 00             # TCA_KIND flower
		2c05 0200                                # TCA_OPTIONS
		  f004 0300                              # TCA_FLOWER_ACT
		    6000 0100
		      0a00 0100 7065646974 00 0000       # pedit
		      5000 0200
		        3400 0400 00000000 00000000 03000000 00000000 00000000 01 00 0000 # pipe, one key
		          ff03ffff 00b80000 00000000 00000000 00000000 00000000 # keep, set
		        1800 0580 1400 0680 0600 0100 0200 0000 0600 0200 0000 0000 # in the IPv4 header, set
		    3000 0200
		      0900 0100 6373756d 00 000000       # csum
		      2000 0200 1c00 0100 00000000 00000000 03000000 00000000 00000000 01000000
		    5c04 0300
		      0b00 0100 706f6c696365 00 00       # police
		      4c04 0200
		        3c00 0100 01700000 02000000 00000000 e8030000 00000040 # index, drop, limit, burst, mtu
		          03 01 0000 0000 0000 d0121300 00 00 0000 0000 0000 00000000 00000000 00000000 00000000
		        0800 0500 03000000               # TCA_POLICE_RESULT: pipe
		  0800 1600 01000000                     # skip_hw
		  0600 0800 0800 0000                    # ETH_P_IP
		  0800 0c00 c0000200
		  0800 0d00 ffffff80
		  0500 0900 06 000000
		  0600 1300 0801 0000
		  0600 2400 ffff 0000
	`), got)
}

// TestDecodeFilterOfOthers holds that a filter which differs in what netstate does not have
// is not taken for one of ours: its match is none, or its actions are none.
func TestDecodeFilterOfOthers(t *testing.T) {
	ours := netstate.Filter{
		Pref: 20000, Handle: 1, Family: new(netstate.IPv4), To: new("192.0.2.0/25"), Protocol: new(""), Port: new(uint16(0)),
		DSCP: new(uint8(46)), Policer: new(uint16(1)), Rate: new(uint64(1250000)), BurstNanos: new(uint64(64000)),
	}
	decode := func(change func(b []byte) []byte) netstate.Filter {
		parts, err := encodeFilter(ours, 7)
		if err != nil {
			t.Fatal(err)
		}
		got, _, ok := decodeFilter(change(sent(parts...)))
		if !ok {
			t.Fatal("not a filter")
		}
		return got
	}
	replace := func(old, other string) func([]byte) []byte {
		from, to := wire(t, old), wire(t, other)
		return func(b []byte) []byte {
			for i := range b[:len(b)-len(from)+1] {
				if string(b[i:i+len(from)]) == string(from) {
					copy(b[i:], to)
					return b
				}
			}
			t.Fatalf("no %s", old)
			return nil
		}
	}
	for name, c := range map[string]struct {
		old, other string
		match      bool // is still ours
		mark       bool
		limit      bool
	}{
		"another kind":        {"666c6f77657200", "756e6b6e6f776e", false, false, false},
		"of a source":         {"0800 0c00", "0800 0a00", false, false, false},
		"no prefix":           {"ffffff80", "ff00ff80", false, false, false},
		"another action":      {"7065646974 00", "7065646975 00", true, false, true},
		"more bits":           {"ff03ffff", "ff00ffff", true, false, true},
		"another place":       {"00b80000 00000000", "00b80000 04000000", true, false, true},
		"another header":      {"0600 0100 0200", "0600 0100 0300", true, false, true},
		"another checksum":    {"00000000 00000000 01000000 5c04", "00000000 00000000 02000000 5c04", true, false, true},
		"passes what exceeds": {"01700000 02000000", "01700000 00000000", true, true, false},
		"another bucket":      {"01700000 02000000", "01800000 02000000", true, true, false},
		"another size":        {"00000040 0301", "00080000 0301", true, true, false},
		"another result":      {"0800 0500 03000000", "0800 0500 00000000", true, true, false},
	} {
		got := decode(replace(c.old, c.other))
		if (got.Family != nil && got.To != nil) != c.match || (got.DSCP != nil) != c.mark || (got.Rate != nil) != c.limit {
			t.Errorf("%s: read as %v", name, netstate.Fields(got))
		}
		if len(netstate.Diff(ours, got)) == 0 {
			t.Errorf("%s: no drift", name)
		}
	}
}
