package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

var routeScopes = words{
	unix.RT_SCOPE_UNIVERSE: "global", unix.RT_SCOPE_SITE: "site",
	unix.RT_SCOPE_LINK: "link", unix.RT_SCOPE_HOST: "host",
}

// ifRoute is a route over one next hop; an RTM_NEWROUTE message contains one or more of
// them. Route.Link is still a number.
type ifRoute struct {
	netstate.Route
	index int
}

// decodeRoutes reads the payload of an RTM_NEWROUTE message. A route that netstate
// cannot represent (TOS, source prefixes), or that is not unicast, is skipped.
func decodeRoutes(b []byte) []ifRoute {
	if len(b) < unix.SizeofRtMsg || b[7] != unix.RTN_UNICAST || b[2] != 0 || b[3] != 0 {
		return nil
	}
	r := ifRoute{Route: netstate.Route{
		Dst:   prefixOf(b[0], nil, b[1]),
		Table: uint32(b[4]), Protocol: int(b[5]),
		Scope: routeScopes.word(uint32(b[6])), Type: new("unicast"),
		// A missing value is the kernel's "none", which can be restored.
		Source: new(""), MTU: new(uint32(0)), AdvMSS: new(uint32(0)),
		OnLink: new(u32(b[8:])&unix.RTNH_F_ONLINK != 0),
	}}
	var hops []byte
	for typ, v := range attributes(b[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			r.Dst = prefixOf(b[0], v, b[1])
		case unix.RTA_TABLE:
			r.Table = u32(v)
		case unix.RTA_PRIORITY:
			r.Metric = u32(v)
		case unix.RTA_OIF:
			r.index = int(u32(v))
		case unix.RTA_PREFSRC:
			r.Source = new(ipText(v))
		case unix.RTA_METRICS:
			r.MTU, r.AdvMSS = new(u32(attribute(v, unix.RTAX_MTU))), new(u32(attribute(v, unix.RTAX_ADVMSS)))
		case unix.RTA_MULTIPATH:
			hops = v
		default:
			r.gateway(typ, v)
		}
	}
	if hops == nil {
		return []ifRoute{r}
	}
	return r.split(hops)
}

func (r *ifRoute) gateway(typ uint16, v []byte) {
	switch typ {
	case unix.RTA_GATEWAY:
		r.Gateway = ipText(v)
	case unix.RTA_VIA: // an IPv6 next hop of an IPv4 route: family, address
		if len(v) > 2 {
			r.Gateway = ipText(v[2:])
		}
	}
}

// split makes one route of each next hop: struct rtnexthop with attributes. IPv6 next
// hops have metrics of their own but the kernel reports only those of the first
// (net/ipv6/route.c, rt6_fill_node); all are taken to have the same.
func (r ifRoute) split(hops []byte) []ifRoute {
	var out []ifRoute
	for len(hops) >= unix.SizeofRtNexthop {
		size := int(u16(hops))
		if size < unix.SizeofRtNexthop || size > len(hops) {
			break
		}
		one := r
		one.OnLink = new(hops[2]&unix.RTNH_F_ONLINK != 0)
		one.index = int(u32(hops[4:]))
		for typ, v := range attributes(hops[unix.SizeofRtNexthop:size]) {
			one.gateway(typ, v)
		}
		out = append(out, one)
		hops = hops[min((size+3)&^3, len(hops)):]
	}
	return out
}

func ipText(b []byte) string {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return ""
	}
	return a.String()
}

func prefixOf(family uint8, b []byte, bits uint8) string {
	a, ok := netip.AddrFromSlice(b)
	switch {
	case ok:
	case family == unix.AF_INET6:
		a = netip.IPv6Unspecified()
	default:
		a = netip.IPv4Unspecified()
	}
	return netip.PrefixFrom(a, int(bits)).String()
}

func routeFamily(r netstate.Route) uint8 {
	if r.IPv6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// routeQuery narrows a dump; zero fields are any.
type routeQuery struct {
	family   uint8
	protocol uint8
	table    uint32
	index    int
}

func (q routeQuery) parts(strict bool) []nl.NetlinkRequestData {
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: q.family}}
	parts := []nl.NetlinkRequestData{header}
	if !strict {
		return parts
	}
	header.Protocol, header.Type = q.protocol, unix.RTN_UNICAST
	if q.table != 0 {
		parts = append(parts, attr(unix.RTA_TABLE, nl.Uint32Attr(q.table)))
	}
	if q.index != 0 {
		parts = append(parts, attr(unix.RTA_OIF, nl.Uint32Attr(uint32(q.index))))
	}
	return parts
}

