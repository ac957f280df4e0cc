package kernel

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

var ipoibModes = words{0: "datagram", 1: "connected"} // include/uapi/linux/if_link.h

func decodeIPoIB(w *ifLink, data []byte) {
	w.link.IPoIB = &netstate.IPoIB{
		PKey: option(data, nl.IFLA_IPOIB_PKEY, func(b []byte) string { return fmt.Sprintf("%#04x", u16(b)) }),
		Mode: optionWord(data, nl.IFLA_IPOIB_MODE, u16, ipoibModes),
	}
}

// encodeIPoIB adds the options. On an existing link the kernel ignores another key (ipoib_changelink), so it is refused here.
func encodeIPoIB(e *infoData, l netstate.Link) {
	if l.IPoIB == nil {
		return
	}
	if key := l.IPoIB.PKey; key != nil {
		n, err := strconv.ParseUint(*key, 0, 16)
		switch {
		case err != nil:
			e.err = invalid("pkey: %q is not the key of a partition", *key)
			return
		case !e.creating:
			e.err = invalid("the pkey of an interface of InfiniBand cannot be changed: recreate the interface")
			return
		}
		e.u16(nl.IFLA_IPOIB_PKEY, uint16(n))
	}
	e.word(nl.IFLA_IPOIB_MODE, 2, "mode", l.IPoIB.Mode, ipoibModes)
}

func explainIPoIB(err error, l, parent netstate.Link) error {
	connected := l.IPoIB != nil && l.IPoIB.Mode != nil && *l.IPoIB.Mode == "connected"
	switch {
	case errors.Is(err, unix.EBUSY): // ipoib_set_mode lets others change links meanwhile
		return because(fault.NotReady, err, "another change of links came between")
	case errors.Is(err, unix.EOPNOTSUPP):
		return because(fault.Unsupported, err, "the kernel makes no interfaces of InfiniBand: load the module ib_ipoib on the node")
	case errors.Is(err, unix.ENODEV) && parent.Name != "":
		return because(fault.Invalid, err, "%s is not an InfiniBand interface", where(parent.Name))
	case errors.Is(err, unix.EINVAL) && connected: // IPOIB_CM_SUPPORTED
		return because(fault.Unsupported, err, "its driver has no connected mode, as that of mlx5: use mode datagram")
	}
	return err
}
