package kernel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

var vfLinkStates = words{0: "auto", 1: "enable", 2: "disable"}

// decodeVFs reads IFLA_VFINFO_LIST, by index. A setting the driver does not know
// is -1 there and stays unset.
func decodeVFs(b []byte) map[int]netstate.VF {
	out := map[int]netstate.VF{}
	for typ, v := range attributes(b) {
		if typ == nl.IFLA_VF_INFO {
			index, vf := decodeVF(v)
			out[index] = vf
		}
	}
	return out
}

func decodeVF(b []byte) (int, netstate.VF) {
	const unknown = ^uint32(0)
	index, vf := -1, netstate.VF{}
	for typ, v := range attributes(b) {
		if len(v) < 8 {
			continue
		}
		setting := u32(v[4:])
		switch typ {
		case nl.IFLA_VF_MAC:
			if len(v) >= 10 {
				index, vf.MAC = int(u32(v)), new(mac(v[4:10]))
			}
		case nl.IFLA_VF_VLAN:
			vf.VLAN = new(uint16(setting))
			vf.QoS = new(uint8(u32(v[8:])))
		case nl.IFLA_VF_VLAN_LIST:
			vf.Protocol = vfProtocol(v)
		case nl.IFLA_VF_RATE:
			vf.MinTxRateMbps, vf.MaxTxRateMbps = new(setting), new(u32(v[8:]))
		case nl.IFLA_VF_SPOOFCHK:
			if setting != unknown {
				vf.SpoofCheck = new(setting != 0)
			}
		case nl.IFLA_VF_TRUST:
			if setting != unknown {
				vf.Trust = new(setting != 0)
			}
		case nl.IFLA_VF_LINK_STATE:
			vf.LinkState = vfLinkStates.word(setting)
		case nl.IFLA_VF_IB_NODE_GUID:
			vf.NodeGUID = decodeGUID(v)
		case nl.IFLA_VF_IB_PORT_GUID:
			vf.PortGUID = decodeGUID(v)
		}
	}
	vf.Index = index
	return index, vf
}

// vfProtocol reads the first struct ifla_vf_vlan_info of a list: vf, vlan, qos,
// and the protocol in network order.
func vfProtocol(b []byte) *string {
	v := attribute(b, nl.IFLA_VF_VLAN_INFO)
	return vlanProtocols.word(uint32(be16(v[min(12, len(v)):])))
}

// readVF reads what the physical function holds for a virtual one, with the physical
// function's place; nil if the device is no virtual function, or its physical function
// has no interface to query.
func (s *Sandbox) readVF(ctx context.Context, id string) (*place, netstate.VF, error) {
	pf := s.vfAddressOf(id).pf
	if pf == "" {
		return nil, netstate.VF{}, nil
	}
	p, err := s.readPF(ctx, pf)
	if p == nil || err != nil {
		return nil, netstate.VF{}, err
	}
	vf, ok := s.vfOf(p, id)
	if !ok {
		return nil, netstate.VF{}, nil
	}
	return p, vf, nil
}

// readPF reads a physical function with the settings of all its virtual ones. Usually
// it is on the host, and one query is enough; it may be in the sandbox.
func (s *Sandbox) readPF(ctx context.Context, id string) (*place, error) {
	if index, ok := known(s.host, s.host.indexes, id); ok {
		w, err := s.outside.linkWithVFs(ctx, index, "")
		if err == nil && s.pciFunction(w) == id {
			return &place{s.outside, w}, nil
		}
	}
	for _, name := range s.host.sysfs.netdevs(id) {
		w, err := s.outside.linkWithVFs(ctx, 0, name)
		if err == nil && s.pciFunction(w) == id {
			note(s.host, s.host.indexes, id, w.link.Index)
			return &place{s.outside, w}, nil
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return nil, err
		}
	}
	return s.readPFInside(ctx, id)
}

// readPFInside reads a physical function in the sandbox, if it was observed there.
func (s *Sandbox) readPFInside(ctx context.Context, id string) (*place, error) {
	if s.inside == nil {
		return nil, nil
	}
	var links []ifLink
	s.withCache(func(g *observationCache) { links = g.links })
	p, err := s.among(s.inside, links, netstate.Device{ID: id})
	if p == nil || err != nil {
		return nil, err
	}
	w, err := p.c.linkWithVFs(ctx, p.w.link.Index, "")
	return &place{p.c, w}, err
}

