package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
)

// ifLink is a link as one RTM_NEWLINK message contains it: other links are still
// numbers.
type ifLink struct {
	link    netstate.Link // Name without its place
	master  int
	lower   int   // IFLA_LINK
	lowerNS int32 // namespace of lower, numbered as in this one; -1 is this one
	primary int   // of a bond
	tunnel  int   // the link that a tunnel sends through, of the same namespace
	port    string
	bus     string
	parent  string // device name on bus
	permMAC string
	// portName is the name the driver gives the port, "pf0vf1" of a representor.
	portName string
	// infiniband: its hardware address has 20 bytes, of which the last eight are the GUID of its port, and the first four change when
	// the driver makes the interface again, so that it cannot be given the address it had (ipoib_check_lladdr in ulp/ipoib/ipoib_main.c).
	infiniband bool
	vfs        map[int]netstate.VF
	// raw is the message itself, of a link that was queried alone.
	raw []byte
}

// decodeLink reads the payload of an RTM_NEWLINK message.
func decodeLink(b []byte) (ifLink, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return ifLink{}, fmt.Errorf("link message of %d bytes", len(b))
	}
	flags := u32(b[8:])
	w := ifLink{lowerNS: -1, link: netstate.Link{
		Index:    int(u32(b[4:])),
		LinkKind: "device",
		Up:       new(flags&unix.IFF_UP != 0),
		// The flags show what was requested; IFLA_PROMISCUITY counts the kernel's own
		// uses too, so a bridge port has it without a request.
		Promisc:  new(flags&unix.IFF_PROMISC != 0),
		AllMulti: new(flags&unix.IFF_ALLMULTI != 0),
		Carrier:  flags&unix.IFF_LOWER_UP != 0,
		Alias:    new(""),
	}}
	w.infiniband = u16(b[2:]) == unix.ARPHRD_INFINIBAND
	for typ, v := range attributes(b[unix.SizeofIfInfomsg:]) {
		w.attribute(typ, v)
	}
	if w.infiniband { // a physical function reports the begin of its own address for each of its virtual ones (ipoib_get_vf_config)
		for i, vf := range w.vfs {
			vf.MAC = nil
			w.vfs[i] = vf
		}
	}
	if w.tunnel != 0 && w.lowerNS < 0 { // IFLA_LINK of a tunnel that was moved is about another namespace
		w.lower = w.tunnel
	}
	if w.link.Name == "" {
		return w, fmt.Errorf("link %d has no name", w.link.Index)
	}
	return w, nil
}

func (w *ifLink) attribute(typ uint16, v []byte) {
	l := &w.link
	switch typ {
	case unix.IFLA_IFNAME:
		l.Name = text(v)
	case unix.IFLA_ADDRESS:
		if len(v) > 0 {
			l.MAC = new(mac(v))
		}
	case unix.IFLA_MTU:
		l.MTU = new(u32(v))
	case unix.IFLA_TXQLEN:
		l.TxQueueLen = new(u32(v))
	case unix.IFLA_IFALIAS:
		*l.Alias = text(v)
	case unix.IFLA_MASTER:
		w.master = int(u32(v))
	case unix.IFLA_LINK:
		w.lower = int(u32(v))
	case unix.IFLA_LINK_NETNSID:
		w.lowerNS = int32(u32(v))
	case unix.IFLA_PARENT_DEV_NAME:
		w.parent = text(v)
	case unix.IFLA_PERM_ADDRESS:
		w.permMAC = mac(v)
	case unix.IFLA_PHYS_PORT_NAME:
		w.portName = text(v)
	case unix.IFLA_PARENT_DEV_BUS_NAME:
		w.bus = text(v)
	case unix.IFLA_PROP_LIST:
		for t, name := range attributes(v) {
			if t == unix.IFLA_ALT_IFNAME {
				l.AltNames = append(l.AltNames, text(name))
			}
		}
	case unix.IFLA_LINKINFO:
		w.info(v)
	case unix.IFLA_VFINFO_LIST:
		w.vfs = decodeVFs(v)
	}
}

