package kernel

import (
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

var macvlanModes = words{
	nl.MACVLAN_MODE_PRIVATE: "private", nl.MACVLAN_MODE_VEPA: "vepa",
	nl.MACVLAN_MODE_BRIDGE: "bridge", nl.MACVLAN_MODE_PASSTHRU: "passthru",
}

func decodeMACVLAN(w *ifLink, data []byte) {
	w.link.MACVLAN = &netstate.MACVLAN{
		Mode: optionWord(data, nl.IFLA_MACVLAN_MODE, u32, macvlanModes),
		// What this link requested; the parent uses the largest value that any of
		// its links requested (IFLA_MACVLAN_BC_QUEUE_LEN_USED).
		BroadcastQueue: option(data, nl.IFLA_MACVLAN_BC_QUEUE_LEN, u32),
	}
}

func encodeMACVLAN(e *infoData, l netstate.Link) {
	if l.MACVLAN == nil {
		return
	}
	e.word(nl.IFLA_MACVLAN_MODE, 4, "mode", l.MACVLAN.Mode, macvlanModes)
	if n := l.MACVLAN.BroadcastQueue; n != nil {
		e.u32(nl.IFLA_MACVLAN_BC_QUEUE_LEN, *n)
	}
}

func explainMACVLAN(err error, l, _ netstate.Link) error {
	if errors.Is(err, unix.EADDRINUSE) && l.MAC != nil && l.Parent != nil { // macvlan_open, when it comes up
		return because(fault.Conflict, err,
			"%s or another macvlan of it, perhaps of another pod, has mac %s: choose another", where(*l.Parent), *l.MAC)
	}
	return err
}