func (q routeQuery) matches(r ifRoute) bool {
	return (q.table == 0 || r.Table == q.table) && (q.index == 0 || r.index == q.index) &&
		(q.protocol == 0 || r.Protocol == int(q.protocol))
}

// routes lists the routes of a query that wanted accepts. read bounds how many are
// read, 0 is no bound.
func (c *conn) routes(ctx context.Context, q routeQuery, read int, wanted func(ifRoute) bool) ([]ifRoute, error) {
	family := "IPv4"
	if q.family == unix.AF_INET6 {
		family = "IPv6"
	}
	listed := query{
		typ: unix.RTM_GETROUTE, reply: unix.RTM_NEWROUTE, parts: q.parts(c.strict), what: family + " routes",
		most: c.bounds.Routes, read: read,
	}
	if q.protocol != 0 {
		listed.what += fmt.Sprintf(" of protocol %d", q.protocol)
	}
	out, err := dump(ctx, c, listed, func(b []byte, keep func(ifRoute)) error {
		if len(b) >= unix.SizeofRtMsg && u32(b[8:])&unix.RTM_F_CLONED != 0 {
			return nil // an exception the kernel learned, such as a path MTU
		}
		for _, r := range decodeRoutes(b) {
			if q.matches(r) && wanted(r) {
				keep(r)
			}
		}
		return nil
	})
	if isAny(err, unix.ENOENT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP) {
		return nil, nil // the table does not exist, or the kernel has no IPv6
	}
	return out, err
}

// ownersProtocols are the protocols of the routes that are read from a sandbox with too
// many routes: ours, and those of which a pod's network consists: the kernel's, ip's,
// static ones, and those of router advertisements and DHCP. Those of routing daemons
// are left out, which may be hundreds of thousands.
var ownersProtocols = []uint8{
	netstate.RouteProtocol, unix.RTPROT_KERNEL, unix.RTPROT_BOOT, unix.RTPROT_STATIC, unix.RTPROT_RA, unix.RTPROT_DHCP,
}

// managedRoutes lists the routes of a family that a plan considers: all of them, or
// those of ownersProtocols if there are too many.
func (c *conn) managedRoutes(ctx context.Context, family uint8) ([]ifRoute, error) {
	all, err := c.routes(ctx, routeQuery{family: family}, c.bounds.Routes, planned)
	if !errors.Is(err, reconcile.ErrPartial) || !c.strict {
		return all, err
	}
	all = nil
	for _, protocol := range ownersProtocols {
		some, err := c.routes(ctx, routeQuery{family: family, protocol: protocol}, c.bounds.Routes, planned)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// planned leaves out the routes of the local table, and the prefixes that the kernel
// gives every IPv6 link.
func planned(r ifRoute) bool {
	return r.Table != unix.RT_TABLE_LOCAL && (r.Protocol != unix.RTPROT_KERNEL || r.Dst != "fe80::/64" && r.Dst != "ff00::/8")
}

// routes puts the sandbox's routes into the snapshot.
func (o *observer) routes(ctx context.Context) error {
	for _, f := range []uint8{unix.AF_INET, unix.AF_INET6} {
		all, err := o.inside.managedRoutes(ctx, f)
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.Link, err = o.nameOf(ctx, o.inside, r.index); err != nil {
				return err
			}
			if r.Link != "" {
				o.snap.Put(r.Route)
			}
		}
	}
	return nil
}

// queryRoute reads a route over a link of the host.
func (o *observer) queryRoute(ctx context.Context, queried netstate.Route) error {
	if !netstate.OnHost(queried.Link) {
		return nil
	}
	o.snap.PutAbsent(queried.Key())
	same, err := o.same(ctx, queried)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	for _, r := range same {
		if r.Key() == queried.Key() {
			o.snap.Put(r)
		}
	}
	return err
}

// same returns the routes that share r's destination, table and metric: for the
// kernel they are one group.
func (s *Sandbox) same(ctx context.Context, r netstate.Route) ([]netstate.Route, error) {
	return s.group(ctx, r, routeQuery{table: r.Table})
}

// group returns those of a query that share r's destination, table and metric.
func (s *Sandbox) group(ctx context.Context, r netstate.Route, q routeQuery) ([]netstate.Route, error) {
	c, index, err := s.locateLink(ctx, r.Link)
	if err != nil {
		return nil, err
	}
	q.family = routeFamily(r)
	all, err := c.routes(ctx, q, 0, func(have ifRoute) bool { return have.Dst == r.Dst && have.Metric == r.Metric })
	if err != nil {
		return nil, err
	}
	var out []netstate.Route
	for _, have := range all {
		if have.index == index {
			have.Link = r.Link
		}
		out = append(out, have.Route)
	}
	return out, nil
}

func (s *Sandbox) applyRoute(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Route](c)
	switch c.Action() {
	case netstate.Create:
		if c.Foreign {
			if kept, err := s.keepsRoute(ctx, after); kept || err != nil {
				return err
			}
		}
		// Not EXCL: it refuses a second gateway to a destination. An equal route is
		// refused without it too (fib_trie.c, ip6_fib.c), and APPEND puts this one
		// behind the existing ones: CREATE alone would put it before them.
		err := s.sendRoute(ctx, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, after)
		if c.Foreign && errors.Is(err, unix.EEXIST) {
			return nil // as an address of others
		}
		return explainRoute(after, err)
	case netstate.Delete:
		return s.deleteRoute(ctx, before)
	default:
		return s.updateRoute(ctx, after)
	}
}

