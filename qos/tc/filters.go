// Package tc compiles the rules of an interface to filters of Linux traffic control, as
// data: it opens no socket.
//
// tc evaluates filters by preference, lowest first, and the first one whose actions end the
// classification decides. So each rule gets preferences of its own, the winning rule the
// lowest, one per address family, as one preference holds filters of one protocol. tc has
// no "all but" (tc-flower(8)): a destination with exceptions is a list of prefixes. All
// filters of a rule that has a limit share one policer, which is their bucket.
//
// A fragment has no port for flower, which does not dissect what follows the header of even the first one
// (FLOW_DISSECTOR_F_PARSE_1ST_FRAG, net/core/flow_dissector.c). So no filter with a port decides about one, and
// a rule with ports and a limit has further filters for fragments that its limit may be about: they share its policer, and leave the
// decision to the filters after them. What is sent in fragments is within each such limit, whatever its port.
//
// A rule keeps its preferences, and a filter its handle, when others come and go: the
// former follow from the rule's precedence, the latter from what the filter matches.
package tc

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/qos"
)

// Numbers of ours, for everything on a hook that others may use too.
const (
	// FirstPref is the lowest preference of ours. There are two for each place.
	FirstPref = 20000
	// MaxRules of an interface.
	MaxRules = qos.MaxAttachmentRules
	// MaxFilters of an interface, and as many again for fragments. Linux searches the filters of one preference and
	// mask in a hash table, but each preference by itself.
	MaxFilters = 1024
)

// Family is the EtherType that a filter matches.
type Family uint16

// Families (linux/if_ether.h).
const (
	IPv4 Family = 0x0800
	IPv6 Family = 0x86dd
)

// Filter is one filter of class flower with its actions: mark, then police, then accept; of fragments police, then
// continue.
type Filter struct {
	Pref     uint16
	Handle   uint32 // follows from what it matches
	Family   Family
	To       netip.Prefix // invalid: any
	Protocol qos.Protocol // 0: any
	Port     uint16       // 0: any
	Fragment bool         // fragments alone: it limits, and does not decide
	DSCP     uint8
	Policer  uint16 // number, 0 for none
	Rule     int    // index of the rule in the input
}

// Policer is a token bucket: what exceeds it is dropped.
type Policer struct {
	Number uint16 // from 1, of an interface
	// RateBytes per second, and BurstBytes.
	RateBytes, BurstBytes uint64
	// Assumed says that the object gives no burst, and this one was chosen.
	Assumed bool
}

// Filters is what the rules of an interface compile to.
type Filters struct {
	Filters  []Filter // by preference and handle
	Policers []Policer
	rules    []qos.Rule
}

// ErrTooMany says that the rules of an interface need more filters than it may have.
var ErrTooMany = errors.New("too many filters")

// Compile compiles the rules of one interface, the winning one first. Members says which
// addresses are in a set of destinations.
func Compile(rules []qos.Rule, members func(qos.SetID) []netip.Addr) (*Filters, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("%w: %d rules cover the interface, and it may have %d", ErrTooMany, len(rules), MaxRules)
	}
	out := &Filters{rules: rules}
	places, deciding := qos.Places(rules), 0
	for i := range rules {
		r, place := &rules[i], places[i]
		var policer uint16
		if r.RateKbit > 0 {
			policer = uint16(place + 1)
			out.Policers = append(out.Policers, newPolicer(policer, r))
		}
		to := destinations(r, members)
		ports := r.Ports
		if len(ports) == 0 {
			ports = []qos.Port{{}}
		}
		if deciding += len(to) * len(ports); deciding > MaxFilters {
			return nil, fmt.Errorf("%w: with rule %d of %s they are %d, and an interface may have %d: use fewer exceptions, ports or destination pods", ErrTooMany, r.Index, r.Policy, deciding, MaxFilters)
		}
		type key struct {
			pref   uint16
			handle uint32
		}
		taken := map[key]bool{}
		add := func(f Filter) {
			f.Pref, f.DSCP, f.Policer, f.Rule = pref(place, f.Family), r.DSCP, policer, i
			f.Handle = handle(&f)
			for f.Handle == 0 || taken[key{f.Pref, f.Handle}] {
				f.Handle++
			}
			taken[key{f.Pref, f.Handle}] = true
			out.Filters = append(out.Filters, f)
		}
		for _, d := range to {
			for n, p := range ports {
				if slices.Contains(ports[:n], p) {
					continue // the kernel refuses a second filter with one match
				}
				add(Filter{Family: d.family, To: d.prefix, Protocol: p.Protocol, Port: p.Port})
			}
		}
		if policer == 0 {
			continue
		}
		for _, d := range to {
			for _, protocol := range withPort(ports) {
				add(Filter{Family: d.family, To: d.prefix, Protocol: protocol, Fragment: true})
			}
		}
	}
	slices.SortFunc(out.Filters, func(a, b Filter) int {
		return cmp.Or(cmp.Compare(a.Pref, b.Pref), cmp.Compare(a.Handle, b.Handle))
	})
	return out, nil
}

