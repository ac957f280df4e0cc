package kernel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/tc"
)

// TestPacked: hundreds of rules that overlap decide about packets as the rules say, packed into as many preferences as there
// are masks.
func TestPacked(t *testing.T) {
	// How many preferences filters need depends on the rules: it is held for one set of them.
	t.Run("known", func(t *testing.T) { testPacked(t, 1, 25) })
	t.Run("random", func(t *testing.T) { testPacked(t, effort.Seed(t), math.MaxInt) })
}

func testPacked(t *testing.T, seed uint64, maxPreferences int) {
	w := newWired(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	var text strings.Builder
	for n := range 10 {
		var rules []string
		for i := range qos.MaxRules {
			to := fmt.Sprintf("{ipBlock: {cidr: 198.51.%d.%d/%d}}", rng.IntN(2), rng.IntN(8), 28+rng.IntN(5))
			if rng.IntN(3) == 0 {
				to = fmt.Sprintf("{ipBlock: {cidr: '2001:db8:1::%x/%d'}}", rng.IntN(8), 124+rng.IntN(5))
			}
			classifier := []string{"to: [" + to + "]"}
			switch rng.IntN(6) {
			case 0:
				classifier = nil
				fallthrough
			case 1:
				classifier = append(classifier, fmt.Sprintf("ports: [{protocol: %s, port: %d}]", []string{"TCP", "UDP"}[rng.IntN(2)], 80+rng.IntN(2)))
			case 2:
				classifier = append(classifier, "ports: [{protocol: UDP}]")
			}
			rules = append(rules, fmt.Sprintf("{dscp: %d, classifier: {%s}}", (n*qos.MaxRules+i)%63+1, strings.Join(classifier, ", ")))
		}
		text.WriteString(object(fmt.Sprint("q", n), n, rules...))
	}
	filters, decide := w.enforce(text.String())
	explained, err := tc.Read(filters)
	if err != nil {
		t.Fatal(err)
	}
	prefs := map[uint16]bool{}
	for _, f := range filters {
		prefs[f.Pref] = true
	}
	if len(prefs) > maxPreferences {
		t.Errorf("%d filters have %d preferences", len(filters), len(prefs))
	}
	for range 8 { // as many as the buffer of the capture holds
		want, last := map[uint32]uint8{}, uint32(0)
		for range 50 {
			to := fmt.Sprintf("198.51.%d.%d", rng.IntN(2), rng.IntN(9))
			if rng.IntN(3) == 0 {
				to = fmt.Sprintf("2001:db8:1::%x", rng.IntN(9))
			}
			p := qos.Packet{Destination: netip.MustParseAddr(to), Protocol: []qos.Protocol{qos.TCP, qos.UDP, 253}[rng.IntN(3)], Port: uint16(80 + rng.IntN(3))}
			class := uint8(0)
			if r := decide(p); r != nil {
				class = r.DSCP << 2
			}
			if f, _ := explained.Decide(p); f != nil && f.DSCP<<2 != class || f == nil && class != 0 {
				t.Errorf("packet %+v is explained by %+v, and its traffic class is %#x", p, f, class)
			}
			last = w.one(p, 0)
			want[last] = class
		}
		got := w.received(last)
		for number, class := range want {
			if got[number] != class {
				t.Errorf("packet %d: traffic class %#x, want %#x", number, got[number], class)
			}
		}
	}
}

// TestReplaced: while filters of an earlier version, which have preferences by rule, are replaced by packed ones, and these by those of
// other rules, each packet is marked as by the rules before or by the rules after, after each single change.
func TestReplaced(t *testing.T) {
	w := newWired(t)
	prefix := func(to string, dscp uint8) qos.Rule {
		out := qos.Rule{DSCP: dscp, Any: to == ""}
		if to != "" {
			var b netipx.IPSetBuilder
			b.AddPrefix(netip.MustParsePrefix(to))
			out.Addresses, _ = b.IPSet()
		}
		return out
	}
	udp := prefix("198.51.100.0/24", 20)
	udp.Ports = []qos.Port{{Protocol: qos.UDP, Port: 9}}
	udp.RateKbit = 1_000_000 // with a chain for fragments
	first := []qos.Rule{prefix("198.51.100.7/32", 10), udp, prefix("198.51.0.0/16", 30), prefix("", 40)}
	second := []qos.Rule{prefix("198.51.100.0/25", 11), prefix("198.51.100.7/32", 12), udp, prefix("", 40)}
	compile := func(rules []qos.Rule) (out []netstate.Filter) {
		for i := range rules {
			rules[i].Precedence = qos.MaxPrecedence - i
		}
		compiled, err := tc.Compile(rules, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range compiled.Objects() {
			f.Link = "d0"
			out = append(out, f)
		}
		return out
	}
	earlier := []netstate.Filter{
		w.byRule(20000, "198.51.100.7/32", "", 10), w.byRule(20002, "198.51.100.0/24", "udp", 20),
		w.byRule(20004, "198.51.0.0/16", "", 30), w.byRule(20006, "", "", 40),
	}
	w.create(objects(earlier)...)
	packets := []qos.Packet{
		{Destination: netip.MustParseAddr("198.51.100.7"), Protocol: qos.UDP, Port: 9},
		{Destination: netip.MustParseAddr("198.51.100.8"), Protocol: qos.UDP, Port: 9},
		{Destination: netip.MustParseAddr("198.51.100.200"), Protocol: qos.UDP, Port: 9},
		{Destination: netip.MustParseAddr("198.51.100.8"), Protocol: 253},
		{Destination: netip.MustParseAddr("203.0.113.9"), Protocol: qos.UDP, Port: 9},
	}
	classes := func() (out []uint8) {
		var numbers []uint32
		for _, p := range packets {
			numbers = append(numbers, w.one(p, 0))
		}
		got := w.received(numbers[len(numbers)-1])
		for _, n := range numbers {
			out = append(out, got[n]>>2)
		}
		return out
	}
	states := 0
	for _, step := range []struct {
		when          string
		before, after []netstate.Filter
		from, to      []uint8
	}{
		{"from preferences by rule", earlier, compile(first), []uint8{10, 20, 20, 30, 40}, []uint8{10, 20, 20, 30, 40}},
		{"to other rules", compile(first), compile(second), []uint8{10, 20, 20, 30, 40}, []uint8{11, 11, 20, 11, 40}},
		{"back", compile(second), compile(first), []uint8{11, 11, 20, 11, 40}, []uint8{10, 20, 20, 30, 40}},
	} {
		check := func() {
			t.Helper()
			states++
			for i, got := range classes() {
				if got != step.from[i] && got != step.to[i] {
					t.Fatalf("%s: packet %+v is marked %d, before %d, after %d", step.when, packets[i], got, step.from[i], step.to[i])
				}
			}
		}
		check()
		for _, f := range step.after {
			if slices.ContainsFunc(step.before, func(b netstate.Filter) bool { return b.Key() == f.Key() }) {
				w.update(f)
			} else {
				w.create(f)
			}
			check()
		}
		for _, f := range slices.Backward(step.before) {
			if !slices.ContainsFunc(step.after, func(a netstate.Filter) bool { return a.Key() == f.Key() }) {
				w.remove(f)
				check()
			}
		}
		if got := classes(); !slices.Equal(got, step.to) {
			t.Errorf("%s: marked %v, want %v", step.when, got, step.to)
		}
	}
	if states < 20 {
		t.Errorf("only %d states", states)
	}
}

// byRule is a filter as an earlier version has set it.
func (w *wired) byRule(pref uint16, to, protocol string, dscp uint8) netstate.Filter {
	f := filter("ipv4", pref)
	f.To, f.DSCP = &to, &dscp
	if protocol != "" {
		f.Protocol, f.Port = &protocol, new(uint16(9))
		return limited(f, 2, 125_000_000, 10_000_000/netstate.BurstUnit*netstate.BurstUnit)
	}
	return f
}
