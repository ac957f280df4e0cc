package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// ifAddr is an address as one RTM_NEWADDR message contains it.
type ifAddr struct {
	prefix netip.Prefix
	index  int
	flags  uint32
	origin uint8 // IFA_PROTO, since 5.18; 0 is a user's
}

const (
	ifaProto        = 11 // linux/if_addr.h
	originLoopback  = 1  // IFAPROT_KERNEL_LO, then that of router advertisements
	originLinkLocal = 3  // IFAPROT_KERNEL_LL
)

// decodeAddr reads the payload of an RTM_NEWADDR message; false for a family
// that is not IP.
func decodeAddr(b []byte) (ifAddr, bool) {
	if len(b) < unix.SizeofIfAddrmsg {
		return ifAddr{}, false
	}
	a := ifAddr{index: int(u32(b[4:])), flags: uint32(b[2])}
	var local, address netip.Addr
	for typ, v := range attributes(b[unix.SizeofIfAddrmsg:]) {
		switch typ {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS:
			a.flags = u32(v)
		case ifaProto:
			a.origin = u8(v)
		}
	}
	if !local.IsValid() {
		local = address // IPv6, but on a point-to-point link
	}
	a.prefix = netip.PrefixFrom(local, int(b[1]))
	return a, a.prefix.IsValid()
}

// object converts it to an object on the named link. reportsOrigin: the kernel reports the
// origin of addresses; where it does not, their form shows it.
func (a ifAddr) object(link string, reportsOrigin bool) netstate.Addr {
	out := netstate.Addr{
		Link: link, Address: a.prefix.String(),
		Tentative: a.flags&unix.IFA_F_TENTATIVE != 0,
		DADFailed: a.flags&unix.IFA_F_DADFAILED != 0,
	}
	ip := a.prefix.Addr()
	if ip.Is6() {
		out.NoDAD = new(a.flags&unix.IFA_F_NODAD != 0)
	}
	out.NoPrefixRoute = new(a.flags&unix.IFA_F_NOPREFIXROUTE != 0)
	switch {
	case link == "lo" && (out.Address == "127.0.0.1/8" || out.Address == "::1/128"):
		out.Kernel = true // the kernel does not say so of the IPv4 one
	case reportsOrigin:
		out.Kernel = a.origin >= originLoopback && a.origin <= originLinkLocal
	default:
		out.Kernel = ip.Is6() && (ip.IsLinkLocalUnicast() || a.flags&unix.IFA_F_PERMANENT == 0)
	}
	return out
}

func (c *conn) addresses(ctx context.Context, index int) ([]ifAddr, error) {
	header := &nl.IfAddrmsg{}
	if c.strict {
		header.Index = uint32(index) // 0 is any
	}
	q := query{
		typ: unix.RTM_GETADDR, reply: unix.RTM_NEWADDR, what: "addresses", most: c.bounds.Addresses, read: c.bounds.Addresses,
		parts: []nl.NetlinkRequestData{header},
	}
	return dump(ctx, c, q, func(b []byte, keep func(ifAddr)) error {
		if a, ok := decodeAddr(b); ok && (index == 0 || a.index == index) {
			keep(a)
		}
		return nil
	})
}

func (o *observer) addresses(ctx context.Context) error {
	all, err := o.inside.addresses(ctx, 0)
	if err != nil {
		return err
	}
	reportsOrigin := false
	for _, a := range all {
		reportsOrigin = reportsOrigin || a.origin != 0
	}
	for _, a := range all {
		name, err := o.nameOf(ctx, o.inside, a.index)
		if err != nil {
			return err
		}
		if name != "" {
			o.snap.Put(a.object(name, reportsOrigin))
		}
	}
	return nil
}

// queryAddr reads an address on a link of the host.
func (o *observer) queryAddr(ctx context.Context, queried netstate.Addr) error {
	if !netstate.OnHost(queried.Link) {
		return nil
	}
	o.snap.PutAbsent(queried.Key())
	c, index, err := o.existingLink(ctx, queried.Link)
	if c == nil || err != nil {
		return err
	}
	all, err := c.addresses(ctx, index)
	if errors.Is(err, unix.ENODEV) {
		return nil // another sandbox has deleted the link since
	}
	if err != nil {
		return err
	}
	for _, a := range all {
		if got := a.object(queried.Link, true); got.Key() == queried.Key() {
			o.snap.Put(got)
		}
	}
	return nil
}

