package kernel

import (
	"github.com/vishvananda/netlink/nl"

	"github.com/plumbline/plumbline/ops/netstate"
)

var (
	ipvlanModes = words{0: "l2", 1: "l3", 2: "l3s"}
	ipvlanFlags = words{0: "bridge", 1: "private", 2: "vepa"}
)

func decodeIPVLAN(w *ifLink, data []byte) {
	w.link.IPVLAN = &netstate.IPVLAN{
		Mode: optionWord(data, nl.IFLA_IPVLAN_MODE, u16, ipvlanModes),
		Flag: optionWord(data, nl.IFLA_IPVLAN_FLAG, u16, ipvlanFlags),
	}
}

func encodeIPVLAN(e *infoData, l netstate.Link) {
	if l.IPVLAN == nil {
		return
	}
	e.word(nl.IFLA_IPVLAN_MODE, 2, "mode", l.IPVLAN.Mode, ipvlanModes)
	e.word(nl.IFLA_IPVLAN_FLAG, 2, "flag", l.IPVLAN.Flag, ipvlanFlags)
}
