package ovn_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/ovn"
	"github.com/plumbline/plumbline/qos/qostest"
)

// TestObjects holds that the objects of rules decide about every packet as the rules do, each port's about its own packets: the one of
// the highest priority that matches is of the first rule that matches, with its mark and its limit. It holds for one stage that takes
// mark and meter from one row, and for the two stages of OVN before 24.09, of which the second sees only the rows that have a meter.
func TestObjects(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 0))
		rules, members := qostest.Rules(rng, rng.IntN(8))
		of := func(id qos.SetID) []netip.Addr { return members[id] }
		objects, err := ovn.Objects(rules, of)
		if err != nil {
			t.Fatal(err)
		}
		for i := range objects {
			objects[i] = objects[i].Of(netstate.LogicalPort{Name: "port", Switch: new("s")}, "net1")
		}
		wellFormed(t, objects)
		m := matcher{port: "port"}
		for range 200 {
			m.packet = qostest.Packet(rng)
			want := slices.IndexFunc(rules, func(r qos.Rule) bool { return qostest.Matches(&r, m.packet, of) })
			mark := m.best(t, objects, func(netstate.LogicalRule) bool { return true })
			meter := m.best(t, objects, func(q netstate.LogicalRule) bool { return *q.Rate > 0 })
			other := m
			other.port = "other"
			if have := other.best(t, objects, func(netstate.LogicalRule) bool { return true }); have != nil {
				t.Fatalf("seed %d: %+v decides about what another port sends", seed, have)
			}
			if want < 0 {
				if mark != nil || meter != nil {
					t.Fatalf("seed %d, packet %+v: %+v and %+v match, and no rule", seed, m.packet, mark, meter)
				}
				continue
			}
			r := rules[want]
			if mark == nil || mark.Rule != fmt.Sprintf("ns/q[%d]", want) || *mark.DSCP != r.DSCP || limit(mark) != r.RateKbit || limit(meter) != r.RateKbit {
				t.Fatalf("seed %d, packet %+v: marked by %+v, limited by %+v, want rule %d: %+v", seed, m.packet, mark, meter, want, r)
			}
			if r.RateKbit > 0 && (*meter.Burst != r.BurstKbit || meter.Rule != mark.Rule) {
				t.Fatalf("seed %d: burst %d, want that of %+v", seed, *meter.Burst, r)
			}
		}
	}
	var b netipx.IPSetBuilder
	for i := range 1000 {
		b.Add(netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), 1}))
	}
	thousand, _ := b.IPSet()
	name := types.NamespacedName{Namespace: "a", Name: "b"}
	for _, tt := range []struct {
		rules []qos.Rule
		says  string
	}{
		{slices.Repeat([]qos.Rule{{Policy: name, Index: 3, Addresses: thousand}}, 5), "too many rows: with rule 3 of a/b the destinations and ports of all rules are 5000, and a port of OVN may have 4096"},
		{slices.Repeat([]qos.Rule{{Policy: name, Any: true}}, ovn.MaxObjects+1), "too many rows: 1025 rules cover a port of OVN, and it may have 1024"},
	} {
		if out, err := ovn.Objects(tt.rules, nil); !errors.Is(err, ovn.ErrTooMany) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%d objects, %v", len(out), err)
		}
	}
}

// limit is the rate of a row; the largest number stands for none.
func limit(q *netstate.LogicalRule) uint32 {
	if q == nil || *q.Rate == math.MaxUint32 {
		return 0
	}
	return *q.Rate
}

// wellFormed holds what the schema requires (ovn-nb.ovsschema), and that no two rows of a port
// have one priority: OVN does not say which of them decides.
func wellFormed(t *testing.T, rows []netstate.LogicalRule) {
	t.Helper()
	keys, priorities := map[netstate.Key]bool{}, map[uint16]bool{}
	for _, q := range rows {
		if keys[q.Key()] || priorities[*q.Priority] || *q.Priority > 32767 || *q.DSCP > 63 || *q.Burst > 0 && *q.Rate == 0 || *q.Match == "" || *q.Switch != "s" || *q.Direction != "from-lport" {
			t.Fatalf("row %+v of %+v", q, rows)
		}
		keys[q.Key()], priorities[*q.Priority] = true, true
	}
}

