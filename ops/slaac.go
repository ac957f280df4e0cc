package ops

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// maxAdvertised is how many addresses the kernel takes from router advertisements on one
// link, and how many a result has of it: any host of the network can advertise.
const maxAdvertised = 16

// advertisedOptions are options of router advertisements that the kernel is to ignore: a router may advertise
// addresses only. The kernel reads the settings with each advertisement
// (ndisc_router_discovery in net/ipv6/ndisc.c, addrconf_prefix_rcv in addrconf.c).
var advertisedOptions = [][2]string{
	{"accept_ra_mtu", "0"},
	{"accept_ra_min_hop_limit", "256"}, // above any hop limit
	{"accept_ra_rtr_pref", "0"},
	{"accept_ra_rt_info_max_plen", "0"}, // and one of length 0 needs accept_ra_defrtr
	{"accept_ra_from_local", "0"},
	{"accept_redirects", "0"},
	{"use_tempaddr", "0"}, // addresses that change every day
}

// autoconfigure wants a link to take addresses of router advertisements, and nothing else of
// them. The kernel makes these addresses, so they are no wants.
func (p *Planner) autoconfigure(link string, cfg AddressConfig) error {
	if netstate.OnHost(link) {
		return Invalid("ipam.type", "%q is for interfaces of the pod: %q is one of the host", ipamSLAAC, netstate.BaseName(link))
	}
	l, ok := p.view.Link(link)
	if ok && l.IPVLAN != nil && l.IPVLAN.Mode != nil && *l.IPVLAN.Mode != "l2" {
		return Invalid("ipam.type", "%q needs multicasts of a router, which an ipvlan of mode %s does not receive: use mode l2, or type %q",
			ipamSLAAC, *l.IPVLAN.Mode, ipamPool)
	}
	if ok && l.MTU != nil && *l.MTU < netstate.MinIPv6MTU {
		return Invalid("ipam.type", "%q is for IPv6, which needs an mtu of at least 1280 on %q, not %d", ipamSLAAC, link, *l.MTU)
	}
	if cfg.SourceRouting {
		return Invalid("sourceRouting",
			"needs addresses that are known in advance, and ipam of type %q has those of a router: remove it, or use type %q",
			ipamSLAAC, ipamPool)
	}
	settings := [][2]string{
		{"disable_ipv6", "0"},
		{"accept_ra", "2"}, // also while the pod forwards
		{"accept_ra_defrtr", map[bool]string{false: "0", true: "1"}[cfg.IPAM.AcceptDefaultRoute]},
		{"accept_ra_pinfo", "1"},
		{"autoconf", "1"},
		{"max_addresses", fmt.Sprint(maxAdvertised)},
	}
	for _, s := range advertisedOptions {
		// Some of these a kernel has only if it was built to heed that option.
		_, there, err := Lookup(p, netstate.Sysctl{Path: "net/ipv6/conf/default/" + s[0]})
		if err != nil {
			return err
		}
		if there {
			settings = append(settings, s)
		}
	}
	switch cfg.DAD {
	case dadOff:
		settings = append(settings, [2]string{"dad_transmits", "0"})
	case dadOptimistic:
		settings = append(settings, [2]string{"optimistic_dad", "1"}, [2]string{"use_optimistic", "1"})
	}
	for _, s := range settings {
		if err := p.Want(netstate.Sysctl{Path: "net/ipv6/conf/" + link + "/" + s[0], Value: &s[1]}); err != nil {
			return err
		}
	}
	p.current.advertised = append(p.current.advertised, link)
	if im := p.req.imagined; im != nil {
		im.pooled[link] = true
		im.put(netstate.Addr{Link: link, Address: im.addresses(link, p.req.position(p.stepName()))[1].String(), Kernel: true})
		return nil
	}
	if cfg.DAD == dadWait && len(advertisedOn(p.req.Have, link)) == 0 {
		p.current.await(fmt.Sprintf("an address of a router advertisement on %q", link), p.req.noAdvertisement(link, "an address"))
	}
	return nil
}

// position is that of a step in the topology.
func (r *Request) position(step string) int {
	return slices.IndexFunc(r.Topology.Steps, func(s topology.Step) bool { return s.Name == step })
}

// noAdvertisement is why something waits for an address of a router. A running sandbox is not
// made to wait.
func (r *Request) noAdvertisement(link, what string) error {
	err := fmt.Errorf("no router advertisement has given %q %s: "+
		"it needs carrier, and a router on its network that advertises a prefix of /64 for autoconfiguration", link, what)
	if r.Kept {
		return fault.New(fault.NotReady, err)
	}
	return &settling{err}
}

// awaits is why a reference to an address of a step cannot be resolved yet, nil if that is not because of a router or a DHCP server.
func (s *leases) awaits(st *stepState) error {
	if len(st.advertised) > 0 {
		return s.p.req.noAdvertisement(st.advertised[0], "the address that is referenced")
	}
	if len(st.leased) > 0 {
		have, _ := netstate.Lookup(s.p.req.Have, netstate.DHCPLease{Link: st.leased[0]})
		return s.none(st.leased[0], have.Failure)
	}
	return nil
}

// amongDependencies returns the first error that a step or what it depends on has.
func (s stepStates) amongDependencies(step string, why func(*stepState) error) error {
	seen := map[string]bool{step: true}
	for queue := []string{step}; len(queue) > 0; queue = queue[1:] {
		st := s[queue[0]]
		if st == nil {
			continue
		}
		if err := why(st); err != nil {
			return err
		}
		for _, dep := range st.step.DependOn {
			if !seen[dep] {
				seen[dep], queue = true, append(queue, dep)
			}
		}
	}
	return nil
}

// advertisedOn are the addresses of a link that come from router advertisements and can be
// used.
func advertisedOn(s *netstate.Snapshot, link string) []netstate.Addr {
	var out []netstate.Addr
	for _, a := range netstate.All[netstate.Addr](s) {
		if pre, err := netip.ParsePrefix(a.Address); a.Link == link && a.Kernel && !a.Tentative && !a.DADFailed &&
			err == nil && pre.Addr().Is6() && pre.Addr().IsGlobalUnicast() && len(out) < maxAdvertised {
			out = append(out, a)
		}
	}
	return out
}
