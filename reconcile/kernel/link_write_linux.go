package kernel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

func (s *Sandbox) applyLink(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Link](c)
	if at, _, err := s.at(c.Key().ID); err == nil {
		s.invalidate(at)
	}
	switch c.Action() {
	case netstate.Create:
		return s.createLink(ctx, after)
	case netstate.Delete:
		return s.deleteLink(ctx, before)
	default:
		if after.Called != nil {
			return s.renameLink(ctx, before, after)
		}
		return s.updateLink(ctx, before, after)
	}
}

// renameLink gives a link another name. Until 6.2 the kernel renames only what is
// down.
func (s *Sandbox) renameLink(ctx context.Context, before, after netstate.Link) error {
	old := after.Name
	if before.Called != nil {
		old = *before.Called
	}
	c, base, err := s.at(*after.Called)
	if err != nil {
		return err
	}
	defer s.forget(old, *after.Called)
	s.forget(old)
	index, err := s.index(ctx, old)
	if err != nil {
		return err
	}
	rename := func() error {
		return c.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, index, 0, 0), attr(unix.IFLA_IFNAME, nl.ZeroTerminated(base)))
	}
	if err = rename(); !errors.Is(err, unix.EBUSY) {
		return err
	}
	set := func(up bool) error {
		flags, change := ifFlags(netstate.Link{Up: &up})
		return c.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, index, flags, change))
	}
	if err := set(false); err != nil {
		return err
	}
	return errors.Join(rename(), set(true))
}

// createLink creates a link with everything the kernel accepts at creation, in one
// message: rtnl_newlink_create deletes the link if a part is refused, so it is complete
// or absent. Settings that are accepted only later (an alias, the options of a port, a bond's
// primary, the MTU of a bridge) go into a second message, and a link that refuses it is deleted.
func (s *Sandbox) createLink(ctx context.Context, l netstate.Link) error {
	kind, ok := linkKinds[l.LinkKind]
	if !ok {
		return fault.New(fault.Unsupported, fmt.Errorf("a link of kind %q cannot be created", l.LinkKind))
	}
	created, rest := splitCreation(l)
	names := netstate.RequiredLinks(created)
	s.forget(l.Name)
	err := s.retryStale(func() error { return s.newLink(ctx, kind, created, created.Name) }, names...)
	if errors.Is(err, unix.EEXIST) {
		err = s.createAside(ctx, kind, created, err)
	}
	if err != nil {
		return s.explainCreate(ctx, l, err)
	}
	if err := s.refuseAdvertisements(ctx, l); err != nil {
		return withUndoError(err, s.deleteLink(ctx, l))
	}
	if len(netstate.Fields(rest)) == 0 {
		return nil
	}
	if err := s.updateLink(ctx, netstate.Link{Name: l.Name}, rest); err != nil {
		return withUndoError(err, s.deleteLink(ctx, l))
	}
	return nil
}

// splitCreation divides a new link into what is set at creation and what is set
// afterwards. A link with a master is brought up last: a bond refuses a port that is
// up, and one that is up bounces when it joins a VRF.
func splitCreation(l netstate.Link) (created, rest netstate.Link) {
	member := l.Master != nil && *l.Master != ""
	later := func(path string) bool {
		switch value := netstate.Value(l, path); path {
		case "alias", "bond.primary":
			return value != nil && value != ""
		case "port.hairpin", "port.isolated":
			return true
		case "up":
			return member && value == true
		case "mtu": // the kernel ignores one that is set at creation
			return (l.KindTraits().PortsMTU || l.KindTraits().OwnMTU) && value != nil
		}
		return false
	}
	created = netstate.Restrict(l, func(path string) bool { return !later(path) })
	rest = netstate.Restrict(l, later)
	return created, rest
}

// newLink sends the one message. A link whose parent is in the other namespace is
// created through that namespace's socket with IFLA_NET_NS_FD: it is then created where
// it belongs. (With IFLA_LINK_NETNSID it would be created beside its parent, under its
// final name, and moved, and the move would bring it down.)
func (s *Sandbox) newLink(ctx context.Context, kind linkKind, l netstate.Link, name string) error {
	dst, _, err := s.at(l.Name)
	if err != nil {
		return err
	}
	src := dst
	var parts []nl.NetlinkRequestData
	if l.KindTraits().Stacked {
		if l.Parent == nil {
			return invalid("a link of kind %q needs a parent", l.LinkKind)
		}
		if src, _, err = s.at(*l.Parent); err != nil {
			return err
		}
		lower, err := s.index(ctx, *l.Parent)
		if err != nil {
			return err
		}
		parts = append(parts, attr(unix.IFLA_LINK, nl.Uint32Attr(uint32(lower))))
	}
	if src != dst {
		parts = append(parts, attr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(dst.ns.Fd()))))
	}
	common, flags, change, err := s.commonAttributes(ctx, l)
	if err != nil {
		return err
	}
	info, err := s.linkInfo(ctx, kind, l, dst)
	if err != nil {
		return err
	}
	parts = append([]nl.NetlinkRequestData{
		ifInfo(unix.AF_UNSPEC, 0, flags, change),
		attr(unix.IFLA_IFNAME, nl.ZeroTerminated(netstate.BaseName(name))),
	}, parts...)
	parts = append(append(parts, common...), info)
	if src != dst { // the notification would be about another namespace
		return src.write(ctx, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, parts...)
	}
	index, err := src.create(ctx, unix.RTM_NEWLINK, parts...)
	if err == nil && index > 0 && name == l.Name {
		s.remember(l.Name, index)
	}
	return err
}

