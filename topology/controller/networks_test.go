package controller

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestAround holds that of any networks exactly those are found of which a pool gives an address, each once.
func TestAround(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	prefix := func(shortest int) string {
		if random.IntN(3) == 0 {
			a := netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(random.IntN(256))})
			p, _ := a.Prefix(shortest + 96 + random.IntN(33-shortest))
			return p.String()
		}
		p, _ := netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(256))}).Prefix(shortest + random.IntN(33-shortest))
		return p.String()
	}
	pools := 0
	for range 20_000 {
		spec := addresspool.Spec{Name: "p", Subnets: []v1alpha1.AddressSubnet{{Prefix: prefix(22)}}}
		if random.IntN(2) == 0 {
			spec.Subnets = append(spec.Subnets, v1alpha1.AddressSubnet{Prefix: prefix(24)})
		}
		if random.IntN(3) == 0 {
			spec.HostBlock = 1 + random.IntN(3)
		}
		for range random.IntN(4) {
			spec.Exclude = append(spec.Exclude, prefix(25))
		}
		l, err := addresspool.New(spec)
		if err != nil {
			continue
		}
		pools++
		var all []Network
		for i := range random.IntN(12) {
			all = append(all, Network{netip.MustParsePrefix(prefix(20)), fmt.Sprint(i)})
		}
		a := newAround(all)
		var want, have []netip.Prefix
		for _, n := range all {
			if _, ok := l.Gives(n.Prefix); ok && !slices.Contains(want, n.Prefix) {
				want = append(want, n.Prefix)
			}
		}
		for n, mine := range a.of(l) {
			if !mine.Overlaps(n.Prefix) {
				t.Fatalf("%+v: %s of %s", spec, n.Prefix, mine)
			}
			have = append(have, n.Prefix)
		}
		slices.SortFunc(want, netip.Prefix.Compare)
		slices.SortFunc(have, netip.Prefix.Compare)
		if !slices.Equal(have, want) {
			t.Fatalf("%+v: %v of %v, want %v", spec, have, all, want)
		}
	}
	if pools < 2000 {
		t.Errorf("only %d pools are valid", pools)
	}
}

// TestAroundMany holds that the pools of ten thousand networks are not compared with each address of five thousand nodes: apart from
// these, equal to each other and around all of these, and around all of these but without their addresses.
func TestAroundMany(t *testing.T) {
	const pools, nodes = 10_000, 5_000
	var all []Network
	for i := range nodes {
		all = append(all, Network{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 32), "a node"},
			Network{netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i >> 8), byte(i), 0}), 24), "pods"},
			Network{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 255, 255}), 32), "a node with the address of another"})
	}
	all = append(all, Network{netip.MustParsePrefix("10.0.0.0/8"), "Services"})
	for what, c := range map[string]struct {
		spec  func(i int) addresspool.Spec
		found bool
	}{
		"apart": {spec: func(i int) addresspool.Spec {
			return addresspool.Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: fmt.Sprintf("11.%d.%d.0/24", i>>8, i&255)}}}
		}},
		"around": {found: true, spec: func(int) addresspool.Spec {
			return addresspool.Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "10.0.0.0/8"}, {Prefix: "100.0.0.0/8"}}}
		}},
		"without": {found: true, spec: func(int) addresspool.Spec {
			return addresspool.Spec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "10.0.0.0/8"}}, Exclude: []string{"10.1.0.0/16"}}
		}},
	} {
		a := newAround(all)
		for i := range pools {
			l, err := addresspool.New(c.spec(i))
			if err != nil {
				t.Fatal(err)
			}
			if found := overlaps(l, addresspool.Shared{}, []*around{a}); (len(found) > 0) != c.found || len(found) > maxOverlaps+1 {
				t.Fatalf("%s: %s", what, found)
			}
		}
		if a.compared > 16*pools {
			t.Errorf("%s: %d networks are looked at for %d pools, want a few for each", what, a.compared, pools)
		}
	}
}
