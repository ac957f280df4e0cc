package kernel

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// encodeVeth describes the other end, which the same message creates in its own
// namespace. It gets the MTU of this end: a pair with two MTUs drops packets.
func encodeVeth(e *infoData, l netstate.Link) {
	if l.Veth == nil || l.Veth.Peer == nil {
		return
	}
	if !e.creating {
		e.err = invalid("the other end of a veth cannot change: it has to be recreated")
		return
	}
	peer := e.bytes(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(netstate.BaseName(*l.Veth.Peer)))
	if l.MTU != nil {
		peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(*l.MTU))
	}
	if l.Veth.PeerMAC != nil {
		hw, err := net.ParseMAC(*l.Veth.PeerMAC)
		if err != nil {
			e.err = invalid("mac of the other end: %q is not a MAC address", *l.Veth.PeerMAC)
			return
		}
		peer.AddRtAttr(unix.IFLA_ADDRESS, hw)
	}
	if e.peer != nil {
		peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(e.peer.ns.Fd())))
	}
}

func vethTaken(l netstate.Link) string {
	return fmt.Sprintf("the name of its other end, %s, is taken", where(deref(l.Veth.Peer)))
}
