package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/topology/fault"
)

// rdmaProtocol is RDMA_NLDEV_ATTR_DEV_PROTOCOL, which package nl does not have.
const rdmaProtocol = 67

// softRDMATypes are the types of "rdma link add" by the protocol of the device that they make.
var softRDMATypes = map[string]string{"roce": "rxe", "iw": "siw"}

// rdmaNameFrees bounds how long the name of an RDMA device is waited for. One that ends with the move of its link still
// has its name for a moment, as the kernel removes it later (rxe_notify in drivers/infiniband/sw/rxe/rxe_net.c).
const rdmaNameFrees = 2 * time.Second

// withRDMA calls f with an RDMA socket in the namespace of another socket.
func (h *Host) withRDMA(c *conn, f func(*conn) error) error {
	fd, err := unix.FcntlInt(c.ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	r, err := h.dialRDMA(os.NewFile(uintptr(fd), c.ns.Name()))
	if err != nil {
		return err
	}
	r.count = c.count
	defer r.close()
	return f(r)
}

// softRDMADevice is an RDMA device in software, as the kernel lists it.
type softRDMADevice struct {
	index     uint32
	name, typ string
}

// softRDMADevices lists the RDMA devices in software that can be seen in a namespace, that of the given name first.
func (c *conn) softRDMADevices(ctx context.Context, f sysfs, first string) ([]softRDMADevice, error) {
	var out []softRDMADevice
	err := c.eachRDMADevice(ctx, func(index uint32, name string, message []byte) {
		d := softRDMADevice{index, name, softRDMATypes[text(attribute(message, rdmaProtocol))]}
		switch {
		case d.typ == "", name != first && len(out) >= rdmaDevices, !f.isSoftRDMA(name): // a card may have been given the name
		case name == first:
			out = append([]softRDMADevice{d}, out...)
		default:
			out = append(out, d)
		}
	})
	return out, err
}

// softRDMAOn finds the RDMA device in software on the link with that index, false without one. The device of the given
// name is looked at first: to find another one takes a message for each.
func (c *conn) softRDMAOn(ctx context.Context, f sysfs, link int, first string) (softRDMADevice, bool, error) {
	all, err := c.softRDMADevices(ctx, f, first)
	if err != nil {
		return softRDMADevice{}, false, err
	}
	for _, d := range all {
		on, _, err := c.rdmaPort(ctx, rdmaPort{d.index, 1})
		switch {
		case isAny(err, unix.EINVAL, unix.ENODEV): // it has ended meanwhile
		case err != nil:
			return softRDMADevice{}, false, err
		case on == link:
			return d, true, nil
		}
	}
	return softRDMADevice{}, false, nil
}

// queryRDMALink reads the RDMA device in software on a link.
func (o *observer) queryRDMALink(ctx context.Context, queried netstate.RDMALink) error {
	l, there, err := o.rdmaLink(ctx, queried)
	if o.snap.PutAbsent(queried.Key()); there {
		o.snap.Put(l)
	}
	return err
}

// rdmaLink reads the RDMA device in software on a link, false without one. Without the module ib_core there is none, and a
// socket would load it.
func (o *observer) rdmaLink(ctx context.Context, queried netstate.RDMALink) (out netstate.RDMALink, there bool, err error) {
	if !o.host.sysfs.hasRDMA() {
		return out, false, nil
	}
	c, index, err := o.existingLink(ctx, queried.Link)
	if c == nil || err != nil {
		return out, false, err
	}
	d, owner, err := o.softRDMAOwner(ctx, c, index, netstate.BaseName(queried.Link), deref(queried.Name))
	if err != nil || owner == nil {
		return out, false, err
	}
	out = netstate.RDMALink{Link: queried.Link, Name: &d.name, Type: &d.typ, Nodes: o.host.sysfs.rdmaNodes(d.name)}
	out.HostOnly = !c.host && d.typ == softRDMATypes["roce"] && !c.receivesRoCE()
	if o.host.sysfs.rdmaExclusive() {
		out.Netns = new(netstate.RDMAOfSandbox)
		if owner.host && !c.host {
			out.Netns = new(netstate.RDMAOfHost)
			o.withCache(func(g *observationCache) { g.madeRDMA[queried.Link] = d.name })
		}
	}
	return out, true, nil
}

// roceUDPPort is the UDP port of RoCE v2 (ROCE_V2_UDP_DPORT).
const roceUDPPort = 4791

// receivesRoCE reports whether the kernel receives packets of a soft RoCE device that is on a link of this namespace: it has a socket
// for them there, so nobody else can bind its port. Earlier kernels have one on the host only (rxe_net_init). The version of a kernel
// does not tell, as distributions carry changes of RDMA to earlier ones.
func (c *conn) receivesRoCE() bool {
	receives := true // unless the port is free
	_ = c.enter(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		receives = unix.Bind(fd, &unix.SockaddrInet4{Port: roceUDPPort}) != nil
		return nil
	})
	return receives
}

// softRDMAOwner finds the RDMA device in software on a link, and the namespace in which it can be changed, nil without
// one. In exclusive mode one that was made inside of a sandbox belongs to the host, where the kernel does not say which
// link it is on: it is known by its name, which is ours, and by the name of its link.
func (s *Sandbox) softRDMAOwner(ctx context.Context, c *conn, index int, link, name string) (d softRDMADevice, owner *conn, err error) {
	var there bool
	err = s.host.withRDMA(c, func(r *conn) error {
		d, there, err = r.softRDMAOn(ctx, s.host.sysfs, index, name)
		return err
	})
	switch {
	case err != nil || there:
		return d, c, err
	case c.host || name == "" || !s.host.sysfs.rdmaExclusive() || s.host.sysfs.rdmaLinkOf(name) != link:
		return d, nil, nil
	}
	err = s.host.withRDMA(s.outside, func(r *conn) error {
		all, err := r.softRDMADevices(ctx, s.host.sysfs, name)
		if err == nil && len(all) > 0 && all[0].name == name {
			d, owner = all[0], s.outside
		}
		return err
	})
	return d, owner, err
}

