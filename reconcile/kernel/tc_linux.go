package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// What package nl lacks of linux/rtnetlink.h, pkt_sched.h, pkt_cls.h and tc_act/*.h.
const (
	// clsactParent is where a clsact or an ingress qdisc is, egressHook its hook for what a
	// link sends.
	clsactParent = 0xfffffff1
	clsactHandle = 0xffff0000
	egressHook   = 0xfffffff3

	actOK       = 0
	actShot     = 2
	actPipe     = 3
	actContinue = 1<<32 - 1 // TC_ACT_UNSPEC: the filters of the next preference
	actGoto     = 2 << 28   // TC_ACT_GOTO_CHAIN, with the chain in the bits below

	flowerFragment = 1 // TCA_FLOWER_KEY_FLAGS_IS_FRAGMENT

	flowerSkipHW = 1

	sizeofTcGen     = 20 // index, capab, action, refcnt, bindcnt
	csumIPv4Header  = 1
	policeRate64    = 8
	policePeak64    = 9
	policePktRate64 = 10
	sizeofRateTable = 1024
	policeCellLog   = 3 // must not be 0; a policer computes without the table since 3.8
	linkLayerEther  = 1
	policerBits     = 12

	// policeMTU is the largest packet that a policer passes, in bytes. It is set, as without it
	// packets of more than 2 KiB are dropped, which segmentation offload sends.
	policeMTU = 1 << 30
)

var (
	filterFamilies = words{unix.ETH_P_IP: netstate.IPv4, unix.ETH_P_IPV6: netstate.IPv6}
	ipProtocols    = words{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}
	// portAttributes are the attributes of the destination port and of its mask.
	portAttributes = map[string][2]int{
		"tcp":  {nl.TCA_FLOWER_KEY_TCP_DST, nl.TCA_FLOWER_KEY_TCP_DST_MASK},
		"udp":  {nl.TCA_FLOWER_KEY_UDP_DST, nl.TCA_FLOWER_KEY_UDP_DST_MASK},
		"sctp": {nl.TCA_FLOWER_KEY_SCTP_DST, nl.TCA_FLOWER_KEY_SCTP_DST_MASK},
	}
)

func tcMsg(index int, handle, parent, info uint32) *nl.TcMsg {
	return &nl.TcMsg{Ifindex: int32(index), Handle: handle, Parent: parent, Info: info}
}

func network16(n uint16) []byte { return binary.BigEndian.AppendUint16(nil, n) }

// filterMsg begins a request about one filter: the header, whose info is the preference and
// the protocol, in network order, and the chain.
func filterMsg(f netstate.Filter, index int) []nl.NetlinkRequestData {
	family, _ := filterFamilies.number(deref(f.Family))
	protocol := binary.NativeEndian.Uint16(network16(uint16(family)))
	out := []nl.NetlinkRequestData{tcMsg(index, f.Handle, egressHook, uint32(f.Pref)<<16|uint32(protocol))}
	if f.Chain != 0 {
		out = append(out, attr(nl.TCA_CHAIN, nl.Uint32Attr(f.Chain)))
	}
	return out
}

// policerIndex is the index of a policer in the network namespace: indices are shared by
// all links in it, and the numbers in filters are the link's own.
func policerIndex(link int, number uint16) uint32 {
	return uint32(link)<<policerBits | uint32(number)
}