// matcher evaluates matches, in the grammar of ovn-sb(5), Logical_Flow.match, without what Objects
// does not write.
type matcher struct {
	port   string
	packet qos.Packet
}

func (m *matcher) best(t *testing.T, rows []netstate.LogicalRule, of func(netstate.LogicalRule) bool) *netstate.LogicalRule {
	t.Helper()
	var best *netstate.LogicalRule
	for i, q := range rows {
		if of(q) && (best == nil || *q.Priority > *best.Priority) && m.matches(t, *q.Match) {
			best = &rows[i]
		}
	}
	return best
}

func (m *matcher) matches(t *testing.T, match string) bool {
	t.Helper()
	e := &expression{words: words(match), m: m}
	out, err := e.or()
	if err != nil || len(e.words) > 0 {
		t.Fatalf("match %s: %v, left %q", match, err, e.words)
	}
	return out
}

// words splits a match.
func words(s string) []string {
	for _, sign := range []string{"(", ")", "{", "}", ","} {
		s = strings.ReplaceAll(s, sign, " "+sign+" ")
	}
	return strings.Fields(s)
}

type expression struct {
	words []string
	m     *matcher
}

func (e *expression) next() string {
	if len(e.words) == 0 {
		return ""
	}
	w := e.words[0]
	e.words = e.words[1:]
	return w
}

func (e *expression) peek(w string) bool { return len(e.words) > 0 && e.words[0] == w }

// or is a list of terms with one operator: the grammar allows no mixture without parentheses.
func (e *expression) or() (bool, error) {
	out, err := e.term()
	operator := ""
	for err == nil && (e.peek("&&") || e.peek("||")) {
		w := e.next()
		if operator != "" && w != operator {
			return false, errors.New("&& and || need parentheses")
		}
		operator = w
		var right bool
		right, err = e.term()
		if w == "&&" {
			out = out && right
		} else {
			out = out || right
		}
	}
	return out, err
}

func (e *expression) term() (bool, error) {
	p := e.m.packet
	four := p.Destination.Is4()
	numbers := map[string]qos.Protocol{"tcp": qos.TCP, "udp": qos.UDP, "sctp": qos.SCTP}
	w := e.next()
	field, isDst := strings.CutSuffix(w, ".dst")
	switch {
	case w == "(":
		out, err := e.or()
		if err == nil && e.next() != ")" {
			err = errors.New("no )")
		}
		return out, err
	case w == "ip":
		return true, nil
	case w == "ip4" || w == "ip6":
		return four == (w == "ip4"), nil
	case numbers[w] != 0:
		return p.Protocol == numbers[w], nil
	case e.next() != "==":
		return false, fmt.Errorf("%q is not compared", w)
	case w == "inport":
		name, err := strconv.Unquote(e.next())
		return name == e.m.port, err
	case !isDst:
		return false, fmt.Errorf("unknown field %q", w)
	}
	list, err := e.constants()
	if err != nil {
		return false, err
	}
	if number := numbers[field]; number != 0 {
		return p.Protocol == number && !p.Fragment && slices.Contains(list, strconv.Itoa(int(p.Port))), nil
	}
	if four != (field == "ip4") {
		return false, nil
	}
	for _, c := range list {
		prefix, err := netip.ParsePrefix(c)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(c); err != nil {
				return false, err
			}
			prefix = netip.PrefixFrom(a, a.BitLen())
		}
		if prefix.Addr().Is4() != four || prefix != prefix.Masked() {
			return false, fmt.Errorf("%s is no constant of %s", c, field)
		}
		if prefix.Contains(p.Destination) {
			return true, nil
		}
	}
	return false, nil
}