func (s *Sandbox) applyRDMALink(ctx context.Context, change netstate.Change) error {
	before, after := typed[netstate.RDMALink](change)
	link := change.Object().(netstate.RDMALink).Link
	err := s.onLink(ctx, link, func(c *conn, index int) error {
		if change.Action() == netstate.Create {
			return s.host.withRDMA(c, func(r *conn) error { return s.addRDMALink(ctx, r, after) })
		}
		name := deref(before.Name)
		if name == "" { // the change has other fields
			s.withCache(func(g *observationCache) { name = g.madeRDMA[link] })
		}
		d, owner, err := s.softRDMAOwner(ctx, c, index, netstate.BaseName(link), name)
		switch {
		case err != nil:
			return err
		case change.Action() == netstate.Delete && (owner == nil || d.name != deref(before.Name)):
			return nil // another one is not ours
		case owner == nil:
			return fault.New(fault.NotReady, fmt.Errorf("%s has no RDMA device", where(link)))
		}
		which := attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(d.index))
		err = s.host.withRDMA(owner, func(r *conn) error {
			switch {
			case change.Action() == netstate.Delete:
				return unlessGone(r.write(ctx, rdmaType(nl.RDMA_NLDEV_CMD_DELLINK), 0, which), unix.EINVAL, unix.ENODEV)
			case after.Name != nil && *after.Name != d.name:
				return renameRDMA(ctx, r, which, *after.Name)
			}
			return nil
		})
		if err == nil && after.Netns != nil && *after.Netns == netstate.RDMAOfSandbox && owner != c {
			err = s.moveSoftRDMA(ctx, d, c, index)
		}
		return err
	})
	if change.Action() == netstate.Delete {
		return unlessGone(err, unix.ENODEV)
	}
	return err
}

// renameRDMA renames an RDMA device. All of a node have different names, whatever their namespaces. One that cannot have its name gives up
// the one it has: a pod can exchange the names of two devices, and each would wait for the other.
func renameRDMA(ctx context.Context, r *conn, which nl.NetlinkRequestData, name string) error {
	rename := func(name string) error {
		return r.write(ctx, rdmaType(nl.RDMA_NLDEV_CMD_SET), 0, which, attr(nl.RDMA_NLDEV_ATTR_DEV_NAME, nl.ZeroTerminated(name)))
	}
	err := rename(name)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	_ = rename(name + "x") // which is not taken, or the next pass says so again
	return because(fault.Conflict, err,
		"another RDMA device of the node is called %q: rename or delete it, or wait until its own pod is checked, which gives it its name",
		name)
}

// moveSoftRDMA moves an RDMA device in software from the host to the namespace of its link. Only there the kernel says which link it is on:
// one of another link, which somebody has given our name, is moved back.
func (s *Sandbox) moveSoftRDMA(ctx context.Context, d softRDMADevice, to *conn, link int) error {
	if err := s.host.moveRDMA(ctx, s.outside, to, d.index, d.name); err != nil {
		return err
	}
	var on int
	err := s.host.withRDMA(to, func(r *conn) (err error) {
		on, _, err = r.rdmaPort(ctx, rdmaPort{d.index, 1})
		return err
	})
	if err == nil && on != link {
		err = fault.New(fault.Conflict,
			fmt.Errorf("RDMA device %q of the host is on another link: delete it, so that its name is free", d.name))
	}
	if err != nil {
		return withUndoError(err, s.host.moveRDMA(ctx, to, s.outside, d.index, d.name))
	}
	return nil
}

func (s *Sandbox) addRDMALink(ctx context.Context, r *conn, l netstate.RDMALink) error {
	parts := []nl.NetlinkRequestData{
		attr(nl.RDMA_NLDEV_ATTR_DEV_NAME, nl.ZeroTerminated(deref(l.Name))),
		attr(nl.RDMA_NLDEV_ATTR_LINK_TYPE, nl.ZeroTerminated(deref(l.Type))),
		attr(nl.RDMA_NLDEV_ATTR_NDEV_NAME, nl.ZeroTerminated(netstate.BaseName(l.Link))),
	}
	limited, cancel := context.WithTimeout(ctx, rdmaNameFrees)
	defer cancel()
	for {
		err := r.write(ctx, rdmaType(nl.RDMA_NLDEV_CMD_NEWLINK), 0, parts...)
		switch {
		case isAny(err, unix.EEXIST, unix.ENFILE):
		case errors.Is(err, unix.EINVAL): // no such type (nldev_newlink)
			return because(fault.Unsupported, err,
				"the kernel makes no RDMA device of type %q: load the module that does on the node, such as rdma_rxe", deref(l.Type))
		case errors.Is(err, unix.EPERM): // is_vlan_dev in rxe_newlink
			return because(fault.Invalid, err, "%s cannot have an RDMA device of type %q", where(l.Link), deref(l.Type))
		default:
			return err
		}
		if !loop.Wait(limited, 10*time.Millisecond, nil) {
			return because(fault.Conflict, err,
				"%s has another RDMA device in software, or one of the node is called %q", where(l.Link), deref(l.Name))
		}
	}
}