func (s *Sandbox) applyAddr(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Addr](c)
	switch c.Action() {
	case netstate.Create:
		if after.Expires != 0 && after.Expires <= SinceBoot() {
			return because(fault.NotReady, errExpired, "the lease of %s", after.Address)
		}
		err := s.setAddr(ctx, unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, after)
		if c.Foreign && errors.Is(err, unix.EEXIST) {
			return nil // the link has kept it (keep_addr_on_down, promote_secondaries), which a plan does not know
		}
		return s.explainAddr(ctx, after, err)
	case netstate.Delete:
		return unlessGone(s.setAddr(ctx, unix.RTM_DELADDR, 0, before), unix.EADDRNOTAVAIL, unix.ENODEV)
	default:
		return invalid("an address cannot change: it has to be recreated")
	}
}

func (s *Sandbox) setAddr(ctx context.Context, typ, flags int, a netstate.Addr) error {
	prefix, err := netip.ParsePrefix(a.Address)
	if err != nil {
		return invalid("%q is not an address with a prefix", a.Address)
	}
	return s.onLink(ctx, a.Link, func(c *conn, index int) error {
		return c.write(ctx, typ, flags, encodeAddr(prefix, index, typ == unix.RTM_NEWADDR, a)...)
	})
}

// encodeAddr writes an address. An IPv4 one gets a broadcast address, as every
// other tool gives it.
func encodeAddr(prefix netip.Prefix, index int, adding bool, a netstate.Addr) []nl.NetlinkRequestData {
	ip := prefix.Addr()
	header := &nl.IfAddrmsg{IfAddrmsg: unix.IfAddrmsg{Family: family(ip), Prefixlen: uint8(prefix.Bits()), Index: uint32(index)}}
	if ip.IsLoopback() {
		header.Scope = unix.RT_SCOPE_HOST
	}
	parts := []nl.NetlinkRequestData{header, attr(unix.IFA_LOCAL, ip.AsSlice()), attr(unix.IFA_ADDRESS, ip.AsSlice())}
	if !adding {
		return parts
	}
	if ip.Is4() && prefix.Bits() < 31 {
		parts = append(parts, attr(unix.IFA_BROADCAST, netipx.PrefixLastIP(prefix).AsSlice()))
	}
	var flags uint32
	if ip.Is6() && deref(a.NoDAD) {
		flags |= unix.IFA_F_NODAD
	}
	if ip.Is6() && a.Optimistic {
		flags |= unix.IFA_F_OPTIMISTIC
	}
	if deref(a.NoPrefixRoute) {
		flags |= unix.IFA_F_NOPREFIXROUTE
	}
	if flags != 0 {
		parts = append(parts, attr(unix.IFA_FLAGS, nl.Uint32Attr(flags)))
	}
	if a.Expires != 0 {
		left := nl.Uint32Attr(uint32(max(a.Expires-SinceBoot(), 1)))
		// struct ifa_cacheinfo: preferred and valid, in seconds, then two that only the kernel sets.
		parts = append(parts, attr(unix.IFA_CACHEINFO, slices.Concat(left, left, make([]byte, 8))))
	}
	return parts
}

var errExpired = errors.New("it has expired")

// SinceBoot is the clock of leases, in seconds: nobody sets it, and it counts while the machine is
// suspended.
func SinceBoot() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // every kernel has this clock
	}
	return now.Sec
}

// Prolong changes when the kernel deletes a leased address, in the namespace at path if that is the
// one with this ID. An address that does not exist is not created, which is up to the engine, and one
// that is not leased stays as it is.
func (h *Host) Prolong(ctx context.Context, path string, id reconcile.NetnsID, a netstate.Addr) error {
	s, err := h.sandboxOf(path, id)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.onLink(ctx, a.Link, func(c *conn, index int) error {
		all, err := c.addresses(ctx, index)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(have ifAddr) bool {
			return have.prefix.String() == a.Address && have.flags&unix.IFA_F_PERMANENT == 0
		}) {
			return nil
		}
		prefix, err := netip.ParsePrefix(a.Address)
		if err != nil {
			return invalid("%q is not an address with a prefix", a.Address)
		}
		return c.write(ctx, unix.RTM_NEWADDR, unix.NLM_F_REPLACE, encodeAddr(prefix, index, true, a)...)
	})
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (s *Sandbox) explainAddr(ctx context.Context, a netstate.Addr, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fault.New(fault.Conflict, fmt.Errorf("%w: %w", reconcile.ErrAddressTaken, err))
	case errors.Is(err, unix.EACCES):
		return because(fault.Unsupported, err, "IPv6 is disabled on %s (sysctl disable_ipv6)", where(a.Link))
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOBUFS): // by kernel version
		if l, e := s.readLink(ctx, a.Link); e == nil && l.MTU != nil && *l.MTU < netstate.MinIPv6MTU {
			const message = "%s has an MTU of %d: raise it to at least %d, which IPv6 needs"
			return because(fault.Invalid, err, message, where(a.Link), *l.MTU, netstate.MinIPv6MTU)
		}
	}
	return err
}
