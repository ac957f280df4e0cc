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
	typ := rdmaType(nl.RDMA_NLDEV_CMD_GET)
	err := c.send(ctx, typ, unix.NLM_F_DUMP, nil, uint16(typ), func(b []byte) error {
		d, ok := decodeSoftRDMA(b)
		switch {
		case !ok:
		case d.name == first:
			if f.isSoftRDMA(d.name) { // a card may have been given the name
				out = append([]softRDMADevice{d}, out...)
			}
		case len(out) < rdmaDevices && f.isSoftRDMA(d.name):
			out = append(out, d)
		}
		return nil
	})
	return out, err
}

func decodeSoftRDMA(b []byte) (d softRDMADevice, ok bool) {
	index, name := decodeRDMADevice(b)
	for typ, v := range attributes(b) {
		if typ == rdmaProtocol {
			d.typ = softRDMATypes[text(v)]
		}
	}
	if index == nil {
		return d, false
	}
	d.index, d.name = *index, name
	return d, d.typ != ""
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
	c, _, gone := o.at(queried.Link)
	if gone != nil || !o.host.sysfs.hasRDMA() {
		return out, false, nil // it was deleted with its namespace
	}
	index, err := o.index(ctx, queried.Link)
	if errors.Is(err, unix.ENODEV) {
		return out, false, nil
	}
	if err != nil {
		return out, false, err
	}
	err = o.host.withRDMA(c, func(r *conn) error {
		var d softRDMADevice
		d, there, err = r.softRDMAOn(ctx, o.host.sysfs, index, deref(queried.Name))
		out = netstate.RDMALink{Link: queried.Link, Name: &d.name, Type: &d.typ, Nodes: o.host.sysfs.rdmaNodes(d.name)}
		return err
	})
	return out, there, err
}

func (s *Sandbox) applyRDMALink(ctx context.Context, change netstate.Change) error {
	before, after := typed[netstate.RDMALink](change)
	link := change.Object().(netstate.RDMALink).Link
	err := s.onLink(ctx, link, func(c *conn, index int) error {
		return s.host.withRDMA(c, func(r *conn) error {
			if change.Action() == netstate.Create {
				return s.addRDMALink(ctx, r, after)
			}
			d, there, err := r.softRDMAOn(ctx, s.host.sysfs, index, deref(before.Name))
			which := attr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(d.index))
			switch {
			case err != nil:
				return err
			case change.Action() == netstate.Delete && (!there || d.name != deref(before.Name)):
				return nil // another one is not ours
			case change.Action() == netstate.Delete:
				return unlessGone(r.write(ctx, rdmaType(nl.RDMA_NLDEV_CMD_DELLINK), 0, which), unix.EINVAL, unix.ENODEV)
			case !there:
				return fault.New(fault.NotReady, fmt.Errorf("%s has no RDMA device", where(link)))
			}
			return r.write(ctx, rdmaType(nl.RDMA_NLDEV_CMD_SET), 0, which, attr(nl.RDMA_NLDEV_ATTR_DEV_NAME, nl.ZeroTerminated(deref(after.Name))))
		})
	})
	if change.Action() == netstate.Delete {
		return unlessGone(err, unix.ENODEV)
	}
	return err
}

func (s *Sandbox) addRDMALink(ctx context.Context, r *conn, l netstate.RDMALink) error {
	if s.host.sysfs.rdmaExclusive() && !netstate.OnHost(l.Link) { // one that was made belongs to the host
		return fault.New(fault.Unsupported, errors.New("RDMA devices of the node belong to one network namespace each (\"rdma system show\" says exclusive): "+
			"run \"rdma system set netns shared\" before the first network namespace is made"))
	}
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
			return because(fault.Unsupported, err, "the kernel makes no RDMA device of type %q: load the module that does on the node, such as rdma_rxe", deref(l.Type))
		case errors.Is(err, unix.EPERM): // is_vlan_dev in rxe_newlink
			return because(fault.Invalid, err, "%s cannot have an RDMA device of type %q", where(l.Link), deref(l.Type))
		default:
			return err
		}
		select {
		case <-limited.Done():
			return because(fault.Conflict, err, "%s has another RDMA device in software, or one of the node is called %q", where(l.Link), deref(l.Name))
		case <-time.After(10 * time.Millisecond):
		}
	}
}
