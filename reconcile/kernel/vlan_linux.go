package kernel

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

var vlanProtocols = words{unix.ETH_P_8021Q: "802.1q", unix.ETH_P_8021AD: "802.1ad"}

func decodeVLAN(w *ifLink, data []byte) {
	w.link.VLAN = &netstate.VLAN{}
	for typ, v := range attributes(data) {
		switch typ {
		case nl.IFLA_VLAN_ID:
			w.link.VLAN.ID = new(u16(v))
		case nl.IFLA_VLAN_PROTOCOL:
			w.link.VLAN.Protocol = vlanProtocols.word(uint32(be16(v)))
		}
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
