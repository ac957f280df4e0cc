package ops

import (
	"net/netip"

	"github.com/plumbline/plumbline/ops/netstate"
)

// VethToHost wants a veth pair with one end in the sandbox and the other on the host, under
// the configured name or one derived from sandbox and step, and returns that name.
func (p *Planner) VethToHost(end netstate.Link, configured string) (string, error) {
	for _, have := range p.Links() { // otherwise the pair would not be planned, and its other end would be missing
		if have.Name == end.Name && p.Foreign(have.Key()) && have.DeviceID == "" {
			return "", ConflictWith(end.Name,
				"the name %q is taken in the sandbox by a %s link that is not ours: set another ifName", end.Name, have.LinkKind)
		}
	}
	if configured == "" {
		configured = p.HostLinkName()
	}
	peer := netstate.HostName(configured)
	mac, err := p.chosenPeerMAC(end.Name, peer)
	if err != nil {
		return "", err
	}
	end.LinkKind, end.Veth = "veth", &netstate.Veth{Peer: &peer, PeerMAC: mac}
	if err := p.Want(end); err != nil || mac == nil {
		return peer, err
	}
	return peer, p.Want(netstate.Link{Name: peer, MAC: mac})
}

// UplinkMTU returns the configured MTU, else that of the host's interface with the default
// route, else that of Ethernet.
func (p *Planner) UplinkMTU(configured *uint32) (uint32, error) {
	if configured != nil {
		return *configured, nil
	}
	const ethernet = 1500
	d, exists, err := Lookup(p, netstate.Device{ID: netstate.DefaultRouteDevice})
	switch {
	case err != nil:
		return 0, err
	case !exists || d.At == nil || !netstate.OnHost(*d.At):
		return ethernet, nil
	}
	l, exists, err := Lookup(p, netstate.Link{Name: *d.At})
	if err != nil || !exists || l.MTU == nil {
		return ethernet, err
	}
	return min(*l.MTU, 65535), nil // a loopback device has more than a link can
}

// RouteToPod is the route of the host to an address of a sandbox over a link of the host.
func RouteToPod(link string, to netip.Addr) netstate.Route {
	r := netstate.Route{
		Link: link, Dst: netip.PrefixFrom(to, to.BitLen()).String(),
		Table: netstate.TableMain, Protocol: netstate.RouteProtocol,
	}
	if to.Is6() {
		r.Metric = ipv6DefaultMetric
	}
	return r
}
