package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// A device is identified by facts that the kernel reports and that the owner of its
// namespace cannot write (docs/adr/0017): its parent device, its kind, its permanent
// address, its index. Names, alternative names and the alias are never evidence: a pod
// can set them.

// place is where a device was found.
type place struct {
	c *conn
	w ifLink
}

func (p place) name() string { return p.c.name(p.w.link.Name) }

// hardware reports whether a link belongs to hardware. A link that was created has a
// kind; of hardware only InfiniBand interfaces have one, and those that are created on
// them have a lower link (drivers/infiniband/ulp/ipoib/ipoib_main.c, ipoib_get_iflink).
func (w ifLink) hardware() bool {
	return w.link.LinkKind == "device" || w.link.LinkKind == "ipoib" && w.lower == 0
}

// pciFunction returns the PCI address of a link's function, "" for a link that was
// created, and for a representor, whose parent is the function but which is not its
// interface.
func (s *Sandbox) pciFunction(w ifLink) string {
	if !w.hardware() || representor.MatchString(w.portName) {
		return ""
	}
	return s.host.sysfs.deviceID(w.bus, w.parent)
}

// parentOf is a link's parent device, as in netstate.Device.
func parentOf(w ifLink) string {
	if w.bus == "" || w.parent == "" {
		return ""
	}
	return w.bus + "/" + w.parent
}

// isDevice reports whether a link can be the device that d describes. If d has no facts
// about a device without PCI address, only its name on the host can identify it, see
// locateOutside.
func (s *Sandbox) isDevice(c *conn, w ifLink, d netstate.Device) bool {
	switch {
	case d.HasPCIAddress():
		return s.pciFunction(w) == d.ID
	case d.LinkKind == "":
		// Recorded by a version that kept the index on the host only. Another link of
		// the namespace may have that index, such as the one of the pod's own network:
		// so a link that could carry packets has to have the name as well, which proves
		// nothing but distinguishes the two.
		return d.HostIndex != 0 && w.link.Index == d.HostIndex &&
			(w.hardware() || w.link.KindTraits().Inert || d.At != nil && *d.At == c.name(w.link.Name))
	case w.link.LinkKind != d.LinkKind || parentOf(w) != d.Parent || w.portName != d.PortName:
		return false
	case d.Made() || d.Parent == "" && d.PermMAC == "":
		return hasIndex(c, w, d)
	}
	return w.permMAC == d.PermMAC
}

// hasIndex reports whether a link has the index of the device there. A move keeps the
// index if it is free, so a device that was not observed since has the index it had. On
// the host it may have got another one, and has its name.
func hasIndex(c *conn, w ifLink, d netstate.Device) bool {
	if c.host && d.Made() && w.link.Name == strings.TrimPrefix(d.ID, netstate.VirtualPrefix) {
		return true
	}
	if d.Index != 0 && (w.link.Index == d.Index || !c.host) {
		return w.link.Index == d.Index
	}
	return w.link.Index == d.HostIndex || d.Index == 0 && d.At != nil && *d.At == c.name(w.link.Name)
}

// among returns the link that is the device. If several links match, as with a card
// that has two ports on one function, only the record's permanent address and index
// decide.
func (s *Sandbox) among(c *conn, links []ifLink, d netstate.Device) (*place, error) {
	links = matching(links, func(w ifLink) bool { return s.isDevice(c, w, d) })
	for _, better := range []func(ifLink) bool{
		func(w ifLink) bool { return d.PermMAC != "" && w.permMAC == d.PermMAC },
		func(w ifLink) bool { return d.Index != 0 && w.link.Index == d.Index },
		// Its index was not recorded when the attachment was interrupted, and may have
		// been that of another link before.
		func(w ifLink) bool {
			return d.Made() && d.Index == 0 && d.At != nil && *d.At == c.name(w.link.Name)
		},
	} {
		if best := matching(links, better); len(links) > 1 && len(best) > 0 {
			links = best
		}
	}
	switch len(links) {
	case 0:
		return nil, nil
	case 1:
		return &place{c, links[0]}, nil
	}
	var names []string
	for _, w := range links {
		names = append(names, w.link.Name)
	}
	return nil, fault.New(fault.Conflict, fmt.Errorf("%d links can be the device, %q: delete or rename all but one", len(names), names))
}

func matching(links []ifLink, f func(ifLink) bool) []ifLink {
	return slices.DeleteFunc(slices.Clone(links), func(w ifLink) bool { return !f(w) })
}

