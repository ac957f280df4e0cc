package tc_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/tc"
)

// TestFilters holds that the filters decide about every packet as the rules do: the first
// filter by preference that matches is of the first rule that matches, with its mark and
// its policer.
func TestFilters(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		rules, sets := qostest.Rules(rng, rng.IntN(8))
		members := func(id qos.SetID) []netip.Addr { return sets[id] }
		out, err := tc.Compile(rules, members)
		if err != nil {
			t.Fatal(err)
		}
		wellFormed(t, out)
		for range 200 {
			p := qostest.Packet(rng)
			want := slices.IndexFunc(rules, func(r qos.Rule) bool { return qostest.Matches(&r, p, members) })
			f, _ := out.Decide(p)
			if f == nil || want < 0 {
				if (f == nil) != (want < 0) {
					t.Fatalf("seed %d, packet %+v: filter %+v, rule %d", seed, p, f, want)
				}
				continue
			}
			if f.Rule != want || f.DSCP != rules[want].DSCP || (f.Policer != 0) != (rules[want].RateKbit > 0) {
				t.Fatalf("seed %d, packet %+v: %+v, want rule %d: %+v", seed, p, f, want, rules[want])
			}
		}
	}
}

// wellFormed holds what the kernel requires: one protocol per preference, one filter per
// preference and handle, and a policer for each index; and what packing promises: one mask for each preference.
func wellFormed(t *testing.T, out *tc.Filters) {
	t.Helper()
	type key struct {
		chain  uint32
		pref   uint16
		handle uint32
	}
	families, masks, seen := map[key]string{}, map[key]string{}, map[key]bool{}
	for _, f := range out.Filters {
		pref := key{f.Chain, f.Pref, 0}
		if known, ok := families[pref]; ok && known != f.Family {
			t.Fatalf("preference %d has two protocols", f.Pref)
		}
		families[pref] = f.Family
		mask := fmt.Sprint(f.To.Bits(), f.Protocol != 0, f.Port != 0, f.Fragment)
		if known, ok := masks[pref]; ok && known != mask && f.Chain == 0 {
			t.Fatalf("preference %d has two masks", f.Pref)
		}
		masks[pref] = mask
		k := key{f.Chain, f.Pref, f.Handle}
		if seen[k] || f.Handle == 0 || f.Port != 0 && f.Protocol == 0 || f.Pref < tc.FirstPref || f.Pref > tc.LastPref {
			t.Fatalf("filter %+v", f)
		}
		seen[k] = true
	}
	for _, o := range out.Objects() {
		if o.Policer != nil && ((*o.Policer > 0) != (*o.Rate > 0) || (*o.Policer > 0) != (*o.BurstNanos > 0)) {
			t.Fatalf("policer of %+v", o)
		}
	}
}

// TestFragmentsAreLimited holds that a fragment is within the limit of each rule that may be about its datagram, of those before
// the rule that decides without the port; and that what is not a fragment has one limit at most.
func TestFragmentsAreLimited(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		rules, sets := qostest.Rules(rng, rng.IntN(8))
		members := func(id qos.SetID) []netip.Addr { return sets[id] }
		out, err := tc.Compile(rules, members)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			p := qostest.Packet(rng)
			var want, have []int
			for i := range rules {
				if qostest.Matches(&rules[i], p, members) {
					break
				}
				whole := p
				whole.Fragment = false
				for port := uint16(80); port < 84; port++ { // all that there are
					if whole.Port = port; p.Fragment && rules[i].RateKbit > 0 && qostest.Matches(&rules[i], whole, members) {
						want = append(want, i)
						break
					}
				}
			}
			_, limits := out.Decide(p)
			for _, n := range limits {
				have = append(have, slices.IndexFunc(qos.Places(rules), func(place int) bool { return place == int(n)-1 }))
			}
			if !slices.Equal(have, want) {
				t.Fatalf("seed %d, packet %+v: within the limits of rules %v, want %v", seed, p, have, want)
			}
		}
	}
}

