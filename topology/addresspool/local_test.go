package addresspool

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology"
)

// TestLocal holds what ipam of type host-local gives, and what the CNI plugin defines: the
// default gateway is the first address of a subnet, and is not allocated.
func TestLocal(t *testing.T) {
	four := topology.IPRange{Subnet: "192.0.2.0/29"}
	for _, c := range []struct {
		name string
		ipam topology.IPAM
		want string
	}{
		{"a subnet", topology.IPAM{IPRange: four}, "192.0.2.2/29 192.0.2.3/29 192.0.2.4/29 192.0.2.5/29 192.0.2.6/29 gateways 192.0.2.1"},
		{"a range", topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/24", RangeStart: "192.0.2.8", RangeEnd: "192.0.2.10", Gateway: "192.0.2.9"}}, "192.0.2.8/24 192.0.2.10/24 gateways 192.0.2.9"},
		{"with excludes", topology.IPAM{IPRange: four, Exclude: []string{"192.0.2.3-192.0.2.5"}}, "192.0.2.2/29 192.0.2.6/29 gateways 192.0.2.1"},
		{
			"one set of two ranges, and one of IPv6",
			topology.IPAM{Ranges: [][]topology.IPRange{{{Subnet: "192.0.2.0/30"}, {Subnet: "198.51.100.0/30"}}, {{Subnet: "2001:db8::/64", RangeStart: "2001:db8::5"}}}},
			"192.0.2.2/30,2001:db8::5/64 198.51.100.2/30,2001:db8::6/64 gateways 192.0.2.1,2001:db8::1",
		},
		{"two families", topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/30"}, Ranges: [][]topology.IPRange{{{Subnet: "2001:db8::/64"}}}}, "192.0.2.2/30,2001:db8::2/64 gateways 192.0.2.1,2001:db8::1"},
		{"a link of two (RFC 3021)", topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/31", Gateway: "192.0.2.0"}}, "192.0.2.1/31 gateways 192.0.2.0"},
		{"a link of two of IPv6 (RFC 6164)", topology.IPAM{IPRange: topology.IPRange{Subnet: "2001:db8::/127", Gateway: "2001:db8::1"}}, "2001:db8::/127 gateways 2001:db8::1"},
		{"a link-local gateway", topology.IPAM{IPRange: topology.IPRange{Subnet: "2001:db8::8/126", Gateway: "fe80::1"}}, "2001:db8::9/126 2001:db8::a/126 2001:db8::b/126 gateways fe80::1"},
		{"one address", topology.IPAM{IPRange: topology.IPRange{Subnet: "2001:db8::8/128", Gateway: "fe80::1"}}, "2001:db8::8/128 gateways fe80::1"},
	} {
		l, err := Local(c.ipam)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		h := &Holdings{}
		var got, gateways []string
		for i := 0; ; i++ {
			given, err := h.Take(l, Owner{Claim: fmt.Sprint(i)}, 0, 0)
			if errors.Is(err, ErrNone) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, joined(given))
			if i == 0 {
				gateways = append(gateways, joined(l.Gateways(given)))
			}
		}
		if have := strings.Join(got, " ") + " gateways " + strings.Join(gateways, " "); have != c.want {
			t.Errorf("%s:\nhave %s\nwant %s", c.name, have, c.want)
		}
	}
}

func joined[T fmt.Stringer](of []T) string {
	var out []string
	for _, v := range of {
		out = append(out, v.String())
	}
	return strings.Join(out, ",")
}

// TestLocalShared holds that steps whose ranges overlap, whatever their spelling, never
// have one address on a node, and that a released address rests.
func TestLocalShared(t *testing.T) {
	read := func(r topology.IPRange) *Layout {
		l, err := Local(topology.IPAM{IPRange: r})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	h := &Holdings{}
	seen := map[netip.Addr]bool{}
	for i := range 6 {
		l := read(topology.IPRange{Subnet: "192.0.2.0/29"})
		if i%2 == 1 {
			l = read(topology.IPRange{Subnet: "192.0.2.0/24", RangeStart: "192.0.2.3", RangeEnd: "192.0.2.6"})
		}
		got, err := h.Take(l, Owner{Claim: fmt.Sprint(i)}, 0, 0)
		if i == 5 {
			if !errors.Is(err, ErrNone) {
				t.Errorf("a sixth of five addresses: %v, %v", got, err)
			}
			break
		}
		if err != nil || seen[got[0].Addr()] {
			t.Fatalf("number %d gets %v, %v", i, got, err)
		}
		seen[got[0].Addr()] = true
	}
	h.GiveBack("0", 0, rest(60))
	h.GiveBack("1", 1, rest(60))
	wide, narrow := read(topology.IPRange{Subnet: "192.0.2.0/28"}), read(topology.IPRange{Subnet: "192.0.2.0/29"})
	if got, err := h.Take(wide, Owner{Claim: "5"}, 0, 59); err != nil || joined(got) != "192.0.2.7/28" {
		t.Errorf("beside one that has rested: %v, %v", got, err)
	}
	if got, err := h.Take(narrow, Owner{Claim: "6"}, 0, 60); err != nil || joined(got) != "192.0.2.2/29" {
		t.Errorf("after its rest: %v, %v", got, err)
	}
}

// TestLocalNeverTwice: whatever is given and given back in which order, nobody is given an address that another has; one that
// rests is given only if no other is free, and then that which was given back first.
func TestLocalNeverTwice(t *testing.T) {
	l, err := Local(topology.IPAM{Ranges: [][]topology.IPRange{{{Subnet: "192.0.2.0/29"}}, {{Subnet: "2001:db8::/125"}}}, Exclude: []string{"192.0.2.4"}})
	if err != nil {
		t.Fatal(err)
	}
	const pods = 4 // of IPv4, which has fewer
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		h, has, gaveBack := &Holdings{}, map[netip.Addr]string{}, map[netip.Addr]int64{}
		for now := range int64(300) {
			if claims := slices.Sorted(maps.Values(has)); len(claims) > 0 && rng.IntN(2) == 0 {
				claim := claims[rng.IntN(len(claims))]
				h.GiveBack(claim, now, rest(60))
				for a, by := range has {
					if by == claim {
						delete(has, a)
						gaveBack[a] = now
					}
				}
				continue
			}
			claim := fmt.Sprint(now)
			got, err := h.Take(l, Owner{Claim: claim}, 0, now)
			if full := len(has) == 2*pods; (err != nil) != full {
				t.Fatalf("seed %d: %d addresses are taken, %d rest: %v, %v", seed, len(has), len(h.Resting), got, err)
			}
			for _, p := range got {
				a := p.Addr()
				if other, taken := has[a]; taken {
					t.Fatalf("seed %d: %s has %s, and %s is given it", seed, other, a, claim)
				}
				had, once := gaveBack[a]
				for other := range l.all(a.Is4()) {
					since, rested := gaveBack[other]
					if _, taken := has[other]; taken || other == a || !once || had+60 <= now {
						continue
					}
					if !rested || since+60 <= now || since < had {
						t.Fatalf("seed %d: %s is given %s, which was given back %d s ago, although %s is free", seed, claim, a, now-had, other)
					}
				}
				has[a] = claim
			}
		}
	}
}

// all are the addresses of a layout of one family.
func (l *Layout) all(is4 bool) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, r := range (&Holdings{}).ranges(l, is4, 0) {
			for a := r.First; r.Contains(a); a = a.Next() {
				if !slices.ContainsFunc(r.excludes, func(x Span) bool { return x.Contains(a) }) && !yield(a) {
					return
				}
			}
		}
	}
}

