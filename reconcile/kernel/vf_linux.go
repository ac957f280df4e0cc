package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/ops/netstate"
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
		}
	}
	vf.Index = index
	return index, vf
}

// vfProtocol reads the first struct ifla_vf_vlan_info of a list: vf, vlan, qos,
// and the protocol in network order.
func vfProtocol(b []byte) *string {
	for typ, v := range attributes(b) {
		if typ == nl.IFLA_VF_VLAN_INFO && len(v) >= 14 {
			return vlanProtocols.word(uint32(be16(v[12:])))
		}
	}
	return nil
}

// readVF reads what the physical function holds for a virtual one, with the
// physical function's place; nil when the device is no virtual function, or its
// physical function has no interface that could be asked.
func (s *Sandbox) readVF(ctx context.Context, id string) (*place, netstate.VF, error) {
	pf := s.host.sysfs.physicalFunction(id)
	if pf == "" {
		return nil, netstate.VF{}, nil
	}
	index, ok := s.host.sysfs.virtualIndex(pf, id)
	if !ok {
		return nil, netstate.VF{}, nil
	}
	p, err := s.locate(ctx, pf, false)
	if p == nil || err != nil {
		return nil, netstate.VF{}, err
	}
	w, err := p.c.linkWithVFs(ctx, p.w.link.Name)
	if err != nil {
		return nil, netstate.VF{}, err
	}
	vf, ok := w.vfs[index]
	if !ok {
		return nil, netstate.VF{}, nil
	}
	vf.ID, vf.PF = id, p.name()
	return &place{p.c, w}, vf, nil
}

func (o *observer) askVF(ctx context.Context, id string) error {
	p, vf, err := o.readVF(ctx, id)
	switch {
	case err != nil:
		return err
	case p == nil:
		o.snap.PutAbsent(netstate.VFKey(id))
	default:
		o.snap.Put(vf)
	}
	return nil
}

// applyVF sets what differs, in one message. The kernel hands the settings to
// the driver one after the other and stops at the first it refuses
// (rtnetlink.c, do_setvfinfo); reading them again tells which that was, and what
// has to be taken back.
func (s *Sandbox) applyVF(ctx context.Context, c netstate.Change) error {
	_, after := typed[netstate.VF](c)
	if c.After == nil {
		return nil // the settings go with the virtual function
	}
	p, have, err := s.readVF(ctx, after.ID)
	if err != nil {
		return err
	}
	if p == nil {
		return fault.New(fault.Gone, errors.New("no physical function holds it"))
	}
	err = s.setVF(ctx, p, have, after)
	if err == nil {
		return nil
	}
	_, now, readErr := s.readVF(ctx, after.ID)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	err = explainVF(netstate.Diff(after, now), err)
	return notPutBack(err, s.setVF(ctx, p, now, netstate.Merge(now, have)))
}

// setVF writes the fields of want that have does not hold.
func (s *Sandbox) setVF(ctx context.Context, p *place, have, want netstate.VF) error {
	change, differs := netstate.NewUpdate("", have, want)
	if !differs {
		return nil
	}
	info, err := encodeVF(have, change.After.(netstate.VF))
	if err != nil {
		return err
	}
	list := attr(unix.IFLA_VFINFO_LIST, nil)
	list.AddChild(info)
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

// explainVF names the settings that were not made. A driver without a setting
// says so in different ways: igb has EOPNOTSUPP for the link state,
// EPROTONOSUPPORT for 802.1ad and EINVAL for a minimum rate.
func explainVF(left []netstate.FieldDiff, err error) error {
	var paths []string
	for _, d := range left {
		paths = append(paths, fmt.Sprintf("%s %s", d.Path, netstate.FormatValue(d.After)))
	}
	what := strings.Join(paths, ", ")
	if len(left) > 1 {
		what = "one of " + what
	}
	switch {
	case len(left) == 0:
		return err
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT),
		errors.Is(err, unix.EINVAL) && left[0].Path == "minTxRate" && left[0].After != uint32(0):
		return because(fault.Unsupported, err, "%s: the driver of the physical function does not have it", what)
	case errors.Is(err, unix.EINVAL) && strings.Contains(what, "TxRate"):
		return because(fault.NotReady, err, "%s: refused, as for a rate above the link's speed or without a link", what)
	}
	return because(kindOf(err), err, "%s", what)
}
