package addresspool

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Route is a route that a pod gets with its address.
type Route struct {
	Destination netip.Prefix
	// Gateway is the next hop; none is a route on the link.
	Gateway netip.Addr
}

// readRoutes reads the routes of a pool whose subnets have been read.
func (l *Layout) readRoutes(specs []v1alpha1.AddressRoute, wrong *problems) {
	if n := len(specs); n > MaxRoutes {
		wrong.add("routes", "has %d entries, at most %d are accepted", n, MaxRoutes)
		return
	}
	for i, s := range specs {
		r, err := l.readRoute(s)
		if err != nil {
			wrong.addError(fmt.Sprintf("routes[%d].", i), err)
			continue
		}
		l.routes = append(l.routes, r)
	}
}

func (l *Layout) readRoute(s v1alpha1.AddressRoute) (r Route, err error) {
	if len(s.Destination) > maxText {
		return r, fieldError("destination", "is longer than %d bytes", maxText)
	}
	if len(s.Gateway) > maxText {
		return r, fieldError("gateway", "is longer than %d bytes", maxText)
	}
	r.Destination, err = netip.ParsePrefix(s.Destination)
	switch d := r.Destination; {
	case err != nil || d.Addr().Is4In6():
		return r, fieldError("destination", "%q is not a prefix such as 10.0.0.0/8", s.Destination)
	case d != d.Masked():
		return r, fieldError("destination", "%q has bits set behind its prefix length: write %q", s.Destination, d.Masked())
	case d.Addr().IsMulticast() || d.Addr().IsLoopback():
		return r, fieldError("destination", "%q is not routed", s.Destination)
	case !slices.Contains(l.Families(), d.Addr().Is4()):
		return r, fieldError("destination", "%q is of a family of which the pool has no subnet", s.Destination)
	case slices.ContainsFunc(l.subnets, func(n subnet) bool { return n.prefix == d }):
		return r, fieldError("destination", "%q is a subnet of the pool, which is on the link: remove the route", s.Destination)
	}
	if s.Gateway == "" {
		return r, nil
	}
	r.Gateway, err = netip.ParseAddr(s.Gateway)
	switch {
	case err != nil || r.Gateway.Zone() != "":
		return r, fieldError("gateway", "%q is not an IP address", s.Gateway)
	case r.Gateway.Is4() != r.Destination.Addr().Is4():
		return r, fieldError("gateway", "%q and destination %q are of different families", s.Gateway, s.Destination)
	case !slices.ContainsFunc(l.subnets, func(n subnet) bool { return Reaches(n.prefix, r.Gateway) }):
		return r, fieldError("gateway", "%q is in none of the pool's subnets", s.Gateway)
	}
	return r, nil
}

// Reaches reports whether a host with an address of a network reaches a gateway without another one: it is in the network, or
// link-local. To the kernel IPv4 addresses of 169.254.0.0/16 are like any others.
func Reaches(network netip.Prefix, gateway netip.Addr) bool {
	return network.Contains(gateway) || network.Addr().Is6() && isLinkLocal(gateway)
}

func isLinkLocal(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.IsLinkLocalUnicast() }

// Gateways returns the gateways of addresses from the pool. With interfaceBlock that of a
// subnet is in the part of one interface, and no gateway for the others, unless it is link-local.
func (l *Layout) Gateways(given []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, a := range given {
		if g := l.gateway(a); g.IsValid() {
			out = append(out, g)
		}
	}
	return out
}

func (l *Layout) gateway(a netip.Prefix) netip.Addr {
	for i := range l.subnets {
		s := &l.subnets[i]
		if g := s.gateway; g.IsValid() && (a.Contains(g) || isLinkLocal(g) && s.prefix.Contains(a.Addr())) {
			return g
		}
	}
	return netip.Addr{}
}

// Routes returns the routes of a pod with addresses from the pool: of each destination the
// first whose gateway is in the subnet of an address.
func (l *Layout) Routes(given []netip.Prefix) []Route {
	var out []Route
	for _, r := range l.routes {
		i := slices.IndexFunc(given, func(a netip.Prefix) bool {
			return a.Addr().Is4() == r.Destination.Addr().Is4() && (!r.Gateway.IsValid() || Reaches(a, r.Gateway))
		})
		if i < 0 || slices.ContainsFunc(out, func(o Route) bool { return o.Destination == r.Destination }) {
			continue
		}
		if !r.Gateway.IsValid() {
			r.Gateway = l.gateway(given[i])
		}
		out = append(out, r)
	}
	return out
}