// encodeFilter writes a filter in full.
func encodeFilter(f netstate.Filter, index int) ([]nl.NetlinkRequestData, error) {
	family, ok := filterFamilies.number(deref(f.Family))
	if !ok || f.Pref == 0 || f.Handle == 0 {
		return nil, invalid("a filter needs a family, a preference and a handle")
	}
	options := attr(nl.TCA_OPTIONS, nil)
	actions := options.AddRtAttr(nl.TCA_FLOWER_ACT, nil)
	if err := encodeActions(actions, f, index); err != nil {
		return nil, err
	}
	options.AddRtAttr(nl.TCA_FLOWER_FLAGS, nl.Uint32Attr(flowerSkipHW))
	options.AddRtAttr(nl.TCA_FLOWER_KEY_ETH_TYPE, network16(uint16(family)))
	if to := deref(f.To); to != "" {
		p, err := netip.ParsePrefix(to)
		if err != nil || p.Addr().Is4() != (family == unix.ETH_P_IP) || p.Bits() == 0 || p != p.Masked() {
			return nil, invalid("to: %q is not an %s network", to, *f.Family)
		}
		types := [2]int{nl.TCA_FLOWER_KEY_IPV4_DST, nl.TCA_FLOWER_KEY_IPV4_DST_MASK}
		if family == unix.ETH_P_IPV6 {
			types = [2]int{nl.TCA_FLOWER_KEY_IPV6_DST, nl.TCA_FLOWER_KEY_IPV6_DST_MASK}
		}
		options.AddRtAttr(types[0], p.Addr().AsSlice())
		options.AddRtAttr(types[1], net.CIDRMask(p.Bits(), p.Addr().BitLen()))
	}
	if deref(f.Fragment) {
		flags := binary.BigEndian.AppendUint32(nil, flowerFragment)
		options.AddRtAttr(nl.TCA_FLOWER_KEY_FLAGS, flags)
		options.AddRtAttr(nl.TCA_FLOWER_KEY_FLAGS_MASK, flags)
	}
	protocol := deref(f.Protocol)
	if protocol != "" {
		n, ok := ipProtocols.number(protocol)
		if !ok {
			return nil, invalid("protocol: %q is not tcp, udp or sctp", protocol)
		}
		options.AddRtAttr(nl.TCA_FLOWER_KEY_IP_PROTO, nl.Uint8Attr(uint8(n)))
	}
	if port := deref(f.Port); port != 0 {
		types, ok := portAttributes[protocol]
		if !ok {
			return nil, invalid("port: %d needs a protocol", port)
		}
		options.AddRtAttr(types[0], network16(port))
		options.AddRtAttr(types[1], network16(0xffff))
	}
	return append(filterMsg(f, index), attr(nl.TCA_KIND, nl.ZeroTerminated("flower")), options), nil
}

// encodeActions writes the actions: mark, for IPv4 correct the checksum, limit; of fragments limit, and continue; or
// nothing but go to another chain.
func encodeActions(to *nl.RtAttr, f netstate.Filter, index int) error {
	if chain := deref(f.Goto); chain != 0 {
		if chain >= 1<<28 || chain == f.Chain {
			return invalid("goto: %d is not another chain", chain)
		}
		// A mark that changes no bit, for its verdict: so no further module is needed.
		encodePedit(actionOptions(to, 1, "pedit"), *f.Family == netstate.IPv4, nil, actGoto|chain)
		return nil
	}
	limited := deref(f.Policer) != 0
	if deref(f.Fragment) {
		if !limited {
			return invalid("a filter of fragments needs a limit")
		}
		if err := encodePolice(actionOptions(to, 1, "police"), f, index); err != nil {
			return err
		}
		// A mark that changes no bit, for its verdict: that of the policer is the same for all filters that share it.
		encodePedit(actionOptions(to, 2, "pedit"), *f.Family == netstate.IPv4, nil, actContinue)
		return nil
	}
	if f.DSCP == nil || *f.DSCP > 63 {
		return invalid("dscp: from 0 to 63 is needed")
	}
	n := 0
	add := func(kind string) *nl.RtAttr {
		n++
		return actionOptions(to, n, kind)
	}
	v4 := *f.Family == netstate.IPv4
	encodePedit(add("pedit"), v4, f.DSCP, verdict(!v4, limited))
	if v4 {
		parms := make([]byte, sizeofTcGen+4)
		binary.NativeEndian.PutUint32(parms[8:], verdict(true, limited))
		binary.NativeEndian.PutUint32(parms[sizeofTcGen:], csumIPv4Header)
		add("csum").AddRtAttr(nl.TCA_CSUM_PARMS, parms)
	}
	if limited {
		return encodePolice(add("police"), f, index)
	}
	return nil
}

// verdict is that of an action: the last one ends the filter, unless a policer follows.
func verdict(last, limited bool) uint32 {
	if last && !limited {
		return actOK
	}
	return actPipe
}

func actionOptions(to *nl.RtAttr, order int, kind string) *nl.RtAttr {
	a := to.AddRtAttr(order, nil)
	a.AddRtAttr(nl.TCA_ACT_KIND, nl.ZeroTerminated(kind))
	return a.AddRtAttr(nl.TCA_ACT_OPTIONS, nil)
}

