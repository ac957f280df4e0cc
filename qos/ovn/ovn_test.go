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

// TestRows holds that the rows decide about every packet as the rules do: the one of the highest
// priority that matches is of the first rule that matches, with its mark and its limit. It holds
// for one stage that takes mark and meter from one row, and for the two stages of OVN before
// 24.09, of which the second sees only the rows that have a meter.
func TestRows(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		rules, members := qostest.Rules(rng, rng.IntN(8))
		rows, err := ovn.Rows("node-1", ovn.Port{Switch: "s", Name: "port"}, rules)
		if err != nil {
			t.Fatal(err)
		}
		m := matcher{port: "port", sets: map[string][]string{}}
		for id, of := range members {
			for _, s := range ovn.Sets("node-1", id, of) {
				m.sets[s.Name] = s.Addresses
			}
		}
		wellFormed(t, rows)
		for range 200 {
			p := qostest.Packet(rng)
			want := slices.IndexFunc(rules, func(r qos.Rule) bool { return r.Matches(p, func(id qos.SetID) []netip.Addr { return members[id] }) })
			m.packet = p
			mark := m.best(t, rows, func(ovn.QoS) bool { return true })
			meter := m.best(t, rows, func(q ovn.QoS) bool { return q.RateKbit > 0 })
			if want < 0 {
				if mark != nil || meter != nil {
					t.Fatalf("seed %d, packet %+v: rows %+v and %+v match, and no rule", seed, p, mark, meter)
				}
				continue
			}
			r := rules[want]
			if mark == nil || mark.Rule != fmt.Sprintf("ns/q[%d]", want) || mark.DSCP != r.DSCP || limit(mark) != r.RateKbit || limit(meter) != r.RateKbit {
				t.Fatalf("seed %d, packet %+v: marked by %+v, limited by %+v, want rule %d: %+v", seed, p, mark, meter, want, r)
			}
			if r.RateKbit > 0 && (meter.BurstKbit != r.BurstKbit || meter.ID != mark.ID) {
				t.Fatalf("seed %d: burst %d, want that of %+v", seed, meter.BurstKbit, r)
			}
		}
	}
}

