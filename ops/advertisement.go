package ops

import (
	"errors"
	"maps"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
)

// ignored are the sysctls by which a link takes nothing of a host that says it is a router: neither addresses and
// routes, nor another next hop. Source: Documentation/networking/ip-sysctl.rst. IPv4 has no such setting
// of a link: a host accepts redirects if the link or "all" does (IN_DEV_RX_REDIRECTS).
var ignored = []string{"accept_ra", "accept_redirects"}

// ofIPv6 is a sysctl that a namespace with IPv6 has.
var ofIPv6 = ofLink("default", ignored[0])

// Asked lists what the first plan of a sandbox asks for, with any topology: one observation less.
func Asked(given Givens) []netstate.Object {
	var out []netstate.Object
	devices := given.Devices()
	for _, step := range slices.Sorted(maps.Keys(devices)) {
		out = append(out, netstate.Device{ID: devices[step]}, netstate.VF{ID: devices[step]})
	}
	return append(out, ofIPv6)
}

func ofLink(link, name string) netstate.Sysctl {
	return netstate.Sysctl{Path: "net/ipv6/conf/" + link + "/" + name}
}

// IPv6 reports whether the kernel has IPv6.
func (p *Planner) IPv6() (bool, error) {
	_, there, err := Lookup(p, ofIPv6)
	return there, err
}

// acceptRA wants what a step says of the advertisements on a link.
func (p *Planner) acceptRA(link string, cfg AddressConfig) error {
	switch {
	case cfg.AcceptRA == nil:
		return nil
	case cfg.IPAM != nil && cfg.IPAM.Type == ipamSLAAC:
		return Invalid("acceptRA",
			"excludes ipam of type %q, which accepts the addresses of advertisements and nothing else of them: remove one of the two",
			ipamSLAAC)
	case netstate.OnHost(link):
		return Invalid("acceptRA", "is for interfaces of the pod: %q is one of the host", netstate.BaseName(link))
	case *cfg.AcceptRA:
		o := ofLink(link, "accept_ra")
		o.Value = new("2") // also while the pod forwards
		return p.Want(o)
	}
	return p.ignore(link)
}

// ignore wants a link to take nothing of routers, as far as no step says otherwise.
func (p *Planner) ignore(link string) error {
	if p.mtus.belowIPv6(link) {
		return nil
	}
	var missing error // all are asked for at once
	for _, name := range ignored {
		o := ofLink(link, name)
		if p.Wanted(o.Key()) {
			continue
		}
		exists := o
		if p.view.Fresh(link) || getsIPv6(p.req.Have, link) {
			exists = ofIPv6
		}
		_, there, err := Lookup(p, exists)
		if err != nil {
			missing = err
			continue
		}
		if !there {
			return nil // none where the kernel, or the link, has no IPv6
		}
		o.Value = new("0")
		if err := p.Want(o); err != nil {
			return err
		}
	}
	return missing
}

// getsIPv6 reports whether a link is too small for IPv6 now: once it is larger, the kernel starts it with the MTU (addrconf_notify in
// net/ipv6/addrconf.c).
func getsIPv6(now *netstate.Snapshot, link string) bool {
	mtu := mtuIn(now, link)
	return mtu != 0 && mtu < netstate.MinIPv6MTU
}

// ignoreRouters wants each link that a step makes or moves to ignore routers. That comes with
// the link itself, before whatever sets it up.
func (p *Planner) ignoreRouters() error {
	wants := p.wants
	p.wants = nil
	for _, w := range wants {
		p.wants = append(p.wants, w)
		link := made(w)
		if link == "" || netstate.OnHost(link) || p.makers[link] != w.step {
			continue
		}
		if _, port := p.claims.bondOf(p.view, link); port {
			continue // the kernel has no IPv6 on it
		}
		p.current = p.steps[w.step]
		if err := p.ignore(link); err != nil && !errors.Is(err, errMissing) {
			return p.req.stepError(w.step, err)
		}
		if err := p.wantNotifications(link, wants); err != nil {
			return p.req.stepError(w.step, err)
		}
	}
	return nil
}

// made is the link that a want makes or moves, "" for none.
func made(w want) string {
	switch o := w.obj.(type) {
	case netstate.Link:
		if o.LinkKind != "" && !w.adopt {
			return o.Name
		}
	case netstate.Device:
		if o.At != nil {
			return *o.At
		}
	}
	return ""
}
