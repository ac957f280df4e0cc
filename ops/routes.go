package ops

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
)

// routes are those of all steps, which become wants once links and addresses are planned.
type routes struct {
	p        *Planner
	deferred []deferredRoute
	subnets  map[tableOn]map[netip.Prefix]bool // see onLink
	foreign  map[wayTo][]netstate.Route        // see foreignRoutes
	networks map[networkOn]bool                // see ownNetworks
	sourced  map[uint32]string                 // tables of sourceRouting, and their links
	own      map[string]bool                   // see addresses
	ungated  map[string]string                 // links whose tables lead to their own networks only, and the steps
}

// deferredRoute waits until all steps are planned: its table depends on the VRF
// its link ends up in, its metric on the routes of others.
type deferredRoute struct {
	step  *stepState
	link  string
	field string
	route Route
	// sourced marks a route of the table that sourceRouting gives the link.
	sourced bool
}

// settle turns the deferred routes into wants.
func (s *routes) settle() error {
	s.subnets = map[tableOn]map[netip.Prefix]bool{}
	for _, d := range s.deferred {
		s.p.current = d.step
		r, err := s.route(d)
		switch {
		case err != nil:
		case s.madeByKernel(d, r):
			d.step.routes = append(d.step.routes, r)
			s.p.Note("%s: the kernel adds the route to %s with the address: remove the entry", d.field, r.Dst)
		default:
			err = s.p.Want(r)
		}
		if err != nil {
			return s.p.req.stepError(d.step.step.Name, err)
		}
	}
	return nil
}

func (s *routes) route(d deferredRoute) (netstate.Route, error) {
	r := netstate.Route{
		Link: d.link, Dst: d.route.Destination, Gateway: d.route.Gateway, Protocol: netstate.RouteProtocol,
		Scope: d.route.Scope, Source: d.route.Source, MTU: d.route.MTU, AdvMSS: d.route.AdvMSS, OnLink: d.route.OnLink,
	}
	if r.IPv6() {
		r.Scope = nil // of IPv6 routes the kernel has none: it says "global" of all
	}
	if vrf, member := vrfTable(s.p.view, d.link); d.sourced && member {
		return r, Invalid("sourceRouting",
			"%q is in a VRF, which routes by its table %d alone: leave out sourceRouting, or take the interface out of the VRF",
			d.link, vrf)
	}
	r.Table = s.routeTable(d)
	if err := s.metric(d, &r); err != nil {
		return r, err
	}
	if r.Gateway != "" && (r.OnLink == nil || !*r.OnLink) && !s.onLink(d, r) {
		return r, Invalid(d.field+".gateway",
			"%q is not on the subnet of any address of %q: add the address, or set onlink: true", r.Gateway, d.link)
	}
	if r.Gateway != "" {
		s.fillGateway(d, r)
	}
	s.noteSource(d, r)
	return r, nil
}

// noteSource adds a note on a source that is no address of the sandbox: the kernel refuses the route (fib_valid_prefsrc in
// net/ipv4/fib_semantics.c, ip6_route_info_create in net/ipv6/route.c).
func (s *routes) noteSource(d deferredRoute, r netstate.Route) {
	if r.Source == nil || d.sourced || s.p.req.claimsAddress(s.p.stepName()) || s.addresses()[*r.Source] {
		return
	}
	s.p.Note("%s.src: no interface of the pod has the address %s, and the kernel refuses the route until one has: "+
		"add it to addresses, or name another", d.field, *r.Source)
}

// addresses are those that the sandbox has and will have.
func (s *routes) addresses() map[string]bool {
	if s.own == nil {
		s.own = map[string]bool{}
		for _, a := range netstate.All[netstate.Addr](s.p.req.Have) {
			if !netstate.OnHost(a.Link) && !s.p.Leaves(a.Key()) {
				s.own[strings.Split(a.Address, "/")[0]] = true
			}
		}
		for _, w := range s.p.wants {
			if a, ok := w.obj.(netstate.Addr); ok && !netstate.OnHost(a.Link) {
				s.own[strings.Split(a.Address, "/")[0]] = true
			}
		}
	}
	return s.own
}

func nextHop(r netstate.Route) string {
	if r.Gateway == "" {
		return r.Link
	}
	return r.Gateway
}

