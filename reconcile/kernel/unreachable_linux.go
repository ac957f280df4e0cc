package kernel

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// decodeUnreachable reads the payload of an RTM_NEWROUTE message; false for a route that sends
// packets, or that netstate cannot represent.
func decodeUnreachable(b []byte) (netstate.Unreachable, bool) {
	if len(b) < unix.SizeofRtMsg || b[7] != unix.RTN_UNREACHABLE || b[2] != 0 || b[3] != 0 {
		return netstate.Unreachable{}, false
	}
	rest := b[unix.SizeofRtMsg:]
	u := netstate.Unreachable{
		Dst: prefixOf(b[0], attribute(rest, unix.RTA_DST), b[1]), Table: uint32(b[4]), Metric: u32(attribute(rest, unix.RTA_PRIORITY)),
	}
	if v := attribute(rest, unix.RTA_TABLE); v != nil {
		u.Table = u32(v)
	}
	return u, true
}

// encodeUnreachable writes such a route. To delete one, the scope is any.
func encodeUnreachable(u netstate.Unreachable, deleting bool) ([]nl.NetlinkRequestData, error) {
	dst, err := netip.ParsePrefix(u.Dst)
	if err != nil {
		return nil, invalid("%q is not a prefix", u.Dst)
	}
	if u.Metric == 0 {
		return nil, invalid("an unreachable route needs a metric: with 0 a deletion would take any")
	}
	header := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family: family(dst.Addr()), Dst_len: uint8(dst.Bits()), Protocol: netstate.RouteProtocol, Type: unix.RTN_UNREACHABLE,
	}}
	if deleting {
		header.Protocol, header.Scope = unix.RTPROT_UNSPEC, unix.RT_SCOPE_NOWHERE
	}
	parts := []nl.NetlinkRequestData{header}
	if dst.Bits() > 0 {
		parts = append(parts, attr(unix.RTA_DST, dst.Addr().AsSlice()))
	}
	return append(parts, attr(unix.RTA_TABLE, nl.Uint32Attr(u.Table)), attr(unix.RTA_PRIORITY, nl.Uint32Attr(u.Metric))), nil
}

// queryUnreachable reads such routes of the sandbox, those of one family and table in one dump.
func (o *observer) queryUnreachable(ctx context.Context, queried []netstate.Unreachable) error {
	type tableOf struct {
		family uint8
		table  uint32
	}
	table := func(u netstate.Unreachable) tableOf {
		dst, _ := netip.ParsePrefix(u.Dst)
		return tableOf{family(dst.Addr()), u.Table}
	}
	return queryGroups(o, queried, table, func(of tableOf, wanted func(netstate.Unreachable) bool) ([]netstate.Unreachable, error) {
		return o.inside.unreachable(ctx, of.family, of.table, wanted)
	})
}

// unreachable lists the routes of a family that refuse packets and are wanted; table 0 is any.
func (c *conn) unreachable(ctx context.Context, family uint8, table uint32,
	wanted func(netstate.Unreachable) bool,
) ([]netstate.Unreachable, error) {
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}}
	parts := []nl.NetlinkRequestData{header}
	if c.strict {
		header.Type = unix.RTN_UNREACHABLE
		if table != 0 {
			parts = append(parts, attr(unix.RTA_TABLE, nl.Uint32Attr(table)))
		}
	}
	q := query{
		typ: unix.RTM_GETROUTE, reply: unix.RTM_NEWROUTE, parts: parts, what: fmt.Sprintf("unreachable routes of table %d", table),
		most: c.bounds.Routes, read: c.bounds.Routes,
	}
	out, err := dump(ctx, c, q, func(b []byte, keep func(netstate.Unreachable)) error {
		if u, ok := decodeUnreachable(b); ok && (table == 0 || u.Table == table) && wanted(u) {
			keep(u)
		}
		return nil
	})
	if isAny(err, unix.ENOENT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP) {
		return nil, nil // the table does not exist, or the kernel has no IPv6
	}
	return out, err
}

func (s *Sandbox) applyUnreachable(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Unreachable](c)
	switch c.Action() {
	case netstate.Create:
		return s.sendUnreachable(ctx, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, after)
	case netstate.Delete:
		return unlessGone(s.sendUnreachable(ctx, unix.RTM_DELROUTE, 0, before), unix.ESRCH)
	default:
		return invalid("an unreachable route cannot change: another one has to be created")
	}
}

func (s *Sandbox) sendUnreachable(ctx context.Context, typ, flags int, u netstate.Unreachable) error {
	if s.inside == nil {
		return errGone
	}
	parts, err := encodeUnreachable(u, typ == unix.RTM_DELROUTE)
	if err != nil {
		return err
	}
	return s.inside.write(ctx, typ, flags, parts...)
}