// keptIn are routes that the kernel may have kept, read at once for all that follow one another.
type keptIn struct {
	c *conn
	routeQuery
}

// keepsRoute reports whether the kernel has a route of others still. It keeps those of an address whose place another one takes
// (promote_secondaries), and a second one would lack what netstate does not hold of it, such as its other next hops.
func (s *Sandbox) keepsRoute(ctx context.Context, r netstate.Route) (bool, error) {
	c, index, err := s.locateLink(ctx, r.Link)
	if err != nil {
		return false, err
	}
	q := routeQuery{family: routeFamily(r), table: r.Table, protocol: uint8(protocolOf(r)), index: index}
	var kept map[netstate.Key]bool
	s.withCache(func(g *observationCache) { kept = g.routes[keptIn{c, q}] })
	if kept == nil {
		all, err := c.routes(ctx, q, c.bounds.Routes, func(ifRoute) bool { return true })
		if err != nil && !errors.Is(err, reconcile.ErrPartial) {
			return false, err
		}
		kept = map[netstate.Key]bool{}
		for _, have := range all {
			have.Link = r.Link
			kept[have.Key()] = true
		}
		s.withCache(func(g *observationCache) { g.routes[keptIn{c, q}] = kept })
	}
	return kept[r.Key()], nil
}

// deleteRoute deletes exactly one route; one that does not exist is no error.
func (s *Sandbox) deleteRoute(ctx context.Context, r netstate.Route) error {
	// The kernel treats a metric of 0 as none when it searches for what to delete: it
	// would take the next best route of that gateway (fib_semantics.c,
	// fib_nh_match; IPv6 routes always have a metric).
	if r.Metric == 0 {
		same, err := s.group(ctx, r, routeQuery{table: r.Table, protocol: uint8(protocolOf(r))})
		if errors.Is(err, unix.ENODEV) || errors.Is(err, errGone) {
			return nil
		}
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(same, func(have netstate.Route) bool { return have.Key() == r.Key() }) {
			return nil
		}
	}
	return unlessGone(s.sendRoute(ctx, unix.RTM_DELROUTE, 0, r), unix.ESRCH, unix.ENODEV)
}

// updateRoute replaces a route. REPLACE takes the first route of the group, or in IPv6
// all its next hops, so it is used only for a route that is alone. In a group the new
// one is added and then the old one deleted; the kernel treats routes that differ in
// attributes as two, except for IPv6, where the order has to be reversed.
func (s *Sandbox) updateRoute(ctx context.Context, change netstate.Route) error {
	same, err := s.same(ctx, change)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(same, func(have netstate.Route) bool { return have.Key() == change.Key() })
	if i < 0 {
		return fault.New(fault.NotReady, errors.New("the route no longer exists"))
	}
	have := same[i]
	want := netstate.Merge(have, change)
	add := func(r netstate.Route) error {
		return s.sendRoute(ctx, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, r)
	}
	switch {
	case len(same) == 1:
		return s.sendRoute(ctx, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, want)
	case !want.IPv6():
		if err := add(want); err != nil {
			return err
		}
		return s.deleteRoute(ctx, have) // the first of the two is the old one
	default:
		if err := s.deleteRoute(ctx, have); err != nil {
			return err
		}
		if err := add(want); err != nil {
			return withUndoError(err, add(have))
		}
		return nil
	}
}

func (s *Sandbox) sendRoute(ctx context.Context, typ, flags int, r netstate.Route) error {
	return s.onLink(ctx, r.Link, func(c *conn, index int) error {
		parts, err := encodeRoute(r, index, typ == unix.RTM_DELROUTE)
		if err != nil {
			return err
		}
		return c.write(ctx, typ, flags, parts...)
	})
}