// vfAddressOf returns the physical function of a device. Finding it takes sysfs a read of
// the whole function; confirming it takes two symbolic links, and is done once in a
// view.
func (s *Sandbox) vfAddressOf(id string) (h vfAddress) {
	seen := false
	s.withCache(func(g *observationCache) { h, seen = g.vfAddresses[id] })
	if seen {
		return h
	}
	h, ok := known(s.host, s.host.vfAddresses, id)
	if !ok || !s.host.sysfs.isVirtual(id, h.pf, h.index) {
		if h.pf = s.host.sysfs.physicalFunction(id); h.pf == "" {
			return h // perhaps it does not exist yet
		}
		if h.index, ok = s.host.sysfs.virtualIndex(h.pf, id); !ok {
			return vfAddress{}
		}
		note(s.host, s.host.vfAddresses, id, h)
	}
	s.withCache(func(g *observationCache) { g.vfAddresses[id] = h })
	return h
}

// vfOf finds a virtual function among those that its physical function has listed.
func (s *Sandbox) vfOf(p *place, id string) (netstate.VF, bool) {
	h := s.vfAddressOf(id)
	if h.pf == "" {
		return netstate.VF{}, false
	}
	vf, ok := p.w.vfs[h.index]
	vf.ID, vf.PF, vf.LACP, vf.NoLink = id, p.name(), s.host.lacp.port(h.pf, p.w), !p.w.link.Carrier
	return vf, ok
}

// queryVF reads the settings of a virtual function. Those of one physical function are
// queried once in an observation.
func (o *observer) queryVF(ctx context.Context, queried netstate.VF) error {
	id := queried.ID
	o.snap.PutAbsent(queried.Key())
	pf := o.vfAddressOf(id).pf
	if pf == "" {
		return nil
	}
	p, listed := o.functions[pf]
	if !listed {
		var err error
		if p, err = o.readPF(ctx, pf); err != nil {
			return err
		}
		o.functions[pf] = p
	}
	if p == nil {
		return nil
	}
	if vf, ok := o.vfOf(p, id); ok {
		o.snap.Put(vf)
		o.withCache(func(g *observationCache) { g.vfs[id] = functionOf{*p, vf} })
	}
	return nil
}

// applyVF sets what differs, in one message. The kernel passes the settings to the
// driver one after the other and stops at the first one that is refused (rtnetlink.c,
// do_setvfinfo); reading them again shows which that was, and what has to be undone.
func (s *Sandbox) applyVF(ctx context.Context, c netstate.Change) error {
	_, after := typed[netstate.VF](c)
	if c.After == nil {
		return nil // the settings end with the virtual function
	}
	var seen functionOf
	known := false
	s.withCache(func(g *observationCache) {
		seen, known = g.vfs[after.ID]
		delete(g.vfs, after.ID) // outdated by the change
		if after.MAC != nil {
			delete(g.devices, after.ID) // a driver may hand it on
		}
	})
	if known && s.setVF(ctx, &seen.place, seen.vf, after) == nil {
		return nil
	}
	p, have, err := s.readVF(ctx, after.ID)
	if err != nil {
		return err
	}
	if p == nil {
		return fault.New(fault.Gone, errors.New("no physical function holds it"))
	}
	if known { // a refused change is undone with the values that were observed
		have = seen.vf
	}
	err = s.setVF(ctx, p, have, after)
	if err == nil {
		return nil
	}
	_, now, readErr := s.readVF(ctx, after.ID)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	err = explainVF(netstate.Diff(after, now), p.w.link.Carrier, err)
	undo := s.setVF(ctx, p, now, netstate.Merge(now, have))
	if r, ok := err.(*netstate.Refused); ok && undo != nil { //nolint:errorlint // as explainVF returns it
		err = r.Err // something of the change is left
	}
	return withUndoError(err, undo)
}

// setVF writes the fields of want that have does not hold.
func (s *Sandbox) setVF(ctx context.Context, p *place, have, want netstate.VF) error {
	change, differs := netstate.NewUpdate("", have, want)
	if !differs {
		return nil
	}
	list, err := encodeVFs(have, change.After.(netstate.VF))
	if err != nil {
		return err
	}
	return p.c.write(ctx, unix.RTM_SETLINK, 0, ifInfo(unix.AF_UNSPEC, p.w.link.Index, 0, 0), list)
}

