package kernel

import (
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
)

func decodeVRF(w *ifLink, data []byte) {
	w.link.VRF = &netstate.VRF{Table: option(data, unix.IFLA_VRF_TABLE, u32)}
}

func encodeVRF(e *infoData, l netstate.Link) {
	switch {
	case l.VRF == nil || l.VRF.Table == nil:
	case !e.creating:
		e.err = invalid("the table of a VRF cannot change: it has to be recreated")
	default:
		e.u32(unix.IFLA_VRF_TABLE, *l.VRF.Table)
	}
}