// madeByKernel reports whether a route is the one that the kernel makes of an address of the
// link, to its network. Another one would be beside it: it has another protocol, and in IPv6
// another metric. Of a single IPv4 address the kernel makes none (fib_add_ifaddr in
// net/ipv4/fib_frontend.c).
func (s *routes) madeByKernel(d deferredRoute, r netstate.Route) bool {
	pre, err := netip.ParsePrefix(r.Dst)
	if err != nil || pre.Addr().Is4() && pre.IsSingleIP() || r.Gateway != "" || r.Table != tableOf(s.p.view, d.link) || s.p.Owned(r.Key()) {
		return false
	}
	o := d.route
	if o.Metric != nil || o.Source != nil || o.MTU != nil || o.AdvMSS != nil || o.OnLink != nil || o.Scope != nil && *o.Scope != "link" {
		return false
	}
	return s.ownNetworks()[networkOn{d.link, pre}]
}

// routeTable is the table of a route: the one it names, else that of its link.
func (s *routes) routeTable(d deferredRoute) uint32 {
	if d.route.Table != nil {
		return *d.route.Table
	}
	return tableOf(s.p.view, d.link)
}

func tableOf(s *netstate.Snapshot, link string) uint32 {
	if t, ok := vrfTable(s, link); ok {
		return t
	}
	return netstate.TableMain
}

func vrfTable(s *netstate.Snapshot, link string) (uint32, bool) {
	l, ok := s.Link(link)
	if !ok || l.Master == nil || *l.Master == "" {
		return 0, false
	}
	m, ok := s.Link(*l.Master)
	if !ok || m.VRF == nil || m.VRF.Table == nil {
		return 0, false
	}
	return *m.VRF.Table, true
}

// onLink reports whether the gateway is reachable over the link: by an address
// of it, by a link-local gateway, or by a route on the link. To the kernel IPv4 addresses of
// 169.254.0.0/16 are like any others.
func (s *routes) onLink(d deferredRoute, r netstate.Route) bool {
	gw, err := netip.ParseAddr(r.Gateway)
	if err != nil || gw.Is6() && gw.IsLinkLocalUnicast() {
		return true // the kernel judges it
	}
	if im := s.p.req.imagined; im != nil && im.links[d.link] != nil || s.p.req.imagined.givesAddresses(d.link) {
		return true // whatever addresses it has
	}
	if s.p.req.claimsAddress(s.p.stepName()) {
		return true // the validation tries addresses of claims, too
	}
	at := tableOn{d.link, r.Table}
	subnets, known := s.subnets[at]
	if !known {
		subnets = s.subnetsOf(at)
		s.subnets[at] = subnets
	}
	for bits := range gw.BitLen() + 1 {
		if subnet, err := gw.Prefix(bits); err == nil && subnets[subnet] {
			return true
		}
	}
	return false
}

// tableOn is a link and a routing table.
type tableOn struct {
	link  string
	table uint32
}

// subnetsOf returns the networks of a link's addresses and of the routes on it that the kernel
// looks up for a gateway: those of the table of the route, then those that a packet would take
// (fib_check_nh in net/ipv4/fib_semantics.c, ip6_route_check_nh in net/ipv6/route.c). It is a
// set, since there may be thousands of routes to check against it.
func (s *routes) subnetsOf(at tableOn) map[netip.Prefix]bool {
	link, usual := at.link, tableOf(s.p.view, at.link)
	out := map[netip.Prefix]bool{}
	add := func(prefix string) {
		if pre, err := netip.ParsePrefix(prefix); err == nil {
			out[pre.Masked()] = true
		}
	}
	for _, w := range s.p.wants {
		if a, ok := w.obj.(netstate.Addr); ok && a.Link == link {
			add(a.Address)
		}
	}
	for _, a := range s.p.Addrs(link) {
		add(a.Address)
	}
	reached := func(table uint32) bool { return table == at.table || table == usual }
	for _, o := range s.deferred {
		if o.link == link && o.route.Gateway == "" && reached(s.routeTable(o)) {
			add(o.route.Destination)
		}
	}
	for _, r := range netstate.All[netstate.Route](s.p.req.Have) { // what others have made
		if r.Link == link && r.Gateway == "" && reached(r.Table) && !s.p.Owned(r.Key()) {
			add(r.Dst)
		}
	}
	return out
}

// fillGateway records r's gateway as the gateway of the step's address in the same
// subnet, as in a CNI result.
func (s *routes) fillGateway(d deferredRoute, r netstate.Route) {
	gw, err := netip.ParseAddr(r.Gateway)
	if err != nil {
		return
	}
	if d.step.ungated == nil {
		d.step.ungated = map[netip.Prefix][]netstate.Key{}
		for _, a := range d.step.addrs {
			if pre, err := netip.ParsePrefix(a.Address); err == nil && d.step.gateway[a.Key()] == "" {
				d.step.ungated[pre.Masked()] = append(d.step.ungated[pre.Masked()], a.Key())
			}
		}
	}
	for bits := range gw.BitLen() + 1 {
		subnet, err := gw.Prefix(bits)
		if err != nil {
			return
		}
		for _, a := range d.step.ungated[subnet] {
			d.step.gateway[a] = r.Gateway
		}
		delete(d.step.ungated, subnet)
	}
}

