package ports

import (
	"cmp"
	"maps"
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
	// Filters are those of the rule. Others of the interface may have the same preferences.
	Filters []FilterKey
	// OnPF says that they only mark, and the physical function enforces the rule's limit.
	OnPF bool
}

// RulesOf returns the rules of a sandbox by its record, by port, and of those of one port the one
// that decides first.
func RulesOf(rec *reconcile.Record, of []Port) []Rule {
	// The record's changes have the names that rules had when their filters were set.
	given := GivenFilters(rec)
	type key struct{ link, rule string }
	type place struct{ place, pref int }
	found, places := map[key]*Rule{}, map[*Rule]place{}
	for _, c := range rec.History {
		f, ok := c.After.(netstate.Filter)
		if !ok {
			continue
		}
		is := given(c.Step, &f)
		if is == nil || is.Rule == "" {
			continue
		}
		r := found[key{f.Link, is.Rule}]
		if r == nil {
			i := slices.IndexFunc(of, func(p Port) bool { return p.Name == f.Link })
			if i < 0 {
				continue
			}
			r = &Rule{Port: of[i], Name: is.Rule}
			found[key{f.Link, is.Rule}], places[r] = r, place{is.Place, int(is.Pref)}
		}
		r.Filters = append(r.Filters, keyOf(&f))
		r.OnPF = r.OnPF || is.Policer != nil && *is.Policer != 0 && f.Policer != nil && *f.Policer == 0
	}
	order := slices.Collect(maps.Values(found))
	slices.SortFunc(order, func(a, b *Rule) int {
		return cmp.Or(strings.Compare(a.Port.Name, b.Port.Name), cmp.Compare(places[a].place, places[b].place),
			cmp.Compare(places[a].pref, places[b].pref))
	})
	out := make([]Rule, len(order))
	for i, r := range order {
		out[i] = *r
	}
	return out
}

// GivenFilters finds the filter that a sandbox was given for one of an interface, by the step that makes the interface.
func GivenFilters(rec *reconcile.Record) func(step string, f *netstate.Filter) *netstate.Filter {
	rules, by := rec.Sandbox.Rules, map[string]map[FilterKey]*netstate.Filter{}
	return func(step string, f *netstate.Filter) *netstate.Filter {
		if _, own := rules.Steps[step]; !own {
			step = "" // those of all other steps
		}
		of, known := by[step]
		if !known {
			filters := rules.Of(step).Filters
			of = make(map[FilterKey]*netstate.Filter, len(filters))
			for i := range filters {
				of[keyOf(&filters[i])] = &filters[i]
			}
			by[step] = of
		}
		return of[keyOf(f)]
	}
}

// FilterKey is a filter of an interface.
type FilterKey struct {
	Chain  uint32
	Pref   uint16
	Handle uint32
}

func keyOf(f *netstate.Filter) FilterKey { return FilterKey{f.Chain, f.Pref, f.Handle} }

// FilterCount counts the packets that a filter has marked, as its link would send them.
type FilterCount struct{ Packets, Bytes uint64 }

// Reading holds the counters of the kernel or Open vSwitch for a rule. Each filter has counters of its
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
