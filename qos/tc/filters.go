// Package tc compiles the rules of an interface to filters of Linux traffic control, as
// data: it opens no socket.
//
// tc evaluates filters by preference, lowest first, and the first one whose actions end the
// classification decides. So each rule gets preferences of its own, the winning rule the
// lowest, one per address family, as one preference holds filters of one protocol. tc has
// no "all but" (tc-flower(8)): a destination with exceptions is a list of prefixes. All
// filters of a rule that has a limit share one policer, which is their bucket.
package tc

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/qos"
)

// Numbers of ours, for everything on a hook that others may use too.
const (
	// FirstPref is the lowest preference of ours. There are two for each of at most
	// MaxRules rules.
	FirstPref = 20000
	// MaxRules of an interface: those of 101 priorities with 20 rules each.
	MaxRules = (qos.MaxPriority + 1) * qos.MaxRules
	// MaxFilters of an interface. Linux searches the filters of one preference and mask in
	// a hash table, but each preference by itself.
	MaxFilters = 4096
	// FirstPolicer is the index of the first policer. Indices belong to a network namespace.
	FirstPolicer = 0x504c0000
)

// Family is the EtherType that a filter matches.
type Family uint16

// Families (linux/if_ether.h).
const (
	IPv4 Family = 0x0800
	IPv6 Family = 0x86dd
)

// Filter is one filter of class flower with its actions: mark, then police, then accept.
type Filter struct {
	Pref     uint16
	Handle   uint32 // counts from 1 within a preference
	Family   Family
	To       netip.Prefix // invalid: any
	Protocol qos.Protocol // 0: any
	Port     uint16       // 0: any
	DSCP     uint8
	Policer  uint32 // index, 0 for none
	Rule     int    // index of the rule in the input
}

// Policer is a token bucket: what exceeds it is dropped.
type Policer struct {
	Index uint32
	// RateBytes per second, and BurstBytes.
	RateBytes, BurstBytes uint64
	// Assumed says that the object gives no burst, and this one was chosen.
	Assumed bool
}

// Filters is what the rules of an interface compile to.
type Filters struct {
	Filters  []Filter // by preference and handle
	Policers []Policer
}

// ErrTooMany says that the rules of an interface need more filters than it may have.
var ErrTooMany = errors.New("too many filters")

// Compile compiles the rules of one interface, the winning one first. Members says which
// addresses are in a set of destinations.
func Compile(rules []qos.Rule, members func(qos.SetID) []netip.Addr) (*Filters, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("%w: %d rules cover the interface, and it may have %d", ErrTooMany, len(rules), MaxRules)
	}
	out := &Filters{}
	for i := range rules {
		r := &rules[i]
		var policer uint32
		if r.RateKbit > 0 {
			policer = FirstPolicer + uint32(i)
			out.Policers = append(out.Policers, newPolicer(policer, r))
		}
		to := destinations(r, members)
		ports := r.Ports
		if len(ports) == 0 {
			ports = []qos.Port{{}}
		}
		if n := len(out.Filters) + len(to)*len(ports); n > MaxFilters {
			return nil, fmt.Errorf("%w: with rule %d of %s they are %d, and an interface may have %d: use fewer exceptions, ports or destination pods", ErrTooMany, r.Index, r.Policy, n, MaxFilters)
		}
		handles := map[uint16]uint32{}
		for _, d := range to {
			for _, p := range ports {
				f := Filter{Pref: pref(i, d.family), Family: d.family, To: d.prefix, Protocol: p.Protocol, Port: p.Port, DSCP: r.DSCP, Policer: policer, Rule: i}
				handles[f.Pref]++
				f.Handle = handles[f.Pref]
				out.Filters = append(out.Filters, f)
			}
		}
	}
	slices.SortFunc(out.Filters, func(a, b Filter) int {
		if a.Pref != b.Pref {
			return int(a.Pref) - int(b.Pref)
		}
		return int(a.Handle) - int(b.Handle)
	})
	return out, nil
}

// pref is the preference of the rule at a position.
func pref(position int, f Family) uint16 {
	n := FirstPref + 2*position
	if f == IPv6 {
		n++
	}
	return uint16(n)
}

type destination struct {
	family Family
	prefix netip.Prefix
}

// destinations are the prefixes of a rule, without those that others contain.
func destinations(r *qos.Rule, members func(qos.SetID) []netip.Addr) []destination {
	if r.Any {
		return []destination{{family: IPv4}, {family: IPv6}}
	}
	var out []destination
	if r.Addresses != nil {
		for _, p := range r.Addresses.Prefixes() {
			out = append(out, of(p))
		}
	}
	seen := map[netip.Addr]bool{}
	for _, id := range r.Sets {
		for _, a := range members(id) {
			if !seen[a] && (r.Addresses == nil || !r.Addresses.Contains(a)) {
				seen[a] = true
				out = append(out, of(netip.PrefixFrom(a, a.BitLen())))
			}
		}
	}
	return out
}

// of names the family of a prefix. One of length 0 is any address of the family.
func of(p netip.Prefix) destination {
	d := destination{family: IPv4, prefix: p}
	if p.Addr().Is6() {
		d.family = IPv6
	}
	if p.Bits() == 0 {
		d.prefix = netip.Prefix{}
	}
	return d
}

// minBurst is the least burst of a policer that has none given: one packet of 64 KiB, which
// is what a sender with segmentation offload hands over at once.
const minBurst = 64 << 10

// newPolicer converts kbit to bytes. A policer without a burst drops everything
// (net/sched/act_police.c), so one of 10 ms is chosen.
func newPolicer(index uint32, r *qos.Rule) Policer {
	p := Policer{Index: index, RateBytes: uint64(r.RateKbit) * 125, BurstBytes: uint64(r.BurstKbit) * 125}
	if p.BurstBytes == 0 {
		p.BurstBytes, p.Assumed = max(p.RateBytes/100, minBurst), true
	}
	return p
}

// Matches reports whether the filter matches a packet.
func (f *Filter) Matches(p qos.Packet) bool {
	family := IPv4
	if p.Destination.Is6() {
		family = IPv6
	}
	return f.Family == family && (!f.To.IsValid() || f.To.Contains(p.Destination)) &&
		(f.Protocol == 0 || f.Protocol == p.Protocol) && (f.Port == 0 || f.Port == p.Port && !p.Fragment)
}