func TestPolicer(t *testing.T) {
	out, err := tc.Compile([]qos.Rule{
		{Precedence: qos.MaxPrecedence, Any: true, RateKbit: 1000, BurstKbit: 100, Ports: []qos.Port{{Protocol: qos.TCP}}},
		{Precedence: qos.MaxPrecedence, Any: true, RateKbit: 2000, Ports: []qos.Port{{Protocol: qos.UDP}}},
		{Precedence: 10000, Any: true, RateKbit: 1<<32 - 1, Ports: []qos.Port{{Protocol: qos.SCTP}}},
		{Precedence: 10000, Any: true},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rates := map[uint16]uint64{}
	for _, o := range out.Objects() {
		rates[*o.Policer] = *o.Rate
	}
	if want := map[uint16]uint64{0: 0, 1: 125000, 2: 250000, tc.MaxRules: 536870911875}; !maps.Equal(rates, want) {
		t.Errorf("got %+v", rates)
	}
}

// TestTooMany: a rule with too many destinations is refused as a whole, and named.
func TestTooMany(t *testing.T) {
	all := make([]netip.Addr, tc.MaxFilters-100)
	for i := range all {
		all[i] = netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
	}
	r := qos.Rule{Sets: []qos.SetID{{}}, Ports: []qos.Port{{Protocol: qos.TCP}}}
	members := func(qos.SetID) []netip.Addr { return all }
	out, err := tc.Compile([]qos.Rule{r}, members)
	if err != nil || len(out.Filters) != len(all) {
		t.Fatalf("%v", err)
	}
	r.Ports = append(r.Ports, qos.Port{Protocol: qos.UDP})
	if _, err := tc.Compile([]qos.Rule{r}, members); !errors.Is(err, tc.ErrTooMany) {
		t.Errorf("got %v", err)
	}
	if _, err := tc.Compile(make([]qos.Rule, tc.MaxRules+1), members); !errors.Is(err, tc.ErrTooMany) {
		t.Errorf("got %v", err)
	}
}

// TestChangeIsBounded: when a rule is added, removed or edited, only filters change that match nothing but what the rule matches;
// and one that has another mark or limit changes its filters in place.
func TestChangeIsBounded(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rules, sets := qostest.Rules(rng, 2+rng.IntN(8))
		members := func(id qos.SetID) []netip.Addr { return sets[id] }
		for i := range rules {
			rules[i].Precedence = qos.MaxPrecedence - 3*i
		}
		n := rng.IntN(len(rules))
		of, err := tc.Compile(rules[n:n+1], members)
		if err != nil {
			t.Fatal(err)
		}
		before, without := compile(t, rules, members), compile(t, slices.Delete(slices.Clone(rules), n, n+1), members)
		if leads(before) == leads(without) { // else fragments get a chain, or lose it
			for _, f := range changed(before, without) {
				if !slices.ContainsFunc(of.Filters, func(o tc.Filter) bool { return o.Goto == 0 && contains(o, f) }) {
					t.Fatalf("seed %d: without rule %s a filter changes that matches other packets: %+v", seed, &rules[n], f)
				}
			}
		}
		marked := slices.Clone(rules)
		marked[n].DSCP ^= 1
		after := compile(t, marked, members)
		for key := range before {
			if _, ok := after[key]; !ok {
				t.Fatalf("seed %d: with another mark of rule %s there is no filter %s", seed, &rules[n], key)
			}
		}
	}
}

func leads(of map[string]tc.Filter) (n int) {
	for _, f := range of {
		if f.Goto != 0 {
			n++
		}
	}
	return n
}

// contains reports whether a filter matches all that another one matches. A rule with a port also has filters of all fragments of its
// protocol.
func contains(o, f tc.Filter) bool {
	to := !o.To.IsValid() || f.To.IsValid() && f.To.Bits() >= o.To.Bits() && o.To.Contains(f.To.Addr())
	return o.Family == f.Family && to && (o.Protocol == 0 || o.Protocol == f.Protocol) && (o.Port == 0 || o.Port == f.Port || f.Fragment)
}

func changed(a, b map[string]tc.Filter) (out []tc.Filter) {
	for _, of := range [][2]map[string]tc.Filter{{a, b}, {b, a}} {
		for key, f := range of[0] {
			if g, ok := of[1][key]; !ok || g.DSCP != f.DSCP || g.Policer != f.Policer {
				out = append(out, f)
			}
		}
	}
	return out
}

// compile returns the filters by what the kernel knows them by, and what they match. No two filters of a preference may match the
// same, which the kernel refuses.
func compile(t *testing.T, rules []qos.Rule, members func(qos.SetID) []netip.Addr) map[string]tc.Filter {
	t.Helper()
	compiled, err := tc.Compile(rules, members)
	if err != nil {
		t.Fatal(err)
	}
	out, matches := map[string]tc.Filter{}, map[string]bool{}
	for _, f := range compiled.Filters {
		match := fmt.Sprint(f.Chain, f.Pref, f.To, f.Protocol, f.Port, f.Fragment)
		if matches[match] {
			t.Fatalf("two filters match %s", match)
		}
		matches[match] = true
		out[fmt.Sprint(match, f.Handle)] = f
	}
	return out
}

// TestObjects: the burst of a policer is kept as time, and lets a packet as large as it pass.
func TestObjects(t *testing.T) {
	compiled, err := tc.Compile([]qos.Rule{
		{Precedence: qos.MaxPrecedence, Policy: types.NamespacedName{Namespace: "ai", Name: "a"}, Index: 3, DSCP: 26, RateKbit: 10000, BurstKbit: 1000, Ports: []qos.Port{{Protocol: qos.TCP, Port: 80}}, Any: true},
		{Precedence: 10000, Any: true, RateKbit: 1},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	type kind struct {
		chain    uint32
		place    int
		family   string
		fragment bool
	}
	got := map[kind]netstate.Filter{}
	for _, f := range compiled.Objects() {
		got[kind{f.Chain, f.Place, *f.Family, *f.Fragment}] = f
	}
	// Of the first rule the port, and fragments; of the second all, in both chains; and two that lead to the chain of fragments.
	if len(got) != 10 {
		t.Fatalf("%d filters: %v", len(got), got)
	}
	if f := got[kind{tc.FragmentChain, 1, "ipv4", true}]; f.DSCP != nil || *f.Policer != 1 || *f.Port != 0 || *f.Protocol != "tcp" || f.Pref != tc.FirstPref {
		t.Errorf("of fragments: %v", netstate.Fields(f))
	}
	if f := got[kind{0, 0, "ipv6", true}]; *f.Goto != tc.FragmentChain || f.DSCP != nil || f.Policer != nil || f.Rule != "" {
		t.Errorf("to fragments: %v", netstate.Fields(f))
	}
	first := got[kind{0, 1, "ipv4", false}]
	want := netstate.Filter{
		Rule: "ai/a[3]", Place: 1, Pref: first.Pref, Handle: first.Handle, Family: new("ipv4"), To: new(""), Protocol: new("tcp"), Port: new(uint16(80)), Fragment: new(false), Goto: new(uint32(0)),
		DSCP: new(uint8(26)), Policer: new(uint16(1)), Rate: new(uint64(1250000)), BurstNanos: new(uint64(100_000_000)),
	}
	if !reflect.DeepEqual(first, want) {
		t.Errorf("got %v", netstate.Fields(first))
	}
	// 64 KiB at 1 kbit/s take longer than the kernel can keep.
	if last := got[kind{0, tc.MaxRules, "ipv6", false}]; *last.BurstNanos != netstate.MaxBurstNanos || last.Pref != tc.LastPref {
		t.Errorf("got %d %v", last.Pref, netstate.Fields(last))
	}
}
