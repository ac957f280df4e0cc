package ops

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
)

// checkOverlaps adds notes on addresses and routes that the kernel accepts but that are
// probably mistakes: one subnet or address on two interfaces of one routing table, and two routes to
// one destination with the same metric. It refuses two addresses that the kernel refuses.
func (s *routes) checkOverlaps() error {
	var addrs []placed
	byRoute := map[string]ownRoute{}
	for _, w := range s.p.wants {
		switch o := w.obj.(type) {
		case netstate.Addr:
			if pre, err := netip.ParsePrefix(o.Address); err == nil && !netstate.OnHost(o.Link) && !pre.Addr().IsLinkLocalUnicast() {
				table, _ := vrfTable(s.p.view, o.Link)
				addrs = append(addrs, placed{w.step, o.Link, table, pre})
			}
		case netstate.Route:
			key := fmt.Sprint(o.Dst, " ", o.Table, " ", o.Metric)
			if other, twice := byRoute[key]; !twice {
				byRoute[key] = ownRoute{w.step, o}
			} else if other.Link != o.Link || other.Gateway != o.Gateway {
				s.noteRoutes(other, ownRoute{w.step, o})
			}
			s.noteForeign(w.step, o)
			s.noteConnected(w.step, o)
		case netstate.Link:
			if o.Bond != nil {
				s.noteTargets(w.step, o)
			}
		}
	}
	all := append(s.foreignAddrs(), addrs...)
	noted, err := s.checkTwice(all)
	if err == nil {
		s.noteSubnets(all, noted)
	}
	return err
}

// foreignAddrs are the addresses of the sandbox that no step of this topology wants.
func (s *routes) foreignAddrs() []placed {
	var out []placed
	for _, a := range netstate.All[netstate.Addr](s.p.req.Have) {
		pre, err := netip.ParsePrefix(a.Address)
		if err != nil || netstate.OnHost(a.Link) || a.Link == "lo" ||
			pre.Addr().IsLinkLocalUnicast() || s.p.Wanted(a.Key()) || s.p.Leaves(a.Key()) {
			continue
		}
		table, _ := vrfTable(s.p.view, a.Link)
		out = append(out, placed{"", a.Link, table, pre})
	}
	return out
}

// noteConnected adds a note on a route over a gateway to the network of an address: the kernel's own route, on the link, comes first.
// Its metric is 0, of IPv6 256 (fib_add_ifaddr in net/ipv4/fib_frontend.c, IP6_RT_PRIO_ADDRCONF).
func (s *routes) noteConnected(step string, r netstate.Route) {
	pre, err := netip.ParsePrefix(r.Dst)
	if err != nil || r.Gateway == "" || pre.IsSingleIP() || r.IPv6() && r.Metric < 256 {
		return
	}
	for _, on := range slices.Sorted(maps.Keys(s.p.makers)) {
		if s.ownNetworks()[networkOn{on, pre}] && tableOf(s.p.view, on) == r.Table {
			s.p.plan.noteFor(step,
				"its route to %s via %s is never used: %q has an address of that network, so the kernel's own route to it comes first; "+
					"give the address the prefix length %d, or remove the route",
				r.Dst, r.Gateway, on, pre.Addr().BitLen())
			return
		}
	}
}

// noteTargets adds a note on targets of ARP monitoring that no address and no route of the bond, or of a link on it, leads to. The kernel
// sends probes only where its route to the target leaves by the bond (bond_arp_send_all in drivers/net/bonding/bond_main.c), and in a
// pod the default route leads elsewhere.
func (s *routes) noteTargets(step string, bond netstate.Link) {
	above := map[string]bool{bond.Name: true}
	for range maxNesting {
		for _, l := range s.p.view.LinksWhere(func(netstate.Link) bool { return true }) {
			if l.Parent != nil && above[*l.Parent] {
				above[l.Name] = true
			}
			if l.Master != nil && *l.Master != "" && above[l.Name] {
				above[*l.Master] = true
			}
		}
	}
	var lead []netip.Prefix
	for _, w := range s.p.wants {
		if !above[netstate.LinkOf(w.obj)] {
			continue
		}
		var of string
		switch o := w.obj.(type) {
		case netstate.Addr:
			of = o.Address
		case netstate.Route:
			of = o.Dst
		case netstate.DHCPLease:
			return // not known yet
		}
		if pre, err := netip.ParsePrefix(of); err == nil {
			lead = append(lead, pre.Masked())
		}
		if s.p.req.imagined.givesAddresses(netstate.LinkOf(w.obj)) || s.p.req.claimsAddress(w.step) {
			return
		}
	}
	for _, target := range bond.Bond.ARPIPTargets {
		to, err := netip.ParseAddr(target)
		if err == nil && !slices.ContainsFunc(lead, func(p netip.Prefix) bool { return p.Contains(to) }) {
			s.p.plan.noteFor(step,
				"arpIpTargets: %q has no address or route that leads to %s; if the pod has another default route, the kernel sends no "+
					"probes and treats the ports as down: give %q an address in the network of the target, or use miimon",
				bond.Name, to, bond.Name)
		}
	}
}