// locate finds a device, in the sandbox or on the host. It returns nil for one that is
// neither on the host nor in the sandbox.
func (s *Sandbox) locate(ctx context.Context, d netstate.Device) (*place, error) {
	if d.At == nil || netstate.OnHost(*d.At) {
		p, err := s.locateOutside(ctx, d)
		if p != nil || err != nil {
			return p, err
		}
		return s.search(ctx, s.inside, d)
	}
	p, err := s.search(ctx, s.inside, d)
	if p != nil || err != nil {
		return p, err
	}
	return s.locateOutside(ctx, d)
}

// search finds a device in a namespace, by its index there or among all links.
func (s *Sandbox) search(ctx context.Context, c *conn, d netstate.Device) (*place, error) {
	if c == nil {
		return nil, nil
	}
	if d.Index != 0 { // the one that among would choose
		w, err := c.linkByIndex(ctx, d.Index)
		if err == nil && s.isDevice(c, w, d) && (d.PermMAC == "" || w.permMAC == d.PermMAC) {
			return &place{c, w}, nil
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return nil, err
		}
	}
	links, err := c.links(ctx)
	if errors.Is(err, reconcile.ErrPartial) {
		links, err = c.withRecorded(ctx, links, d)
	}
	if err != nil {
		return nil, err
	}
	return s.among(c, links, d)
}

// withRecorded adds the link with the recorded index of a device to a list that is not
// whole: it has all PCI functions, and a device that is none may be missing.
func (c *conn) withRecorded(ctx context.Context, links []ifLink, d netstate.Device) ([]ifLink, error) {
	if d.Index == 0 || slices.ContainsFunc(links, func(w ifLink) bool { return w.link.Index == d.Index }) {
		return links, nil
	}
	w, err := c.linkByIndex(ctx, d.Index)
	if errors.Is(err, unix.ENODEV) {
		return links, nil
	}
	if err != nil {
		return nil, err
	}
	return append(slices.Clone(links), w), nil
}

// locateUnmoved finds a device that has not left the host yet: it has its name and its
// index there. A link with its name and another index may have been created since.
func (s *Sandbox) locateUnmoved(ctx context.Context, d netstate.Device) (*place, error) {
	w, err := s.outside.linkByName(ctx, strings.TrimPrefix(d.ID, netstate.VirtualPrefix))
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, nil
	case err != nil:
		return nil, err
	case w.link.Index != d.HostIndex || d.LinkKind != "" && !s.isDevice(s.outside, w, d):
		return nil, nil
	}
	return &place{s.outside, w}, nil
}

// locateOutside finds a device on the host: by its PCI address, or by its name there,
// which no pod can set. If its namespace has ended, the kernel has moved it to the host
// under the name it had there: only then all links of the host are checked.
func (s *Sandbox) locateOutside(ctx context.Context, d netstate.Device) (*place, error) {
	if d.HasPCIAddress() {
		return s.locateFunction(ctx, d)
	}
	w, err := s.outside.linkByName(ctx, strings.TrimPrefix(d.ID, netstate.VirtualPrefix))
	moved := d.HostIndex != 0 || d.Index != 0 || d.At != nil && !netstate.OnHost(*d.At)
	switch {
	case errors.Is(err, unix.ENODEV) && !moved:
		return nil, nil
	case err != nil && !errors.Is(err, unix.ENODEV):
		return nil, err
	case err == nil && (!moved || s.isDevice(s.outside, w, d) || d.LinkKind == "" && (w.hardware() || w.link.Index == d.HostIndex)):
		return &place{s.outside, w}, nil
	}
	return s.search(ctx, s.outside, d)
}

// locateFunction finds the interface of a PCI function on the host. If it has several,
// the one with the recorded permanent address, otherwise the first.
func (s *Sandbox) locateFunction(ctx context.Context, d netstate.Device) (*place, error) {
	var found *place
	for _, name := range s.host.sysfs.netdevs(d.ID) {
		w, err := s.outside.linkByName(ctx, name)
		switch {
		case errors.Is(err, unix.ENODEV):
			continue
		case err != nil:
			return nil, err
		case !s.isDevice(s.outside, w, d):
			continue
		}
		p := &place{s.outside, w}
		if d.PermMAC == "" || w.permMAC == d.PermMAC {
			return p, nil
		}
		found = cmp.Or(found, p)
	}
	return found, nil
}
