package kernel

import (
	"encoding/binary"
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// Of include/uapi/linux/netfilter/nfnetlink_conntrack.h, and of CTA_FILTER's flags in
// net/netfilter/nf_conntrack_netlink.c.
const (
	deleteConnections = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2 // IPCTNL_MSG_CT_DELETE
	ctaTupleOrig      = 1
	ctaFilter         = 25
	ctaTupleProto     = 2
	ctaProtoNum       = 1
	ctaProtoDstPort   = 3
	ctaFilterOrig     = 1
	ctaFilterReply    = 2
	byProtoAndDstPort = 1<<3 | 1<<5
)

// forgetConnections deletes the connections of the host's namespace that were begun to a port.
// The kernel selects them, so that nothing is read: it can since Linux 6.10, and an earlier one
// refuses the message.
func (h *Host) forgetConnections(port netstate.HostPort) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(h.socket.ns.Fd())})
	if err != nil {
		return err
	}
	family := byte(unix.AF_INET)
	if !port.Addr().Is4() {
		family = unix.AF_INET6
	}
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(ctaTupleOrig, func(e *netlink.AttributeEncoder) error {
		e.Nested(ctaTupleProto, func(e *netlink.AttributeEncoder) error {
			e.Uint8(ctaProtoNum, portProtocols[port.Protocol])
			e.Uint16(ctaProtoDstPort, port.Port())
			return nil
		})
		return nil
	})
	e.Nested(ctaFilter, func(e *netlink.AttributeEncoder) error {
		e.ByteOrder = binary.NativeEndian
		e.Uint32(ctaFilterOrig, byProtoAndDstPort)
		e.Uint32(ctaFilterReply, 0)
		return nil
	})
	data, err := e.Encode()
	if err = errors.Join(err, setNATDeadline(c)); err == nil {
		_, err = c.Execute(netlink.Message{
			Header: netlink.Header{Type: deleteConnections, Flags: netlink.Request | netlink.Acknowledge},
			// A version other than 0 makes the family count.
			Data: append([]byte{family, 1, 0, 0}, data...),
		})
	}
	return errors.Join(err, c.Close())
}
