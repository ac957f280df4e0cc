// Package tc compiles the rules of an interface to filters of Linux traffic control, as
// data: it opens no socket.
//
// tc evaluates filters by preference, lowest first, and the first one whose actions end the
// classification decides. The filters of one preference that have one mask are in a hash table, so that their number costs a
// packet nothing; each further preference does. So all filters of one mask share a preference, and those of narrower
// masks come first: see packed. tc has no "all but" (tc-flower(8)): a destination with exceptions is a list of prefixes. All
// filters of a rule that has a limit share one policer, which is their bucket.
//
// A fragment has no port for flower, which does not dissect what follows the header of even the first one
// (FLOW_DISSECTOR_F_PARSE_1ST_FRAG, net/core/flow_dissector.c). So no filter with a port decides about one, and
// a rule with ports and a limit has further filters for fragments that its limit may be about: they share its policer, and leave the
// decision to the filters after them. Fragments are within each such limit, whatever their port. These filters need
// the order of the rules, so where there are any, fragments have a chain of their own, see byRule.
//
// The preference and the handle of a filter follow from what it matches, so that filters keep their place when others come
// and go. A rule that has another mark or limit changes its filters in place.
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
	// FirstPref is the lowest preference of ours.
	FirstPref = 20000
	// MaxRules of an interface.
	MaxRules = qos.MaxAttachmentRules
	// MaxFilters that decide on an interface. Those for fragments are at most twice as many again.
	MaxFilters = 10240
	// FragmentChain is the chain of the filters that decide about fragments alone.
	FragmentChain = 20000
)

// Filter is one filter of class flower with its actions: mark, then police, then accept; of fragments police, then
// continue.
type Filter struct {
	Chain    uint32 // 0, or FragmentChain
	Pref     uint16
	Handle   uint32       // follows from what it matches
	Family   string       // netstate.IPv4 or netstate.IPv6
	To       netip.Prefix // invalid: any
	Protocol qos.Protocol // 0: any
	Port     uint16       // 0: any
	Fragment bool         // fragments alone: it limits, and does not decide
	// Goto is the chain that decides about fragments, 0 for other filters. Such a filter is of no rule.
	Goto    uint32
	DSCP    uint8
	Policer uint16 // number of a token bucket: what exceeds it is dropped. From 1, of an interface; 0 for none
	Rule    int    // index of the rule in the input
}

// Filters are the filters that the rules of an interface compile to.
type Filters struct {
	// Filters are in the order in which they are created: those of the chain of fragments first, then by preference and
	// handle. Created and changed in this order before others are deleted in the opposite one, they decide about each packet
	// at each moment as the rules before or the rules after do.
	Filters []Filter
	rules   []qos.Rule
	places  []int
}

// ErrTooMany says that the rules of an interface need more filters than it may have.
var ErrTooMany = errors.New("too many filters")

// Compile compiles the rules of one interface, the winning one first. Members says which
// addresses are in a set of destinations.
func Compile(rules []qos.Rule, members func(qos.SetID) []netip.Addr) (*Filters, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("%w: %d rules cover the interface, and it may have %d", ErrTooMany, len(rules), MaxRules)
	}
	out := &Filters{rules: rules, places: qos.Places(rules)}
	var deciding, limiting []Filter
	for i := range rules {
		r := &rules[i]
		var policer uint16
		if r.RateKbit > 0 {
			policer = uint16(out.places[i] + 1)
		}
		to := destinations(r, members)
		ports := r.Ports
		if len(ports) == 0 {
			ports = []qos.Port{{}}
		}
		if n := len(deciding) + len(to)*len(ports); n > MaxFilters {
			return nil, fmt.Errorf(
				"%w: with rule %d of %s they are %d, and an interface may have %d: use fewer exceptions, ports or destination pods",
				ErrTooMany, r.Index, r.Policy, n, MaxFilters)
		}
		for _, d := range to {
			f := Filter{Family: d.family, To: d.prefix, DSCP: r.DSCP, Policer: policer, Rule: i}
			for n, p := range ports {
				if !slices.Contains(ports[:n], p) { // the kernel refuses a second filter with one match
					f.Protocol, f.Port = p.Protocol, p.Port
					deciding = append(deciding, f)
				}
			}
			if policer == 0 {
				continue
			}
			f.Fragment, f.Port = true, 0
			for _, f.Protocol = range withPort(ports) {
				limiting = append(limiting, f)
			}
		}
	}
	out.Filters = out.arrange(deciding, limiting)
	return out, nil
}

// arrange gives the filters of all rules their places, those that decide, and those that limit fragments.
func (f *Filters) arrange(deciding, limiting []Filter) []Filter {
	packed, limits, ok := pack(deciding, limiting)
	if !ok {
		return f.byRule(0, append(deciding, limiting...))
	}
	gotos := map[string]bool{}
	for _, l := range limits {
		gotos[l.Family] = true
	}
	for _, d := range deciding {
		if d.Port == 0 && gotos[d.Family] {
			limits = append(limits, d)
		}
	}
	out := f.byRule(FragmentChain, limits)
	for i, family := range []string{netstate.IPv4, netstate.IPv6} {
		if gotos[family] {
			out = append(out, Filter{
				Pref: firstPacked + uint16(i), Handle: 1, Family: family, Fragment: true, Goto: FragmentChain,
				Rule: -1,
			})
		}
	}
	return append(out, packed...)
}