// dscpBits returns what a mark sets in the first four bytes of a header, and what of them
// it keeps: the ECN bits among others (RFC 2474, RFC 3168), or all without a mark.
func dscpBits(v4 bool, dscp *uint8) (keep, set [4]byte) {
	switch {
	case dscp == nil:
		return [4]byte{0xff, 0xff, 0xff, 0xff}, [4]byte{}
	case v4:
		return [4]byte{0xff, 0x03, 0xff, 0xff}, [4]byte{1: *dscp << 2}
	}
	return [4]byte{0xf0, 0x3f, 0xff, 0xff}, [4]byte{*dscp >> 2, *dscp << 6}
}

func peditHeader(v4 bool) uint16 {
	if v4 {
		return nl.TCA_PEDIT_KEY_EX_HDR_TYPE_IP4
	}
	return nl.TCA_PEDIT_KEY_EX_HDR_TYPE_IP6
}

func encodePedit(to *nl.RtAttr, v4 bool, dscp *uint8, action uint32) {
	keep, set := dscpBits(v4, dscp)
	parms := make([]byte, nl.SizeOfPeditSel+nl.SizeOfPeditKey)
	binary.NativeEndian.PutUint32(parms[8:], action)
	parms[sizeofTcGen] = 1 // keys
	copy(parms[nl.SizeOfPeditSel:], keep[:])
	copy(parms[nl.SizeOfPeditSel+4:], set[:])
	to.AddRtAttr(nl.TCA_PEDIT_PARMS_EX, parms)
	key := to.AddRtAttr(nl.TCA_PEDIT_KEYS_EX|unix.NLA_F_NESTED, nil).AddRtAttr(nl.TCA_PEDIT_KEY_EX|unix.NLA_F_NESTED, nil)
	key.AddRtAttr(nl.TCA_PEDIT_KEY_EX_HTYPE, nl.Uint16Attr(peditHeader(v4)))
	key.AddRtAttr(nl.TCA_PEDIT_KEY_EX_CMD, nl.Uint16Attr(nl.TCA_PEDIT_KEY_EX_CMD_SET))
}

// encodePolice writes a policer. The kernel takes it only where none has the index; filters
// that come later share it.
func encodePolice(to *nl.RtAttr, f netstate.Filter, index int) error {
	number, rate, burst := deref(f.Policer), deref(f.Rate), deref(f.BurstNanos)
	switch {
	case number > netstate.MaxPolicers:
		return invalid("policer: %d is more than %d", number, netstate.MaxPolicers)
	case rate == 0:
		return invalid("rate: a policer needs one")
	case burst < netstate.BurstUnit || burst > netstate.MaxBurstNanos || burst%netstate.BurstUnit != 0:
		return invalid("burst: %d ns is not a multiple of %d up to %d", burst, netstate.BurstUnit, uint64(netstate.MaxBurstNanos))
	}
	parms := nl.TcPolice{
		Index: policerIndex(index, number), Action: actShot, Burst: uint32(burst / netstate.BurstUnit), Mtu: policeMTU,
		Rate: nl.TcRateSpec{CellLog: policeCellLog, Linklayer: linkLayerEther, Rate: uint32(min(rate, 1<<32-1))},
	}
	to.AddRtAttr(nl.TCA_POLICE_TBF, parms.Serialize())
	to.AddRtAttr(nl.TCA_POLICE_RATE, make([]byte, sizeofRateTable))
	// What follows says what becomes of a packet within the limit: nothing, and it passes, or the verdict for fragments.
	to.AddRtAttr(nl.TCA_POLICE_RESULT, nl.Uint32Attr(actPipe))
	if rate >= 1<<32 {
		to.AddRtAttr(policeRate64, nl.Uint64Attr(rate))
	}
	return nil
}

// decodeFilter reads the payload of an RTM_NEWTFILTER message, with the index of the link;
// false for what is not a filter on what a link sends. Of a filter that netstate cannot
// represent, the key alone is set; of actions that it cannot represent, nothing.
func decodeFilter(b []byte) (f netstate.Filter, index int, ok bool) {
	if len(b) < nl.SizeofTcMsg || u32(b[12:]) != egressHook || u32(b[8:]) == 0 {
		return f, 0, false
	}
	index = int(int32(u32(b[4:])))
	info := u32(b[16:])
	f.Pref, f.Handle = uint16(info>>16), u32(b[8:])
	family := filterFamilies.word(uint32(be16(binary.NativeEndian.AppendUint16(nil, uint16(info)))))
	kind := ""
	var options []byte
	for typ, v := range attributes(b[nl.SizeofTcMsg:]) {
		switch typ {
		case nl.TCA_KIND:
			kind = text(v)
		case nl.TCA_OPTIONS:
			options = v
		case nl.TCA_CHAIN:
			f.Chain = u32(v)
		}
	}
	if kind != "flower" || family == nil {
		return f, index, true
	}
	full := f
	full.Family = family
	if !decodeFlower(&full, options, index) {
		return f, index, true
	}
	return full, index, true
}

