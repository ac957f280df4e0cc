package tc_test

import (
	"errors"
	"fmt"
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
			want := slices.IndexFunc(rules, func(r qos.Rule) bool { return r.Matches(p, members) })
			n := slices.IndexFunc(out.Filters, func(f tc.Filter) bool { return f.Matches(p) })
			if n < 0 || want < 0 {
				if (n < 0) != (want < 0) {
					t.Fatalf("seed %d, packet %+v: filter %d, rule %d", seed, p, n, want)
				}
				continue
			}
			f := out.Filters[n]
			if f.Rule != want || f.DSCP != rules[want].DSCP || (f.Policer != 0) != (rules[want].RateKbit > 0) {
				t.Fatalf("seed %d, packet %+v: %+v, want rule %d: %+v", seed, p, f, want, rules[want])
			}
		}
	}
}

// wellFormed holds what the kernel requires: one protocol per preference, one filter per
// preference and handle, and a policer for each index.
func wellFormed(t *testing.T, out *tc.Filters) {
	t.Helper()
	type key struct {
		pref   uint16
		handle uint32
	}
	families, seen := map[uint16]tc.Family{}, map[key]bool{}
	for _, f := range out.Filters {
		if known, ok := families[f.Pref]; ok && known != f.Family {
			t.Fatalf("preference %d has two protocols", f.Pref)
		}
		families[f.Pref] = f.Family
		k := key{f.Pref, f.Handle}
		if seen[k] || f.Handle == 0 || f.Port != 0 && f.Protocol == 0 || f.Pref < tc.FirstPref {
			t.Fatalf("filter %+v", f)
		}
		seen[k] = true
		if f.Policer != 0 && !slices.ContainsFunc(out.Policers, func(p tc.Policer) bool { return p.Number == f.Policer && p.BurstBytes > 0 && p.RateBytes > 0 }) {
			t.Fatalf("no policer of %+v", f)
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
				if rules[i].Matches(p, members) {
					break
				}
				whole := p
				whole.Fragment = false
				for port := uint16(80); port < 84; port++ { // all that there are
					if whole.Port = port; p.Fragment && rules[i].RateKbit > 0 && rules[i].Matches(whole, members) {
						want = append(want, i)
						break
					}
				}
			}
			for i := range out.Filters {
				if out.Filters[i].Matches(p) {
					break
				}
				if out.Filters[i].Limits(p) && out.Filters[i].Policer != 0 {
					have = append(have, out.Filters[i].Rule)
				}
			}
			if !slices.Equal(have, want) {
				t.Fatalf("seed %d, packet %+v: within the limits of rules %v, want %v", seed, p, have, want)
			}
		}
	}
}

func TestPolicer(t *testing.T) {
	out, err := tc.Compile([]qos.Rule{
		{Precedence: qos.MaxPrecedence, Any: true, RateKbit: 1000, BurstKbit: 100},
		{Precedence: qos.MaxPrecedence, Any: true, RateKbit: 1000},
		{Precedence: 10000, Any: true, RateKbit: 1<<32 - 1},
		{Precedence: 10000, Any: true},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []tc.Policer{
		{Number: 1, RateBytes: 125000, BurstBytes: 12500},
		{Number: 2, RateBytes: 125000, BurstBytes: 65536, Assumed: true},
		{Number: tc.MaxRules, RateBytes: 536870911875, BurstBytes: 5368709118, Assumed: true},
	}
	if !slices.Equal(out.Policers, want) {
		t.Errorf("got %+v", out.Policers)
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

// TestStable: when rules and destinations come and go, the others keep their preferences and
// handles, so that no filter of theirs is touched; and no two filters of a preference match
// the same, which the kernel refuses.
func TestStable(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rules, sets := qostest.Rules(rng, 2+rng.IntN(8))
		members := func(id qos.SetID) []netip.Addr { return sets[id] }
		for i := range rules {
			rules[i].Precedence = qos.MaxPrecedence - 3*i
		}
		before := objects(t, rules, members)
		gone := rng.IntN(len(rules))
		after := objects(t, slices.Delete(slices.Clone(rules), gone, gone+1), members)
		for key, f := range before {
			if _, there := after[key]; there != (f.Rule != fmt.Sprintf("ns/q[%d]", rules[gone].Index)) {
				t.Fatalf("seed %d: without rule %d, filter %+v is there: %v", seed, gone, f, there)
			}
		}
	}
}

// objects are the filters by all that they are.
func objects(t *testing.T, rules []qos.Rule, members func(qos.SetID) []netip.Addr) map[string]netstate.Filter {
	t.Helper()
	compiled, err := tc.Compile(rules, members)
	if err != nil {
		t.Fatal(err)
	}
	out, matches := map[string]netstate.Filter{}, map[string]bool{}
	for _, f := range compiled.Objects() {
		match := fmt.Sprint(f.Pref, *f.To, *f.Protocol, *f.Port, *f.Fragment)
		if matches[match] {
			t.Fatalf("two filters match %s", match)
		}
		matches[match] = true
		out[fmt.Sprint(f.Rule, match, f.Handle, f.DSCP != nil, *f.Policer, *f.Rate, *f.BurstNanos)] = f
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
	got := compiled.Objects()
	if len(got) != 6 {
		t.Fatalf("%d filters", len(got))
	}
	if *got[0].Fragment { // their order is that of handles
		got[0], got[1] = got[1], got[0]
	}
	if f := got[1]; !*f.Fragment || f.DSCP != nil || *f.Policer != 1 || *f.Port != 0 || *f.Protocol != "tcp" {
		t.Errorf("of fragments: %v", netstate.Fields(f))
	}
	want := netstate.Filter{
		Rule: "ai/a[3]", Pref: tc.FirstPref, Handle: got[0].Handle, Family: new("ipv4"), To: new(""), Protocol: new("tcp"), Port: new(uint16(80)), Fragment: new(false),
		DSCP: new(uint8(26)), Policer: new(uint16(1)), Rate: new(uint64(1250000)), BurstNanos: new(uint64(100_000_000)),
	}
	if !reflect.DeepEqual(got[0], want) {
		t.Errorf("got %v", netstate.Fields(got[0]))
	}
	// 64 KiB at 1 kbit/s take longer than the kernel can keep.
	if last := got[5]; *last.BurstNanos != netstate.MaxBurstNanos || *last.Family != "ipv6" || last.Pref != tc.FirstPref+2*2019+1 {
		t.Errorf("got %d %v", last.Pref, netstate.Fields(last))
	}
}
