package tc

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
)

// LastPref is the highest preference of ours.
const LastPref = firstPacked + 2 + ports*(33+129) - 1

// key identifies a filter for the kernel.
type key struct {
	chain  uint32
	pref   uint16
	handle uint32
}

func keyOf(f Filter) key { return key{f.Chain, f.Pref, f.Handle} }

// evaluated sorts filters as the kernel evaluates them.
func evaluated(of map[key]Filter) *Filters {
	out := &Filters{}
	for _, f := range of {
		out.Filters = append(out.Filters, f)
	}
	slices.SortFunc(out.Filters, func(a, b Filter) int {
		return cmp.Or(cmp.Compare(a.Chain, b.Chain), cmp.Compare(a.Pref, b.Pref), cmp.Compare(a.Handle, b.Handle))
	})
	return out
}

// TestReplacing holds that while filters are replaced, one at a time in the order of Filters, each packet is decided at each moment by
// the rule that decided before or by the one that decides after: also from the preferences by rule, which an earlier version has set
// and a set of rules too large to be packed has.
func TestReplacing(t *testing.T) {
	steps, draws := 0, 50
	if effort.Long() {
		draws = 500
	}
	first := effort.Seed(t)
	for i := range draws {
		seed := first + uint64(i)
		rng := rand.New(rand.NewPCG(seed, 7))
		rules, sets := qostest.Rules(rng, 1+rng.IntN(7))
		members := func(id qos.SetID) []netip.Addr { return sets[id] }
		next := slices.Clone(rules)
		n := rng.IntN(len(next))
		switch rng.IntN(5) {
		case 0:
			next = slices.Delete(next, n, n+1)
		case 1:
			next[n].DSCP, next[n].RateKbit = next[n].DSCP^1, (next[n].RateKbit+1)%2
		case 2:
			next[n].Any, next[n].Addresses, next[n].Sets = true, nil, nil
		case 3:
			next[n].Ports = nil
		case 4:
			other, more := qostest.Rules(rng, len(rules))
			next[n] = other[n]
			maps.Copy(sets, more)
		}
		before, err := Compile(rules, members)
		if err != nil {
			t.Fatal(err)
		}
		after, err := Compile(next, members)
		if err != nil {
			t.Fatal(err)
		}
		packets := make([]qos.Packet, 40)
		for i := range packets {
			packets[i] = qostest.Packet(rng)
		}
		steps += replace(t, fmt.Sprintf("seed %d", seed), before.Filters, after.Filters, packets)

		old := &Filters{rules: rules, places: qos.Places(rules)}
		flat := &Filters{Filters: old.byRule(0, unpacked(rules, members))}
		steps += replace(t, fmt.Sprintf("seed %d, from preferences by rule", seed), flat.Filters, after.Filters, packets)
		steps += replace(t, fmt.Sprintf("seed %d, to preferences by rule", seed), after.Filters, flat.Filters, packets)
	}
	if steps < 20*draws {
		t.Errorf("only %d states were looked through", steps)
	}
}

// unpacked are the filters of each rule, as they are before they are packed.
func unpacked(rules []qos.Rule, members func(qos.SetID) []netip.Addr) (out []Filter) {
	places := qos.Places(rules)
	for i := range rules {
		alone, _ := Compile(rules[i:i+1], members)
		for _, f := range alone.Filters {
			if f.Goto != 0 || f.Chain != 0 && !f.Fragment {
				continue
			}
			f.Rule = i
			if f.Policer != 0 {
				f.Policer = uint16(places[i] + 1)
			}
			out = append(out, f)
		}
	}
	return out
}

// replace changes filters one by one, and returns how many states there were.
func replace(t *testing.T, when string, before, after []Filter, packets []qos.Packet) int {
	t.Helper()
	type decision struct {
		dscp    uint8
		policer uint16
		none    bool
	}
	decided := func(by *Filters, p qos.Packet) decision {
		f, _ := by.Decide(p)
		if f == nil {
			return decision{none: true}
		}
		return decision{f.DSCP, f.Policer, false}
	}
	now, want := map[key]Filter{}, map[key]Filter{}
	for _, f := range before {
		now[keyOf(f)] = f
	}
	for _, f := range after {
		want[keyOf(f)] = f
	}
	old, done := evaluated(now), evaluated(want)
	steps := 0
	check := func() {
		steps++
		state := evaluated(now)
		for _, p := range packets {
			if got := decided(state, p); got != decided(old, p) && got != decided(done, p) {
				t.Fatalf("%s, after %d changes: packet %+v is decided by %+v, before %+v, after %+v", when, steps, p, got, decided(old, p), decided(done, p))
			}
		}
	}
	for _, f := range after {
		now[keyOf(f)] = f
		check()
	}
	for _, f := range slices.Backward(before) {
		if _, stays := want[keyOf(f)]; !stays {
			delete(now, keyOf(f))
			check()
		}
	}
	return steps
}