// ofAddress wants a route of a link. refused are gateways that its addresses rule out, with the reason.
func (s *routes) ofAddress(link, field string, r Route, refused map[netip.Addr]string) error {
	if r.Gateway != "" && strings.Contains(r.Gateway, ":") != strings.Contains(r.Destination, ":") {
		return Invalid(field+".gateway", "%q and destination %q are of different families", r.Gateway, r.Destination)
	}
	v4 := !strings.Contains(r.Destination+r.Gateway, ":")
	gw, _ := netip.ParseAddr(r.Gateway) // invalid for none
	switch why := cmp.Or(refused[gw], notARouter(gw)); {
	case gw.IsUnspecified():
		return Invalid(field+".gateway", "%q is the unspecified address: for a route on the link remove the key", r.Gateway)
	case why != "":
		return Invalid(field+".gateway", "%q is %s: write the address of a router", r.Gateway, why)
	case v4 && r.Gateway == "" && r.OnLink != nil && *r.OnLink:
		return Invalid(field+".onlink", "needs a gateway: name it, or remove onlink")
	case v4 && r.Gateway != "" && r.Scope != nil && *r.Scope != "global":
		return Invalid(field+".scope",
			"%q is for routes without a gateway, and the route has gateway %q: remove one of the two", *r.Scope, r.Gateway)
	case r.Source != nil && strings.Contains(*r.Source, ":") != strings.Contains(r.Destination, ":"):
		return Invalid(field+".src", "%q and destination %q are of different families", *r.Source, r.Destination)
	case r.Source != nil && !isSource(*r.Source):
		return Invalid(field+".src", "%q cannot be a source address: name an address of the pod, or remove the key", *r.Source)
	case r.Table != nil && *r.Table == 255 && !s.p.Kept():
		return Invalid(field+".table", "255 is the kernel's table \"local\", of the node's own addresses: use another, or none")
	}
	if err := s.p.req.imagined.spend(netstate.Route{}.Traits().Cost); err != nil {
		return err
	}
	if !v4 { // the kernel refuses the route on a link without IPv6, which it may have of the namespace
		if err := s.p.Want(netstate.Sysctl{Path: "net/ipv6/conf/" + link + "/disable_ipv6", Value: new("0")}); err != nil {
			return err
		}
	}
	s.deferred = append(s.deferred, deferredRoute{step: s.p.current, link: link, field: field, route: r})
	return nil
}

// fromSources routes packets from an address over its link.
func (s *routes) fromSources(link string, cfg AddressConfig) error {
	if len(cfg.Addresses) == 0 && s.p.req.claimsAddress(s.p.stepName()) {
		return nil
	}
	if len(cfg.Addresses) == 0 {
		return Invalid("sourceRouting", "needs addresses in the same step")
	}
	byGateway := sourcedBy(cfg.Addresses)
	for i, a := range cfg.Addresses {
		field := fmt.Sprintf("addresses[%d]", i)
		pre, err := netip.ParsePrefix(a.Address)
		if err != nil || pre.Addr().IsLinkLocalUnicast() {
			continue
		}
		host := netip.PrefixFrom(pre.Addr(), pre.Addr().BitLen())
		rule, err := Rule{Priority: sourceRulePriority, From: host.String(), Table: sourceTable(byGateway[i].name(link))}.object(field)
		if err != nil {
			return err
		}
		if err := s.p.Want(rule); err != nil {
			return err
		}
	}
	done := map[sourcing]bool{}
	var routes []deferredRoute
	for _, src := range byGateway {
		if done[src] {
			continue
		}
		done[src] = true
		table := sourceTable(src.name(link))
		if other, ok := s.sourced[table]; ok && other != link {
			return Invalid("sourceRouting", "the names %q and %q lead to one routing table: rename one of them", link, other)
		}
		s.sourced[table] = link
		for _, d := range src.routes(cfg) {
			d.step, d.link, d.route.Table, d.sourced = s.p.current, link, &table, true
			routes = append(routes, d)
		}
	}
	s.deferred = append(s.deferred, routes...)
	if !slices.ContainsFunc(routes, func(d deferredRoute) bool { return d.route.Gateway != "" || strings.HasPrefix(d.field, "routes") }) {
		s.ungated[link] = s.p.stepName()
	}
	return nil
}