// createAside creates a link of the sandbox whose name, until 6.13, the kernel looks up
// in the namespace of its parent: a host link of that name is then "file exists",
// although the sandbox has none (net/core/rtnetlink.c, __rtnl_newlink). The link is
// created under a random name, and renamed.
func (s *Sandbox) createAside(ctx context.Context, kind linkKind, l netstate.Link, exists error) error {
	dst, base, err := s.at(l.Name)
	if err != nil || l.Parent == nil || netstate.OnHost(*l.Parent) == netstate.OnHost(l.Name) {
		return exists
	}
	if _, err := dst.linkByName(ctx, base); !errors.Is(err, unix.ENODEV) {
		return exists
	}
	aside := dst.name("pl" + randomName())
	up := l.Up
	l.Up = nil
	if err := s.retryStale(func() error { return s.newLink(ctx, kind, l, aside) }, netstate.RequiredLinks(l)...); err != nil {
		return err
	}
	w, err := dst.linkByName(ctx, netstate.BaseName(aside))
	if err != nil {
		return err
	}
	flags, change := ifFlags(netstate.Link{Up: up})
	err = dst.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, w.link.Index, flags, change),
		attr(unix.IFLA_IFNAME, nl.ZeroTerminated(base)))
	if err != nil {
		return withUndoError(err, dst.deleteIndex(ctx, w.link.Index, w.link.LinkKind))
	}
	return nil
}