// encodeVF writes IFLA_VF_INFO with what is set in change. Attributes that hold
// two or three settings are completed from have.
func encodeVF(have, change netstate.VF) (*nl.RtAttr, error) {
	all := netstate.Merge(have, change)
	info := attr(nl.IFLA_VF_INFO, nil)
	add := func(typ int, numbers ...uint32) {
		b := nl.Uint32Attr(uint32(have.Index))
		for _, n := range numbers {
			b = append(b, nl.Uint32Attr(n)...)
		}
		info.AddRtAttr(typ, b)
	}
	if change.MAC != nil {
		hw, err := net.ParseMAC(*change.MAC)
		if err != nil {
			return nil, invalid("mac: %q is not a MAC address", *change.MAC)
		}
		b := make([]byte, nl.SizeofVfMac)
		copy(b, nl.Uint32Attr(uint32(have.Index)))
		copy(b[4:], hw)
		info.AddRtAttr(nl.IFLA_VF_MAC, b)
	}
	if change.VLAN != nil || change.QoS != nil || change.Protocol != nil {
		if err := encodeVFVLAN(info, all); err != nil {
			return nil, err
		}
	}
	if change.MinTxRateMbps != nil || change.MaxTxRateMbps != nil {
		add(nl.IFLA_VF_RATE, deref(all.MinTxRateMbps), deref(all.MaxTxRateMbps))
	}
	if change.SpoofCheck != nil {
		add(nl.IFLA_VF_SPOOFCHK, uint32(bit(*change.SpoofCheck)))
	}
	if change.LinkState != nil {
		n, ok := vfLinkStates.number(*change.LinkState)
		if !ok {
			return nil, oneOf("linkState", *change.LinkState, vfLinkStates)
		}
		add(nl.IFLA_VF_LINK_STATE, n)
	}
	if change.Trust != nil {
		add(nl.IFLA_VF_TRUST, uint32(bit(*change.Trust)))
	}
	return info, nil
}

// encodeVFs writes IFLA_VFINFO_LIST with what is set in change. The kernel sets one GUID of an IFLA_VF_INFO, and leaves out what follows it
// (do_setvfinfo in net/core/rtnetlink.c returns), so each has its own.
func encodeVFs(have, change netstate.VF) (*nl.RtAttr, error) {
	list := attr(unix.IFLA_VFINFO_LIST, nil)
	info, err := encodeVF(have, change)
	if err != nil {
		return nil, err
	}
	rest := change
	if rest.NodeGUID, rest.PortGUID = nil, nil; len(netstate.Fields(rest)) > 0 {
		list.AddChild(info)
	}
	for _, guid := range []struct {
		typ   int
		value *string
	}{{nl.IFLA_VF_IB_NODE_GUID, change.NodeGUID}, {nl.IFLA_VF_IB_PORT_GUID, change.PortGUID}} {
		if guid.value == nil {
			continue
		}
		b, err := encodeGUID(have.Index, *guid.value)
		if err != nil {
			return nil, err
		}
		list.AddRtAttr(nl.IFLA_VF_INFO, nil).AddRtAttr(guid.typ, b)
	}
	return list, nil
}

// noGUID stands for no GUID in firmware, since it refuses 0. Before the first one is set a driver reports 0 (mlx5_ib_get_vf_guid in
// drivers/infiniband/hw/mlx5/ib_virt.c).
const noGUID = ^uint64(0)

// decodeGUID reads struct ifla_vf_guid: the number of the function, and after four bytes the GUID as a number
// (include/uapi/linux/if_link.h). It is "" for none.
func decodeGUID(b []byte) *string {
	if len(b) < nl.SizeofVfGUID {
		return nil
	}
	return new(guidText(binary.NativeEndian.Uint64(b[8:])))
}

func guidText(guid uint64) string {
	if guid == 0 || guid == noGUID {
		return ""
	}
	return net.HardwareAddr(binary.BigEndian.AppendUint64(nil, guid)).String()
}

// portGUID is the GUID in the hardware address of an interface of InfiniBand (RFC 4391, section 9.1.1).
func portGUID(l netstate.Link) string {
	hw, err := net.ParseMAC(deref(l.MAC))
	if err != nil || len(hw) != 20 {
		return ""
	}
	return guidText(binary.BigEndian.Uint64(hw[12:]))
}

func encodeGUID(vf int, text string) ([]byte, error) {
	guid := noGUID
	if text != "" {
		hw, err := net.ParseMAC(text)
		if err != nil || len(hw) != 8 {
			return nil, invalid("%q is not a GUID", text)
		}
		guid = binary.BigEndian.Uint64(hw)
	}
	b := make([]byte, nl.SizeofVfGUID)
	binary.NativeEndian.PutUint32(b, uint32(vf))
	binary.NativeEndian.PutUint64(b[8:], guid)
	return b, nil
}

