package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/topology/fault"
)

// queryRDMANetns reads which namespace the RDMA device of a function belongs to. A function with several has none that could be moved.
func (o *observer) queryRDMANetns(ctx context.Context, queried netstate.RDMANetns) error {
	name, _, owner, err := o.rdmaOwner(ctx, queried.ID)
	if err != nil {
		return err
	}
	if name == "" {
		o.snap.PutAbsent(queried.Key())
		return nil
	}
	of := netstate.RDMAOfOther
	switch {
	case owner == nil:
	case owner.host:
		of = netstate.RDMAOfHost
	default:
		of = netstate.RDMAOfSandbox
	}
	o.snap.Put(netstate.RDMANetns{ID: queried.ID, Netns: &of, Name: &name})
	return nil
}

// rdmaOwner returns name and index of the one RDMA device of a function, "" if it has none or several, and the namespace
// that it belongs to, nil if that is neither the host's nor the sandbox's.
func (s *Sandbox) rdmaOwner(ctx context.Context, id string) (name string, index uint32, owner *conn, err error) {
	names := s.host.sysfs.rdmaDevices(netstate.Device{ID: id})
	if len(names) == 0 { // or it cannot be read: a release would leave it in the pod
		err = s.host.sysfs.listable(netstate.Device{ID: id}, "infiniband", "infiniband_verbs")
	}
	if len(names) != 1 || err != nil {
		return "", 0, nil, err
	}
	for _, c := range []*conn{s.outside, s.inside} {
		if c == nil {
			continue
		}
		var found bool
		err := s.host.withRDMA(c, func(r *conn) (err error) {
			index, found, err = r.rdmaIndex(ctx, names[0])
			return err
		})
		if err != nil || found {
			return names[0], index, c, err
		}
	}
	return names[0], 0, nil, nil
}

// rdmaIndex returns the index of the RDMA device of that name, false if the namespace shows none.
func (c *conn) rdmaIndex(ctx context.Context, name string) (index uint32, found bool, err error) {
	err = c.eachRDMADevice(ctx, func(i uint32, n string, _ []byte) {
		if n == name {
			index, found = i, true
		}
	})
	return index, found, err
}

// applyRDMANetns moves an RDMA device, then renames it, so that it returns to the host even if another one has its name by then.
func (s *Sandbox) applyRDMANetns(ctx context.Context, change netstate.Change) error {
	_, after := typed[netstate.RDMANetns](change)
	name, index, owner, err := s.rdmaOwner(ctx, change.Object().(netstate.RDMANetns).ID)
	switch {
	case err != nil:
		return err
	case name == "":
		return fault.New(fault.Gone, errors.New("the device has no RDMA device any more, or several"))
	case owner == nil:
		return fault.New(fault.NotReady,
			fmt.Errorf("RDMA device %q is in another network namespace, and returns to the host when that ends", name))
	}
	to := owner
	switch deref(after.Netns) {
	case netstate.RDMAOfHost:
		to = s.outside
	case netstate.RDMAOfSandbox:
		if to = s.inside; to == nil {
			return errGone
		}
	}
	if to != owner {
		if err := s.host.moveRDMA(ctx, owner, to, index, name); err != nil {
			return err
		}
	}
	if after.Name == nil || *after.Name == name {
		return nil
	}
	return s.host.withRDMA(to, func(r *conn) error {
		return renameRDMA(ctx, r, attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(index)), *after.Name)
	})
}

// moveRDMA moves an RDMA device between namespaces. The kernel wants a caller in the namespace that the device leaves (nldev_set_doit,
// ib_device_set_netns_put), and a driver that can take the device away from running programs. The move gives it another uverbsN.
func (h *Host) moveRDMA(ctx context.Context, from, to *conn, index uint32, name string) error {
	err := h.own.enter(from.ns, func() error {
		return h.withRDMA(from, func(r *conn) error {
			return r.write(ctx, rdmaType(nl.RDMA_NLDEV_CMD_SET), 0,
				attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(index)), attr(nl.RDMA_NLDEV_NET_NS_FD, nl.Uint32Attr(uint32(to.ns.Fd()))))
		})
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return because(fault.Unsupported, err,
			"the kernel does not move RDMA device %q to another network namespace, as its driver cannot: "+
				"run \"rdma system set netns shared\" before the first network namespace is made, or leave RDMA out: "+
				"the step rxe, or rdma: false for a function", name)
	}
	return err
}

// rdmaSysfs calls f with sysfs as a namespace sees it. On a node in exclusive mode sysfs shows an RDMA device in the
// namespace that it belongs to only (net_namespace of ib_class in drivers/infiniband/core/device.c); otherwise it is the
// host's. The thread that calls f is not in the namespace: a read that hangs in a driver would keep that.
func (s *Sandbox) rdmaSysfs(c *conn, f func(sysfs)) error {
	if c.host || !s.host.sysfs.rdmaExclusive() {
		f(s.host.sysfs)
		return nil
	}
	mount, err := s.host.mountSysfs(c.ns)
	if err != nil {
		return err
	}
	defer unix.Close(mount)
	f(sysfs{"/proc/self/fd/" + strconv.Itoa(mount)})
	return nil
}

// RDMASysfs calls f with sysfs as the network namespace of a pod sees it, on a node in exclusive mode, and if the namespace is still
// that one. Neither the thread nor a descriptor of the namespace stays while f runs.
func (h *Host) RDMASysfs(path string, id reconcile.NetnsID, f func(fs.FS)) error {
	if !h.sysfs.rdmaExclusive() {
		return nil
	}
	s, err := h.Sandbox(path)
	if err != nil {
		return err
	}
	mount := -1
	if netns.Same(s.NetnsID(), id) {
		mount, err = h.mountSysfs(s.inside.ns)
	}
	if mount >= 0 {
		defer unix.Close(mount)
	}
	if err := errors.Join(err, s.Close()); err != nil || mount < 0 {
		return err
	}
	f(os.DirFS("/proc/self/fd/" + strconv.Itoa(mount)))
	return nil
}

// mountSysfs mounts sysfs as a network namespace sees it.
func (h *Host) mountSysfs(ns *os.File) (mount int, err error) {
	mount = -1
	err = h.own.enter(ns, func() (err error) {
		mount, err = mountSysfs()
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("sysfs of the network namespace: %w", err)
	}
	return mount, nil
}

// mountSysfs mounts sysfs in no folder, and returns its descriptor. It shows the network namespace of the thread that mounts it
// (sysfs_init_fs_context in fs/sysfs/mount.c), to whoever reads it, and does not keep the namespace.
func mountSysfs() (int, error) {
	context, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return -1, err
	}
	return unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
}
