package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

var vlanProtocols = words{unix.ETH_P_8021Q: "802.1q", unix.ETH_P_8021AD: "802.1ad"}

func decodeVLAN(w *ifLink, data []byte) {
	w.link.VLAN = &netstate.VLAN{
		ID: option(data, nl.IFLA_VLAN_ID, u16), Protocol: optionWord(data, nl.IFLA_VLAN_PROTOCOL, be16, vlanProtocols),
	}
}

// encodeVLAN adds the identity. On an existing link the kernel accepts a new id
// and ignores it (8021q/vlan_netlink.c, vlan_changelink), so it is refused here.
func encodeVLAN(e *infoData, l netstate.Link) {
	if l.VLAN == nil {
		return
	}
	if !e.creating {
		e.err = invalid("the id and protocol of a VLAN link cannot change: it has to be recreated")
		return
	}
	if l.VLAN.ID != nil {
		e.u16(nl.IFLA_VLAN_ID, *l.VLAN.ID)
	}
	if p := l.VLAN.Protocol; p != nil {
		n, ok := vlanProtocols.number(*p)
		if !ok {
			e.err = oneOf("protocol", *p, vlanProtocols)
			return
		}
		e.bytes(nl.IFLA_VLAN_PROTOCOL, nl.BEUint16Attr(uint16(n)))
	}
}

func vlanTaken(l netstate.Link) string {
	return fmt.Sprintf("VLAN %d on %s exists already, if not here then in another namespace", deref(l.VLAN.ID), where(*l.Parent))
}

func explainVLAN(err error, l, parent netstate.Link) error {
	switch {
	case parent.Name == "":
		return err
	case errors.Is(err, unix.ENETDOWN):
		return because(fault.NotReady, err, "its parent %s is down", where(*l.Parent))
	case !errors.Is(err, unix.EINVAL):
		return err
	case l.MTU != nil && parent.MTU != nil && *l.MTU > *parent.MTU:
		return because(fault.Invalid, err, "mtu %d exceeds the %d of its parent %s", *l.MTU, *parent.MTU, where(*l.Parent))
	case !parent.Carrier:
		// igbvf_vlan_rx_add_vid: the physical function has sent the virtual one no
		// clear-to-send since it was reset, and it needs the VLAN again. A bond
		// passes the refusal on.
		return because(fault.NotReady, err,
			"its parent %s has no carrier yet (a virtual function without clear-to-send cannot take a VLAN)", where(*l.Parent))
	case parent.LinkKind == "device", parent.LinkKind == "bond":
		// The physical function has not answered in time, for igbvf in 0.1 s. Until igbvf finds
		// that out, the function keeps its carrier; then it is reset.
		return because(fault.NotReady, err,
			"the driver of its parent %s does not take the VLAN (a virtual function cannot while its physical function does not answer)",
			where(*l.Parent))
	}
	return err
}