// decodeFlower reads the match and the actions; false for a match that netstate cannot
// represent.
func decodeFlower(f *netstate.Filter, b []byte, index int) bool {
	f.To, f.Protocol, f.Port, f.Fragment, f.Goto = new(""), new(""), new(uint16(0)), new(false), new(uint32(0))
	var address, mask, port, portMask, actions, flags, flagsMask []byte
	portType := uint16(0)
	for typ, v := range attributes(b) {
		switch typ {
		case nl.TCA_FLOWER_ACT:
			actions = v
		case nl.TCA_FLOWER_KEY_FLAGS:
			flags = v
		case nl.TCA_FLOWER_KEY_FLAGS_MASK:
			flagsMask = v
		case nl.TCA_FLOWER_KEY_ETH_TYPE:
			if n, _ := filterFamilies.number(*f.Family); be16(v) != uint16(n) {
				return false
			}
		case nl.TCA_FLOWER_KEY_IP_PROTO:
			if f.Protocol = ipProtocols.word(uint32(u8(v))); f.Protocol == nil {
				return false
			}
		case nl.TCA_FLOWER_KEY_IPV4_DST, nl.TCA_FLOWER_KEY_IPV6_DST:
			address = v
		case nl.TCA_FLOWER_KEY_IPV4_DST_MASK, nl.TCA_FLOWER_KEY_IPV6_DST_MASK:
			mask = v
		case nl.TCA_FLOWER_KEY_TCP_DST, nl.TCA_FLOWER_KEY_UDP_DST, nl.TCA_FLOWER_KEY_SCTP_DST:
			port, portType = v, typ
		case nl.TCA_FLOWER_KEY_TCP_DST_MASK, nl.TCA_FLOWER_KEY_UDP_DST_MASK, nl.TCA_FLOWER_KEY_SCTP_DST_MASK:
			portMask = v
		case nl.TCA_FLOWER_FLAGS, nl.TCA_FLOWER_IN_HW_COUNT:
		default:
			return false
		}
	}
	if address != nil {
		p, ok := maskedPrefix(address, mask)
		if !ok || p.Addr().Is4() != (*f.Family == netstate.IPv4) {
			return false
		}
		*f.To = p.String()
	}
	if port != nil {
		if int(portType) != portAttributes[*f.Protocol][0] || be16(portMask) != 0xffff {
			return false
		}
		*f.Port = be16(port)
	}
	if flags != nil || flagsMask != nil {
		if be32(flags) != flowerFragment || be32(flagsMask) != flowerFragment {
			return false
		}
		*f.Fragment = true
	}
	if actions != nil {
		decodeActions(f, actions, index)
	}
	return true
}

// maskedPrefix is the prefix of an address and a mask, false if the mask is none of a prefix.
func maskedPrefix(address, mask []byte) (netip.Prefix, bool) {
	a, ok := netip.AddrFromSlice(address)
	if !ok || len(mask) != len(address) {
		return netip.Prefix{}, false
	}
	bits, _ := net.IPMask(mask).Size() // 0 if it is none of a prefix
	p := netip.PrefixFrom(a, bits)
	return p, bits > 0 && p == p.Masked()
}

// action is an action as the kernel lists it.
type action struct {
	kind    string
	options map[uint16][]byte
}

