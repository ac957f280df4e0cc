package kernel

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
)

// From include/uapi/linux/ethtool.h.
const (
	ethtoolStatistics = 1  // ETH_SS_STATS
	ethtoolStringSize = 32 // ETH_GSTRING_LEN
	// maxDriverCounters bounds how many counters are read of an interface: a driver has some for each of its queues. The
	// kernel writes as many as there are when it is asked (ethtool_get_strings, ethtool_get_stats in net/ethtool/ioctl.c),
	// however many it is asked for, and a pod can change the number of queues between two calls: roomForCounters is more
	// than any driver has.
	maxDriverCounters = 8192
	roomForCounters   = 1 << 16
)

// counterBuffers hold what a driver says of one interface.
type counterBuffers struct {
	names  [12 + roomForCounters*ethtoolStringSize]byte // struct ethtool_gstrings
	values [8 + roomForCounters*8]byte                  // struct ethtool_stats
}

// counterRoom keeps the buffers, which are large, from one namespace to the next.
var counterRoom = sync.Pool{New: func() any { return new(counterBuffers) }}

// DriverCounters returns the counters of the drivers of interfaces of a network namespace, as ethtool -S does, by the indexes of the
// interfaces, and none of an interface that is not there or has none. Ethtool addresses interfaces by name, which a pod can change or
// swap at any moment: counters count only if the name that was read belongs to the index before and after.
func (h *Host) DriverCounters(path string, id reconcile.NetnsID, indexes []int) map[int]map[string]uint64 {
	ns, at, err := netns.OpenIdentified(path)
	if err != nil {
		return nil
	}
	defer ns.Close()
	if !netns.Same(at, id) {
		return nil // another namespace is at the path now
	}
	return countersOf(h.own, ns, indexes, (*ethtoolIoctl).nameOf)
}

// PhysicalFunction returns the PCI address of the physical function of a virtual one, "" for another device.
func (h *Host) PhysicalFunction(id string) string {
	if !pciAddress.MatchString(id) {
		return ""
	}
	return h.sysfs.physicalFunction(id)
}

// PhysicalCounters returns the counters of the drivers of physical functions, as DriverCounters does, by their PCI addresses, and
// none of one that has no interface on the host.
func (h *Host) PhysicalCounters(functions []string) map[string]map[string]uint64 {
	return countersOf(h.own, h.socket.ns, functions, func(_ *ethtoolIoctl, id string) (string, error) { return h.sysfs.interfaceOf(id) })
}

// countersOf reads the counters of interfaces of a namespace.
func countersOf[K comparable](own ownNetns, ns *os.File, of []K, nameOf func(*ethtoolIoctl, K) (string, error)) map[K]map[string]uint64 {
	var out map[K]map[string]uint64
	_ = own.enter(ns, func() error { // without the counters nothing is said of the interfaces
		e, err := openEthtoolIoctl("")
		if err != nil {
			return err
		}
		defer e.close()
		room := counterRoom.Get().(*counterBuffers)
		defer counterRoom.Put(room)
		out = stableCounters(of, func(k K) (string, error) { return nameOf(e, k) }, func(name string) map[string]uint64 {
			return (&ethtoolIoctl{e.fd, name}).driverCounters(room.names[:], room.values[:])
		})
		return nil
	})
	return out
}

// stableCounters reads the counters of interfaces by the names that they have now, and leaves out an interface
// whose name changes meanwhile.
func stableCounters[K comparable](of []K, nameOf func(K) (string, error), read func(string) map[string]uint64) map[K]map[string]uint64 {
	out := map[K]map[string]uint64{}
	for _, k := range of {
		before, err := nameOf(k)
		if err != nil {
			continue
		}
		counters := read(before)
		if after, err := nameOf(k); counters != nil && err == nil && after == before {
			out[k] = counters
		}
	}
	return out
}

// nameOf returns the name that an interface has now (SIOCGIFNAME).
func (e *ethtoolIoctl) nameOf(index int) (string, error) {
	request, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	request.SetUint32(uint32(index))
	err = unix.IoctlIfreq(e.fd, unix.SIOCGIFNAME, request)
	return request.Name(), err
}

func (e *ethtoolIoctl) driverCounters(names, values []byte) map[string]uint64 {
	order := binary.NativeEndian
	info := make([]byte, 20) // struct ethtool_sset_info and one number
	order.PutUint64(info[8:], 1<<ethtoolStatistics)
	if e.command(unix.ETHTOOL_GSSET_INFO, info) != nil || order.Uint64(info[8:]) == 0 {
		return nil
	}
	n := order.Uint32(info[16:])
	if n == 0 || n > maxDriverCounters {
		return nil
	}
	order.PutUint32(names[4:], ethtoolStatistics)
	order.PutUint32(names[8:], n)
	order.PutUint32(values[4:], n)
	if e.command(unix.ETHTOOL_GSTRINGS, names) != nil || e.command(unix.ETHTOOL_GSTATS, values) != nil || order.Uint32(names[8:]) != n ||
		order.Uint32(values[4:]) != n {
		return nil
	}
	out := make(map[string]uint64, n)
	for i := range n {
		name, _, _ := bytes.Cut(names[12+i*ethtoolStringSize:][:ethtoolStringSize], []byte{0})
		out[string(name)] = order.Uint64(values[8+i*8:])
	}
	return out
}