// TestObjects holds that the objects of rules decide about every packet as the rules do, each port's
// about its own packets, and that an edit of a rule leaves the others as they are.
func TestObjects(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		rules, members := qostest.Rules(rng, rng.IntN(8))
		of := func(id qos.SetID) []netip.Addr { return members[id] }
		objects, err := ovn.Objects(rules, of)
		if err != nil {
			t.Fatal(err)
		}
		m, keys := matcher{port: "port"}, map[netstate.Key]bool{}
		var rows []ovn.QoS
		for _, o := range objects {
			o = o.Of(netstate.LogicalPort{Name: "port", Switch: new("s")}, "net1")
			if keys[o.Key()] || *o.Switch != "s" || *o.Direction != "from-lport" {
				t.Fatalf("seed %d: %+v", seed, o)
			}
			keys[o.Key()] = true
			rows = append(rows, ovn.QoS{ID: o.Key().ID, Rule: o.Rule, Priority: int(*o.Priority), Match: *o.Match, DSCP: *o.DSCP, RateKbit: *o.Rate, BurstKbit: *o.Burst})
		}
		wellFormed(t, rows)
		for range 100 {
			m.packet = qostest.Packet(rng)
			want := slices.IndexFunc(rules, func(r qos.Rule) bool { return r.Matches(m.packet, of) })
			have := m.best(t, rows, func(ovn.QoS) bool { return true })
			if want < 0 && have == nil {
				continue
			}
			if want < 0 || have == nil || have.Rule != fmt.Sprintf("ns/q[%d]", want) || have.DSCP != rules[want].DSCP || limit(have) != rules[want].RateKbit {
				t.Fatalf("seed %d, packet %+v: %+v decides, want rule %d", seed, m.packet, have, want)
			}
			other := m
			other.port = "other"
			if have := other.best(t, rows, func(ovn.QoS) bool { return true }); have != nil {
				t.Fatalf("seed %d: %+v decides about what another port sends", seed, have)
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
func limit(q *ovn.QoS) uint32 {
	if q == nil || q.RateKbit == math.MaxUint32 {
		return 0
	}
	return q.RateKbit
}

// wellFormed holds what the schema requires (ovn-nb.ovsschema), and that no two rows of a port
// have one priority: OVN does not say which of them decides.
func wellFormed(t *testing.T, rows []ovn.QoS) {
	t.Helper()
	ids, priorities := map[string]bool{}, map[int]bool{}
	for _, q := range rows {
		if ids[q.ID] || priorities[q.Priority] || q.Priority < 0 || q.Priority > 32767 || q.DSCP > 63 || q.BurstKbit > 0 && q.RateKbit == 0 || q.Match == "" {
			t.Fatalf("row %+v of %+v", q, rows)
		}
		ids[q.ID], priorities[q.Priority] = true, true
	}
}

// matcher evaluates matches, in the grammar of ovn-sb(5), Logical_Flow.match, without what Rows
// does not write.
type matcher struct {
	port   string
	sets   map[string][]string
	packet qos.Packet
}

func (m *matcher) best(t *testing.T, rows []ovn.QoS, of func(ovn.QoS) bool) *ovn.QoS {
	t.Helper()
	var best *ovn.QoS
	for i, q := range rows {
		if of(q) && (best == nil || q.Priority > best.Priority) && m.matches(t, q.Match) {
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
	if name, is := strings.CutPrefix(w, "$"); is {
		list, known := e.m.sets[name]
		if !known {
			return nil, fmt.Errorf("address set %q does not exist", name)
		}
		return list, nil
	}
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
		{"pods", qos.Rule{Sets: []qos.SetID{{Policy: types.NamespacedName{Namespace: "a", Name: "b"}}}}, `(ip4.dst == $plumbline_1550087c52b90d841e34fb3b4590e245_ip4 || ip6.dst == $plumbline_1550087c52b90d841e34fb3b4590e245_ip6)`},
	} {
		rows, err := ovn.Rows("node-1", ovn.Port{Switch: "s", Name: "ns_pod"}, []qos.Rule{c.rule})
		if err != nil || len(rows) != 1 {
			t.Errorf("%s: %+v, %v", c.name, rows, err)
		} else if want := `inport == "ns_pod" && ` + c.want; rows[0].Match != want {
			t.Errorf("%s: %s, want %s", c.name, rows[0].Match, want)
		}
	}
	if rows, err := ovn.Rows("node-1", ovn.Port{Name: "p"}, []qos.Rule{{Addresses: set()}}); err != nil || len(rows) != 0 {
		t.Errorf("of a rule without destinations: %+v, %v", rows, err)
	}
	for _, name := range []string{"", `a" || ip`, "a b", "$x", strings.Repeat("a", 600)} {
		if _, err := ovn.Rows("node-1", ovn.Port{Name: name}, []qos.Rule{{Any: true}}); !errors.Is(err, ovn.ErrInvalid) {
			t.Errorf("port %q: %v", name, err)
		}
	}
	if rows, err := ovn.Rows("node-1", ovn.Port{Name: "p"}, make([]qos.Rule, qos.MaxAttachmentRules+1)); err == nil || !strings.Contains(err.Error(), "2021 rules cover it") {
		t.Errorf("too many rules: %d rows, %v", len(rows), err)
	}
	var b netipx.IPSetBuilder
	b.AddPrefix(netip.MustParsePrefix("10.0.0.0/8"))
	for i := range ovn.MaxPrefixes {
		b.Remove(netip.AddrFrom4([4]byte{10, byte(i >> 4), byte(i << 4), 1}))
	}
	many, _ := b.IPSet()
	if _, err := ovn.Rows("node-1", ovn.Port{Name: "p"}, []qos.Rule{{Policy: types.NamespacedName{Namespace: "a", Name: "b"}, Index: 3, Addresses: many}}); err == nil || !strings.Contains(err.Error(), "rule 3 of a/b: its addresses are") {
		t.Errorf("too many prefixes: %v", err)
	}
}

// TestDiff holds that the changes lead to what is desired and to nothing else, from any state
// that rows of this owner may be in, and that nothing is left to do then.
func TestDiff(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		have := &ovn.Observed{Switches: map[string]string{"s1": "u1", "s2": "u2", "twice": ""}}
		row := func() ovn.QoS {
			return ovn.QoS{ID: fmt.Sprint(rng.IntN(5)), Switch: []string{"s1", "s2", "gone", "twice"}[rng.IntN(4)], Priority: rng.IntN(2), Match: fmt.Sprint(rng.IntN(2)), DSCP: uint8(rng.IntN(2)), RateKbit: uint32(rng.IntN(2))}
		}
		for i := range rng.IntN(6) {
			q := row()
			q.Switch = ""
			h := ovn.ObservedQoS{QoS: q, UUID: fmt.Sprint("q", i), Direction: []string{"from-lport", "to-lport"}[min(1, rng.IntN(5)/4)], OtherActions: rng.IntN(5) == 0}
			for _, u := range []string{"u1", "u2", "u3"} {
				if rng.IntN(2) == 0 {
					h.SwitchUUIDs = append(h.SwitchUUIDs, u)
				}
			}
			have.QoS = append(have.QoS, h)
		}
		want := &ovn.Desired{}
		for i := range 4 {
			if rng.IntN(2) == 0 {
				have.Sets = append(have.Sets, ovn.ObservedSet{AddressSet: ovn.AddressSet{Name: fmt.Sprint(i), Addresses: []string{fmt.Sprint(rng.IntN(2))}}, UUID: fmt.Sprint("a", i)})
			}
			if rng.IntN(2) == 0 {
				want.Sets = append(want.Sets, ovn.AddressSet{Name: fmt.Sprint(i), Addresses: []string{fmt.Sprint(rng.IntN(2))}})
			}
		}
		byID := map[string]ovn.QoS{}
		for range rng.IntN(6) {
			q := row()
			byID[q.ID] = q
		}
		reachable := 0
		for _, q := range byID {
			want.QoS = append(want.QoS, q)
			if have.Switches[q.Switch] != "" {
				reachable++
			}
		}
		c, missing := ovn.Diff(have, want)
		after := perform(t, have, &c)
		for _, q := range after.QoS {
			w := byID[q.ID]
			if have.Switches[w.Switch] == "" && slices.ContainsFunc(have.QoS, func(h ovn.ObservedQoS) bool { return h.UUID == q.UUID && h.QoS == q.QoS }) {
				reachable++ // it waits for its switch
				continue
			}
			if w.Switch = ""; q.QoS != w || q.Direction != "from-lport" || q.OtherActions || len(q.SwitchUUIDs) != 1 || q.SwitchUUIDs[0] != have.Switches[byID[q.ID].Switch] {
				t.Fatalf("seed %d: row %+v, want %+v", seed, q, byID[q.ID])
			}
		}
		if len(after.QoS) != reachable || len(after.Sets) != len(want.Sets) {
			t.Fatalf("seed %d: %d rows and %d sets, want %d and %d", seed, len(after.QoS), len(after.Sets), reachable, len(want.Sets))
		}
		again, still := ovn.Diff(after, want)
		if !again.Empty() || len(still) != len(missing) {
			t.Fatalf("seed %d: left to do: %q", seed, again.Lines())
		}
		for _, q := range byID {
			var of *ovn.MissingSwitch
			if found := slices.ContainsFunc(missing, func(err error) bool { return errors.As(err, &of) && of.Name == q.Switch }); found != (have.Switches[q.Switch] == "") {
				t.Fatalf("seed %d: switch %q: missing %v", seed, q.Switch, missing)
			}
		}
	}
}

// perform is what a database has after the changes.
func perform(t *testing.T, have *ovn.Observed, c *ovn.Changes) *ovn.Observed {
	t.Helper()
	out := &ovn.Observed{Switches: have.Switches, QoS: slices.Clone(have.QoS), Sets: slices.Clone(have.Sets)}
	for _, q := range c.Delete {
		out.QoS = slices.DeleteFunc(out.QoS, func(h ovn.ObservedQoS) bool { return h.UUID == q.UUID })
	}
	for _, u := range c.Update {
		i := slices.IndexFunc(out.QoS, func(h ovn.ObservedQoS) bool { return h.UUID == u.UUID })
		out.QoS[i].QoS = u.QoS
		out.QoS[i].Switch = ""
	}
	for i, q := range c.Create {
		h := ovn.ObservedQoS{QoS: q, UUID: fmt.Sprint("new", i), Direction: "from-lport", SwitchUUIDs: []string{have.Switches[q.Switch]}}
		h.Switch = ""
		out.QoS = append(out.QoS, h)
	}
	for _, s := range c.DeleteSets {
		out.Sets = slices.DeleteFunc(out.Sets, func(h ovn.ObservedSet) bool { return h.UUID == s.UUID })
	}
	for _, s := range c.UpdateSets {
		i := slices.IndexFunc(out.Sets, func(h ovn.ObservedSet) bool { return h.UUID == s.UUID })
		out.Sets[i] = s
	}
	for i, s := range c.CreateSets {
		out.Sets = append(out.Sets, ovn.ObservedSet{AddressSet: s, UUID: fmt.Sprint("newset", i)})
	}
	return out
}