// decodeActions reads the mark and the limit. Fields stay unset where the actions are not as
// encodeActions writes them: an update sets them.
func decodeActions(f *netstate.Filter, b []byte, index int) {
	var all []action
	for _, v := range attributes(b) {
		all = append(all, action{text(attribute(v, nl.TCA_ACT_KIND)), maps.Collect(attributes(attribute(v, nl.TCA_ACT_OPTIONS)))})
	}
	if len(all) == 1 && all[0].kind == "pedit" {
		parms := all[0].options[nl.TCA_PEDIT_PARMS_EX]
		if len(parms) >= nl.SizeOfPeditSel && u32(parms[8:])>>28 == actGoto>>28 &&
			isPedit(all[0].options, *f.Family == netstate.IPv4, nil, u32(parms[8:])) {
			f.Goto = new(u32(parms[8:]) &^ actGoto)
			return
		}
	}
	if *f.Fragment {
		if len(all) == 2 && all[0].kind == "police" && all[1].kind == "pedit" &&
			isPedit(all[1].options, *f.Family == netstate.IPv4, nil, actContinue) {
			decodePolice(f, all[0].options, index)
		}
		return
	}
	f.Policer, f.Rate, f.BurstNanos = new(uint16(0)), new(uint64(0)), new(uint64(0))
	if n := len(all); n > 0 && all[n-1].kind == "police" {
		decodePolice(f, all[n-1].options, index)
		all = all[:n-1]
	}
	v4, limited := *f.Family == netstate.IPv4, f.Policer == nil || *f.Policer != 0
	if v4 {
		n := len(all) - 1
		if n < 0 || all[n].kind != "csum" {
			return
		}
		parms := all[n].options[nl.TCA_CSUM_PARMS]
		if len(parms) < sizeofTcGen+4 || u32(parms[8:]) != verdict(true, limited) || u32(parms[sizeofTcGen:]) != csumIPv4Header {
			return
		}
		all = all[:n]
	}
	if len(all) == 1 && all[0].kind == "pedit" {
		f.DSCP = decodePedit(all[0].options, v4, verdict(!v4, limited))
	}
}

// decodePedit returns the DSCP that is set, nil for another change of the packet.
func decodePedit(options map[uint16][]byte, v4 bool, action uint32) *uint8 {
	parms := options[nl.TCA_PEDIT_PARMS_EX]
	if len(parms) != nl.SizeOfPeditSel+nl.SizeOfPeditKey {
		return nil
	}
	key := parms[nl.SizeOfPeditSel:]
	dscp := key[5] >> 2
	if !v4 {
		dscp = key[4]<<2 | key[5]>>6
	}
	dscp &= 63
	if !isPedit(options, v4, &dscp, action) {
		return nil // another field, or another place
	}
	return &dscp
}

// isPedit reports whether an action is as encodePedit writes it.
func isPedit(options map[uint16][]byte, v4 bool, dscp *uint8, action uint32) bool {
	parms := options[nl.TCA_PEDIT_PARMS_EX]
	if len(parms) != nl.SizeOfPeditSel+nl.SizeOfPeditKey || u32(parms[8:]) != action || parms[sizeofTcGen] != 1 {
		return false
	}
	key := parms[nl.SizeOfPeditSel:]
	keep, set := dscpBits(v4, dscp)
	if [4]byte(key[:4]) != keep || [4]byte(key[4:8]) != set || u32(key[8:]) != 0 || u32(key[16:]) != 0 {
		return false
	}
	for _, v := range attributes(options[nl.TCA_PEDIT_KEYS_EX]) {
		for typ, v := range attributes(v) {
			if typ == nl.TCA_PEDIT_KEY_EX_HTYPE && u16(v) != peditHeader(v4) || typ == nl.TCA_PEDIT_KEY_EX_CMD &&
				u16(v) != nl.TCA_PEDIT_KEY_EX_CMD_SET {
				return false
			}
		}
	}
	return true
}

// decodePolice reads a policer. Of one that is not the link's, nothing is set, and of one
// that limits otherwise than encodePolice says, the number alone.
func decodePolice(f *netstate.Filter, options map[uint16][]byte, index int) {
	f.Policer, f.Rate, f.BurstNanos = nil, nil, nil
	parms := options[nl.TCA_POLICE_TBF]
	if len(parms) < nl.SizeofTcPolice {
		return
	}
	number := uint16(u32(parms) & netstate.MaxPolicers)
	if number == 0 || policerIndex(index, number) != u32(parms) {
		return
	}
	f.Policer = &number
	for _, typ := range []uint16{nl.TCA_POLICE_PEAKRATE, nl.TCA_POLICE_AVRATE, policePeak64, policePktRate64} {
		if _, ok := options[typ]; ok {
			return
		}
	}
	overhead, peak := u16(parms[22:]), u32(parms[40:])
	if u32(parms[4:]) != actShot || u32(options[nl.TCA_POLICE_RESULT]) != actPipe || u32(parms[16:]) != policeMTU ||
		overhead != 0 || peak != 0 {
		return
	}
	rate := uint64(u32(parms[28:]))
	if v := options[policeRate64]; len(v) == 8 {
		rate = binary.NativeEndian.Uint64(v)
	}
	f.Rate, f.BurstNanos = &rate, new(uint64(u32(parms[12:]))*netstate.BurstUnit)
}