func randomName() string {
	b := make([]byte, 6)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// commonAttributes returns the attributes that links of all kinds have.
func (s *Sandbox) commonAttributes(ctx context.Context, l netstate.Link) (parts []nl.NetlinkRequestData, flags, change uint32, err error) {
	if l.MTU != nil {
		parts = append(parts, attr(unix.IFLA_MTU, nl.Uint32Attr(*l.MTU)))
	}
	if l.MAC != nil && !l.KindTraits().FixedMAC {
		hw, err := net.ParseMAC(*l.MAC)
		if err != nil {
			return nil, 0, 0, invalid("mac: %q is not a MAC address", *l.MAC)
		}
		parts = append(parts, attr(unix.IFLA_ADDRESS, hw))
	}
	if l.TxQueueLen != nil {
		parts = append(parts, attr(unix.IFLA_TXQLEN, nl.Uint32Attr(*l.TxQueueLen)))
	}
	if l.Master != nil {
		master := 0
		if *l.Master != "" {
			if netstate.OnHost(*l.Master) != netstate.OnHost(l.Name) {
				return nil, 0, 0, invalid("master %s and link %s are in different namespaces", where(*l.Master), where(l.Name))
			}
			if master, err = s.index(ctx, *l.Master); err != nil {
				return nil, 0, 0, err
			}
		}
		parts = append(parts, attr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
	}
	flags, change = ifFlags(l)
	return parts, flags, change, nil
}

// ifFlags returns the flags of l, and the mask of those that l sets.
func ifFlags(l netstate.Link) (flags, change uint32) {
	for _, f := range []struct {
		set *bool
		bit uint32
	}{{l.Up, unix.IFF_UP}, {l.Promisc, unix.IFF_PROMISC}, {l.AllMulti, unix.IFF_ALLMULTI}} {
		if f.set == nil {
			continue
		}
		change |= f.bit
		if *f.set {
			flags |= f.bit
		}
	}
	return flags, change
}

// linkInfo writes IFLA_LINKINFO for a new link.
func (s *Sandbox) linkInfo(ctx context.Context, kind linkKind, l netstate.Link, dst *conn) (*nl.RtAttr, error) {
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(l.LinkKind))
	e := &infoData{attr: attr(nl.IFLA_INFO_DATA, nil), creating: true, index: func(n string) (int, error) { return s.index(ctx, n) }}
	if l.Veth != nil && l.Veth.Peer != nil {
		peer, _, err := s.at(*l.Veth.Peer)
		if err != nil {
			return nil, err
		}
		if peer != dst {
			e.peer = peer
		}
	}
	kind.encode(e, l)
	info.AddChild(e.attr)
	return info, e.err
}

// updateLink changes what is set in after, with one RTM_NEWLINK. The kernel does the
// parts in a fixed order (rtnetlink.c: options of the kind and of the port first, then
// do_setlink: MAC, MTU, alias, master, flags, queue length), which is the order an
// enslavement needs: the port is down, gets its MAC and MTU, joins, and is brought up.
// It stops at the first part that is refused and keeps what it did before; that is then
// undone with the values of before.
func (s *Sandbox) updateLink(ctx context.Context, before, after netstate.Link) error {
	err := s.setLink(ctx, after)
	if errors.Is(err, unix.EADDRNOTAVAIL) && after.MAC != nil {
		err = s.adoptMAC(ctx, after, err)
	}
	if err == nil {
		return nil
	}
	err = s.explainUpdate(ctx, after, err)
	if len(netstate.Fields(after)) < 2 {
		return err
	}
	return withUndoError(err, s.restoreLink(ctx, before))
}

// restoreLink undoes the part of a failed update that was applied.
func (s *Sandbox) restoreLink(ctx context.Context, before netstate.Link) error {
	have, err := s.readLink(ctx, before.Name)
	if err != nil {
		if errors.Is(err, unix.ENODEV) {
			return nil
		}
		return err
	}
	back, differs := netstate.NewUpdate("", have, before)
	if !differs {
		return nil
	}
	return s.setLink(ctx, back.After.(netstate.Link))
}

func (s *Sandbox) setLink(ctx context.Context, l netstate.Link) error {
	// The options of a port belong to the bridge it joins, and the kernel looks
	// for them before it lets it join: these are two messages.
	if l.Port != nil && l.Master != nil {
		port := netstate.Link{Name: l.Name, Port: l.Port}
		l.Port = nil
		if err := s.setLink(ctx, l); err != nil || *l.Master == "" {
			return err
		}
		return s.setLink(ctx, port)
	}
	if l.MTU != nil && linkKinds[l.OptionsKind()].mtuAlone {
		mtu := netstate.Link{Name: l.Name, MTU: l.MTU}
		l.MTU = nil
		if err := s.setLink(ctx, l); err != nil {
			return err
		}
		return s.setLink(ctx, mtu)
	}
	return s.retryStale(func() error { return s.setLinkOnce(ctx, l) }, netstate.RequiredLinks(l)...)
}

func (s *Sandbox) setLinkOnce(ctx context.Context, l netstate.Link) error {
	c, index, err := s.locateLink(ctx, l.Name)
	if err != nil {
		return err
	}
	parts, flags, change, err := s.commonAttributes(ctx, l)
	if err != nil {
		return err
	}
	if l.Alias != nil {
		parts = append(parts, attr(unix.IFLA_IFALIAS, []byte(*l.Alias)))
	}
	info, err := s.changeInfo(ctx, l)
	if err != nil {
		return err
	}
	if info != nil {
		parts = append(parts, info)
	}
	return c.write(ctx, unix.RTM_NEWLINK, 0, append([]nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, index, flags, change)}, parts...)...)
}

// changeInfo writes IFLA_LINKINFO for a link that exists, nil when no option of
// its kind changes.
func (s *Sandbox) changeInfo(ctx context.Context, l netstate.Link) (*nl.RtAttr, error) {
	name := l.OptionsKind()
	if name == "" && l.Port == nil {
		return nil, nil
	}
	info := attr(unix.IFLA_LINKINFO, nil)
	index := func(n string) (int, error) { return s.index(ctx, n) }
	if name != "" {
		e := &infoData{attr: attr(nl.IFLA_INFO_DATA, nil), index: index}
		linkKinds[name].encode(e, l)
		if e.err != nil {
			return nil, e.err
		}
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(name))
		info.AddChild(e.attr)
	}
	if l.Port != nil {
		e := &infoData{attr: attr(nl.IFLA_INFO_SLAVE_DATA, nil), index: index}
		encodePort(e, l.Port)
		info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
		info.AddChild(e.attr)
	}
	return info, nil
}

// deleteLink deletes a link; one that is not there is deleted.
func (s *Sandbox) deleteLink(ctx context.Context, l netstate.Link) error {
	err := s.onLink(ctx, l.Name, func(c *conn, index int) error { return c.deleteIndex(ctx, index, l.LinkKind) })
	s.forget(l.Name)
	return unlessGone(err, unix.ENODEV)
}

