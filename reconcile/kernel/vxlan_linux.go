package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

func decodeVXLAN(w *ifLink, data []byte) {
	v := &netstate.VXLAN{
		ID:       option(data, nl.IFLA_VXLAN_ID, u32),
		Port:     option(data, nl.IFLA_VXLAN_PORT, be16),
		TTL:      option(data, nl.IFLA_VXLAN_TTL, u8),
		Learning: option(data, nl.IFLA_VXLAN_LEARNING, isSet),
		Family:   new("ipv4"),
	}
	w.link.VXLAN, w.tunnel = v, int(u32(attribute(data, nl.IFLA_VXLAN_LINK)))
	address := func(ipv4, ipv6 uint16) netip.Addr {
		a, ok := netip.AddrFromSlice(attribute(data, ipv4))
		if !ok {
			a, _ = netip.AddrFromSlice(attribute(data, ipv6))
		}
		return a
	}
	local, to := address(nl.IFLA_VXLAN_LOCAL, nl.IFLA_VXLAN_LOCAL6), address(nl.IFLA_VXLAN_GROUP, nl.IFLA_VXLAN_GROUP6)
	none := netip.IPv4Unspecified()
	if local.Is6() || to.Is6() {
		none, v.Family = netip.IPv6Unspecified(), new("ipv6")
	}
	if !local.IsValid() {
		local = none
	}
	v.Local, v.Remote, v.Group = new(local.String()), new(none.String()), new(none.String())
	switch {
	case to.IsMulticast():
		v.Group = new(to.String())
	case to.IsValid():
		v.Remote = new(to.String())
	}
}

// encodeVXLAN adds what is set. The kernel has one attribute for a unicast and a
// multicast other end: of the two fields the one with an address is written, or that
// there is none.
func encodeVXLAN(e *infoData, l netstate.Link) {
	v := l.VXLAN
	if v == nil {
		return
	}
	if !e.creating && (v.ID != nil || v.Port != nil || v.Family != nil) {
		e.err = invalid("the id, port and family of a VXLAN tunnel cannot change: it has to be recreated")
		return
	}
	if v.ID != nil {
		e.u32(nl.IFLA_VXLAN_ID, *v.ID)
	}
	if v.Port != nil {
		e.bytes(nl.IFLA_VXLAN_PORT, nl.BEUint16Attr(*v.Port))
	}
	if e.creating && l.Parent != nil && *l.Parent != "" {
		lower, err := e.index(*l.Parent)
		if err != nil {
			e.err = err
			return
		}
		e.u32(nl.IFLA_VXLAN_LINK, uint32(lower))
	}
	e.address("local", v.Local, nl.IFLA_VXLAN_LOCAL, nl.IFLA_VXLAN_LOCAL6)
	to := v.Remote
	if to == nil || v.Group != nil && !unspecified(*v.Group) {
		to = v.Group
	}
	e.address("remote", to, nl.IFLA_VXLAN_GROUP, nl.IFLA_VXLAN_GROUP6)
	if v.TTL != nil {
		e.u8(nl.IFLA_VXLAN_TTL, *v.TTL)
	}
	e.flag(nl.IFLA_VXLAN_LEARNING, v.Learning)
}

// address adds an address as the attribute of its family.
func (e *infoData) address(field string, text *string, ipv4, ipv6 int) {
	if text == nil {
		return
	}
	a, err := netip.ParseAddr(*text)
	switch {
	case err != nil:
		e.err = invalid("%s: %q is not an IP address", field, *text)
	case a.Is4():
		e.bytes(ipv4, a.AsSlice())
	default:
		e.bytes(ipv6, a.AsSlice())
	}
}

func unspecified(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.IsUnspecified()
}

func vxlanTaken(l netstate.Link) string {
	return fmt.Sprintf("VXLAN %d on UDP port %d exists already in this namespace, or was made in it and moved", deref(l.VXLAN.ID),
		deref(l.VXLAN.Port))
}

func explainVXLAN(err error, l, parent netstate.Link) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE): // its socket is opened when it comes up (vxlan_open)
		return because(fault.Conflict, err, "UDP port %d is used by another socket of its namespace", deref(l.VXLAN.Port))
	case errors.Is(err, unix.EINVAL) && l.MTU != nil && parent.MTU != nil && *l.MTU+l.Headers() > *parent.MTU:
		return because(fault.Invalid, err,
			"mtu %d and %d bytes of headers exceed the %d of its parent %s", *l.MTU, l.Headers(), *parent.MTU, where(*l.Parent))
	}
	return err
}
