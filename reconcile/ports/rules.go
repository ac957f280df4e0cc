package ports

import (
	"cmp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// Rule is a rule of a NetworkQoS on an interface of a sandbox.
type Rule struct {
	Port Port
	// Name is that of netstate.Filter.Rule.
	Name string
	// Prefs are the preferences of its filters, one for each address family. No other rule
	// of the interface has filters there.
	Prefs []uint16
	// Filters is how many there are.
	Filters int
	// OnPF says that they only mark, and the physical function enforces the rule's limit.
	OnPF bool
}

// RulesOf returns the rules of a sandbox by its record, by port, and of those of one port the one
// that decides first.
func RulesOf(rec *reconcile.Record, of []Port) []Rule {
	// The record's changes have the names that rules had when their filters were set.
	names, limits := map[uint16]string{}, map[uint16]bool{}
	for _, f := range rec.Sandbox.Filters {
		names[f.Pref], limits[f.Pref] = f.Rule, f.Policer != nil && *f.Policer != 0
	}
	type key struct{ link, rule string }
	found := map[key]*Rule{}
	for _, c := range rec.History {
		f, ok := c.After.(netstate.Filter)
		name := names[f.Pref]
		if !ok || name == "" {
			continue
		}
		r := found[key{f.Link, name}]
		if r == nil {
			i := slices.IndexFunc(of, func(p Port) bool { return p.Name == f.Link })
			if i < 0 {
				continue
			}
			r = &Rule{Port: of[i], Name: name}
			found[key{f.Link, name}] = r
		}
		r.Filters++
		r.OnPF = r.OnPF || limits[f.Pref] && f.Policer != nil && *f.Policer == 0
		if !slices.Contains(r.Prefs, f.Pref) {
			r.Prefs = append(r.Prefs, f.Pref)
		}
	}
	var out []Rule
	for _, r := range found {
		slices.Sort(r.Prefs)
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b Rule) int {
		return cmp.Or(strings.Compare(a.Port.Name, b.Port.Name), cmp.Compare(a.Prefs[0], b.Prefs[0]))
	})
	return out
}

// FilterKey is a filter of an interface.
type FilterKey struct {
	Pref   uint16
	Handle uint32
}

// FilterCount is what a filter has marked, as its link would send it.
type FilterCount struct{ Packets, Bytes uint64 }

// Reading is what the kernel or Open vSwitch has counted for a rule. Each filter has counters of its
// own, which end with it; the filters of a rule share its limit. Of a rule of OVN a filter is all flows
// of one logical flow, and without any nothing is known.
type Reading struct {
	Filters map[FilterKey]FilterCount
	// Dropped are packets that exceeded the limit. Each of them was counted as marked before.
	Dropped uint64
	// DropsUnknown says that Dropped is not known.
	DropsUnknown bool
}

// RuleCounters are the counters of a rule on an interface.
type RuleCounters struct {
	// Marked are packets and bytes that the rule has decided about, with those dropped.
	Marked FilterCount
	// Dropped are packets that the rule's limit has dropped. One that the link would divide
	// into segments counts as one.
	Dropped uint64
	// DropsUnknown says that Dropped is not known.
	DropsUnknown bool
}

// Counters sums a reading.
func (r Reading) Counters() RuleCounters {
	out := RuleCounters{Dropped: r.Dropped, DropsUnknown: r.DropsUnknown}
	for _, c := range r.Filters {
		out.Marked.add(c)
	}
	return out
}

func (c *FilterCount) add(d FilterCount) { c.Packets += d.Packets; c.Bytes += d.Bytes }

// total adds up readings of a rule whose filters come and go.
type total struct {
	RuleCounters
	onPF bool
	last Reading
}

// take adds what was counted since the last reading. A filter or limit that counts less than before
// is another one.
func (t *total) take(r Reading) {
	for k, now := range r.Filters {
		if before := t.last.Filters[k]; now.Packets >= before.Packets && now.Bytes >= before.Bytes {
			now = FilterCount{now.Packets - before.Packets, now.Bytes - before.Bytes}
		}
		t.Marked.add(now)
	}
	switch {
	case !r.DropsUnknown:
		t.DropsUnknown = false
	case t.last.Filters == nil:
		t.DropsUnknown = true
		fallthrough
	default: // as before
		r.Dropped = t.last.Dropped
	}
	dropped := r.Dropped
	if dropped >= t.last.Dropped {
		dropped -= t.last.Dropped
	}
	t.Dropped += dropped
	t.last = r
}

// shares divides a number of series among sandboxes that want so many each: the same for each, and
// to those that want more what others leave, so that one pod with many rules does not take all.
func shares(most int, wanted []int) []int {
	order := make([]int, len(wanted))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(wanted[a], wanted[b]) })
	out := make([]int, len(wanted))
	for n, i := range order {
		out[i] = min(wanted[i], most/(len(order)-n))
		most -= out[i]
	}
	return out
}
