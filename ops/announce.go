package ops

import (
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
)

// wantNotifications wants the kernel to announce the IPv6 addresses of a link once it has found that
// no other host has them, and when the link gets another MAC, as far as no step says otherwise
// (addrconf_dad_completed in net/ipv6/addrconf.c). Others are announced by the engine: see Announced.
func (p *Planner) wantNotifications(link string, wants []want) error {
	for _, w := range wants {
		a, ok := w.obj.(netstate.Addr)
		if !ok || a.Link != link || !strings.Contains(a.Address, ":") {
			continue
		}
		o := ofLink(link, "ndisc_notify")
		if p.Wanted(o.Key()) || p.mtus.belowIPv6(link) {
			return nil
		}
		o.Value = new("1")
		return p.Want(o)
	}
	return nil
}

// maxAnnounced bounds how many addresses of a sandbox are announced after a change.
const maxAnnounced = 256

// Announced returns the wanted addresses to announce to neighbors after a change: neighbors may still map them to the MAC of another
// pod, or of a link that was created again. It leaves out addresses that the kernel does not use yet, which it announces itself, and
// those of links without address resolution.
func (p *Plan) Announced(have *netstate.Snapshot) []netstate.Addr {
	var out []netstate.Addr
	for _, a := range netstate.All[netstate.Addr](have) {
		l, there := have.Link(a.Link)
		kind := l.KindTraits()
		layer3 := l.IPVLAN != nil && l.IPVLAN.Mode != nil && *l.IPVLAN.Mode != "l2" // IFF_NOARP, as inert links
		if !there || layer3 || l.MAC == nil || kind.Inert || kind.L3Master || a.Link == "lo" ||
			a.Tentative || a.DADFailed || !p.Wants(a.Key()) || len(out) == maxAnnounced {
			continue
		}
		out = append(out, a)
	}
	return out
}