// TestLocalRefused holds what is said of ranges that cannot be read, with the path of each.
func TestLocalRefused(t *testing.T) {
	for _, c := range []struct {
		ipam topology.IPAM
		want string
	}{
		{topology.IPAM{}, `subnet: is missing: host-local needs subnet, or ranges with a subnet each`},
		{topology.IPAM{IPRange: topology.IPRange{RangeStart: "192.0.2.1"}}, `subnet: "" is not a prefix such as 192.0.2.0/24`},
		{topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.1/24"}}, `subnet: "192.0.2.1/24" has bits set behind its prefix length: write "192.0.2.0/24"`},
		{topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/31"}}, `subnet: "192.0.2.0/31" is too small: its first address is the gateway's. Name another as gateway, or use a larger subnet`},
		{topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.1/32", Gateway: "192.0.2.1"}}, `subnet: "192.0.2.1/32" has no address left that could be allocated`},
		{topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/24", RangeStart: "192.0.3.1"}}, `rangeStart: "192.0.3.1" is not in "192.0.2.0/24": write an address in that network`},
		{
			topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/24"}, Ranges: [][]topology.IPRange{{{Subnet: "198.51.100.0/24"}}}},
			`ranges[0][0].subnet: "198.51.100.0/24" is of the family of another set: a step gets one address of each family. Put both into one set, or use a second step`,
		},
		{topology.IPAM{Ranges: [][]topology.IPRange{{{Subnet: "192.0.2.0/24"}, {Subnet: "192.0.2.128/25"}}}}, `ranges[0][1].subnet: shares addresses with 192.0.2.0/24: "192.0.2.128/25"`},
		{topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/30"}, Exclude: []string{"192.0.2.2"}}, `subnet: "192.0.2.0/30" has no address left that could be allocated`},
		{topology.IPAM{IPRange: topology.IPRange{Subnet: "192.0.2.0/24"}, Exclude: []string{"198.51.100.1"}}, `exclude[0]: "198.51.100.1" is in none of the pool's subnets`},
		{topology.IPAM{Ranges: [][]topology.IPRange{make([]topology.IPRange, maxRanges+1)}}, `ranges: has more than 16`},
	} {
		if _, err := Local(c.ipam); err == nil || err.Error() != c.want {
			t.Errorf("%+v:\nhave %v\nwant %s", c.ipam, err, c.want)
		}
	}
}

// FuzzLocal reads ranges of any form: Local refuses them, or what it gives is in them.
func FuzzLocal(f *testing.F) {
	f.Add("192.0.2.0/24", "192.0.2.10", "192.0.2.20", "192.0.2.10", "192.0.2.12/30", "198.51.100.0/30")
	f.Add("2001:db8::/64", "", "", "", "", "2001:db8:1::/127")
	f.Fuzz(func(t *testing.T, subnet, first, last, gateway, exclude, other string) {
		ipam := topology.IPAM{Ranges: [][]topology.IPRange{{{Subnet: subnet, RangeStart: first, RangeEnd: last, Gateway: gateway}}}}
		if other != "" {
			ipam.Subnet = other
		}
		if exclude != "" {
			ipam.Exclude = []string{exclude}
		}
		l, err := Local(ipam)
		if err != nil {
			return
		}
		h := &Holdings{}
		seen := map[netip.Addr]bool{}
		for i := range 4 {
			got, err := h.Take(l, Owner{Claim: fmt.Sprint(i)}, 0, 0)
			if errors.Is(err, ErrNone) && i > 0 {
				break
			}
			if err != nil || len(got) == 0 {
				t.Fatalf("%+v: %v, %v", ipam, got, err)
			}
			for _, a := range got {
				in := netip.MustParsePrefix(subnet).Contains(a.Addr()) || other != "" && netip.MustParsePrefix(other).Contains(a.Addr())
				if seen[a.Addr()] || !in || a.Addr().String() == gateway {
					t.Fatalf("%+v gives %s", ipam, a)
				}
				seen[a.Addr()] = true
			}
		}
	})
}