// queryFilter reads one filter by its preference and handle. No dump is needed, so it does
// not matter how many filters a pod has added.
func (o *observer) queryFilter(ctx context.Context, queried netstate.Filter) error {
	o.snap.PutAbsent(queried.Key())
	have, ok, err := o.readFilter(ctx, queried)
	if err != nil || !ok {
		return err
	}
	o.snap.Put(have)
	return nil
}

func (s *Sandbox) readFilter(ctx context.Context, queried netstate.Filter) (netstate.Filter, bool, error) {
	c, index, err := s.existingLink(ctx, queried.Link)
	if c == nil || err != nil {
		return queried, false, err
	}
	queried.Family = nil // a filter of another family is found too
	b, err := c.get(ctx, unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, filterMsg(queried, index)...)
	if isAny(err, noFilter...) {
		return queried, false, nil
	}
	if err != nil {
		return queried, false, err
	}
	f, _, ok := decodeFilter(b)
	if !ok || f.Chain != queried.Chain || f.Pref != queried.Pref || f.Handle != queried.Handle {
		return queried, false, nil
	}
	f.Link, f.Rule, f.Place = queried.Link, queried.Rule, queried.Place
	return f, true, nil
}

// noFilter are the errors of a request about a filter that does not exist, or for which there
// is no preference, chain, hook or link (EINVAL: tc_get_tfilter, net/sched/cls_api.c).
var noFilter = []error{unix.ENOENT, unix.EINVAL, unix.ENODEV, unix.EOPNOTSUPP}

func (s *Sandbox) applyFilter(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Filter](c)
	if c.Action() == netstate.Delete {
		return unlessGone(s.onLink(ctx, before.Link, func(c *conn, index int) error {
			before.Family = nil
			return c.write(ctx, unix.RTM_DELTFILTER, 0, filterMsg(before, index)...)
		}), noFilter...)
	}
	flags := unix.NLM_F_CREATE | unix.NLM_F_EXCL
	if c.Action() == netstate.Update {
		have, ok, err := s.readFilter(ctx, after)
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.NotReady, fmt.Errorf("it no longer exists: %w", unix.ENOENT))
		}
		after, flags = netstate.Merge(have, after), 0
	}
	return explainFilter(after, s.onLink(ctx, after.Link, func(c *conn, index int) error {
		parts, err := encodeFilter(after, index)
		if err != nil {
			return err
		}
		if err := c.write(ctx, unix.RTM_NEWTFILTER, flags, parts...); err != nil || flags != 0 || deref(after.Policer) == 0 {
			return err
		}
		// A filter that names the index of an existing policer gets it unchanged, so the policer is
		// changed by a message of its own, for all filters that share it.
		tab := attr(nl.TCA_ACT_TAB, nil)
		if err := encodePolice(actionOptions(tab, 1, "police"), after, index); err != nil {
			return err
		}
		return c.write(ctx, unix.RTM_NEWACTION, unix.NLM_F_REPLACE, make(body, nl.SizeofTcActionMsg), tab)
	}))
}

// explainFilter explains why a filter was refused. The kernel takes it as a rule, so what
// refuses it is something of the pod: another filter with its match or preference (EEXIST,
// EINVAL), a template of the chain or a policer with its index (EINVAL), or a block that
// links share (EOPNOTSUPP).
func explainFilter(f netstate.Filter, err error) error {
	if fault.Of(err) != fault.Internal {
		return err
	}
	if isAny(err, unix.EEXIST, unix.EINVAL, unix.EOPNOTSUPP) {
		return because(fault.Conflict, err,
			"something of the pod is in its place: see \"tc filter show dev %s egress\", \"tc chain\" and \"tc actions list action "+
				"police\" in the pod, and delete what has preference %d, or the clsact as a whole", f.Link, f.Pref)
	}
	return explainModules(err)
}