// encodeRoute writes a route. To delete one, its identity is given and nothing
// else, with a scope that means any.
func encodeRoute(r netstate.Route, index int, deleting bool) ([]nl.NetlinkRequestData, error) {
	dst, err := netip.ParsePrefix(r.Dst)
	if err != nil {
		return nil, invalid("%q is not a prefix", r.Dst)
	}
	scope, err := scopeOf(r, deleting)
	if err != nil {
		return nil, err
	}
	header := &nl.RtMsg{RtMsg: unix.RtMsg{ // RTA_TABLE has more room for the table
		Family: family(dst.Addr()), Dst_len: uint8(dst.Bits()), Protocol: uint8(protocolOf(r)), Scope: scope, Type: unix.RTN_UNICAST,
	}}
	if deref(r.OnLink) && !deleting {
		header.Flags = unix.RTNH_F_ONLINK
	}
	parts := []nl.NetlinkRequestData{header}
	add := func(typ int, v []byte) { parts = append(parts, attr(typ, v)) }
	if dst.Bits() > 0 {
		add(unix.RTA_DST, dst.Addr().AsSlice())
	}
	add(unix.RTA_TABLE, nl.Uint32Attr(r.Table))
	add(unix.RTA_OIF, nl.Uint32Attr(uint32(index)))
	if r.Metric != 0 {
		add(unix.RTA_PRIORITY, nl.Uint32Attr(r.Metric))
	}
	if r.Gateway != "" {
		gw, err := netip.ParseAddr(r.Gateway)
		switch {
		case err != nil:
			return nil, invalid("gateway: %q is not an address", r.Gateway)
		case gw.Is6() && dst.Addr().Is4():
			add(unix.RTA_VIA, append(nl.Uint16Attr(unix.AF_INET6), gw.AsSlice()...))
		default:
			add(unix.RTA_GATEWAY, gw.AsSlice())
		}
	}
	if deleting {
		return parts, nil
	}
	if r.Source != nil && *r.Source != "" {
		src, err := netip.ParseAddr(*r.Source)
		if err != nil {
			return nil, invalid("src: %q is not an address", *r.Source)
		}
		add(unix.RTA_PREFSRC, src.AsSlice())
	}
	if m := encodeMetrics(r); m != nil {
		parts = append(parts, m)
	}
	return parts, nil
}

func encodeMetrics(r netstate.Route) *nl.RtAttr {
	if deref(r.MTU) == 0 && deref(r.AdvMSS) == 0 {
		return nil
	}
	m := attr(unix.RTA_METRICS, nil)
	for _, f := range []struct {
		typ int
		v   *uint32
	}{{unix.RTAX_MTU, r.MTU}, {unix.RTAX_ADVMSS, r.AdvMSS}} {
		if n := deref(f.v); n != 0 {
			m.AddRtAttr(f.typ, nl.Uint32Attr(n))
		}
	}
	return m
}

// protocolOf keeps the protocol of a route that was observed; others are ours.
func protocolOf(r netstate.Route) int {
	if r.Protocol != 0 {
		return r.Protocol
	}
	return netstate.RouteProtocol
}

// scopeOf gives a route without gateway the scope of its link, as ip does. IPv6
// has no scopes.
func scopeOf(r netstate.Route, deleting bool) (uint8, error) {
	switch {
	case deleting:
		return unix.RT_SCOPE_NOWHERE, nil
	case r.IPv6():
		return unix.RT_SCOPE_UNIVERSE, nil
	case r.Scope != nil:
		n, ok := routeScopes.number(*r.Scope)
		if !ok {
			return 0, oneOf("scope", *r.Scope, routeScopes)
		}
		return uint8(n), nil
	case r.Gateway == "":
		return unix.RT_SCOPE_LINK, nil
	}
	return unix.RT_SCOPE_UNIVERSE, nil
}

func explainRoute(r netstate.Route, err error) error {
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return because(fault.NotReady, err,
			"gateway %s is not reachable over %s: is it up, with an address of that subnet?", r.Gateway, where(r.Link))
	case errors.Is(err, unix.ENETDOWN):
		return because(fault.NotReady, err, "%s is down", where(r.Link))
	case errors.Is(err, unix.EINVAL) && r.Source != nil && *r.Source != "":
		return because(fault.NotReady, err, "src %s must be an address of the sandbox, and an IPv6 one no longer tentative", *r.Source)
	}
	return err
}
