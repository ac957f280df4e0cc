package kernel

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// linux/if_bridge.h, the VLAN database (since 5.6), which can be queried for one port,
// while the older form (IFLA_AF_SPEC of a bridge dump) always returns all.
const (
	sizeofBrVlanMsg        = 8
	bridgeVlandbEntry      = 1
	bridgeVlandbEntryInfo  = 1
	bridgeVlandbEntryRange = 2
	bridgeVLANBrentry      = 1 << 5
)

// decodeBridgeVLANs reads the payload of an RTM_NEWVLAN message of the database: the
// link's index and its VLANs.
func decodeBridgeVLANs(b []byte) (int, []netstate.BridgeVLAN) {
	if len(b) < sizeofBrVlanMsg {
		return 0, nil
	}
	var out []netstate.BridgeVLAN
	for typ, entry := range attributes(b[sizeofBrVlanMsg:]) {
		if typ != bridgeVlandbEntry {
			continue
		}
		info := attribute(entry, bridgeVlandbEntryInfo)
		flags, first, last := u16(info), u16(info[min(2, len(info)):]), u16(attribute(entry, bridgeVlandbEntryRange))
		for vid := int(first); first != 0 && vid <= max(int(first), int(last)); vid++ {
			out = append(out, netstate.BridgeVLAN{
				VID:      uint16(vid),
				PVID:     new(flags&nl.BRIDGE_VLAN_INFO_PVID != 0),
				Untagged: new(flags&nl.BRIDGE_VLAN_INFO_UNTAGGED != 0),
			})
		}
	}
	return int(u32(b[4:])), out
}

// bridgeVLANs reads the VLANs of one link, or with index 0 of all links, by index. A
// link that is no port of a bridge has none.
func (c *conn) bridgeVLANs(ctx context.Context, index int) (map[int][]netstate.BridgeVLAN, error) {
	header := make(body, sizeofBrVlanMsg)
	header[0] = unix.AF_BRIDGE
	copy(header[4:], nl.Uint32Attr(uint32(index)))
	type entry struct {
		index int
		netstate.BridgeVLAN
	}
	q := query{
		typ: unix.RTM_GETVLAN, reply: unix.RTM_NEWVLAN, what: "VLANs of bridges", most: c.bounds.VLANs, read: c.bounds.VLANs,
		parts: []nl.NetlinkRequestData{header},
	}
	all, err := dump(ctx, c, q, func(b []byte, keep func(entry)) error {
		index, vlans := decodeBridgeVLANs(b)
		for _, v := range vlans {
			keep(entry{index, v})
		}
		return nil
	})
	if isAny(err, unix.EINVAL, unix.EOPNOTSUPP, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[int][]netstate.BridgeVLAN{}
	for _, e := range all {
		out[e.index] = append(out[e.index], e.BridgeVLAN)
	}
	return out, nil
}

// bridgeVLANs puts those of the sandbox's bridges and ports into the snapshot.
func (o *observer) bridgeVLANs(ctx context.Context) error {
	all, err := o.inside.bridgeVLANs(ctx, 0)
	if err != nil {
		return err
	}
	for index, vlans := range all {
		for _, v := range vlans {
			if v.Link = o.names[index]; v.Link != "" {
				o.snap.Put(v)
			}
		}
	}
	return nil
}

func (o *observer) queryBridgeVLAN(ctx context.Context, queried netstate.BridgeVLAN) error {
	if !netstate.OnHost(queried.Link) {
		return nil
	}
	o.snap.PutAbsent(queried.Key())
	have, ok, err := o.readBridgeVLAN(ctx, queried)
	if err != nil || !ok {
		return err
	}
	o.snap.Put(have)
	return nil
}

func (s *Sandbox) readBridgeVLAN(ctx context.Context, queried netstate.BridgeVLAN) (netstate.BridgeVLAN, bool, error) {
	c, index, err := s.existingLink(ctx, queried.Link)
	if c == nil || err != nil {
		return queried, false, err
	}
	all, err := c.bridgeVLANs(ctx, index)
	if err != nil {
		return queried, false, err
	}
	for _, v := range all[index] {
		if v.VID == queried.VID {
			v.Link = queried.Link
			return v, true, nil
		}
	}
	return queried, false, nil
}

// applyBridgeVLAN adds, changes or deletes a VLAN. A change is an addition with both
// flags, so the one that does not change is read first.
func (s *Sandbox) applyBridgeVLAN(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.BridgeVLAN](c)
	if c.Action() == netstate.Delete {
		return unlessGone(s.sendBridgeVLAN(ctx, unix.RTM_DELLINK, before), unix.ENOENT, unix.ENODEV)
	}
	if c.Action() == netstate.Update {
		have, ok, err := s.readBridgeVLAN(ctx, after)
		if err != nil {
			return err
		}
		if ok {
			after = netstate.Merge(have, after)
		}
	}
	return s.sendBridgeVLAN(ctx, unix.RTM_SETLINK, after)
}

func (s *Sandbox) sendBridgeVLAN(ctx context.Context, typ int, v netstate.BridgeVLAN) error {
	c, base, err := s.at(v.Link)
	if err != nil {
		return err
	}
	w, err := c.linkByName(ctx, base)
	if err != nil {
		if errors.Is(err, unix.ENODEV) {
			return noLink(v.Link)
		}
		return err
	}
	return c.write(ctx, typ, 0, ifInfo(unix.AF_BRIDGE, w.link.Index, 0, 0),
		encodeBridgeVLAN(v, w.link.LinkKind == "bridge" && w.master == 0))
}

// encodeBridgeVLAN writes IFLA_AF_SPEC. On the bridge itself the entry is the bridge's
// own (BRENTRY) and addressed to it (SELF); without these flags the VLAN would only be
// defined for the ports.
func encodeBridgeVLAN(v netstate.BridgeVLAN, self bool) *nl.RtAttr {
	var flags uint16
	if deref(v.PVID) {
		flags |= nl.BRIDGE_VLAN_INFO_PVID
	}
	if deref(v.Untagged) {
		flags |= nl.BRIDGE_VLAN_INFO_UNTAGGED
	}
	spec := attr(unix.IFLA_AF_SPEC, nil)
	if self {
		flags |= bridgeVLANBrentry
		spec.AddRtAttr(nl.IFLA_BRIDGE_FLAGS, nl.Uint16Attr(nl.BRIDGE_FLAGS_SELF))
	}
	spec.AddRtAttr(nl.IFLA_BRIDGE_VLAN_INFO, append(nl.Uint16Attr(flags), nl.Uint16Attr(v.VID)...))
	return spec
}