func (w *ifLink) info(b []byte) {
	if kind := attribute(b, nl.IFLA_INFO_KIND); kind != nil {
		w.link.LinkKind = text(kind)
	}
	if k, ok := linkKinds[w.link.LinkKind]; ok {
		k.decode(w, attribute(b, nl.IFLA_INFO_DATA))
	}
	if w.port = text(attribute(b, nl.IFLA_INFO_SLAVE_KIND)); w.port == "bridge" {
		w.link.Port = decodePort(attribute(b, nl.IFLA_INFO_SLAVE_DATA))
	}
}

// linkKind is the codec of links of one kind, IFLA_INFO_KIND.
type linkKind struct {
	decode func(w *ifLink, data []byte)
	// encode adds what is set in l.
	encode func(e *infoData, l netstate.Link)
	// mtuAlone: a message that changes options cannot change the MTU.
	mtuAlone bool
	// taken describes the conflict if no link has the name of a new one.
	taken func(l netstate.Link) string
	// explain adds the reason to a refusal whose message does not show it. l is the link
	// with what was wanted of it; parent is empty where it has none, or one that cannot be
	// read.
	explain func(err error, l, parent netstate.Link) error
}

var linkKinds = map[string]linkKind{
	"bond":    {decode: decodeBond, encode: encodeBond},
	"bridge":  {decode: decodeBridge, encode: encodeBridge},
	"dummy":   {decode: func(*ifLink, []byte) {}, encode: func(*infoData, netstate.Link) {}},
	"ipoib":   {decode: decodeIPoIB, encode: encodeIPoIB, explain: explainIPoIB},
	"ipvlan":  {decode: decodeIPVLAN, encode: encodeIPVLAN},
	"macvlan": {decode: decodeMACVLAN, encode: encodeMACVLAN, explain: explainMACVLAN},
	"veth":    {decode: func(*ifLink, []byte) {}, encode: encodeVeth, taken: vethTaken},
	"vlan":    {decode: decodeVLAN, encode: encodeVLAN, taken: vlanTaken, explain: explainVLAN},
	"vrf":     {decode: decodeVRF, encode: encodeVRF},
	"vxlan":   {decode: decodeVXLAN, encode: encodeVXLAN, mtuAlone: true, taken: vxlanTaken, explain: explainVXLAN},
}

// infoData is IFLA_INFO_DATA while it is written.
type infoData struct {
	attr     *nl.RtAttr
	creating bool
	// index finds another link of the same namespace.
	index func(name string) (int, error)
	// peer is the namespace of a veth's other end, nil for the same one.
	peer *conn
	err  error
}

func (e *infoData) bytes(typ int, v []byte) *nl.RtAttr { return e.attr.AddRtAttr(typ, v) }

func (e *infoData) u8(typ int, v uint8) { e.bytes(typ, []byte{v}) }

func (e *infoData) u16(typ int, v uint16) { e.bytes(typ, nl.Uint16Attr(v)) }

func (e *infoData) u32(typ int, v uint32) { e.bytes(typ, nl.Uint32Attr(v)) }

func (e *infoData) flag(typ int, v *bool) {
	if v != nil {
		e.u8(typ, bit(*v))
	}
}

// word adds the number of a word; size is that of the attribute in bytes.
func (e *infoData) word(typ, size int, field string, v *string, w words) {
	if v == nil {
		return
	}
	n, ok := w.number(*v)
	if !ok {
		e.err = oneOf(field, *v, w)
		return
	}
	switch size {
	case 1:
		e.u8(typ, uint8(n))
	case 2:
		e.u16(typ, uint16(n))
	default:
		e.u32(typ, n)
	}
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// ifInfo is the fixed part of link messages.
func ifInfo(family uint8, index int, flags, change uint32) *nl.IfInfomsg {
	return &nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Family: family, Index: int32(index), Flags: flags, Change: change}}
}

func attr(typ int, data []byte) *nl.RtAttr { return nl.NewRtAttr(typ, data) }

// The bits of IFLA_EXT_MASK. Links are queried without statistics of VFs and of IPv6,
// which are not used here; those of 128 VFs alone are 25 kB. In a dump the mask does
// more: only with a mask does the kernel reserve space for its largest link
// (rtnetlink.c, rtnl_calcit). A link that does not fit is left out of the dump without
// an error, so a pod could hide a link with alternative names.
const (
	filterVF        = 1 << 0
	filterSkipStats = 1 << 3
)

