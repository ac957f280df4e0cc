package kernel

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

// noLinkLocalLearn is BR_BOOLOPT_NO_LL_LEARN in struct br_boolopt_multi, whose first number has the values, and the
// second one says which of them are given (include/uapi/linux/if_bridge.h).
const noLinkLocalLearn = 1 << 0

func decodeBridge(w *ifLink, data []byte) {
	w.link.Bridge = &netstate.Bridge{}
	for typ, v := range attributes(data) {
		switch typ {
		case unix.IFLA_BR_VLAN_FILTERING:
			w.link.Bridge.VLANFiltering = new(u8(v) != 0)
		case unix.IFLA_BR_VLAN_DEFAULT_PVID:
			w.link.Bridge.DefaultPVID = new(u16(v))
		case unix.IFLA_BR_MULTI_BOOLOPT:
			if len(v) >= 4 {
				w.link.Bridge.NoLinkLocalLearn = new(binary.NativeEndian.Uint32(v)&noLinkLocalLearn != 0)
			}
		}
	}
}

func encodeBridge(e *infoData, l netstate.Link) {
	if l.Bridge == nil {
		return
	}
	e.flag(unix.IFLA_BR_VLAN_FILTERING, l.Bridge.VLANFiltering)
	if v := l.Bridge.DefaultPVID; v != nil {
		e.u16(unix.IFLA_BR_VLAN_DEFAULT_PVID, *v)
	}
	if v := l.Bridge.NoLinkLocalLearn; v != nil {
		opts := binary.NativeEndian.AppendUint32(nil, uint32(bit(*v))*noLinkLocalLearn)
		e.bytes(unix.IFLA_BR_MULTI_BOOLOPT, binary.NativeEndian.AppendUint32(opts, noLinkLocalLearn))
	}
}

// decodePort reads the options of a bridge port.
func decodePort(data []byte) *netstate.Port {
	p := &netstate.Port{}
	for typ, v := range attributes(data) {
		switch typ {
		case nl.IFLA_BRPORT_MODE:
			p.Hairpin = new(u8(v) != 0)
		case nl.IFLA_BRPORT_ISOLATED:
			p.Isolated = new(u8(v) != 0)
		}
	}
	return p
}

// encodePort adds them to IFLA_INFO_SLAVE_DATA.
func encodePort(e *infoData, p *netstate.Port) {
	e.flag(nl.IFLA_BRPORT_MODE, p.Hairpin)
	e.flag(nl.IFLA_BRPORT_ISOLATED, p.Isolated)
}