func explainModules(err error) error {
	if errors.Is(err, unix.ENOENT) && fault.Of(err) == fault.Internal {
		return because(fault.Unsupported, err, "the kernel has no clsact or flower filters, or not with these actions: "+
			"load sch_ingress, cls_flower, act_pedit, act_csum and act_police on the host")
	}
	return err
}

// queryClsact reads clsacts from one dump of all queueing disciplines: the kernel announces
// the answer to a query for one to all listeners, of which we are one. If there are more than
// the bound, it uses what was read: a pod that fills its links with them must not keep a
// device from the host. Creating a clsact that exists is refused.
func (o *observer) queryClsact(ctx context.Context, queried []netstate.Clsact) error {
	wanted := map[int]string{}
	for _, q := range queried {
		o.snap.PutAbsent(q.Key())
		if netstate.OnHost(q.Link) || o.inside == nil || o.left[q.Link] {
			continue
		}
		index, err := o.index(ctx, q.Link)
		if errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return reading(q, err)
		}
		wanted[index] = q.Link
	}
	if len(wanted) == 0 {
		return nil
	}
	have, err := o.inside.clsacts(ctx)
	if err != nil && !errors.Is(err, reconcile.ErrPartial) {
		return reading(queried[0], err)
	}
	for _, index := range have {
		if link, ok := wanted[index]; ok {
			o.snap.Put(netstate.Clsact{Link: link})
		}
	}
	return nil
}

// clsacts lists the links that have one, by index.
func (c *conn) clsacts(ctx context.Context) ([]int, error) {
	q := query{
		typ: unix.RTM_GETQDISC, reply: unix.RTM_NEWQDISC, parts: []nl.NetlinkRequestData{tcMsg(0, 0, 0, 0)},
		what: "queueing disciplines", most: c.bounds.Links, read: 4 * c.bounds.Links,
	}
	return dump(ctx, c, q, func(b []byte, keep func(int)) error {
		if len(b) < nl.SizeofTcMsg || u32(b[12:]) != clsactParent {
			return nil
		}
		if text(attribute(b[nl.SizeofTcMsg:], nl.TCA_KIND)) == "clsact" {
			keep(int(int32(u32(b[4:]))))
		}
		return nil
	})
}

// applyClsact creates or deletes a clsact. A clsact that still has filters is kept: ours are deleted
// first, so the rest belong to someone else.
func (s *Sandbox) applyClsact(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Clsact](c)
	kind := attr(nl.TCA_KIND, nl.ZeroTerminated("clsact"))
	switch c.Action() {
	case netstate.Create:
		delete(s.left, after.Link)
		err := s.onLink(ctx, after.Link, func(c *conn, index int) error {
			return c.write(ctx, unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, tcMsg(index, clsactHandle, clsactParent, 0), kind)
		})
		if errors.Is(err, unix.EEXIST) {
			return because(fault.Conflict, err,
				"the link has an ingress or clsact queueing discipline of others: use a clsact, to which filters of several can be added")
		}
		return explainModules(err)
	case netstate.Delete:
		return unlessGone(s.onLink(ctx, before.Link, func(c *conn, index int) error {
			others, err := c.filtered(ctx, index)
			if err != nil && !errors.Is(err, reconcile.ErrPartial) {
				return err
			}
			if others || err != nil { // which has filters that keep changing
				s.left[before.Link] = true
				return nil
			}
			return c.write(ctx, unix.RTM_DELQDISC, 0, tcMsg(index, clsactHandle, clsactParent, 0), kind)
		}), noFilter...)
	default:
		return invalid("a clsact cannot change")
	}
}

// errFound ends a dump of which the first object is enough.
var errFound = errors.New("found")

// filtered reports whether a link has any filter on a hook of its clsact.
func (c *conn) filtered(ctx context.Context, index int) (bool, error) {
	for _, hook := range []uint32{egressHook, egressHook - 1} {
		q := query{
			typ: unix.RTM_GETTFILTER, reply: unix.RTM_NEWTFILTER, parts: []nl.NetlinkRequestData{tcMsg(index, 0, hook, 0)},
			what: "filters", most: 1, read: 1,
		}
		_, err := dump(ctx, c, q, func([]byte, func(struct{})) error { return errFound })
		if errors.Is(err, errFound) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}