// withPort returns the protocols of which fragments may be of one of the ports, and are not matched without it.
func withPort(ports []qos.Port) []qos.Protocol {
	var out []qos.Protocol
	for _, p := range ports {
		if p.Port != 0 && !slices.Contains(out, p.Protocol) && !slices.Contains(ports, qos.Port{Protocol: p.Protocol}) {
			out = append(out, p.Protocol)
		}
	}
	return out
}

// handle is the handle of a filter within its preference. The kernel has one filter for each
// match: by a handle that counted, an update could move a match to a handle while another
// one still has it.
func handle(f *Filter) uint32 {
	h := fnv.New32a()
	fmt.Fprint(h, f.To, f.Protocol, f.Port)
	if f.Fragment {
		fmt.Fprint(h, " fragment")
	}
	return h.Sum32()
}

// pref is the preference of the rule at a place.
func pref(place int, f Family) uint16 {
	n := FirstPref + 2*place
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
func newPolicer(number uint16, r *qos.Rule) Policer {
	p := Policer{Number: number, RateBytes: uint64(r.RateKbit) * 125, BurstBytes: uint64(r.BurstKbit) * 125}
	if p.BurstBytes == 0 {
		p.BurstBytes, p.Assumed = max(p.RateBytes/100, minBurst), true
	}
	return p
}

// Matches reports whether the filter decides about a packet.
func (f *Filter) Matches(p qos.Packet) bool {
	return !f.Fragment && f.about(p) && (f.Port == 0 || f.Port == p.Port && !p.Fragment)
}

// Limits reports whether the filter limits a packet about which a later one decides.
func (f *Filter) Limits(p qos.Packet) bool { return f.Fragment && p.Fragment && f.about(p) }

func (f *Filter) about(p qos.Packet) bool {
	family := IPv4
	if p.Destination.Is6() {
		family = IPv6
	}
	return f.Family == family && (!f.To.IsValid() || f.To.Contains(p.Destination)) && (f.Protocol == 0 || f.Protocol == p.Protocol)
}

// Objects returns the filters as objects of a sandbox, without a link.
func (f *Filters) Objects() []netstate.Filter {
	policers := map[uint16]Policer{}
	for _, p := range f.Policers {
		policers[p.Number] = p
	}
	out := make([]netstate.Filter, len(f.Filters))
	for i, o := range f.Filters {
		family, to := netstate.IPv4, ""
		if o.Family == IPv6 {
			family = netstate.IPv6
		}
		if o.To.IsValid() {
			to = o.To.String()
		}
		p := policers[o.Policer]
		r := &f.rules[o.Rule]
		out[i] = netstate.Filter{
			Rule: fmt.Sprintf("%s[%d]", r.Policy, r.Index), Pref: o.Pref, Handle: o.Handle, Family: &family, To: &to,
			Protocol: new(protocols[o.Protocol]), Port: &o.Port, Fragment: &o.Fragment, DSCP: &o.DSCP, Policer: &o.Policer, Rate: &p.RateBytes, BurstNanos: new(p.burstNanos()),
		}
		if o.Fragment {
			out[i].DSCP = nil
		}
	}
	return out
}

var protocols = map[qos.Protocol]string{0: "", qos.TCP: "tcp", qos.UDP: "udp", qos.SCTP: "sctp"}

// burstNanos is how long the burst takes at the rate, as the kernel keeps it: rounded up, so
// that a packet as large as the burst passes.
func (p Policer) burstNanos() uint64 {
	if p.RateBytes == 0 {
		return 0
	}
	nanos := math.Ceil(float64(p.BurstBytes) * 1e9 / float64(p.RateBytes) / netstate.BurstUnit)
	return min(max(uint64(nanos), 1)*netstate.BurstUnit, netstate.MaxBurstNanos)
}