// encodeVFVLAN writes the VLAN in the form every driver knows, and in the one
// that has a protocol only where that is another than 802.1q.
func encodeVFVLAN(info *nl.RtAttr, vf netstate.VF) error {
	b := nl.Uint32Attr(uint32(vf.Index))
	b = append(b, nl.Uint32Attr(uint32(deref(vf.VLAN)))...)
	b = append(b, nl.Uint32Attr(uint32(deref(vf.QoS)))...)
	if vf.Protocol == nil || *vf.Protocol == "802.1q" {
		info.AddRtAttr(nl.IFLA_VF_VLAN, b)
		return nil
	}
	proto, ok := vlanProtocols.number(*vf.Protocol)
	if !ok {
		return oneOf("protocol", *vf.Protocol, vlanProtocols)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(proto))
	info.AddRtAttr(nl.IFLA_VF_VLAN_LIST, nil).AddRtAttr(nl.IFLA_VF_VLAN_INFO, append(b, 0, 0))
	return nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// vfOrder is the order in which do_setvfinfo applies the settings; those in one
// attribute are together.
var vfOrder = [][]string{
	{"mac"}, {"vlan", "qos", "protocol"}, {"minTxRate", "maxTxRate"}, {"spoofchk"}, {"linkState"}, {"trust"}, {"nodeGUID"}, {"portGUID"},
}

// firstRefused returns the first of the settings that were not applied, in the kernel's
// order.
func firstRefused(left []netstate.FieldDiff) []netstate.FieldDiff {
	for _, group := range vfOrder {
		var out []netstate.FieldDiff
		for _, d := range left {
			if slices.Contains(group, d.Path) {
				out = append(out, d)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// explainVF names the setting that was refused. A driver without a setting says
// so in different ways: igb has EOPNOTSUPP for the link state, EPROTONOSUPPORT
// for 802.1ad and EINVAL for a minimum rate.
func explainVF(left []netstate.FieldDiff, carrier bool, err error) error {
	refused := firstRefused(left)
	if len(refused) == 0 {
		return err
	}
	var texts, paths []string
	wantsMinimum := false
	for _, d := range refused {
		paths = append(paths, d.Path)
		texts = append(texts, d.Path+" "+netstate.FormatValue(d.After))
		wantsMinimum = wantsMinimum || d.Path == "minTxRate" && d.After != uint32(0)
	}
	what := strings.Join(texts, ", ")
	isRate := strings.HasSuffix(refused[0].Path, "TxRate")
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL) && wantsMinimum:
		return &netstate.Refused{Paths: paths, Err: because(fault.Unsupported, err,
			"%s: the driver of the physical function does not have it", what)}
	case errors.Is(err, unix.EINVAL) && isRate && !carrier:
		return because(fault.NotReady, err, "%s: the physical function has no link yet, and so no speed to compare with", what)
	case errors.Is(err, unix.EINVAL) && isRate:
		return &netstate.Refused{Paths: paths, Err: because(fault.Invalid, err, "%s: refused, as for a rate above the link's speed", what)}
	}
	return because(kindOf(err), err, "%s", what)
}

// adoptMAC makes a virtual function use the MAC that its physical function holds for
// it. igb does not let an untrusted one set any address then, not even that one; but
// its driver reads it when it resets, which is when the device is brought down
// (igbvf/netdev.c, igbvf_down). Other fields of want are set with it.
func (s *Sandbox) adoptMAC(ctx context.Context, want netstate.Link, refused error) error {
	have, err := s.readLink(ctx, want.Name)
	if err != nil || have.DeviceID == "" {
		return refused
	}
	_, vf, err := s.readVF(ctx, have.DeviceID)
	if err != nil || vf.MAC == nil || *vf.MAC != *want.MAC {
		return refused
	}
	if !*have.Up {
		if err := s.setLink(ctx, netstate.Link{Name: want.Name, Up: new(true)}); err != nil {
			return errors.Join(refused, err)
		}
	}
	if err := s.setLink(ctx, netstate.Link{Name: want.Name, Up: new(false)}); err != nil {
		return errors.Join(refused, err)
	}
	now, err := s.readLink(ctx, want.Name)
	if err != nil || differs(want.MAC, now.MAC) {
		return errors.Join(refused, err)
	}
	want.MAC = nil
	want.Up = cmp.Or(want.Up, have.Up)
	return s.setLink(ctx, want)
}

// refusedMAC explains EADDRNOTAVAIL: a virtual function needs the physical one's
// permission for its address.
func refusedMAC(mac string, err error) error {
	return because(fault.NotReady, err,
		"mac %s: the physical function holds another MAC for this virtual function and does not trust it, "+
			"or was reset and does not answer it yet", mac)
}

// FunctionMACs lists the addresses that the virtual functions of a link of the host have, also of those whose interfaces are in
// other namespaces or that have none. A link that is gone has none.
func (h *Host) FunctionMACs(ctx context.Context, link string) ([]string, error) {
	w, err := h.WithoutSandbox().outside.linkWithVFs(ctx, 0, link)
	if errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the functions of %q: %w", link, err)
	}
	var out []string
	for _, vf := range w.vfs {
		if vf.MAC != nil {
			out = append(out, *vf.MAC)
		}
	}
	slices.Sort(out)
	return out, nil
}
