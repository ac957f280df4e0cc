package addresspool

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestSubnet has vectors of multi-nic-cni: what its unit tests assert, and what it does
// for lengths it was run with. It wraps around where an error is wanted here.
func TestSubnet(t *testing.T) {
	for _, c := range []struct {
		base  string
		bits  int
		index uint64
		want  string
	}{
		{"192.168.0.0/16", 2, 0, "192.168.0.0/18"},
		{"192.168.0.0/16", 2, 1, "192.168.64.0/18"},
		{"192.168.0.0/16", 2, 2, "192.168.128.0/18"},
		{"192.168.0.0/16", 2, 3, "192.168.192.0/18"},
		{"192.168.0.0/16", 2, 4, "no network number 4, only 4"},
		{"192.168.0.0/18", 6, 1, "192.168.1.0/24"},
		{"192.168.0.0/18", 6, 63, "192.168.63.0/24"},
		{"192.168.64.0/18", 6, 0, "192.168.64.0/24"},
		{"192.168.64.0/18", 6, 63, "192.168.127.0/24"},
		{"192.168.64.0/18", 6, 64, "no network number 64"},
		{"192.168.0.0/18", 8, 1, "192.168.0.64/26"},
		{"192.168.0.0/18", 8, 255, "192.168.63.192/26"},
		{"192.168.0.0/18", 8, 256, "no network number 256"},
		{"192.168.64.0/18", 9, 511, "192.168.127.224/27"},
		{"192.168.64.0/18", 9, 512, "no network number 512"},
		{"192.168.192.0/18", 10, 1023, "192.168.255.240/28"},
		{"172.30.0.0/16", 0, 0, "172.30.0.0/16"},
		{"172.30.0.0/16", 0, 1, "no network number 1, only 1"},
		{"10.0.0.0/8", 4, 3, "10.48.0.0/12"},
		{"10.48.0.0/12", 10, 300, "10.52.176.0/22"},
		{"192.168.0.0/24", 7, 5, "192.168.0.10/31"},
		{"192.168.0.0/20", 7, 37, "192.168.4.160/27"},
		{"192.168.5.0/16", 8, 251, `write "192.168.0.0/16"`},
		{"192.168.0.0/31", 2, 0, "cannot be divided by 2 bits"},
		{"192.168.0.0/16", -1, 0, "cannot be divided by -1 bits"},
		{"fd00::/48", 16, 0xffff, "fd00:0:0:ffff::/64"},
		{"fd00::/64", 64, math.MaxUint64, "fd00::ffff:ffff:ffff:ffff/128"},
	} {
		got, err := Subnet(netip.MustParsePrefix(c.base), c.bits, c.index)
		if text := got.String(); err == nil && text != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("Subnet(%s, %d, %d) = %v, %v; want %s", c.base, c.bits, c.index, got, err, c.want)
		}
	}
	if _, err := Subnet(netip.Prefix{}, 2, 0); err == nil {
		t.Error("Subnet takes a network without a prefix length")
	}
}