func (e *expression) constants() ([]string, error) {
	w := e.next()
	if w != "{" {
		return []string{w}, nil
	}
	var out []string
	for {
		out = append(out, e.next())
		switch w := e.next(); w {
		case ",":
		case "}":
			return out, nil
		default:
			return nil, fmt.Errorf("%q in a list of constants", w)
		}
	}
}

// TestMatch shows what is written for a few rules.
func TestMatch(t *testing.T) {
	set := func(prefixes ...string) *netipx.IPSet {
		var b netipx.IPSetBuilder
		for _, p := range prefixes {
			if without, except := strings.CutPrefix(p, "-"); except {
				b.RemovePrefix(netip.MustParsePrefix(without))
			} else {
				b.AddPrefix(netip.MustParsePrefix(p))
			}
		}
		out, _ := b.IPSet()
		return out
	}
	for _, c := range []struct {
		name string
		rule qos.Rule
		want string
	}{
		{"all", qos.Rule{Any: true}, `ip`},
		{"all of one family", qos.Rule{Addresses: set("0.0.0.0/0")}, `ip4`},
		{"an address", qos.Rule{Addresses: set("192.0.2.1/32")}, `ip4.dst == 192.0.2.1`},
		{"both families", qos.Rule{Addresses: set("192.0.2.0/24", "2001:db8::/64")}, `(ip4.dst == 192.0.2.0/24 || ip6.dst == 2001:db8::/64)`},
		{"an exception", qos.Rule{Addresses: set("192.0.2.0/30", "-192.0.2.0/32")}, `ip4.dst == {192.0.2.1, 192.0.2.2/31}`},
		{"ports without destinations", qos.Rule{Any: true, Ports: []qos.Port{{Protocol: qos.UDP, Port: 53}, {Protocol: qos.TCP, Port: 443}, {Protocol: qos.TCP, Port: 80}}}, `ip && (tcp.dst == {80, 443} || udp.dst == 53)`},
		{"any port absorbs", qos.Rule{Any: true, Ports: []qos.Port{{Protocol: qos.TCP, Port: 80}, {Protocol: qos.TCP}}}, `ip && tcp`},
		{"pods", qos.Rule{Sets: []qos.SetID{{}}}, `(ip4.dst == 10.0.0.1 || ip6.dst == fd00::1)`},
	} {
		rows, err := ovn.Objects([]qos.Rule{c.rule}, func(qos.SetID) []netip.Addr {
			return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fd00::1")}
		})
		if err != nil || len(rows) != 1 {
			t.Errorf("%s: %+v, %v", c.name, rows, err)
		} else if *rows[0].Match != c.want {
			t.Errorf("%s: %s, want %s", c.name, *rows[0].Match, c.want)
		}
	}
	if rows, err := ovn.Objects([]qos.Rule{{Addresses: set()}}, nil); err != nil || len(rows) != 0 {
		t.Errorf("of a rule without destinations: %+v, %v", rows, err)
	}
	if rows, err := ovn.Objects(make([]qos.Rule, qos.MaxAttachmentRules+1), nil); err == nil || !strings.Contains(err.Error(), "2021 rules cover it") {
		t.Errorf("too many rules: %d rows, %v", len(rows), err)
	}
	var b netipx.IPSetBuilder
	b.AddPrefix(netip.MustParsePrefix("10.0.0.0/8"))
	for i := range 200 { // each costs some twelve prefixes
		b.Remove(netip.AddrFrom4([4]byte{10, byte(i >> 4), byte(i << 4), 1}))
	}
	many, _ := b.IPSet()
	if _, err := ovn.Objects([]qos.Rule{{Policy: types.NamespacedName{Namespace: "a", Name: "b"}, Index: 3, Addresses: many}}, nil); err == nil || !strings.Contains(err.Error(), "rule 3 of a/b: its addresses are") {
		t.Errorf("too many prefixes: %v", err)
	}
}
