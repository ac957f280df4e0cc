package kernel

import (
	"context"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// forwarding is a destination of the entry for MACs that a tunnel does not know.
type forwarding struct {
	remote netip.Addr
	via    int // the index of a link; 0 is none
}

const ndaNHID = 13 // NDA_NH_ID of linux/neighbour.h

var noMAC = make([]byte, 6)

// encodeFDB writes a destination.
func encodeFDB(f forwarding, index int) []nl.NetlinkRequestData {
	header := &netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index), State: unix.NUD_PERMANENT, Flags: unix.NTF_SELF}
	parts := []nl.NetlinkRequestData{header, attr(unix.NDA_LLADDR, noMAC), attr(unix.NDA_DST, f.remote.AsSlice())}
	if f.via != 0 {
		parts = append(parts, attr(unix.NDA_IFINDEX, nl.Uint32Attr(uint32(f.via))))
	}
	return parts
}

// decodeFDB reads a destination, and the index of its tunnel, from the payload of an
// RTM_NEWNEIGH message; false for an entry that netstate cannot represent: one of a bridge, with
// a MAC, that was learned, or with a port or network identifier of its own.
func decodeFDB(b []byte) (f forwarding, index int, ok bool) {
	if len(b) < unix.SizeofNdMsg || b[0] != unix.AF_BRIDGE || b[10]&unix.NTF_SELF == 0 || u16(b[8:])&unix.NUD_PERMANENT == 0 {
		return f, 0, false
	}
	ours := false
	for typ, v := range attributes(b[unix.SizeofNdMsg:]) {
		switch typ {
		case unix.NDA_LLADDR:
			ours = string(v) == string(noMAC)
		case unix.NDA_DST:
			f.remote, _ = netip.AddrFromSlice(v)
		case unix.NDA_IFINDEX:
			f.via = int(u32(v))
		case unix.NDA_PORT, unix.NDA_VNI, unix.NDA_SRC_VNI, unix.NDA_MASTER, ndaNHID:
			return f, 0, false
		}
	}
	return f, int(u32(b[4:])), ours && f.remote.IsValid()
}

// queryFDB reads the destinations of each tunnel in one dump: the kernel's query for one
// entry returns only its first destination. If there are more entries than the bound, it
// uses what was read: a pod that fills its own table must not keep a device from the host.
// Creating a destination that exists changes nothing.
func (o *observer) queryFDB(ctx context.Context, queried []netstate.FDB) error {
	read := map[string][]forwarding{}
	for _, f := range queried {
		o.snap.PutAbsent(f.Key())
		have, known := read[f.Link]
		if !known {
			var err error
			if have, err = o.forwarding(ctx, f.Link); err != nil && !errors.Is(err, reconcile.ErrPartial) {
				return reading(f, err)
			}
			read[f.Link] = have
		}
		via := 0
		if f.Via != "" {
			var err error
			if via, err = o.index(ctx, f.Via); errors.Is(err, unix.ENODEV) || errors.Is(err, errGone) {
				continue
			} else if err != nil {
				return reading(f, err)
			}
		}
		for _, h := range have {
			if h.remote.String() == f.Remote && h.via == via {
				o.snap.Put(f)
			}
		}
	}
	return nil
}

// forwarding lists the destinations of a tunnel, without the one that it has because of its
// remote: that is a field of the link, and goes when the field changes.
func (o *observer) forwarding(ctx context.Context, link string) ([]forwarding, error) {
	c, index, err := o.existingLink(ctx, link)
	if c == nil || err != nil {
		return nil, err
	}
	remote := ""
	if l, ok := o.snap.Link(link); ok && l.VXLAN != nil {
		remote = deref(l.VXLAN.Remote)
	}
	// Without strict checks the kernel reads the request as of links.
	header := make(body, unix.SizeofIfInfomsg)
	if c.strict {
		header = make(body, unix.SizeofNdMsg)
	}
	header[0] = unix.AF_BRIDGE
	copy(header[4:], nl.Uint32Attr(uint32(index)))
	q := query{
		typ: unix.RTM_GETNEIGH, reply: unix.RTM_NEWNEIGH, parts: []nl.NetlinkRequestData{header}, what: "forwarding entries",
		most: c.bounds.Routes, read: c.bounds.Routes,
	}
	return dump(ctx, c, q, func(b []byte, keep func(forwarding)) error {
		if f, of, ok := decodeFDB(b); ok && of == index && f.remote.String() != remote {
			keep(f)
		}
		return nil
	})
}

func (s *Sandbox) applyFDB(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.FDB](c)
	switch c.Action() {
	case netstate.Create:
		return s.sendFDB(ctx, unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_APPEND, after)
	case netstate.Delete:
		return unlessGone(s.sendFDB(ctx, unix.RTM_DELNEIGH, 0, before), unix.ENOENT, unix.ENODEV)
	default:
		return invalid("a forwarding entry cannot change: another one has to be created")
	}
}

func (s *Sandbox) sendFDB(ctx context.Context, typ, flags int, f netstate.FDB) error {
	remote, err := netip.ParseAddr(f.Remote)
	if err != nil {
		return invalid("%q is not an address", f.Remote)
	}
	c, _, err := s.at(f.Link)
	if err != nil {
		return err
	}
	names := []string{f.Link}
	if f.Via != "" {
		names = append(names, f.Via)
	}
	return s.retryStale(func() error {
		e := forwarding{remote: remote}
		index, err := s.index(ctx, f.Link)
		if err == nil && f.Via != "" {
			e.via, err = s.index(ctx, f.Via)
		}
		if err != nil {
			return err
		}
		err = c.write(ctx, typ, flags, encodeFDB(e, index)...)
		if errors.Is(err, unix.EADDRNOTAVAIL) { // of the link in NDA_IFINDEX
			return unix.ENODEV
		}
		return err
	}, names...)
}