// noteForeign adds a note on a route beside one of others that was added later: none is refused
// then.
func (s *routes) noteForeign(step string, r netstate.Route) {
	if s.p.req.imagined != nil {
		return
	}
	for _, other := range s.foreignRoutes(wayTo{r.Dst, r.Table}) {
		if other.Metric != r.Metric || other.Key() == r.Key() {
			continue
		}
		effect := "the kernel uses the one that was added first"
		if r.IPv6() {
			effect = "the kernel uses both"
		}
		s.p.plan.noteFor(step, "its route to %s via %s has the same table and metric as the one via %s on %q, which is not of this "+
			"topology: %s; give it another metric",
			r.Dst, nextHop(r), nextHop(other), other.Link, effect)
		return
	}
}

// placed is an address with the routing table that its subnet's route is in. One that is not of
// this topology has no step.
type placed struct {
	step, link string
	table      uint32
	prefix     netip.Prefix
}

type ownRoute struct {
	step string
	netstate.Route
}

func (s *routes) noteRoutes(a, b ownRoute) {
	effect := "the kernel uses the one that was added first, and the other never"
	if b.IPv6() {
		effect = "the kernel spreads the traffic over both"
	}
	s.p.plan.noteFor(b.step,
		"its route to %s via %s has the same table and metric as the one via %s of step %q: %s; give one of them another metric",
		b.Dst, nextHop(b.Route), nextHop(a.Route), a.step, effect)
}

// noteSubnets compares each address with those of the same table in the same or a
// larger subnet. Single addresses (/32, /128) overlap only with themselves.
func (s *routes) noteSubnets(addrs []placed, noted map[string]bool) {
	type subnet struct {
		table  uint32
		prefix netip.Prefix
	}
	first := map[subnet]placed{}
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
		if a.step == "" {
			continue // they are compared with ours, not with one another
		}
		for _, bits := range lengths {
			if bits > a.prefix.Bits() || a.prefix.IsSingleIP() && bits < a.prefix.Bits() {
				continue
			}
			wide, err := a.prefix.Addr().Prefix(bits)
			if err != nil {
				continue
			}
			other, found := first[subnet{a.table, wide}]
			if !found || other.link == a.link {
				continue
			}
			delete(s.ungated, a.link)
			delete(s.ungated, other.link)
			if links := pair(a, other); !noted[links] {
				noted[links] = true
				s.noteSubnet(a, other)
			}
		}
	}
	for _, link := range slices.Sorted(maps.Keys(s.ungated)) {
		s.p.plan.noteFor(s.ungated[link], ungatedNote, link)
	}
}

const ungatedNote = "sourceRouting: neither an address nor a route of the step has a gateway, so that only packets to the networks of " +
	"its addresses leave by %q: add gateway to an address (of a pool: to spec.subnets of the AddressPool), or remove sourceRouting"

// checkTwice adds a note on each address that two links of one network have, refuses it where the kernel does, and returns the pairs
// of links. That networks are one is known of links on one parent or bridge, and taken to be so of one subnet in one routing table.
func (s *routes) checkTwice(addrs []placed) (noted map[string]bool, err error) {
	type place struct {
		addr    netip.Addr
		network string
		table   uint32
	}
	noted, first := map[string]bool{}, map[place]placed{}
	for _, a := range addrs {
		var places []place
		if network := s.network(a.link); network != "" {
			places = append(places, place{addr: a.prefix.Addr(), network: network})
		}
		if !a.prefix.IsSingleIP() {
			places = append(places, place{addr: a.prefix.Addr(), table: cmp.Or(a.table, netstate.TableMain)})
		}
		for _, at := range places {
			other, found := first[at]
			if !found {
				first[at] = a
			}
			if !found || a.step == "" || other.link == a.link || noted[pair(a, other)] {
				continue
			}
			noted[pair(a, other)] = true
			if l, _ := s.p.view.Link(a.link); l.LinkKind == "ipvlan" && at.network != "" { // ipvlan_addr_busy
				return nil, s.p.req.stepError(a.step, Invalid("addresses", "%s is already the address of %q %s, "+
					"and the kernel takes an address on only one ipvlan link of a master: change one of them",
					a.prefix.Addr(), other.link, other.whose()))
			}
			effect := "on one network, hosts reach one of the two interfaces only"
			if a.prefix.Addr().Is6() {
				effect = "on one network, duplicate address detection lets one of the two interfaces have it"
			}
			s.p.plan.noteFor(a.step, "its address %s on %q is also the address of %q %s: %s; change one of them", a.prefix.Addr(), a.link,
				other.link, other.whose(), effect)
		}
	}
	return noted, nil
}