func extMask(filter uint32) *nl.RtAttr { return attr(unix.IFLA_EXT_MASK, nl.Uint32Attr(filter)) }

// linkByName reads a link by its name or an alternative one. The kernel takes the latter under IFLA_IFNAME, too, but a longer one
// than an interface's only under IFLA_ALT_IFNAME.
func (c *conn) linkByName(ctx context.Context, base string) (ifLink, error) {
	typ := unix.IFLA_IFNAME
	if len(base) >= unix.IFNAMSIZ {
		typ = unix.IFLA_ALT_IFNAME
	}
	return c.link(ctx, 0, filterSkipStats, attr(typ, nl.ZeroTerminated(base)))
}

func (c *conn) linkByIndex(ctx context.Context, index int) (ifLink, error) {
	return c.link(ctx, index, filterSkipStats)
}

// linkWithVFs reads a link, by name where the index is 0, with the settings of
// its virtual functions.
func (c *conn) linkWithVFs(ctx context.Context, index int, base string) (ifLink, error) {
	var by []nl.NetlinkRequestData
	if index == 0 {
		by = append(by, attr(unix.IFLA_IFNAME, nl.ZeroTerminated(base)))
	}
	w, err := c.link(ctx, index, filterVF|filterSkipStats, by...)
	if !errors.Is(err, unix.EMSGSIZE) {
		return w, err
	}
	// Before Linux 6.15 the kernel has no room in the answer for the GUIDs of functions of InfiniBand (rtnl_vfinfo_size): those of 64
	// do not fit. A part of a dump has 32 KiB, whatever it contains.
	q := query{typ: unix.RTM_GETLINK, reply: unix.RTM_NEWLINK, what: "links", most: c.bounds.Links, read: c.bounds.Links}
	q.parts = []nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, 0, 0, 0), extMask(filterVF | filterSkipStats)}
	found, err := dump(ctx, c, q, func(b []byte, keep func(ifLink)) error {
		return decodeLinks(b, func(w ifLink) {
			if w.link.Index == index || index == 0 && w.link.Name == base {
				w.raw = slices.Clone(b)
				keep(w)
			}
		})
	})
	if err == nil && len(found) == 1 {
		return found[0], nil
	}
	return c.link(ctx, index, filterSkipStats, by...) // as of a function that says nothing of its virtual ones
}

func (c *conn) link(ctx context.Context, index int, filter uint32, by ...nl.NetlinkRequestData) (ifLink, error) {
	parts := append([]nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, index, 0, 0), extMask(filter)}, by...)
	b, err := c.get(ctx, unix.RTM_GETLINK, unix.RTM_NEWLINK, parts...)
	if err != nil {
		return ifLink{}, err
	}
	w, err := decodeLink(b)
	w.raw = b
	return w, err
}

// links lists the links, or those that match a filter. Of a sandbox that has more than
// the bound, it lists the first ones and all devices, with reconcile.ErrPartial.
func (c *conn) links(ctx context.Context, filter ...nl.NetlinkRequestData) ([]ifLink, error) {
	q := query{typ: unix.RTM_GETLINK, reply: unix.RTM_NEWLINK, what: "links", most: c.bounds.Links, read: c.bounds.Links}
	q.parts = append([]nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, 0, 0, 0), extMask(filterSkipStats)}, filter...)
	all, err := dump(ctx, c, q, decodeLinks)
	if !errors.Is(err, reconcile.ErrPartial) {
		return all, err
	}
	q.read = 0
	devices, failed := dump(ctx, c, q, func(b []byte, keep func(ifLink)) error {
		return decodeLinks(b, func(w ifLink) {
			if w.hardware() && !slices.ContainsFunc(all, func(have ifLink) bool { return have.link.Index == w.link.Index }) {
				keep(w)
			}
		})
	})
	if failed != nil && !errors.Is(failed, reconcile.ErrPartial) {
		return nil, failed
	}
	return append(all, devices...), err
}

func decodeLinks(b []byte, keep func(ifLink)) error {
	w, err := decodeLink(b)
	if err == nil {
		keep(w)
	}
	return err
}
