package kernel

import (
	"errors"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// What package nl lacks of include/uapi/linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h, and CTA_FILTER's
// flags, of net/netfilter/nf_conntrack_netlink.c.
const (
	getConnections    = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_GET
	deleteConnections = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_DELETE

	ctaFilter      = 25
	ctaStatusMask  = 26
	ctaFilterOrig  = 1
	ctaFilterReply = 2
	bySource       = 1 << 0
	byProtocol     = 1 << 3
	bySourcePort   = 1 << 4
	byPort         = 1 << 5

	translated = 1<<4 | destinationTranslated // IPS_SRC_NAT, IPS_DST_NAT
)

// maxListed bounds how many connections are deleted one by one. The rest end half a minute after their last packet.
var maxListed = 64 << 10

// forgetConnections deletes connections of the host's namespace to a port: with a pod those that
// were sent on to it, else those that nothing has translated. A connection of others to the same
// port elsewhere is not translated either, and begins again without harm, or is masqueraded, and stays.
//
// The kernel selects them, so that nothing is read: it can since Linux 6.10. An earlier one deletes only what a
// message names in full (EINVAL), but lists what is selected.
func (h *Host) forgetConnections(port netstate.HostPort, pod netip.AddrPort) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(h.socket.ns.Fd())})
	if err != nil {
		return err
	}
	selection := selectConnections(port, pod)
	if err = setNATDeadline(c); err == nil {
		if err = deleteSelected(c, selection); errors.Is(err, unix.EINVAL) {
			err = deleteListed(c, selection)
		}
	}
	return errors.Join(err, c.Close())
}

func deleteSelected(c *netlink.Conn, selection []byte) error {
	_, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: deleteConnections, Flags: netlink.Request | netlink.Acknowledge},
		Data:   selection,
	})
	return err
}

// deleteListed deletes each connection by its entry in a list of those that are selected, which has its tuple, zone and ID.
func deleteListed(c *netlink.Conn, selection []byte) error {
	_, err := c.Send(netlink.Message{Header: netlink.Header{Type: getConnections, Flags: netlink.Request | netlink.Dump}, Data: selection})
	if err != nil {
		return err
	}
	var listed [][]byte
	for entry, err := range c.ReceiveIter() {
		if err != nil {
			return err
		}
		if len(listed) < maxListed {
			listed = append(listed, entry.Data)
		}
	}
	for _, entry := range listed {
		if err := deleteSelected(c, entry); err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: it has ended meanwhile
			return err
		}
	}
	return nil
}

// selectConnections is the body of a message about the connections of forgetConnections.
func selectConnections(port netstate.HostPort, pod netip.AddrPort) []byte {
	family, source := byte(unix.AF_INET), nl.CTA_IP_V4_SRC
	if !port.Addr().Is4() {
		family, source = unix.AF_INET6, nl.CTA_IP_V6_SRC
	}
	tuple := func(typ, of int, port uint16, protocol byte) *nl.RtAttr {
		out := attr(typ|unix.NLA_F_NESTED, nil)
		ports := out.AddRtAttr(nl.CTA_TUPLE_PROTO|unix.NLA_F_NESTED, nil)
		ports.AddRtAttr(nl.CTA_PROTO_NUM, nl.Uint8Attr(protocol))
		ports.AddRtAttr(of, nl.BEUint16Attr(port))
		return out
	}
	protocol := portProtocols[port.Protocol]
	parts, reply := []*nl.RtAttr{tuple(nl.CTA_TUPLE_ORIG, nl.CTA_PROTO_DST_PORT, port.Port(), protocol)}, uint32(0)
	if pod.IsValid() {
		reply = bySource | byProtocol | bySourcePort
		back := tuple(nl.CTA_TUPLE_REPLY, nl.CTA_PROTO_SRC_PORT, pod.Port(), protocol)
		back.AddRtAttr(nl.CTA_TUPLE_IP|unix.NLA_F_NESTED, nil).AddRtAttr(source, pod.Addr().AsSlice())
		parts = append(parts, back)
	} else {
		parts = append(parts, attr(nl.CTA_STATUS, nl.BEUint32Attr(0)), attr(ctaStatusMask, nl.BEUint32Attr(translated)))
	}
	filter := attr(ctaFilter|unix.NLA_F_NESTED, nil)
	filter.AddRtAttr(ctaFilterOrig, nl.Uint32Attr(byProtocol|byPort))
	filter.AddRtAttr(ctaFilterReply, nl.Uint32Attr(reply))
	out := []byte{family, 1, 0, 0} // a version other than 0 makes the family count
	for _, p := range append(parts, filter) {
		out = append(out, p.Serialize()...)
	}
	return out
}
