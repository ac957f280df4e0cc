package kernel_test

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/ports"
)

// counted returns the counters of rules on d0 by their names, with the number of dumps that took.
func (w *wired) counted(rec *reconcile.Record) map[string]ports.RuleCounters {
	w.Helper()
	rules := ports.RulesOf(rec, []ports.Port{w.port("d0")})
	readings, err := w.host.RuleReadings(w.ctx, w.ns.path(), w.NetnsID(), rules)
	if err != nil {
		w.Fatal(err)
	}
	out := map[string]ports.RuleCounters{}
	for i, r := range rules {
		if n := len(readings[i].Filters); n != len(r.Filters) {
			w.Errorf("rule %s: counters of %d filters, of %d", r.Name, n, len(r.Filters))
		}
		out[r.Name] = readings[i].Counters()
	}
	return out
}

// recordOf is a record of filters on d0.
func recordOf(filters []netstate.Filter) *reconcile.Record {
	rec := &reconcile.Record{Sandbox: reconcile.Sandbox{Rules: ops.Rules{Filters: filters}}}
	for _, f := range filters {
		rec.History = append(rec.History, netstate.Change{Step: "d", After: f})
	}
	return rec
}

// TestRuleCounters: the counters of each rule equal what was sent, for both families, several filters
// of one rule and a limit that drops. Filters of others, among them one in a preference of
// ours in another chain, are not counted.
func TestRuleCounters(t *testing.T) {
	w := newWired(t)
	filters, decide := w.enforce(object("a", 7,
		"{dscp: 10, classifier: {to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8:1::/48'}}], ports: [{protocol: UDP, port: 80}, {protocol: TCP}]}}",
		"{dscp: 11, bandwidth: {rate: 1, burst: 16}, classifier: {to: [{ipBlock: {cidr: 203.0.113.0/24}}, {ipBlock: {cidr: '2001:db8:2::/48'}}]}}"))
	rec := recordOf(filters)
	if got := w.counted(rec); got["ai/a[0]"] != (ports.RuleCounters{}) || got["ai/a[1]"] != (ports.RuleCounters{}) || len(got) != 2 {
		t.Fatalf("before a packet: %+v", got)
	}
	foreign := filters[0]
	foreign.Pref, foreign.Rule = 10, ""
	w.create(foreign)

	want := map[string]ports.RuleCounters{"ai/a[0]": {}, "ai/a[1]": {}}
	const size = 600
	sent := func(p qos.Packet, fd int) (number uint32) {
		number = w.send(fd, p, size)
		if r := decide(p); r != nil {
			name := "ai/a[" + string(rune('0'+r.Index)) + "]"
			c, header := want[name], uint64(14+20)
			if p.Destination.Is6() {
				header += 20
			}
			c.Marked.Packets++
			c.Marked.Bytes += size + header
			want[name] = c
		}
		return number
	}
	w.remove(foreign) // it decided about nothing yet
	last, limited := uint32(0), map[uint32]bool{}
	for _, to := range []string{"198.51.100.7", "198.51.100.8", "2001:db8:1::7", "192.0.2.77", "203.0.113.9", "2001:db8:2::9"} {
		for _, protocol := range []qos.Protocol{qos.TCP, qos.UDP} {
			for _, port := range []uint16{80, 443} {
				p := qos.Packet{Destination: netip.MustParseAddr(to), Protocol: protocol, Port: port}
				fd := w.sender(p, 0)
				for range 3 {
					n := sent(p, fd)
					if r := decide(p); r != nil && r.RateKbit > 0 {
						limited[n] = true
					}
				}
				unix.Close(fd)
			}
		}
	}
	p := qos.Packet{Destination: netip.MustParseAddr("192.0.2.77"), Protocol: qos.UDP, Port: 9}
	last = w.one(p, 0)
	arrived := w.received(last)
	c := want["ai/a[1]"]
	for n := range limited {
		if _, ok := arrived[n]; !ok {
			c.Dropped++
		}
	}
	want["ai/a[1]"] = c
	if c.Dropped == 0 || c.Dropped == c.Marked.Packets {
		t.Fatalf("%d packets of %d were dropped", c.Dropped, c.Marked.Packets)
	}
	got := w.counted(rec)
	for name, c := range want {
		if got[name] != c || c.Marked.Packets == 0 {
			t.Errorf("rule %s: %+v, want %+v", name, got[name], c)
		}
	}

	// A filter that no longer exists has counted nothing, and is no error.
	for _, f := range filters {
		if f.Rule == "ai/a[0]" {
			w.remove(f)
		}
	}
	rec.History = slices.DeleteFunc(rec.History, func(c netstate.Change) bool { return c.After.(netstate.Filter).Rule == "ai/a[0]" })
	if got := w.counted(rec); len(got) != 1 || got["ai/a[1]"] != c {
		t.Errorf("without the first rule: %+v", got)
	}
	none, err := w.host.RuleReadings(w.ctx, w.ns.path(), w.NetnsID(), []ports.Rule{
		{Port: ports.Port{Name: "gone", Index: 1 << 20}, Filters: []ports.FilterKey{{Pref: 20000, Handle: 1}}}, {Port: w.port("d0"), Filters: []ports.FilterKey{{Pref: 20000, Handle: 1}}},
	})
	if err != nil || len(none) != 2 || none[0].Counters() != (ports.RuleCounters{}) || none[1].Counters() != (ports.RuleCounters{}) {
		t.Errorf("no interface and no filters: %+v, %v", none, err)
	}
}