// network is what a link shares with others of one network: its parent, or the bridge at the other end of a veth; "" if not known.
func (s *routes) network(link string) string {
	l, _ := s.p.view.Link(link)
	switch {
	case l.Parent != nil && (l.LinkKind == "macvlan" || l.LinkKind == "ipvlan"):
		return *l.Parent
	case l.Veth != nil && l.Veth.Peer != nil:
		if end, _ := s.p.view.Link(*l.Veth.Peer); end.Master != nil {
			return *end.Master
		}
	}
	return ""
}

func pair(a, b placed) string {
	return strings.Join(slices.Sorted(slices.Values([]string{a.link, b.link})), " ")
}

// whose is the step of an address, as the end of "the address of LINK …".
func (a placed) whose() string {
	if a.step == "" {
		return "that is not of this topology"
	}
	return fmt.Sprintf("of step %q", a.step)
}

// noteSubnet adds a note on two addresses of one subnet, unless each leaves by its own interface.
func (s *routes) noteSubnet(a, other placed) {
	s.noteARP(a, other)
	var from []string
	for _, one := range []placed{a, other} {
		if !slices.Contains(slices.Collect(maps.Values(s.sourced)), one.link) {
			from = append(from, one.prefix.Addr().String())
		}
	}
	if len(from) == 0 {
		return
	}
	from = slices.Compact(from)
	s.p.plan.noteFor(a.step,
		"its address %s on %q and %s on %q %s are of one subnet and one routing table: answers from %s leave by one of "+
			"the two interfaces only; set sourceRouting: true on both, put one into a VRF, or use another subnet",
		a.prefix, a.link, other.prefix, other.link, other.whose(), strings.Join(from, " and "))
}

// noteARP adds a note on two links of one subnet of which one has an RDMA device. Linux answers ARP for an address of a namespace on
// any of its links (arp_ignore in Documentation/networking/ip-sysctl.rst), and an RDMA device takes only what arrives at its own link.
func (s *routes) noteARP(a, other placed) {
	if !a.prefix.Addr().Is4() || !s.hasRDMA(a) && !s.hasRDMA(other) || s.answersAlone(a.link) && s.answersAlone(other.link) {
		return
	}
	s.p.plan.noteFor(a.step,
		"its address %s on %q and %s on %q %s are of one subnet: Linux answers ARP for each of them on both interfaces, and an RDMA "+
			"device drops packets that arrive at the other one; set net.ipv4.conf.IFNAME.arp_ignore to 1 and arp_announce to 2 on both, "+
			"in steps of type tuning",
		a.prefix, a.link, other.prefix, other.link, other.whose())
}

// hasRDMA reports whether a link has an RDMA device. One that is imagined has it if its step asks for it.
func (s *routes) hasRDMA(of placed) bool {
	d, has := s.p.results[of.step].Devices, false
	if st := s.p.steps[of.step]; st != nil && d != nil && d.RDMADevice != "" {
		has = s.p.req.imagined == nil || st.config["rdma"] == true || st.config["require"] != nil
	}
	for name, st := range s.p.steps {
		d := s.p.results[name].Devices
		has = has || of.step != "" && st.of == of.step && d != nil && d.RDMADevice != ""
	}
	return has || slices.ContainsFunc(s.p.wants, func(w want) bool {
		l, isRDMA := w.obj.(netstate.RDMALink)
		return isRDMA && l.Link == of.link
	})
}

// answersAlone reports whether steps have the kernel answer on a link for addresses of the link only.
func (s *routes) answersAlone(link string) bool {
	return slices.ContainsFunc(s.p.wants, func(w want) bool {
		o, isSysctl := w.obj.(netstate.Sysctl)
		return isSysctl && o.Value != nil && *o.Value != "0" &&
			(o.Path == "net/ipv4/conf/"+link+"/arp_ignore" || o.Path == "net/ipv4/conf/all/arp_ignore")
	})
}

// noteFor adds a note on a step other than the current one.
func (p *Plan) noteFor(step, format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf("step %q: ", step)+fmt.Sprintf(format, args...))
}
