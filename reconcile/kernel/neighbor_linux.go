package kernel

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// encodeNeighbor writes a static entry, or without a MAC only its key.
func encodeNeighbor(n netstate.Neighbor, index int) ([]nl.NetlinkRequestData, error) {
	ip, err := netip.ParseAddr(n.Address)
	if err != nil {
		return nil, invalid("%q is not an address", n.Address)
	}
	header := &netlink.Ndmsg{Family: family(ip), Index: uint32(index)}
	parts := []nl.NetlinkRequestData{header, attr(unix.NDA_DST, ip.AsSlice())}
	if n.MAC == nil {
		return parts, nil
	}
	hw, err := net.ParseMAC(*n.MAC)
	if err != nil {
		return nil, invalid("mac: %q is not a MAC address", *n.MAC)
	}
	header.State = unix.NUD_PERMANENT
	return append(parts, attr(unix.NDA_LLADDR, hw)), nil
}

// decodeNeighbor reads a static entry, and the index of its link, from the payload
// of an RTM_NEWNEIGH message; false for one that the kernel has learned.
func decodeNeighbor(b []byte) (n netstate.Neighbor, index int, static bool) {
	if len(b) < unix.SizeofNdMsg || u16(b[8:])&unix.NUD_PERMANENT == 0 {
		return n, 0, false
	}
	n.Address = ipText(attribute(b[unix.SizeofNdMsg:], unix.NDA_DST))
	if v := attribute(b[unix.SizeofNdMsg:], unix.NDA_LLADDR); v != nil {
		n.MAC = new(mac(v))
	}
	return n, int(u32(b[4:])), n.Address != ""
}

// queryNeighbor reads one entry, which the kernel supports since 5.0.
func (o *observer) queryNeighbor(ctx context.Context, queried netstate.Neighbor) error {
	o.snap.PutAbsent(queried.Key())
	c, index, err := o.existingLink(ctx, queried.Link)
	if c == nil || err != nil {
		return err
	}
	queried.MAC = nil
	parts, err := encodeNeighbor(queried, index)
	if err != nil {
		return err
	}
	b, err := c.get(ctx, unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, parts...)
	if isAny(err, unix.ENOENT, unix.ENODEV, unix.EAFNOSUPPORT, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return err
	}
	if n, _, static := decodeNeighbor(b); static {
		n.Link = queried.Link
		o.snap.Put(n)
	}
	return nil
}

func (s *Sandbox) applyNeighbor(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Neighbor](c)
	if c.Action() != netstate.Delete {
		// It replaces what the kernel has learned about that address.
		return explainNeighbor(after, s.sendNeighbor(ctx, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, after))
	}
	before.MAC = nil
	return unlessGone(s.sendNeighbor(ctx, unix.RTM_DELNEIGH, 0, before), unix.ENOENT, unix.ENODEV)
}

func (s *Sandbox) sendNeighbor(ctx context.Context, typ, flags int, n netstate.Neighbor) error {
	return s.onLink(ctx, n.Link, func(c *conn, index int) error {
		parts, err := encodeNeighbor(n, index)
		if err != nil {
			return err
		}
		return c.write(ctx, typ, flags, parts...)
	})
}

func explainNeighbor(n netstate.Neighbor, err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENXIO) {
		return because(fault.Invalid, err, "%s cannot have a neighbor %s with mac %s", where(n.Link), n.Address, deref(n.MAC))
	}
	return err
}
