package kernel

import (
	"encoding/binary"
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
	selection, err := selectConnections(port, pod)
	if err = errors.Join(err, setNATDeadline(c)); err == nil {
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
func selectConnections(port netstate.HostPort, pod netip.AddrPort) ([]byte, error) {
	family, source := byte(unix.AF_INET), uint16(nl.CTA_IP_V4_SRC)
	if !port.Addr().Is4() {
		family, source = unix.AF_INET6, nl.CTA_IP_V6_SRC
	}
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(nl.CTA_TUPLE_ORIG, func(e *netlink.AttributeEncoder) error {
		e.Nested(nl.CTA_TUPLE_PROTO, func(e *netlink.AttributeEncoder) error {
			e.Uint8(nl.CTA_PROTO_NUM, portProtocols[port.Protocol])
			e.Uint16(nl.CTA_PROTO_DST_PORT, port.Port())
			return nil
		})
		return nil
	})
	reply := uint32(0)
	if pod.IsValid() {
		reply = bySource | byProtocol | bySourcePort
		e.Nested(nl.CTA_TUPLE_REPLY, func(e *netlink.AttributeEncoder) error {
			e.Nested(nl.CTA_TUPLE_IP, func(e *netlink.AttributeEncoder) error {
				e.Bytes(source, pod.Addr().AsSlice())
				return nil
			})
			e.Nested(nl.CTA_TUPLE_PROTO, func(e *netlink.AttributeEncoder) error {
				e.Uint8(nl.CTA_PROTO_NUM, portProtocols[port.Protocol])
				e.Uint16(nl.CTA_PROTO_SRC_PORT, pod.Port())
				return nil
			})
			return nil
		})
	} else {
		e.Uint32(nl.CTA_STATUS, 0)
		e.Uint32(ctaStatusMask, translated)
	}
	e.Nested(ctaFilter, func(e *netlink.AttributeEncoder) error {
		e.ByteOrder = binary.NativeEndian
		e.Uint32(ctaFilterOrig, byProtocol|byPort)
		e.Uint32(ctaFilterReply, reply)
		return nil
	})
	data, err := e.Encode()
	// A version other than 0 makes the family count.
	return append([]byte{family, 1, 0, 0}, data...), err
}
