package tc

import (
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
)

const (
	// firstPacked is the lowest preference of packed filters: two that lead fragments to their chain come before the
	// masks, which are from here on.
	firstPacked = FirstPref + 4*MaxRules
	// ports is how much a mask can say of a port: a protocol and a port, a protocol, or nothing.
	ports = 3
	// packSteps bounds the comparisons of one packing, some tenths of a second.
	packSteps = 4 << 20
)

// class holds the matches of a filter beside the destination. Classes are nested or disjoint: a port is in its protocol, and that in any.
type class struct {
	protocol qos.Protocol
	port     uint16
}

// wider returns the next class that contains it.
func (c class) wider() (class, bool) {
	if c == (class{}) {
		return c, false
	}
	if c.port == 0 {
		return class{}, true
	}
	return class{protocol: c.protocol}, true
}

// depth is 0 for a port, 1 for a protocol, and 2 for any.
func (c class) depth() int {
	switch {
	case c.port != 0:
		return 0
	case c.protocol != 0:
		return 1
	}
	return 2
}

// table has the best rule of each destination of a class.
type table struct {
	best    map[netip.Prefix]int
	lengths []int // of the prefixes, shortest first
}

func (t *table) add(p netip.Prefix, rule int) {
	if i, found := slices.BinarySearch(t.lengths, p.Bits()); !found {
		t.lengths = slices.Insert(t.lengths, i, p.Bits())
	}
	if old, ok := t.best[p]; !ok || rule < old {
		t.best[p] = rule
	}
}

// packer packs the filters of one family.
type packer struct {
	rules  map[class]*table // what the rules match
	kept   map[class]*table // what decides about some packet
	steps  int
	filter map[int]Filter // of each rule, one to copy
}

// pack gives filters that decide the preference of their mask. Narrower masks come first, those with a port, then those with a
// protocol, and of these longer prefixes. As the order is the same for all rules, it is right only if a packet that matches several
// filters is decided by the first of them, so:
//
//   - A filter all of whose packets a better rule decides about is left out.
//   - Where a filter comes before one of a better rule, and neither contains the other, what both match is a filter of its own, of the
//     best rule that contains it. That is a port or protocol of one rule with the shorter prefix, and the longer one of the other.
//
// A packet that the first match would decide wrongly is in what both match, which has a narrower mask than either and so comes
// before it.
//
// Of the filters that limit fragments it returns those that do so before a better rule decides about them.
//
// It is false if there would be more than MaxFilters, or it takes too long to say.
func pack(deciding, limiting []Filter) (packed, limits []Filter, ok bool) {
	families := map[string]*packer{}
	for _, f := range deciding {
		p := families[f.Family]
		if p == nil {
			p = &packer{rules: map[class]*table{}, kept: map[class]*table{}, filter: map[int]Filter{}}
			families[f.Family] = p
		}
		p.filter[f.Rule] = f
		add(p.rules, class{f.Protocol, f.Port}, prefixOf(&f), f.Rule)
	}
	for _, family := range []string{netstate.IPv4, netstate.IPv6} {
		if p := families[family]; p != nil {
			if !p.pack() {
				return nil, nil, false
			}
			packed = p.appendTo(packed)
		}
	}
	for _, f := range limiting {
		if best := families[f.Family].covering(prefixOf(&f), class{protocol: f.Protocol}); best < 0 || best > f.Rule {
			limits = append(limits, f)
		}
	}
	return numbered(packed), limits, len(packed) <= MaxFilters
}

func add(tables map[class]*table, c class, p netip.Prefix, rule int) {
	t := tables[c]
	if t == nil {
		t = &table{best: map[netip.Prefix]int{}}
		tables[c] = t
	}
	t.add(p, rule)
}

// prefixOf is the destination, any as a prefix of length 0.
func prefixOf(f *Filter) netip.Prefix {
	switch {
	case f.To.IsValid():
		return f.To
	case f.Family == netstate.IPv6:
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// covering returns the best rule whose match contains a destination in a class.
func (k *packer) covering(p netip.Prefix, c class) int {
	best := -1
	for ok := true; ok; c, ok = c.wider() {
		t := k.rules[c]
		if t == nil {
			continue
		}
		for _, bits := range t.lengths {
			k.steps++
			if bits > p.Bits() {
				break
			}
			if rule, ok := t.best[netip.PrefixFrom(p.Addr(), bits).Masked()]; ok && (best < 0 || rule < best) {
				best = rule
			}
		}
	}
	return best
}

func (k *packer) pack() bool {
	for c, t := range k.rules {
		for p, rule := range t.best {
			if k.covering(p, c) == rule {
				add(k.kept, c, p, rule)
			}
		}
	}
	type part struct {
		class
		netip.Prefix
	}
	var both []part
	for c, t := range k.kept {
		worst := 0
		for _, rule := range t.best {
			worst = max(worst, rule)
		}
		for w, ok := c.wider(); ok; w, ok = w.wider() {
			from := k.kept[w]
			if from == nil {
				continue
			}
			for p, rule := range from.best {
				if k.steps++; k.steps > packSteps || len(both) > MaxFilters {
					return false
				}
				if rule < worst && k.before(t, p, rule) {
					both = append(both, part{c, p})
				}
			}
		}
	}
	for _, b := range both {
		add(k.kept, b.class, b.Prefix, k.covering(b.Prefix, b.class))
	}
	return k.steps <= packSteps
}

// before reports whether a table has a shorter prefix of a worse rule, which would decide about what a better one has in a wider
// class.
func (k *packer) before(t *table, p netip.Prefix, rule int) bool {
	for _, bits := range t.lengths {
		k.steps++
		if bits >= p.Bits() {
			return false
		}
		if other, ok := t.best[netip.PrefixFrom(p.Addr(), bits).Masked()]; ok && other > rule {
			return true
		}
	}
	return false
}

func (k *packer) appendTo(out []Filter) []Filter {
	for c, t := range k.kept {
		for p, rule := range t.best {
			f := k.filter[rule]
			f.Protocol, f.Port, f.To = c.protocol, c.port, p
			f.Pref = packedPref(f.Family, c.depth(), p.Bits())
			if p.Bits() == 0 {
				f.To = netip.Prefix{}
			}
			out = append(out, f)
		}
	}
	return out
}

// packedPref is the preference of a mask.
func packedPref(family string, depth, bits int) uint16 {
	if family == netstate.IPv6 {
		return uint16(firstPacked + 2 + ports*33 + depth*129 + 128 - bits)
	}
	return uint16(firstPacked + 2 + depth*33 + 32 - bits)
}
