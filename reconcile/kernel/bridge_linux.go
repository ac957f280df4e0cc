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
	w.link.Bridge = &netstate.Bridge{
		VLANFiltering:    option(data, unix.IFLA_BR_VLAN_FILTERING, isSet),
		DefaultPVID:      option(data, unix.IFLA_BR_VLAN_DEFAULT_PVID, u16),
		NoLinkLocalLearn: option(data, unix.IFLA_BR_MULTI_BOOLOPT, func(b []byte) bool { return u32(b)&noLinkLocalLearn != 0 }),
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
	return &netstate.Port{Hairpin: option(data, nl.IFLA_BRPORT_MODE, isSet), Isolated: option(data, nl.IFLA_BRPORT_ISOLATED, isSet)}
}

// encodePort adds them to IFLA_INFO_SLAVE_DATA.
func encodePort(e *infoData, p *netstate.Port) {
	e.flag(nl.IFLA_BRPORT_MODE, p.Hairpin)
	e.flag(nl.IFLA_BRPORT_ISOLATED, p.Isolated)
}