// TestNew holds what is refused, with the path of the field.
func TestNew(t *testing.T) {
	subnets := func(p ...string) (out []v1alpha1.AddressSubnet) {
		for _, p := range p {
			out = append(out, v1alpha1.AddressSubnet{Prefix: p})
		}
		return out
	}
	for _, c := range []struct {
		name string
		spec Spec
		want string // "" is accepted
	}{
		{"flat", Spec{Subnets: subnets("192.0.2.0/24")}, ""},
		{"both families", Spec{Subnets: subnets("192.0.2.0/24", "2001:db8::/64")}, ""},
		{"a whole range of one address", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", First: "192.0.2.9", Last: "192.0.2.9"}}}, ""},
		{"a link of two", Spec{Subnets: subnets("192.0.2.0/31")}, ""},
		{"blocks of nodes and interfaces", Spec{Subnets: subnets("192.168.0.0/16"), HostBlock: 6, InterfaceBlock: 2}, ""},
		{"nothing", Spec{}, "subnets: is empty"},
		{"a name", Spec{Subnets: subnets("localhost")}, `subnets[0].prefix: "localhost" is not a prefix`},
		{"bits behind the length", Spec{Subnets: subnets("192.168.5.0/16")}, `write "192.168.0.0/16"`},
		{"multicast", Spec{Subnets: subnets("224.0.0.0/24")}, "no pod can have"},
		{"everything", Spec{Subnets: subnets("0.0.0.0/0")}, "no pod can have"},
		{"mapped", Spec{Subnets: subnets("::ffff:192.0.2.0/120")}, "IPv4 written as IPv6"},
		{"twice", Spec{Subnets: subnets("192.0.2.0/24", "192.0.2.128/25")}, "shares addresses with 192.0.2.0/24"},
		{"first behind last", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", First: "192.0.2.9", Last: "192.0.2.8"}}}, "is behind the last"},
		{"first elsewhere", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", First: "192.0.3.9"}}}, `"192.0.3.9" is not in`},
		{"gateway elsewhere", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", Gateway: "192.0.3.1"}}}, `gateway: "192.0.3.1" is not in "192.0.2.0/24": write an address in that network`},
		{"gateway of IPv6 elsewhere", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64", Gateway: "2001:db8:1::1"}}}, `gateway: "2001:db8:1::1" is not in "2001:db8::/64": write an address in that network, or a link-local one such as fe80::1`},
		{"a link-local gateway", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64", Gateway: "fe80::1"}}}, ""},
		{"a link-local gateway of blocks of nodes", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64", Gateway: "fe80::1"}}, HostBlock: 6, InterfaceBlock: 2}, ""},
		{"a link-local gateway with a zone", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64", Gateway: "fe80::1%eth0"}}}, "is not an IP address"},
		{"a link-local gateway of IPv4", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", Gateway: "fe80::1"}}}, `gateway: "fe80::1" is not in "192.0.2.0/24": write an address in that network`},
		{"a gateway that IPv4 has on no other link", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", Gateway: "169.254.1.1"}}}, `gateway: "169.254.1.1" is not in`},
		{"gateway for broadcasts", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", Gateway: "192.0.2.255"}}}, `gateway: "192.0.2.255" is the broadcast address of "192.0.2.0/24"`},
		{"gateway with a zone", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64", Gateway: "2001:db8::1%eth0"}}}, "is not an IP address"},
		{"exclude elsewhere", Spec{Subnets: subnets("192.0.2.0/24"), Exclude: []string{"192.0.3.0/24"}}, "is in none of the pool's subnets"},
		{"exclude backwards", Spec{Subnets: subnets("192.0.2.0/24"), Exclude: []string{"192.0.2.9-192.0.2.1"}}, "ends before it begins"},
		{"exclude of two families", Spec{Subnets: subnets("192.0.2.0/24"), Exclude: []string{"192.0.2.9-2001:db8::"}}, "is not an address, a prefix or a range"},
		{"nothing left", Spec{Subnets: subnets("192.0.2.0/24"), Exclude: []string{"192.0.2.0/24"}}, "no address left"},
		{"block size", Spec{Subnets: subnets("192.0.2.0/24"), BlockSize: 3}, "not a power of two"},
		{"block size and host block", Spec{Subnets: subnets("192.0.2.0/24"), BlockSize: 4, HostBlock: 2}, "follows from hostBlock"},
		{"interface block alone", Spec{Subnets: subnets("192.0.2.0/24"), InterfaceBlock: 2}, "needs hostBlock"},
		{"too many bits", Spec{Subnets: subnets("192.0.2.0/24"), HostBlock: 6, InterfaceBlock: 1}, "blocks would be of length /31, at most /30"},
		{"negative", Spec{Subnets: subnets("192.0.2.0/24"), HostBlock: -1}, "hostBlock: -1"},
		{"two of a family", Spec{Subnets: subnets("192.0.2.0/24", "198.51.100.0/24"), HostBlock: 2}, "one subnet of each family"},
		{"bounds with host block", Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24", First: "192.0.2.9"}}, HostBlock: 2}, "do not go with hostBlock"},
		{"too many blocks", Spec{Subnets: subnets("2001:db8::/32")}, "use a longer prefix"},
		{"too many subnets", Spec{Subnets: make([]v1alpha1.AddressSubnet, MaxSubnets+1)}, "at most 8"},
		{"too many excludes", Spec{Subnets: subnets("192.0.2.0/24"), Exclude: make([]string, MaxExcludes+1)}, "at most 64"},
		{"a long text", Spec{Subnets: subnets(strings.Repeat("1", 1000))}, "longer than 128 bytes"},
	} {
		_, err := New(c.spec)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}

func layout(t testing.TB, spec Spec) *Layout {
	t.Helper()
	spec.Name = "pool"
	l, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// blocks returns all that nodes can hold.
func blocks(g Group) (out []netip.Prefix) {
	for i := range g.Len() {
		if b, usable := g.At(i); usable {
			out = append(out, b)
		}
	}
	return out
}

// TestMultiNIC is the example of multi-nic-cni: each interface has a quarter of the
// network, and each node the same block of each quarter.
func TestMultiNIC(t *testing.T) {
	l := layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.168.0.0/16"}}, HostBlock: 6, InterfaceBlock: 2})
	g := l.Groups()[0]
	if g.Len() != 64 || l.Interfaces() != 4 || l.Flat() {
		t.Fatalf("%d blocks for %d interfaces", g.Len(), l.Interfaces())
	}
	for host, want := range [][2]string{{"192.168.0.1/18", "192.168.64.1/18"}, {"192.168.1.1/18", "192.168.65.1/18"}} {
		block, usable := g.At(uint64(host))
		if !usable {
			t.Fatalf("host %d: block %s is not usable", host, block)
		}
		h := &Holdings{}
		h.Gain(l, block, "uid")
		for iface, want := range want {
			got, err := h.Take(l, Owner{Step: fmt.Sprint(iface)}, iface, 0)
			if err != nil || len(got) != 1 || got[0].String() != want {
				t.Errorf("host %d, interface %d: %v, %v; want %s", host, iface, got, err, want)
			}
		}
		if _, err := h.Take(l, Owner{Step: "none"}, 4, 0); err == nil || !strings.Contains(err.Error(), "4 is not from 0 to 3") {
			t.Errorf("interface 4: %v", err)
		}
		if len(h.Idle("pool", 0)) != 0 || h.Drop("pool", block, 0) {
			t.Error("a block with addresses is idle")
		}
		h.GiveBack("", 0, rest(10))
		if h.Drop("pool", block, 9) || !h.Drop("pool", block, 10) {
			t.Error("a block is returned before its addresses have rested, or not then")
		}
	}
	if got := l.Size(true); got != 4*64*254 {
		t.Errorf("size is %d", got)
	}
	if err := l.Holds(netip.MustParsePrefix("192.168.64.0/24")); err == nil {
		t.Error("the part of the second interface is taken for a block")
	}
}

// TestExclude holds that a block is not used when one interface would have nothing of
// it, and that an exclude which begins before a block counts.
func TestExclude(t *testing.T) {
	l := layout(t, Spec{
		Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.168.0.0/16", Gateway: "192.168.2.1"}}, HostBlock: 8, InterfaceBlock: 2,
		Exclude: []string{"192.168.0.64/26", "192.168.0.128/30", "192.168.64.200-192.168.65.10"},
	})
	g := l.Groups()[0]
	for host, usable := range map[uint64]bool{0: true, 1: false, 2: true, 3: true, 4: true} {
		if b, got := g.At(host); got != usable {
			t.Errorf("block %d (%s): usable is %v", host, b, got)
		}
	}
	// Interface 1 of host 4 is 192.168.65.0/26.
	b, _ := g.At(4)
	r, err := l.Range(b, true, 1)
	if err != nil || r.first(nil) != netip.MustParseAddr("192.168.65.11") {
		t.Errorf("first of %v is %v, %v", r.Span, r.first(nil), err)
	}
}

// TestCovered has the vectors of multi-nic-cni for blocks that an exclude covers. It ignores
// an exclude that begins before a block, and wraps around where the base is not aligned.
func TestCovered(t *testing.T) {
	for _, c := range []struct {
		base    string
		bits    int
		host    uint64
		exclude string
		usable  bool
	}{
		{"192.168.0.0/16", 8, 0, "", true},
		{"192.168.0.0/16", 8, 0, "192.168.0.0/24", false},
		{"192.168.0.0/16", 8, 0, "192.168.1.0/24", true},
		{"192.168.0.0/16", 8, 1, "192.168.0.0/23", false},
		{"192.168.0.0/16", 8, 2, "192.168.0.0/23", true},
		{"192.168.0.0/18", 8, 1, "192.168.0.64/26", false},
		{"192.168.0.0/18", 8, 0, "192.168.0.64/26", true},
		{"192.168.0.0/18", 8, 2, "192.168.0.128/25", false},
		{"192.168.0.0/18", 8, 3, "192.168.0.128/25", false},
		{"192.168.0.0/16", 2, 1, "192.168.64.0/18", false},
		{"192.168.0.0/16", 2, 1, "192.168.80.0/20", true},
		{"192.168.0.0/16", 8, 1, "192.168.0.200-192.168.1.254", false},
	} {
		spec := Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: c.base}}, HostBlock: c.bits}
		if c.exclude != "" {
			spec.Exclude = []string{c.exclude}
		}
		if b, got := layout(t, spec).Groups()[0].At(c.host); got != c.usable {
			t.Errorf("%s divided by %d bits without %q: block %d (%s): usable is %v", c.base, c.bits, c.exclude, c.host, b, got)
		}
	}
}

// TestParts holds for random divisions that the parts of all nodes and interfaces are in
// order, touch one another, and fill the subnet: none wraps around, and none overlaps.
func TestParts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		hosts, ifaces := 1+r.IntN(5), r.IntN(4)
		length := 8 + r.IntN(30-8-hosts-ifaces+1)
		base := netip.PrefixFrom(number{lo: r.Uint64N(1 << 32)}.addr(true), length).Masked()
		if r.IntN(2) == 0 {
			base = netip.PrefixFrom(number{hi: 0xfd00<<48 | r.Uint64N(1<<48), lo: r.Uint64()}.addr(false), length+90).Masked()
		}
		l, err := New(Spec{Name: "pool", Subnets: []v1alpha1.AddressSubnet{{Prefix: base.String()}}, HostBlock: hosts, InterfaceBlock: ifaces})
		if err != nil {
			continue // such as multicast
		}
		at := base.Addr()
		for iface := range l.Interfaces() {
			for host := range l.Groups()[0].Len() {
				part := l.part(&l.subnets[0], iface, host)
				if part.Addr() != at || part.Bits() != base.Bits()+hosts+ifaces {
					t.Fatalf("%s, %d and %d bits: part %d of node %d is %s, want it at %s", base, ifaces, hosts, iface, host, part, at)
				}
				at = netipx.PrefixLastIP(part).Next()
				block, _ := l.Groups()[0].At(host)
				if n, err := l.Number(block); err != nil || n != host || iface > 0 && l.Holds(part) == nil {
					t.Fatalf("%s: block %s of node %d is number %d: %v", base, block, host, n, err)
				}
			}
		}
		if at != netipx.PrefixLastIP(base).Next() {
			t.Fatalf("%s: the parts end before %s", base, at)
		}
	}
}

// TestBrute compares sizes, blocks and what they give with an enumeration.
func TestBrute(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		length := 22 + r.IntN(8)
		base := netip.PrefixFrom(netip.MustParseAddr("10.1.0.0"), length)
		if r.IntN(2) == 0 {
			base = netip.PrefixFrom(netip.MustParseAddr("fd00::"), 128-32+length)
		}
		at := func() string {
			return numberOf(base.Addr()).plus(number{lo: r.Uint64N(1 << (32 - length))}).addr(base.Addr().Is4()).String()
		}
		spec := Spec{Name: "pool", Subnets: []v1alpha1.AddressSubnet{{Prefix: base.String()}}}
		switch r.IntN(3) {
		case 0:
			spec.HostBlock, spec.InterfaceBlock = 1+r.IntN(3), r.IntN(3)
		case 1:
			spec.BlockSize = 1 << r.IntN(6)
			spec.Subnets[0].First = at()
		}
		for range r.IntN(4) {
			spec.Exclude = append(spec.Exclude, []string{at(), at() + "-" + netipx.PrefixLastIP(base).String()}[r.IntN(2)])
		}
		if r.IntN(2) == 0 {
			spec.Subnets[0].Gateway = at()
		}
		l, err := New(spec)
		if err != nil {
			continue // nothing is left, or too little for as many blocks
		}
		is4 := base.Addr().Is4()
		all := map[netip.Addr]bool{}
		var sum uint64
		for i := range l.Groups()[0].Len() {
			b, usable := l.Groups()[0].At(i)
			if err := l.Holds(b); err != nil {
				t.Fatalf("%+v: block %d: %v", spec, i, err)
			}
			var here uint64
			empty := false
			for iface := range l.Interfaces() {
				rg, err := l.Range(b, is4, iface)
				if err != nil {
					t.Fatalf("%+v: %v", spec, err)
				}
				before := here
				for a := rg.first(func(a netip.Addr) bool { return all[a] }); a.IsValid(); a = rg.first(func(a netip.Addr) bool { return all[a] }) {
					all[a] = true
					here++
					if !rg.Contains(a) || !base.Contains(a) || a.String() == spec.Subnets[0].Gateway || slices.ContainsFunc(spec.Exclude, func(x string) bool {
						s, err := parseSpan(x)
						return err != nil || s.Contains(a)
					}) {
						t.Fatalf("%+v: block %s gives %s", spec, b, a)
					}
				}
				empty = empty || here == before
			}
			checkRouted(t, l, spec, b)
			if here != l.BlockSize(b, is4) || usable == empty {
				t.Fatalf("%+v: block %s gives %d addresses, says %d and usable %v", spec, b, here, l.BlockSize(b, is4), usable)
			}
			sum += here
		}
		if got := l.Size(is4); got != sum || uint64(len(all)) != sum {
			t.Fatalf("%+v: size %d; blocks give %d, %d different ones", spec, got, sum, len(all))
		}
	}
}

// checkRouted holds that other nodes route to the node of a block all that it can give, nothing
// that is excluded, and nothing that another block has.
func checkRouted(t *testing.T, l *Layout, spec Spec, block netip.Prefix) {
	t.Helper()
	is4 := block.Addr().Is4()
	subnet := netip.MustParsePrefix(spec.Subnets[0].Prefix)
	for iface := range l.Interfaces() {
		parts, err := l.Routed(block, is4, iface)
		if err != nil {
			t.Fatalf("%+v: block %s: %v", spec, block, err)
		}
		routed := map[netip.Addr]bool{}
		for _, p := range parts {
			for a := p.Addr(); a.IsValid() && p.Contains(a); a = a.Next() {
				routed[a] = true
				n, err := l.Number(block)
				whole := block
				if !l.Flat() {
					whole = l.part(&l.subnets[0], iface, n)
				}
				excluded := a.String() == spec.Subnets[0].Gateway || slices.ContainsFunc(spec.Exclude, func(x string) bool { s, _ := parseSpan(x); return s.Contains(a) })
				if first := spec.Subnets[0].First; first != "" && a.Less(netip.MustParseAddr(first)) {
					excluded = true
				}
				if a == subnet.Addr() || is4 && a == netipx.PrefixLastIP(subnet) { // of no host
					excluded = a.String() == spec.Subnets[0].Gateway
				}
				if err != nil || excluded || !whole.Contains(a) {
					t.Fatalf("%+v: %s is routed to the node of block %s", spec, a, block)
				}
			}
		}
		r, err := l.Range(block, is4, iface)
		if err != nil {
			t.Fatal(err)
		}
		for a := r.first(nil); a.IsValid() && r.Contains(a); a = a.Next() {
			gives := !slices.ContainsFunc(r.excludes, func(x Span) bool { return x.Contains(a) })
			if gives && !routed[a] {
				t.Fatalf("%+v: %s of block %s is not routed, only %v; subnet %s", spec, a, block, parts, subnet)
			}
		}
	}
}

// TestMemory holds that the size of a pool costs nothing.
func TestMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, spec := range []Spec{
		{Subnets: []v1alpha1.AddressSubnet{{Prefix: "10.0.0.0/8"}}},
		{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64"}}},
		{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/48"}}, HostBlock: 16},
	} {
		l := layout(t, spec)
		g := l.Groups()[0]
		h := &Holdings{}
		b, usable := g.At(g.Len() / 2)
		h.Gain(l, b, "uid")
		if _, err := h.Take(l, Owner{}, 0, 0); err != nil || !usable {
			t.Errorf("%v: %v, usable %v", spec, err, usable)
		}
		if _, usable := g.At(g.Len()); usable {
			t.Errorf("%v: there is a block behind the last", spec)
		}
		if l.Size(g.IPv4()) < 1<<24-10 {
			t.Errorf("%v: size is %d", spec, l.Size(g.IPv4()))
		}
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("three pools took %d bytes", used)
	}
}

// TestLeaseName holds that no two blocks have one name.
func TestLeaseName(t *testing.T) {
	seen := map[string]string{}
	for _, pool := range []string{"a", "a-1", "a-10.0.0.0-24", "a-0001", "a-fd00"} {
		for _, block := range []string{"10.0.0.0/24", "10.0.0.0/25", "1.10.0.0/24", "fd00::/64", "1:fd00::/64", "fd00:fd00::/64", "0:1::/64"} {
			name := LeaseName(pool, netip.MustParsePrefix(block))
			if other, twice := seen[name]; twice {
				t.Errorf("%s of %s and %s are both %q", block, pool, other, name)
			}
			seen[name] = pool
		}
	}
	for block, want := range map[string]string{"192.0.2.9/32": "192.0.2.9.literal", "2001:db8::9/128": "2001-0db8-0000-0000-0000-0000-0000-0009.literal"} {
		if got := LeaseName(topology.LiteralPool, netip.MustParsePrefix(block)); got != want {
			t.Errorf("a literal has the lease %q, want %q", got, want)
		}
	}
	if got := LeaseName("blue", netip.MustParsePrefix("2001:db8::/124")); got != "blue-2001-0db8-0000-0000-0000-0000-0000-0000-124" {
		t.Error(got)
	}
}

// cluster is a model of an API server with leases, and of nodes that hold them. A node's
// disk survives a crash, what it has in memory does not.
type cluster struct {
	t      *testing.T
	r      *rand.Rand
	layout *Layout
	now    int64
	leases map[string]lease // by name
	nodes  []*node
	uids   int
	keep   int64 // for how long addresses are kept for pods of the same name
}

type lease struct {
	node  int
	uid   string
	block netip.Prefix
	kept  *Kept
	owner string // for whom it was taken over
}

type node struct {
	id           int
	memory, disk *Holdings
	answered     map[Owner][]netip.Prefix // what sandboxes have
	gone         bool
}

// crashed is the panic of a node that died at a write.
type crashed struct{}

func (c *cluster) write(n *node) {
	when := c.r.IntN(20)
	if when == 0 {
		panic(crashed{}) // before it
	}
	n.disk = n.memory.Clone()
	if when == 1 {
		panic(crashed{}) // behind it
	}
}

func (c *cluster) maybeCrash() {
	if c.r.IntN(20) == 0 {
		panic(crashed{})
	}
}

// sync does the work of a node that starts or is back: leases it does not know are its
// own, and blocks whose lease is another's, or gone, are lost.
func (c *cluster) sync(n *node) {
	for _, b := range slices.Clone(n.memory.Blocks) {
		if l, ok := c.leases[LeaseName(b.Pool, b.Block)]; !ok || l.node != n.id || l.uid != b.Lease || l.kept != nil {
			n.memory.Lose(b.Pool, b.Block)
		}
	}
	for _, l := range c.leases {
		i := n.memory.index(c.layout.Name, l.block)
		if l.node == n.id && l.kept == nil && (i < 0 || n.memory.Blocks[i].Lost) {
			if l.owner != "" {
				n.memory.GainFor(c.layout, l.block, l.uid, l.owner, c.now)
			} else {
				n.memory.Gain(c.layout, l.block, l.uid)
			}
		}
	}
	c.write(n)
}

// gain creates a lease. Creation is the lock.
func (c *cluster) gain(n *node) {
	for _, g := range c.layout.Groups() {
		if !c.layout.Flat() && slices.ContainsFunc(n.memory.Blocks, func(b Held) bool { return !b.Lost }) {
			return
		}
		b, usable := g.At(c.r.Uint64N(g.Len()))
		name := LeaseName(c.layout.Name, b)
		if _, exists := c.leases[name]; exists || !usable {
			continue
		}
		c.uids++
		c.leases[name] = lease{n.id, fmt.Sprint(c.uids), b, nil, ""}
		c.maybeCrash()
		n.memory.Gain(c.layout, b, fmt.Sprint(c.uids))
		c.write(n)
	}
}

// pod is the name of a claim's pod, of which each node may have one.
func pod(claim string) string { return claim[strings.IndexByte(claim, '-'):] }

// part keeps leases for pods, and seek takes one over. Both are one write to the API server,
// of which that of another node is refused.
func (c *cluster) part(n *node) {
	for _, b := range n.memory.ToKeep(c.layout.Name) {
		name := LeaseName(b.Pool, b.Block)
		if l := c.leases[name]; l.node == n.id && l.uid == b.Lease && l.kept == nil {
			l.kept = b.Kept
			c.leases[name] = l
			c.maybeCrash()
		}
		n.memory.Part(b)
		c.write(n)
	}
}

func (c *cluster) seek(n *node, identity string) {
	for _, name := range slices.Sorted(maps.Keys(c.leases)) {
		if l := c.leases[name]; l.kept != nil && l.kept.For == identity {
			l.node, l.kept, l.owner = n.id, nil, identity
			c.leases[name] = l
			c.maybeCrash()
			n.memory.GainFor(c.layout, l.block, l.uid, identity, c.now)
			c.write(n)
			return
		}
	}
}

// endKept is the controller's end of leases whose time has passed.
func (c *cluster) endKept() {
	for name, l := range c.leases {
		if l.kept != nil && l.kept.Until <= c.now {
			delete(c.leases, name)
		}
	}
}

func (c *cluster) take(n *node, owner Owner) {
	keeping := Keeping{}
	if c.keep > 0 {
		keeping = Keeping{pod(owner.Claim) + owner.Step, c.keep}
	}
	got, err := n.memory.TakeKept(c.layout, owner, c.r.IntN(c.layout.Interfaces()), c.now, keeping)
	if err != nil {
		return // it has none
	}
	c.write(n)
	if had, again := n.answered[owner]; again && !slices.Equal(had, got) {
		c.t.Fatalf("%v had %v and gets %v", owner, had, got)
	}
	for _, other := range c.nodes {
		for o, addresses := range other.answered {
			if other == n && o == owner || other.gone {
				continue
			}
			for _, a := range addresses {
				if slices.ContainsFunc(got, func(b netip.Prefix) bool { return a.Addr() == b.Addr() }) {
					c.t.Fatalf("%s is given to %v on node %d, and %v on node %d has it", a, owner, n.id, o, other.id)
				}
			}
		}
	}
	n.answered[owner] = got
}

// giveBack is the definite end of a claim: its sandbox is undone first.
func (c *cluster) giveBack(n *node, claim string) {
	for o := range n.answered {
		if o.Claim == claim {
			delete(n.answered, o)
		}
	}
	c.maybeCrash()
	if n.memory.GiveBack(claim, c.now, rest(5)) {
		c.write(n)
	}
}

func (c *cluster) giveUp(n *node) {
	idle := n.memory.Idle(c.layout.Name, c.now)
	if len(idle) == 0 {
		return
	}
	b := idle[0]
	if !n.memory.Drop(b.Pool, b.Block, c.now) {
		c.t.Fatalf("idle block %v cannot be dropped", b)
	}
	c.write(n) // first: what is not in the file is not given
	if l := c.leases[LeaseName(b.Pool, b.Block)]; l.uid == b.Lease {
		delete(c.leases, LeaseName(b.Pool, b.Block))
	}
}

func (c *cluster) step() {
	n := c.nodes[c.r.IntN(len(c.nodes))]
	if n.gone {
		switch c.r.IntN(4) {
		case 0: // the grace is over: the controller deletes its leases
			for name, l := range c.leases {
				if l.node == n.id && l.kept == nil {
					delete(c.leases, name)
				}
			}
		case 1: // it returns, after a boot: no sandbox is left, but claims may be
			n.gone = false
			n.answered = map[Owner][]netip.Prefix{}
			n.memory = n.disk.Clone()
			for c.survives(n, func() { c.sync(n) }) {
			}
		}
		return
	}
	owner := Owner{Claim: fmt.Sprintf("%d-%d", n.id, c.r.IntN(6)), Step: fmt.Sprint(c.r.IntN(2))}
	crash := c.survives(n, func() {
		switch c.r.IntN(15) {
		case 12:
			c.part(n)
		case 13:
			c.seek(n, pod(owner.Claim)+owner.Step)
		case 14:
			c.endKept()
			if n.memory.Abandon(c.layout.Name, c.now, c.now+c.keep, 2, func(string) bool { return c.r.IntN(2) == 0 }) {
				c.write(n)
			}
		case 0, 1:
			c.gain(n)
		case 2, 3, 4, 5:
			c.take(n, owner)
		case 6, 7:
			c.giveBack(n, owner.Claim)
		case 8:
			c.giveUp(n)
		case 9:
			n.memory.Expire(c.now, most(8))
			c.write(n)
		case 10:
			c.now += int64(c.r.IntN(4))
		case 11:
			if c.r.IntN(10) == 0 {
				n.gone = true
			}
		}
	})
	for crash {
		crash = c.survives(n, func() { c.sync(n) })
	}
}

// survives runs something on a node and reports whether it died of it.
func (c *cluster) survives(n *node, f func()) (died bool) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case crashed{}:
			died = true
			n.memory = n.disk.Clone()
		default:
			panic(r)
		}
	}()
	f()
	return false
}

// TestNeverTwice holds, in any order of take, give, crash, loss and return: no two
// sandboxes have one address, an owner keeps its own, and no address is lost for good.
func TestNeverTwice(t *testing.T) {
	for i, spec := range []Spec{
		{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/28"}}, BlockSize: 1},
		{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/27", Gateway: "192.0.2.1"}}, BlockSize: 4, Exclude: []string{"192.0.2.9-192.0.2.13"}},
		{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/28"}, {Prefix: "2001:db8::/124"}}, BlockSize: 2},
		{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/26"}}, HostBlock: 2, InterfaceBlock: 1},
	} {
		for seed := range uint64(50) {
			c := &cluster{t: t, keep: int64(seed%2) * 8, r: rand.New(rand.NewPCG(uint64(i), seed)), layout: layout(t, spec), leases: map[string]lease{}}
			for id := range 3 {
				c.nodes = append(c.nodes, &node{id: id, memory: &Holdings{}, disk: &Holdings{}, answered: map[Owner][]netip.Prefix{}})
			}
			for range 600 {
				c.step()
			}
			c.nothingLost()
			if t.Failed() {
				t.Fatalf("spec %d, seed %d", i, seed)
			}
		}
	}
}

// nothingLost ends all claims, and lets one node have the whole pool.
func (c *cluster) nothingLost() {
	calm := func(n *node, f func()) {
		for c.survives(n, f) {
			for c.survives(n, func() { c.sync(n) }) {
			}
		}
	}
	for _, n := range c.nodes {
		calm(n, func() { c.sync(n) })
		for claim := range 6 {
			calm(n, func() { c.giveBack(n, fmt.Sprintf("%d-%d", n.id, claim)) })
		}
	}
	for _, n := range c.nodes {
		calm(n, func() {
			n.memory.Abandon(c.layout.Name, c.now, c.now, 0, func(string) bool { return false })
			c.write(n)
		})
		for len(n.disk.ToKeep(c.layout.Name)) > 0 {
			calm(n, func() { c.part(n) })
		}
	}
	c.now += 100
	c.endKept()
	for _, n := range c.nodes {
		calm(n, func() { n.memory.Expire(c.now, most(8)); c.write(n) })
		for len(n.memory.Blocks) > 0 {
			calm(n, func() { c.giveUp(n) })
		}
		if len(n.disk.Grants)+len(n.disk.Resting)+len(n.disk.Blocks) > 0 {
			c.t.Errorf("node %d is left with %+v", n.id, n.disk)
		}
	}
	if len(c.leases) > 0 {
		c.t.Errorf("leases are left: %v", c.leases)
	}
	h := &Holdings{}
	for _, g := range c.layout.Groups() {
		for _, b := range blocks(g) {
			h.Gain(c.layout, b, "uid")
		}
	}
	for _, is4 := range c.layout.Families() {
		if count := h.Count(c.layout, is4, c.now); count.Free != c.layout.Size(is4) {
			c.t.Errorf("%d of %d addresses are free", count.Free, c.layout.Size(is4))
		}
	}
}

// rest is the same for each pool.
func rest(seconds int64) func(string) int64 { return func(string) int64 { return seconds } }

// most is the same for each pool, for whomever it is kept.
func most(seconds int64) func(string, bool) int64 { return func(string, bool) int64 { return seconds } }

// TestClockAhead holds that what rests since the clock was ahead rests for no longer than its pool says, and is kept for
// no longer.
func TestClockAhead(t *testing.T) {
	const now, ahead = 1e9, 1e9 + 10*365*86400
	l := layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/30"}}, BlockSize: 4, Exclude: []string{"192.0.2.2"}})
	h := &Holdings{Resting: []Resting{{"pool", netip.MustParseAddr("192.0.2.1"), ahead, ""}, {"other", netip.MustParseAddr("192.0.2.1"), now + 30, ""}}}
	h.Gain(l, netip.MustParsePrefix("192.0.2.0/30"), "uid")
	if !h.Expire(now, most(60)) || h.Expire(now, most(60)) {
		t.Error("a time that is too late is not corrected once")
	}
	if got, err := h.Take(l, Owner{Claim: "a"}, 0, now+59); err == nil {
		t.Errorf("%v is allocated before it has rested", got)
	}
	if got, err := h.Take(l, Owner{Claim: "a"}, 0, now+60); err != nil || joined(got) != "192.0.2.1/30" {
		t.Errorf("after its rest: %v, %v", got, err)
	}
	if len(h.Resting) != 1 || h.Resting[0].Until != now+30 {
		t.Errorf("of another pool: %v", h.Resting)
	}

	l = layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/30"}}, BlockSize: 1})
	h = &Holdings{}
	h.Gain(l, netip.MustParsePrefix("192.0.2.1/32"), "uid")
	if _, err := h.TakeKept(l, Owner{Claim: "a"}, 0, ahead, Keeping{"ns/web-0", 100}); err != nil {
		t.Fatal(err)
	}
	h.GiveBack("a", ahead, rest(60))
	h.Expire(now, func(_ string, kept bool) int64 { return map[bool]int64{true: 100, false: 60}[kept] })
	if keep := h.ToKeep("pool"); len(keep) != 1 || keep[0].Kept.Until != now+100 || h.Resting[0].Until != now+100 {
		t.Errorf("to be kept are %+v, and %v rest", keep, h.Resting)
	}
}

// TestTwoPools holds that an address of each of a claim's pools rests for as long as its
// pool says.
func TestTwoPools(t *testing.T) {
	h := &Holdings{}
	rests := map[string]int64{"short": 0, "long": 100}
	named := func(name string) *Layout {
		l, err := New(Spec{Name: name, Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/30"}}, BlockSize: 4})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for name := range rests {
		l := named(name)
		h.Gain(l, netip.MustParsePrefix("192.0.2.0/30"), "uid-"+name)
		if _, err := h.Take(l, Owner{Claim: "c", Step: name}, 0, 10); err != nil {
			t.Fatal(err)
		}
	}
	h.GiveBack("c", 10, func(pool string) int64 { return rests[pool] })
	for name, want := range map[string]uint64{"short": 2, "long": 1} {
		if c := h.Count(named(name), true, 10); c.Free != want {
			t.Errorf("pool %s: %+v, want %d free", name, c, want)
		}
	}
}

// TestLost holds that nothing is given from a lost block, that it is remembered while it
// is used, and that its lease of another UID does not make it usable by itself.
func TestLost(t *testing.T) {
	l := layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}}, BlockSize: 4})
	h := &Holdings{}
	b := netip.MustParsePrefix("192.0.2.4/30")
	h.Gain(l, b, "1")
	owner := Owner{Claim: "a"}
	had, err := h.Take(l, owner, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.Lose("pool", b)
	if again, err := h.Take(l, owner, 0, 0); !errors.Is(err, ErrLost) || !slices.Equal(again, had) {
		t.Errorf("a claim is given once more what another node may have: %v, %v", again, err)
	}
	if got, err := h.Take(l, Owner{Claim: "b"}, 0, 0); err == nil {
		t.Errorf("%v is given from a lost block", got)
	}
	if len(h.Blocks) != 1 || !h.Blocks[0].Lost {
		t.Errorf("a lost block in use is forgotten: %v", h.Blocks)
	}
	h.GiveBack("a", 0, rest(10))
	h.Expire(1, most(10))
	if len(h.Blocks) != 0 {
		t.Errorf("a lost block is remembered: %v", h.Blocks)
	}
}

// FuzzSpec reads pools of any form: New refuses them, or each block is found again and
// gives what is its own.
func FuzzSpec(f *testing.F) {
	f.Add("192.0.2.0/24", "192.0.2.10", "192.0.2.20", "192.0.2.1", "192.0.2.12/30", "10.0.0.0/8", "192.0.2.9", 4, 0, 0)
	f.Add("192.168.0.0/16", "", "", "", "192.168.0.0/24", "0.0.0.0/0", "", 0, 6, 2)
	f.Add("fd00::/8", "", "", "", "", "", "", 4096, 0, 0)
	f.Add("2001:db8::/64", "", "2001:db8::ffff", "2001:db8::1", "2001:db8::-2001:db8::5", "::/0", "2001:db8::1", 0, 0, 0)
	f.Add("255.255.255.0/24", "", "", "", "", "", "", 1, 0, 0)
	f.Add("2001:db8::/64", "", "", "fe80::1", "", "::/0", "fe80::2", 0, 6, 2)
	f.Fuzz(func(t *testing.T, prefix, first, last, gateway, exclude, to, via string, size, host, iface int) {
		spec := Spec{Name: "pool", Subnets: []v1alpha1.AddressSubnet{{Prefix: prefix, First: first, Last: last, Gateway: gateway}}, BlockSize: size, HostBlock: host, InterfaceBlock: iface}
		if exclude != "" {
			spec.Exclude = []string{exclude}
		}
		if to != "" || via != "" {
			spec.Routes = []v1alpha1.AddressRoute{{Destination: to, Gateway: via}}
		}
		l, err := New(spec)
		if err != nil {
			return
		}
		p := netip.MustParsePrefix(prefix)
		for _, g := range l.Groups() {
			for _, i := range []uint64{0, 1, g.Len() / 2, g.Len() - 1} {
				b, usable := g.At(i)
				if i >= g.Len() || !usable {
					continue
				}
				_, index, err := l.find(b)
				if err != nil || index != i {
					t.Fatalf("%+v: block %d is %s, which is number %d: %v", spec, i, b, index, err)
				}
				h := &Holdings{}
				h.Gain(l, b, "uid")
				got, err := h.Take(l, Owner{}, l.Interfaces()-1, 0)
				if err != nil || len(got) != 1 || !p.Contains(got[0].Addr()) || got[0].Addr().String() == gateway || got[0].Addr().String() == via {
					t.Fatalf("%+v: block %s gives %v, %v", spec, b, got, err)
				}
				for _, r := range l.Routes(got) {
					if r.Gateway.IsValid() && !Reaches(got[0], r.Gateway) {
						t.Fatalf("%+v: %v has a route by %s", spec, got, r.Gateway)
					}
				}
			}
			if _, usable := g.At(g.Len()); usable {
				t.Fatalf("%+v: a block behind the last", spec)
			}
		}
		if l.Size(p.Addr().Is4()) == 0 {
			t.Fatalf("%+v: size 0", spec)
		}
	})
}

// TestKept holds who gets an address that is kept for a pod: in a block of several addresses
// that pod, on the node, and another one when its time has passed; in a block of one, who
// takes the lease over.
func TestKept(t *testing.T) {
	web, db := Keeping{"ns/web-0", 100}, Keeping{"ns/db-0", 100}
	take := func(h *Holdings, l *Layout, claim string, now int64, k Keeping) string {
		got, err := h.TakeKept(l, Owner{Claim: claim}, 0, now, k)
		if err != nil {
			return err.Error()
		}
		return joined(got)
	}
	const none = `AddressPool "pool": no address is free on this node`
	said := func(what, have, want string) {
		t.Helper()
		if have != want {
			t.Errorf("%s gets %s, want %s", what, have, want)
		}
	}

	l := layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/29"}}, BlockSize: 8, Exclude: []string{"192.0.2.3-192.0.2.6"}})
	h := &Holdings{}
	h.Gain(l, netip.MustParsePrefix("192.0.2.0/29"), "uid")
	said("the first", take(h, l, "a", 0, web), "192.0.2.1/29")
	h.GiveBack("a", 10, rest(60))
	said("another pod", take(h, l, "b", 11, db), "192.0.2.2/29")
	said("a third", take(h, l, "c", 109, Keeping{"ns/other", 100}), none)
	said("the pod, created again", take(h, l, "d", 109, web), "192.0.2.1/29")
	h.GiveBack("d", 200, rest(60))
	said("one without a name", take(h, l, "e", 299, Keeping{}), none)
	said("another pod, after the time", take(h, l, "f", 300, Keeping{}), "192.0.2.1/29")
	said("the pod, after the time", take(h, l, "g", 300, web), none)

	l = layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/30"}}, BlockSize: 1})
	one, two := &Holdings{}, &Holdings{}
	block := netip.MustParsePrefix("192.0.2.1/32")
	one.Gain(l, block, "uid")
	said("the first", take(one, l, "a", 0, web), "192.0.2.1/30")
	if id := one.Usage(0)[0].For; id != web.For {
		t.Errorf("the lease is for %q", id)
	}
	one.GiveBack("a", 10, rest(60))
	said("the pod, before its lease is kept", take(one, l, "b", 11, web), none)
	keep := one.ToKeep("pool")
	if len(keep) != 1 || *keep[0].Kept != (Kept{web.For, 110}) || len(one.Idle("pool", 1000)) > 0 || one.Drop("pool", block, 1000) {
		t.Fatalf("to be kept are %+v", keep)
	}
	one.Part(keep[0])
	said("the pod, after it", take(one, l, "b", 11, web), none)
	two.GainFor(l, block, "uid", web.For, 11)
	said("another pod on the node that took it over", take(two, l, "c", 11, db), none)
	said("the pod there", take(two, l, "d", 11, web), "192.0.2.1/30")
	two.GiveBack("d", 20, rest(60))
	if two.KeepNothing("pool", 80); len(two.Idle("pool", 79)) > 0 || len(two.Idle("pool", 80)) != 1 {
		t.Error("a pool that ends keeps an address for longer than it rests, or less")
	}
	two.GainFor(l, block, "uid", web.For, 11)
	two.Resting = nil
	wanted, unwanted := func(string) bool { return true }, func(string) bool { return false }
	if two.Abandon("pool", 71, 500, 60, wanted) || two.Abandon("pool", 70, 500, 60, unwanted) {
		t.Error("what somebody waits for, or was taken over a moment ago, is abandoned")
	}
	ahead := two.Clone()
	if !two.Abandon("pool", 71, 500, 60, unwanted) || len(two.ToKeep("pool")) != 1 || !ahead.Abandon("pool", 10, 500, 60, unwanted) {
		t.Error("what nobody wants any more is not kept, or not as long as the clock was ahead")
	}
}

// TestKeptBounds holds that what a node keeps for pods that have ended is bounded: for each namespace, for all of them, and
// what rests. The share of a namespace that keeps few is not touched by others.
func TestKeptBounds(t *testing.T) {
	l := layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64"}}})
	h := &Holdings{}
	now := int64(1000)
	most := func(_ string, kept bool) int64 {
		if kept {
			return 86400
		}
		return 60
	}
	block, _ := l.Groups()[0].At(1)
	pod := func(namespace string, i int) {
		claim := fmt.Sprint(namespace, i)
		for {
			_, err := h.TakeKept(l, Owner{Claim: claim}, 0, now, Keeping{For: fmt.Sprintf("%s/web-%d/net/t/s", namespace, i), Keep: 86400})
			if err == nil {
				break
			}
			h.Gain(l, block, "uid")
			block, _ = l.Groups()[0].At(uint64(len(h.Blocks)) + 1)
		}
		h.GiveBack(claim, now, func(string) int64 { return 60 })
	}
	kept := func(namespace string) (n int) {
		for _, r := range h.Resting {
			if r.For != "" && Namespace(r.For) == namespace {
				n++
			}
		}
		return n
	}
	for i := range 3 {
		pod("small", i)
	}
	for i := range 1000 {
		now++
		pod("large", i)
		if i%10 == 0 {
			h.Expire(now, most)
		}
		if n := kept("large"); n > MaxKept+10 {
			t.Fatalf("%d addresses are kept for a namespace", n)
		}
	}
	h.Expire(now, most)
	if kept("large") != MaxKept || kept("small") != 3 || len(h.Resting) > MaxKept+3+70 || len(h.Blocks) > 30 {
		t.Errorf("%d and %d are kept, %d rest, in %d blocks", kept("large"), kept("small"), len(h.Resting), len(h.Blocks))
	}
	if a, err := h.TakeKept(l, Owner{Claim: "next"}, 0, now, Keeping{For: "large/web-999/net/t/s", Keep: 86400}); err != nil || !slices.ContainsFunc(h.Blocks, func(b Held) bool { return b.contains(a[0].Addr()) }) {
		t.Errorf("the last pod has %v, %v", a, err)
	}

	h = &Holdings{}
	for n := range 50 {
		for i := range 200 {
			a := number{hi: 0x20010db8 << 32, lo: uint64(n)<<16 | uint64(i)}.addr(false)
			h.Resting = append(h.Resting, Resting{"pool", a, now + 86400, fmt.Sprintf("ns-%d/web-%d/net/t/s", n, i)})
		}
	}
	for i := range 2 * maxResting {
		h.Resting = append(h.Resting, Resting{"pool", number{hi: 0x20010db9 << 32, lo: uint64(i)}.addr(false), now + 50, ""})
	}
	h.Resting = append(h.Resting, Resting{"pool", netip.MustParseAddr("2001:db8::1"), now + 86400, "small/web-0/net/t/s"})
	h.Expire(now, most)
	all := 0
	for _, r := range h.Resting {
		if r.For != "" {
			all++
		}
	}
	if len(h.Resting) > maxResting || all > maxAllKept || kept("small") != 1 {
		t.Errorf("%d rest, %d are kept, %d of the namespace with one", len(h.Resting), all, kept("small"))
	}
}

// TestExampleBehindExclusion holds that a large excluded range at the beginning of a subnet hides no example.
func TestExampleBehindExclusion(t *testing.T) {
	l := layout(t, Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "2001:db8::/64"}}, Exclude: []string{"2001:db8::/100"}})
	got, err := new(Holdings).Example(l, Owner{Topology: "t", Step: "a"}, 0)
	if err != nil || len(got) != 1 || netip.MustParsePrefix("2001:db8::/100").Contains(got[0].Addr()) {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestUsable holds that the numbers of usable blocks are those that a look at each block finds, whatever is excluded.
func TestUsable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	for range 2000 {
		spec := Spec{Name: "p", BlockSize: 1 << r.IntN(4)}
		for i, base := range []string{"192.0.2.0/25", "192.0.3.0/28", "2001:db8::/122"}[:1+r.IntN(3)] {
			p := netip.MustParsePrefix(base)
			at := func() netip.Addr {
				return numberOf(p.Addr()).plus(number{lo: r.Uint64N(1 << (p.Addr().BitLen() - p.Bits()))}).addr(p.Addr().Is4())
			}
			spec.Subnets = append(spec.Subnets, v1alpha1.AddressSubnet{Prefix: base})
			if a, b := at(), at(); r.IntN(2) == 0 && a.Compare(b) <= 0 {
				spec.Subnets[i].First, spec.Subnets[i].Last = a.String(), b.String()
			}
			for range r.IntN(6) {
				if a, b := at(), at(); a.Compare(b) <= 0 {
					spec.Exclude = append(spec.Exclude, a.String()+"-"+b.String())
				}
			}
		}
		if r.IntN(4) == 0 && len(spec.Subnets) == 1 {
			spec.BlockSize, spec.HostBlock, spec.Subnets[0] = 0, 3, v1alpha1.AddressSubnet{Prefix: "192.0.2.0/25"}
		}
		l, err := New(spec)
		if err != nil {
			continue // nothing is left
		}
		for _, g := range l.Groups() {
			var want, got []uint64
			for i := range g.Len() {
				if _, usable := g.At(i); usable || !l.Flat() {
					want = append(want, i)
				}
			}
			all := g.Usable()
			for i := range all.Len() {
				got = append(got, all.At(i))
			}
			if _, usable := g.At(all.At(all.Len())); !slices.Equal(got, want) || usable {
				t.Fatalf("%+v: usable are %v, want %v", spec, got, want)
			}
		}
	}
}

// TestWithout checks that an owner gets no address that it must not have, whoever else may have it.
func TestWithout(t *testing.T) {
	l, err := New(Spec{Name: "p", Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/29"}, {Prefix: "2001:db8::/64"}}})
	if err != nil {
		t.Fatal(err)
	}
	gateways := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("198.51.100.1")}
	for claim, c := range map[string]struct {
		layout *Layout
		want   string
	}{"a": {l.Without(gateways), "192.0.2.2/29,2001:db8::2/64"}, "b": {l, "192.0.2.1/29,2001:db8::1/64"}, "c": {l.Without(gateways[2:]), "192.0.2.1/29,2001:db8::1/64"}} {
		if got, err := new(Holdings).Example(c.layout, Owner{Claim: claim}, 0); err != nil || joined(got) != c.want {
			t.Errorf("claim %s is given %s, %v, want %s", claim, joined(got), err, c.want)
		}
	}
}
