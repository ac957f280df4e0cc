package kernel

import (
	"bytes"
	"encoding/binary"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
)

// From include/uapi/linux/ethtool.h.
const (
	ethtoolGetStrings    = 0x1b // ETHTOOL_GSTRINGS
	ethtoolGetStats      = 0x1d // ETHTOOL_GSTATS
	ethtoolGetStringSets = 0x37 // ETHTOOL_GSSET_INFO
	ethtoolStatistics    = 1    // ETH_SS_STATS
	ethtoolStringSize    = 32   // ETH_GSTRING_LEN
	// maxDriverCounters bounds how many counters are read of an interface: a driver has some for each of its queues. The kernel writes as
	// many as there are when it is asked (ethtool_get_strings, ethtool_get_stats in net/ethtool/ioctl.c), however many it is asked for, and a
	// pod can change the number of queues between two calls: roomForCounters is more than any driver has.
	maxDriverCounters = 8192
	roomForCounters   = 1 << 16
)

// DriverCounters returns the counters of the drivers of interfaces of a network namespace by their names, as ethtool -S does, and none of
// an interface that is not there or has none.
func (h *Host) DriverCounters(path string, id reconcile.NetnsID, interfaces []string) map[string]map[string]uint64 {
	out := map[string]map[string]uint64{}
	ns, err := netns.Open(path)
	if err != nil {
		return nil
	}
	defer ns.Close()
	if at, err := netns.Identify(ns); err != nil || !netns.Same(at, id) {
		return nil // another namespace is at the path now
	}
	_ = h.own.enter(ns, func() error { // without the counters nothing is said of the interfaces
		names, values := make([]byte, 12+roomForCounters*ethtoolStringSize), make([]byte, 8+roomForCounters*8) // struct ethtool_gstrings, ethtool_stats
		for _, name := range interfaces {
			e, err := openEthtoolIoctl(name)
			if err != nil {
				return err
			}
			if counters := e.driverCounters(names, values); counters != nil {
				out[name] = counters
			}
			e.close()
		}
		return nil
	})
	return out
}

func (e *ethtoolIoctl) driverCounters(names, values []byte) map[string]uint64 {
	order := binary.NativeEndian
	info := make([]byte, 20) // struct ethtool_sset_info and one number
	order.PutUint64(info[8:], 1<<ethtoolStatistics)
	if e.command(ethtoolGetStringSets, info) != nil || order.Uint64(info[8:]) == 0 {
		return nil
	}
	n := order.Uint32(info[16:])
	if n == 0 || n > maxDriverCounters {
		return nil
	}
	order.PutUint32(names[4:], ethtoolStatistics)
	order.PutUint32(names[8:], n)
	order.PutUint32(values[4:], n)
	if e.command(ethtoolGetStrings, names) != nil || e.command(ethtoolGetStats, values) != nil || order.Uint32(names[8:]) != n || order.Uint32(values[4:]) != n {
		return nil
	}
	out := make(map[string]uint64, n)
	for i := range n {
		name, _, _ := bytes.Cut(names[12+i*ethtoolStringSize:][:ethtoolStringSize], []byte{0})
		out[string(name)] = order.Uint64(values[8+i*8:])
	}
	return out
}