func host(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
}

func setOf(prefixes ...netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(p)
	}
	out, _ := b.IPSet()
	return out
}

// preferences counts those of the first chain.
func preferences(of *Filters) int {
	found := map[uint16]bool{}
	for _, f := range of.Filters {
		if f.Chain == 0 {
			found[f.Pref] = true
		}
	}
	return len(found)
}

// TestPreferences: a packet is compared with as many hash tables as there are masks, whatever the number of rules.
func TestPreferences(t *testing.T) {
	tcp := func(port uint16) []qos.Port { return []qos.Port{{Protocol: qos.TCP, Port: port}} }
	for name, tt := range map[string]struct {
		count int
		rule  func(i int) qos.Rule
		want  int
	}{
		"a destination each":                   {1000, func(i int) qos.Rule { return qos.Rule{Addresses: setOf(host(2*i + 1))} }, 1},
		"a destination each, over all of them": {1000, func(i int) qos.Rule { return qos.Rule{Addresses: setOf(host(2*i + 1)), Any: i == 999} }, 3},
		"a port each, of any destination":      {1000, func(i int) qos.Rule { return qos.Rule{Any: true, Ports: tcp(uint16(i + 1))} }, 2},
		"a port each, with a limit":            {1000, func(i int) qos.Rule { return qos.Rule{Any: true, RateKbit: 1, Ports: tcp(uint16(i + 1))} }, 4},
		"ports and destinations alternate": {200, func(i int) qos.Rule {
			return []qos.Rule{{Addresses: setOf(host(i))}, {Any: true, Ports: tcp(uint16(i + 1))}}[i%2]
		}, 4},
		"a port of a destination, and the rest": {1000, func(i int) qos.Rule {
			return qos.Rule{Addresses: setOf(host(i &^ 1)), Ports: [][]qos.Port{tcp(80), nil}[i%2]}
		}, 2},
		"the first decides about all": {1000, func(i int) qos.Rule {
			return qos.Rule{Any: i == 0, Addresses: setOf(host(i)), RateKbit: 1, Ports: [][]qos.Port{nil, tcp(80)}[min(i, 1)]}
		}, 2},
	} {
		rules := make([]qos.Rule, tt.count)
		for i := range rules {
			rules[i] = tt.rule(i)
			rules[i].Precedence, rules[i].Index = qos.MaxPrecedence-i, i
		}
		out, err := Compile(rules, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := preferences(out); got != tt.want {
			t.Errorf("%s: %d preferences, want %d", name, got, tt.want)
		}
	}
}

// TestNotPacked: rules that need too many filters to be packed keep preferences of their own, and decide as before.
func TestNotPacked(t *testing.T) {
	const each = 1000
	rules := make([]qos.Rule, 2*each)
	for i := range rules {
		rules[i] = qos.Rule{Precedence: qos.MaxPrecedence - i, Index: i, DSCP: uint8(i % 64), Addresses: setOf(host(i))}
		if i >= each { // each of them outranked by all destinations
			rules[i].Any, rules[i].Ports = true, []qos.Port{{Protocol: qos.UDP, Port: uint16(i)}}
		}
	}
	out, err := Compile(rules, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := preferences(out); n != 3*each || len(out.Filters) != 3*each {
		t.Errorf("%d preferences, %d filters", n, len(out.Filters))
	}
	for _, want := range []int{0, each - 1, each, 2*each - 1, 700} {
		p := qos.Packet{Destination: host(want).Addr(), Protocol: qos.UDP, Port: uint16(want)}
		if f, _ := out.Decide(p); f == nil || f.Rule != want {
			t.Errorf("packet %+v: %+v", p, f)
		}
	}
}