// byRule gives each rule preferences of its own, the winning one the lowest, one for each address family, as one preference
// holds filters of one protocol. The preferences follow from the precedence of the rule.
func (f *Filters) byRule(chain uint32, all []Filter) []Filter {
	for i := range all {
		all[i].Chain, all[i].Pref = chain, uint16(FirstPref+2*f.places[all[i].Rule])
		if all[i].Family == netstate.IPv6 {
			all[i].Pref++
		}
	}
	return numbered(all)
}

// numbered sorts filters by preference, and gives them handles that follow from what they match. The kernel has one filter for
// each match: by handles that count, an update could move a match to a handle while another one still has it.
func numbered(all []Filter) []Filter {
	for i := range all {
		all[i].Handle = max(1, hash(&all[i]))
	}
	slices.SortStableFunc(all, func(a, b Filter) int {
		return cmp.Or(cmp.Compare(a.Pref, b.Pref), cmp.Compare(a.Handle, b.Handle), a.To.Compare(b.To),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	for i := 1; i < len(all); i++ {
		if all[i].Pref == all[i-1].Pref && all[i].Handle <= all[i-1].Handle {
			all[i].Handle = all[i-1].Handle + 1
		}
	}
	return all
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

func hash(f *Filter) uint32 {
	h := fnv.New32a()
	fmt.Fprint(h, f.To, f.Protocol, f.Port)
	if f.Fragment {
		fmt.Fprint(h, " fragment")
	}
	return h.Sum32() &^ (1 << 31) // there is room after it
}

type destination struct {
	family string
	prefix netip.Prefix
}

// destinations are the prefixes of a rule, without those that others contain.
func destinations(r *qos.Rule, members func(qos.SetID) []netip.Addr) []destination {
	if r.Any {
		return []destination{{family: netstate.IPv4}, {family: netstate.IPv6}}
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
	d := destination{family: familyOf(p.Addr()), prefix: p}
	if p.Bits() == 0 {
		d.prefix = netip.Prefix{}
	}
	return d
}

func familyOf(a netip.Addr) string {
	if a.Is6() {
		return netstate.IPv6
	}
	return netstate.IPv4
}

// minBurst is the least burst of a policer that has none given: one packet of 64 KiB, as
// a sender with segmentation offload hands over at once.
const minBurst = 64 << 10

// bucket is the rate of a policer, in bytes per second, and its burst in bytes.
type bucket struct{ rate, burst uint64 }

// bucketOf converts kbit to bytes. A policer without a burst drops everything
// (net/sched/act_police.c), so one of 10 ms is chosen.
func bucketOf(r *qos.Rule) bucket {
	rate := uint64(r.RateKbit) * 125
	return bucket{rate, cmp.Or(uint64(r.BurstKbit)*125, max(rate/100, minBurst))}
}

// Decide evaluates the filters for a packet as the kernel does: it returns the filter that decides, nil if none does, and the
// policers that the packet passes before that.
func (f *Filters) Decide(p qos.Packet) (decides *Filter, limits []uint16) {
	chain := uint32(0)
	for i := 0; i < len(f.Filters); i++ {
		o := &f.Filters[i]
		switch {
		case o.Chain != chain || !o.about(p):
		case o.Goto != 0:
			chain, i = o.Goto, -1
		case o.Fragment:
			limits = append(limits, o.Policer)
		default:
			return o, limits
		}
	}
	return nil, limits
}

// about reports whether a packet matches the filter.
func (f *Filter) about(p qos.Packet) bool {
	return f.Family == familyOf(p.Destination) && (!f.To.IsValid() || f.To.Contains(p.Destination)) &&
		(f.Protocol == 0 || f.Protocol == p.Protocol) && (f.Port == 0 || f.Port == p.Port && !p.Fragment) && (!f.Fragment || p.Fragment)
}

// Objects returns the filters as objects of a sandbox, without a link.
func (f *Filters) Objects() []netstate.Filter {
	out := make([]netstate.Filter, len(f.Filters))
	for i, o := range f.Filters {
		to := ""
		if o.To.IsValid() {
			to = o.To.String()
		}
		out[i] = netstate.Filter{
			Chain: o.Chain, Pref: o.Pref, Handle: o.Handle, Family: &o.Family, To: &to,
			Protocol: new(protocols[o.Protocol]), Port: &o.Port, Fragment: &o.Fragment, Goto: &o.Goto,
		}
		if o.Goto != 0 {
			continue
		}
		r := &f.rules[o.Rule]
		b := bucketOf(r)
		out[i].Rule, out[i].Place = fmt.Sprintf("%s[%d]", r.Policy, r.Index), f.places[o.Rule]+1
		out[i].DSCP, out[i].Policer, out[i].Rate, out[i].BurstNanos = &o.DSCP, &o.Policer, &b.rate, new(b.nanos())
		if o.Fragment {
			out[i].DSCP = nil
		}
	}
	return out
}

var protocols = map[qos.Protocol]string{0: "", qos.TCP: "tcp", qos.UDP: "udp", qos.SCTP: "sctp"}

// nanos is how long the burst takes at the rate, as the kernel keeps it: rounded up, so
// that a packet as large as the burst passes.
func (b bucket) nanos() uint64 {
	if b.rate == 0 {
		return 0
	}
	nanos := math.Ceil(float64(b.burst) * 1e9 / float64(b.rate) / netstate.BurstUnit)
	return min(max(uint64(nanos), 1)*netstate.BurstUnit, netstate.MaxBurstNanos)
}
