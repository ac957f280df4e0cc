package kernel

import "github.com/plumbline/plumbline/ops/netstate"

const iflaVRFTable = 1 // linux/if_link.h, IFLA_VRF_TABLE

func decodeVRF(w *ifLink, data []byte) {
	w.link.VRF = &netstate.VRF{}
	for typ, v := range attributes(data) {
		if typ == iflaVRFTable {
			w.link.VRF.Table = new(u32(v))
		}
	}
}

func encodeVRF(e *infoData, l netstate.Link) {
	switch {
	case l.VRF == nil || l.VRF.Table == nil:
	case !e.creating:
		e.err = invalid("the table of a VRF cannot change: it has to be recreated")
	default:
		e.u32(iflaVRFTable, *l.VRF.Table)
	}
}