// deleteIndex deletes a link of a kind. An ipvlan that is deleted with its flag ALLMULTI
// permanently leaves a count on the link below it, see allmultiUsers.
func (c *conn) deleteIndex(ctx context.Context, index int, kind string) error {
	if kind == "ipvlan" {
		if err := c.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, index, 0, unix.IFF_ALLMULTI)); err != nil {
			return err
		}
	}
	return c.write(ctx, unix.RTM_DELLINK, 0, ifInfo(unix.AF_UNSPEC, index, 0, 0))
}

// explainCreate adds the reason of a refused creation where the kernel's message does
// not show it.
func (s *Sandbox) explainCreate(ctx context.Context, l netstate.Link, err error) error {
	if errors.Is(err, unix.EEXIST) {
		return s.explainExists(ctx, l, err)
	}
	if unknownKind(err) {
		return because(fault.Unsupported, err,
			"the kernel has no links of kind %q: install the module that modprobe finds as rtnl-link-%s", l.LinkKind, l.LinkKind)
	}
	return s.explainKind(ctx, l, err)
}

// explainKind adds the reason that the kind of a link knows.
func (s *Sandbox) explainKind(ctx context.Context, l netstate.Link, err error) error {
	explain := linkKinds[l.LinkKind].explain
	if explain == nil || l.OptionsKind() != l.LinkKind {
		return err
	}
	var parent netstate.Link
	if l.LivesOn() != (netstate.Key{}) {
		var readErr error
		if parent, readErr = s.readLink(ctx, *l.Parent); readErr != nil {
			parent = netstate.Link{}
		}
	}
	return explain(err, l, parent)
}

// unknownKind reports whether the kernel has no links of a kind, and could load no
// module for them (rtnl_newlink in net/core/rtnetlink.c).
func unknownKind(err error) bool {
	e, ok := errors.AsType[*refused](err)
	return ok && e.errno == unix.EOPNOTSUPP && e.message == "Unknown device type"
}

// explainExists describes what exists if it is not the name of the new link.
func (s *Sandbox) explainExists(ctx context.Context, l netstate.Link, err error) error {
	if _, e := s.readLink(ctx, l.Name); !errors.Is(e, unix.ENODEV) {
		return err
	}
	if taken := linkKinds[l.LinkKind].taken; taken != nil && l.OptionsKind() == l.LinkKind {
		return because(fault.Conflict, err, "%s", taken(l))
	}
	return err
}

// isPortOfBond reports whether a link is a device that is to join a bond.
func (s *Sandbox) isPortOfBond(ctx context.Context, l netstate.Link) bool {
	have, err := s.readLink(ctx, l.Name)
	if err != nil || have.LinkKind != "device" {
		return false
	}
	master, err := s.readLink(ctx, *l.Master)
	return err == nil && master.LinkKind == "bond"
}

func (s *Sandbox) explainUpdate(ctx context.Context, l netstate.Link, err error) error {
	switch {
	case errors.Is(err, unix.EPERM) && l.Master != nil && *l.Master != "":
		if have, e := s.readLink(ctx, l.Name); e == nil && have.Up != nil && *have.Up {
			return because(fault.NotReady, err, "a bond takes only a port that is down")
		}
	case errors.Is(err, unix.EINVAL) && l.Master != nil && *l.Master != "" && s.isPortOfBond(ctx, l):
		// bond_enslave adds the bond's VLANs to the port's filter (vlan_vids_add_by_dev), which
		// igbvf refuses while the physical function does not answer; see explainVLAN.
		return because(fault.NotReady, err,
			"its driver does not take what %s has, such as its VLANs (a virtual function without clear-to-send cannot take a VLAN)",
			where(*l.Master))
	case errors.Is(err, unix.ENETDOWN):
		return because(fault.NotReady, err, "the link below it is down")
	case errors.Is(err, unix.ERANGE) && l.MTU != nil:
		return because(fault.Invalid, err, "mtu %d is more than the link below it has", *l.MTU)
	case errors.Is(err, unix.EADDRNOTAVAIL) && l.Master != nil && *l.Master != "":
		return because(fault.Unsupported, err,
			"the bond gives its ports its own MAC, and the physical function does not let this virtual function have it: "+
				"trust it, or use failOverMac active")
	case errors.Is(err, unix.EADDRNOTAVAIL) && l.MAC != nil:
		return refusedMAC(*l.MAC, err)
	case errors.Is(err, unix.EBUSY) && l.MAC != nil:
		return because(fault.NotReady, err, "mac %s: its driver takes a new address only while the link is down", *l.MAC)
	default:
		if have, e := s.readLink(ctx, l.Name); e == nil {
			return s.explainKind(ctx, netstate.Merge(have, l), err)
		}
	}
	return err
}
