package ops

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
)

// noteOverlaps adds notes on addresses and routes that the kernel accepts but that are
// probably mistakes: one subnet on two interfaces of one routing table, and two routes to
// one destination with the same metric.
func (p *Planner) noteOverlaps() {
	var addrs []placed
	byRoute := map[string]ownRoute{}
	for _, w := range p.wants {
		switch o := w.obj.(type) {
		case netstate.Addr:
			if pre, err := netip.ParsePrefix(o.Address); err == nil && !netstate.OnHost(o.Link) && !pre.Addr().IsLinkLocalUnicast() {
				table, _ := p.vrfTable(o.Link)
				addrs = append(addrs, placed{w.step, o.Link, table, pre})
			}
		case netstate.Route:
			key := fmt.Sprint(o.Dst, " ", o.Table, " ", o.Metric)
			if other, twice := byRoute[key]; !twice {
				byRoute[key] = ownRoute{w.step, o}
			} else if other.Link != o.Link || other.Gateway != o.Gateway {
				p.noteRoutes(other, ownRoute{w.step, o})
			}
		}
	}
	p.noteSubnets(addrs)
}

// placed is an address with the routing table that its subnet's route is in.
type placed struct {
	step, link string
	table      uint32
	prefix     netip.Prefix
}

type ownRoute struct {
	step string
	netstate.Route
}

func (p *Planner) noteRoutes(a, b ownRoute) {
	effect := "the kernel uses the one that was added first, and the other never"
	if b.IPv6() {
		effect = "the kernel spreads the traffic over both"
	}
	p.noteFor(b.step, "its route to %s via %s has the table and the metric of that via %s of step %q: %s; give one of them another metric",
		b.Dst, nextHop(b.Route), nextHop(a.Route), a.step, effect)
}

// noteSubnets compares each address with those of the same table in the same or a
// larger subnet. Single addresses (/32, /128) overlap only with themselves.
func (p *Planner) noteSubnets(addrs []placed) {
	type subnet struct {
		table  uint32
		prefix netip.Prefix
	}
	first := map[subnet]placed{}
	noted := map[string]bool{}
	var lengths []int
	for _, a := range addrs {
		at := subnet{a.table, a.prefix.Masked()}
		if _, seen := first[at]; !seen {
			first[at] = a
		}
		if !slices.Contains(lengths, a.prefix.Bits()) {
			lengths = append(lengths, a.prefix.Bits())
		}
	}
	for _, a := range addrs {
		for _, bits := range lengths {
			if bits > a.prefix.Bits() || a.prefix.IsSingleIP() && bits < a.prefix.Bits() {
				continue
			}
			wide, err := a.prefix.Addr().Prefix(bits)
			if err != nil {
				continue
			}
			other, found := first[subnet{a.table, wide}]
			links := strings.Join(slices.Sorted(slices.Values([]string{a.link, other.link})), " ")
			if !found || other.link == a.link || noted[links] {
				continue
			}
			noted[links] = true
			p.noteFor(a.step, "its address %s on %q and %s on %q of step %q are of one subnet and one routing table: answers leave by one of the two interfaces only; put one into a VRF, or use another subnet",
				a.prefix, a.link, other.prefix, other.link, other.step)
		}
	}
}

// noteFor adds a note on a step other than the current one.
func (p *Planner) noteFor(step, format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf("step %q: ", step)+fmt.Sprintf(format, args...))
}
