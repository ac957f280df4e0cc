package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// find is locate for an observation: the sandbox's links are known already.
func (o *observer) find(ctx context.Context, queried netstate.Device) (*place, error) {
	var links []ifLink
	whole := true
	o.withCache(func(g *observationCache) { links, whole = g.links, !g.partial })
	// If its index in the sandbox was not recorded, another link there may have the
	// index it had on the host. A link of the host takes precedence over that one: on
	// the host no pod gives names.
	noted := queried.HasPCIAddress() || queried.Index != 0
	if !noted {
		p, err := o.locateUnmoved(ctx, queried)
		if p != nil || err != nil {
			return p, err
		}
	}
	var inside *place
	if o.inside != nil {
		if !whole {
			var err error
			if links, err = o.inside.withRecorded(ctx, links, queried); err != nil {
				return nil, err
			}
		}
		p, err := o.among(o.inside, links, queried)
		if err != nil || p != nil && (noted || queried.At != nil && *queried.At == p.w.link.Name) {
			return p, err
		}
		inside = p
	}
	if p, err := o.locateOutside(ctx, queried); p != nil || err != nil {
		return p, err
	}
	return inside, nil
}

// queryDevice reads a device, on the host or in the sandbox.
func (o *observer) queryDevice(ctx context.Context, queried netstate.Device) error {
	id := queried.ID
	if id == netstate.DefaultRouteDevice {
		return o.queryDefaultRoute(ctx)
	}
	if network, ok := strings.CutPrefix(id, netstate.NetworkPrefix); ok {
		return o.queryNetwork(ctx, network)
	}
	if address, ok := strings.CutPrefix(id, netstate.AddressPrefix); ok {
		return o.queryAddress(ctx, address)
	}
	p, err := o.find(ctx, queried)
	if err != nil {
		return err
	}
	d := netstate.Device{ID: id, Driver: o.host.sysfs.driver(queried)}
	switch {
	case p != nil:
		if err := o.describe(ctx, &d, *p); err != nil {
			return err
		}
		if p.c.host && queried.Settings != nil {
			if queried.HostIndex != 0 { // it was in a pod
				d.Settings, err = o.settingsAfter(ctx, p.w)
			} else {
				d.Settings, err = p.c.settingsOf(ctx, p.w, o.defaults)
			}
			if err != nil {
				return err
			}
			if queried.HostIndex == 0 { // it is about to be taken
				if err := o.belongings(ctx, &d, p.w.link.Index); err != nil {
					return err
				}
			}
		}
		o.withCache(func(g *observationCache) { g.devices[id] = *p })
	case o.lost(queried):
		d.Lost = true
	case !o.host.sysfs.exists(queried):
		o.snap.PutAbsent(d.Key())
		return nil
	}
	link := ""
	if d.At != nil && netstate.OnHost(*d.At) {
		link = netstate.BaseName(*d.At)
	}
	if o.nodes == nil {
		o.nodes, o.rdmaThere = o.host.sysfs.nodesOfHost(), o.host.sysfs.hasRDMA()
	}
	if o.rdmaThere {
		d.RDMA = o.host.sysfs.rdma(queried, link)
	}
	if len(d.RDMA) > 0 {
		d.RDMAExclusive = o.host.sysfs.rdmaExclusive()
		if err := o.softRDMA(ctx, &d, queried.Settings != nil && queried.HostIndex == 0); err != nil {
			return err
		}
	}
	d.Nodes = o.host.sysfs.otherNodes(queried, o.nodes)
	d.LinkKind, d.Parent = cmp.Or(d.LinkKind, queried.LinkKind), cmp.Or(d.Parent, queried.Parent)
	o.snap.Put(d)
	return nil
}

// softRDMA drops the RDMA devices in software that are on a link of a pod, which is called as that of the device here. Of a
// device that is about to be taken it puts its own one into the snapshot: it ends with the move, and a record restores it.
func (o *observer) softRDMA(ctx context.Context, d *netstate.Device, taken bool) error {
	if !slices.ContainsFunc(d.RDMA, func(r netstate.RDMADevice) bool { return r.Software }) {
		return nil
	}
	mine, there, err := o.rdmaLink(ctx, netstate.RDMALink{Link: *d.At})
	if err != nil {
		return reading(netstate.RDMALink{Link: *d.At}, err)
	}
	d.RDMA = slices.DeleteFunc(d.RDMA, func(r netstate.RDMADevice) bool { return r.Software && (!there || r.Name != *mine.Name) })
	if there && taken {
		o.snap.Put(mine)
	}
	return nil
}

// maxBelongings bounds the addresses and routes of the host that are recorded of a device.
const maxBelongings = 256

// belongings puts into the snapshot the addresses and routes that the host is configured to have
// over a device: a move to another namespace deletes them, and a record restores them. What a
// router or a DHCP server has given is left to whoever asks them again.
func (o *observer) belongings(ctx context.Context, d *netstate.Device, index int) error {
	addresses, err := o.outside.addresses(ctx, index)
	if err != nil {
		return err
	}
	found := 0
	written := map[string]bool{} // networks to which the kernel makes no route
	for _, a := range addresses {
		if got := a.object(*d.At, true); !got.Kernel && a.flags&unix.IFA_F_PERMANENT != 0 && !a.prefix.Addr().IsLinkLocalUnicast() {
			o.snap.Put(got)
			found++
			if got.NoPrefixRoute != nil && *got.NoPrefixRoute {
				written[a.prefix.Masked().String()] = true
			}
		}
	}
	protocols := []uint8{unix.RTPROT_BOOT, unix.RTPROT_STATIC}
	if len(written) > 0 { // NetworkManager gives them the protocol of the kernel's
		protocols = append(protocols, unix.RTPROT_KERNEL)
	}
	if d.Up != nil && !*d.Up {
		protocols = nil // no routes: the kernel drops them with the link (fib_sync_down_dev, rt6_disable_ip)
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for _, protocol := range protocols {
			routes, err := o.outside.routes(ctx, routeQuery{family: family, protocol: protocol, index: index}, 0, planned)
			if err != nil {
				return err
			}
			for _, r := range routes {
				if protocol == unix.RTPROT_KERNEL && !written[r.Dst] {
					continue
				}
				r.Link = *d.At
				o.snap.Put(r.Route)
				found++
			}
		}
	}
	if found > maxBelongings && d.Use == "" {
		d.Use = fmt.Sprintf("it has %d addresses and routes of the host, more than the %d that can be restored", found, maxBelongings)
	}
	return nil
}

// lost reports whether a device that was not found must exist somewhere: hardware
// without a parent whose absence would show; and a link in a namespace that exists,
// where its index was never recorded, as it may have another name now.
func (o *observer) lost(d netstate.Device) bool {
	switch {
	case d.HasPCIAddress():
		return false
	case d.LinkKind != "" && !d.Made() && d.Parent == "":
		return true
	}
	return o.inside != nil && d.HostIndex != 0 && d.Index == 0 && d.At != nil && !netstate.OnHost(*d.At)
}

// describe fills in the device's fields where it is, and on the host what it is used
// for.
func (o *observer) describe(ctx context.Context, d *netstate.Device, p place) error {
	l := p.w.link
	d.At, d.Index = new(p.name()), l.Index
	d.LinkKind, d.Parent, d.PortName, d.PermMAC = l.LinkKind, parentOf(p.w), p.w.portName, p.w.permMAC
	d.MTU, d.Up, d.Alias = l.MTU, l.Up, l.Alias
	if !p.w.infiniband {
		d.MAC = l.MAC
	} else if p.c.host {
		d.PortGUID = portGUID(l)
	}
	d.AltNames = slices.Sorted(slices.Values(l.AltNames))
	if d.AltNames == nil {
		d.AltNames = []string{} // none, as opposed to unknown
	}
	o.remember(*d.At, l.Index)
	if !p.c.host {
		return nil
	}
	var err error
	d.Use, err = o.use(ctx, p)
	return err
}

// use returns what the host uses a link for, "" for nothing.
func (o *observer) use(ctx context.Context, p place) (string, error) {
	if p.w.master != 0 {
		kind := p.w.port
		if kind != "" {
			kind += " "
		}
		name, err := o.nameOf(ctx, p.c, p.w.master)
		return strings.TrimSpace(kind + "port of " + netstate.BaseName(name)), err
	}
	if uppers := o.host.sysfs.uppers(netstate.BaseName(p.name())); len(uppers) > 0 {
		return "carries " + strings.Join(uppers, ", "), nil
	}
	if up := p.w.link.Up; up != nil && !*up {
		return "", nil // no route: the kernel drops them with the link (fib_sync_down_dev, rt6_disable_ip)
	}
	for _, dst := range probes {
		way, err := p.c.defaultOver(ctx, dst, p.w.link.Index)
		if err != nil {
			return "", err
		}
		if way.index != p.w.link.Index {
			continue
		}
		if way.advertised {
			other, err := p.c.dispensable(ctx, p.w.link.Index)
			if err != nil {
				return "", err
			}
			if other {
				continue
			}
		}
		return "default route", nil
	}
	return "", nil
}

// way is a default route: its link, 0 for no route, and whether a router has advertised
// it (RTPROT_RA).
type way struct {
	index      int
	advertised bool
}

// dispensable reports whether the host can do without a link that has only an advertised
// default route: another link has an IPv6 default route too, and one of that link's
// default routes was configured. Any router on any network can advertise a route, and
// must not withhold a device by that. Where only advertisements show which link is the
// host's own, all of them are kept.
func (c *conn) dispensable(ctx context.Context, over int) (bool, error) {
	for _, dst := range probes {
		best, err := c.defaultOver(ctx, dst, 0)
		if err != nil {
			return false, err
		}
		if best.index == 0 || best.index == over {
			continue
		}
		six, err := c.defaultOver(ctx, probes[1], best.index)
		if err != nil {
			return false, err
		}
		if six.index == best.index && (!best.advertised || !six.advertised) {
			return true, nil
		}
	}
	return false, nil
}

// probes are addresses that only a default route leads to: of the networks for
// benchmarks and for documentation (RFC 2544, RFC 3849).
var probes = [][]byte{
	net.IPv4(198, 18, 0, 1).To4(),
	net.ParseIP("2001:db8::1"),
}

// defaultOver queries which default route leads to dst, over the link of that index if
// it is not 0. It queries the entry of the table itself (RTM_F_FIB_MATCH): one message,
// where a dump could be thousands of routes.
func (c *conn) defaultOver(ctx context.Context, dst []byte, over int) (way, error) {
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: uint8(8 * len(dst)), Flags: unix.RTM_F_FIB_MATCH}}
	if len(dst) == net.IPv6len {
		header.Family = unix.AF_INET6
	}
	parts := []nl.NetlinkRequestData{header, attr(unix.RTA_DST, dst)}
	if over != 0 {
		parts = append(parts, attr(unix.RTA_OIF, nl.Uint32Attr(uint32(over))))
	}
	b, err := c.get(ctx, unix.RTM_GETROUTE, unix.RTM_NEWROUTE, parts...)
	if isAny(err, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENODEV, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.EACCES, unix.EINVAL) {
		return way{}, nil
	}
	if err != nil {
		return way{}, err
	}
	for _, r := range decodeRoutes(b) {
		if r.IsDefault() && (over == 0 || r.index == over) {
			return way{r.index, r.Protocol == unix.RTPROT_RA}, nil
		}
	}
	return way{}, nil
}

// queryDefaultRoute reads the device of the host's default route.
func (o *observer) queryDefaultRoute(ctx context.Context) error {
	d := netstate.Device{ID: netstate.DefaultRouteDevice}
	for _, dst := range probes {
		best, err := o.outside.defaultOver(ctx, dst, 0)
		if err != nil {
			return err
		}
		if best.index == 0 {
			continue
		}
		w, err := o.outside.linkByIndex(ctx, best.index)
		if err != nil {
			return err
		}
		return o.putOnHost(ctx, d, w)
	}
	o.snap.PutAbsent(d.Key())
	return nil
}

// putOnHost puts a device into the snapshot that is a link of the host.
func (o *observer) putOnHost(ctx context.Context, d netstate.Device, w ifLink) error {
	if err := o.describe(ctx, &d, place{o.outside, w}); err != nil {
		return err
	}
	o.snap.Put(d)
	return nil
}

// withAddress lists the links of the host that have one of some addresses.
func (o *observer) withAddress(ctx context.Context, is func(netip.Prefix) bool) (found []ifLink, err error) {
	all, err := o.outside.addresses(ctx, 0)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if !is(a.prefix) || slices.ContainsFunc(found, func(w ifLink) bool { return w.link.Index == a.index }) {
			continue
		}
		w, err := o.outside.linkByIndex(ctx, a.index)
		if errors.Is(err, unix.ENODEV) {
			continue // deleted since
		}
		if err != nil {
			return nil, err
		}
		found = append(found, w)
	}
	return found, nil
}

// queryNetwork reads the device of the host that has an address in a network. Where several
// have one it cannot be said which is meant.
func (o *observer) queryNetwork(ctx context.Context, network string) error {
	d := netstate.Device{ID: netstate.NetworkPrefix + network}
	wanted, err := netip.ParsePrefix(network)
	if err != nil {
		return invalid("%q is not a network", network)
	}
	found, err := o.withAddress(ctx, func(p netip.Prefix) bool { return p.Masked() == wanted })
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		o.snap.PutAbsent(d.Key())
		return nil
	case len(found) > 1:
		return fault.New(fault.Conflict,
			fmt.Errorf("the interfaces %q and %q of the host have an address in it: name one of them, or remove the address of the other",
				found[0].link.Name, found[1].link.Name))
	}
	return o.putOnHost(ctx, d, found[0])
}

// queryAddress reads the device of the host that has an address, the first one of several.
func (o *observer) queryAddress(ctx context.Context, address string) error {
	d := netstate.Device{ID: netstate.AddressPrefix + address}
	wanted, err := netip.ParseAddr(address)
	if err != nil {
		return invalid("%q is not an address", address)
	}
	found, err := o.withAddress(ctx, func(p netip.Prefix) bool { return p.Addr() == wanted })
	if err != nil {
		return err
	}
	if len(found) == 0 {
		o.snap.PutAbsent(d.Key())
		return nil
	}
	return o.putOnHost(ctx, d, found[0])
}

// Networks returns the networks of the host's addresses by interface, without those of a
// link alone.
func (s *Sandbox) Networks(ctx context.Context) (map[string][]netip.Prefix, error) {
	all, err := s.outside.addresses(ctx, 0)
	if err != nil {
		return nil, err
	}
	o := s.observer(netstate.NewSnapshot())
	out := map[string][]netip.Prefix{}
	for _, a := range all {
		if !a.prefix.Addr().IsGlobalUnicast() {
			continue
		}
		name, err := o.nameOf(ctx, s.outside, a.index)
		if err != nil {
			return nil, err
		}
		if name = netstate.BaseName(name); name != "" && !slices.Contains(out[name], a.prefix.Masked()) {
			out[name] = append(out[name], a.prefix.Masked())
		}
	}
	return out, nil
}

// applyDevice moves or renames a device, or restores its fields.
func (s *Sandbox) applyDevice(ctx context.Context, c netstate.Change) error {
	before, after := typed[netstate.Device](c)
	if c.After == nil {
		return invalid("a device is not deleted, it is moved back")
	}
	before.ID = after.ID
	var seen *place
	s.withCache(func(g *observationCache) {
		if p, ok := g.devices[after.ID]; ok {
			seen = &p
		}
		delete(g.devices, after.ID) // outdated by the change
	})
	if seen != nil {
		err := s.takeDevice(ctx, before, after, seen)
		if !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	p, err := s.locate(ctx, before)
	if err != nil {
		return err
	}
	if p == nil {
		return s.vanished(before)
	}
	return s.takeDevice(ctx, before, after, p)
}

// takeDevice moves the device from where it is.
func (s *Sandbox) takeDevice(ctx context.Context, before, after netstate.Device, p *place) (err error) {
	dst, base := p.c, p.w.link.Name
	if after.At != nil {
		if dst, base, err = s.at(*after.At); err != nil {
			return err
		}
	}
	s.forget(p.name(), dst.name(base))
	if before.At != nil {
		s.forget(*before.At)
	}
	t := &deviceMove{Sandbox: s, device: seenAs(before, *p), from: *p, to: dst, base: base, want: after}
	return t.run(ctx)
}

// seenAs are the facts by which a device is recognized wherever it is now: those of the
// last observation, and its index there.
func seenAs(d netstate.Device, p place) netstate.Device {
	at := p.name()
	d.LinkKind, d.Parent, d.PortName, d.PermMAC = p.w.link.LinkKind, parentOf(p.w), p.w.portName, p.w.permMAC
	d.At, d.Index, d.HostIndex = &at, p.w.link.Index, p.w.link.Index
	return d
}

func (s *Sandbox) vanished(d netstate.Device) error {
	driver := s.host.sysfs.driver(d)
	switch {
	case !s.host.sysfs.exists(d):
		return fault.New(fault.Gone, fmt.Errorf("the device does not exist any more"))
	case driver == "":
		return fault.New(fault.Gone, fmt.Errorf("it has no network interface: no driver is bound to it"))
	}
	return fault.New(fault.Gone,
		fmt.Errorf("it has no network interface here: driver %q gave it none, or it is in another namespace", driver))
}

// deviceMove is one move or rename of a device.
type deviceMove struct {
	*Sandbox
	device netstate.Device // the facts that identify it
	from   place
	to     *conn
	base   string // name there
	want   netstate.Device
	// arrived is the device's index on the host, 0 before it is there.
	arrived int
	// missing describes what the device lacks although it is at the wanted place.
	missing error
}

// run moves the device, or leaves it where it was.
//
// One message moves and renames, but not atomically (net/core/rtnetlink.c, do_setlink):
// the device is moved under its old name first, and if the new one is taken there, the
// call fails with the device on the other side. So the name is checked before, and
// after a failure the device is located and moved back.
func (t *deviceMove) run(ctx context.Context) error {
	if err := t.nameIsFree(ctx); err != nil {
		return err
	}
	if err := t.dropNames(ctx); err != nil {
		return err
	}
	start, up := t.from, t.want.Up
	if !t.to.host {
		t.mu.Lock()
		delete(t.uppers, t.from.w.link.Index)
		delete(t.restored, t.from.w.link.Index)
		t.mu.Unlock()
	}
	if t.cleans() {
		t.want.Up = nil // not before it is clean
	}
	err := t.moveAndSet(ctx)
	if errors.Is(err, unix.EADDRNOTAVAIL) && t.want.MAC != nil {
		err = t.acceptOtherMAC(ctx, start, err)
	}
	if err == nil && start.c.host && !t.to.host {
		err = t.refuseReceiver(ctx)
	}
	if err != nil {
		if errors.Is(err, errExchanged) {
			return err
		}
		err = t.explain(err)
		t.from = start
		if undo := t.restore(ctx); undo != nil {
			return withUndoError(err, undo)
		}
		return err
	}
	return errors.Join(t.missing, t.clean(ctx, up), t.restoreAltNames(ctx))
}

// cleans reports whether settings are restored after the move. Those of a device that
// an earlier version recorded are not known; what is attached to it when it returns to
// the host is still a pod's.
func (t *deviceMove) cleans() bool {
	return t.to.host && (t.want.Settings != nil || t.arrived != 0 || !t.from.c.host)
}

// clean restores the settings of a device that is on the host now, and then its
// state. It stays on the host with what could not be restored, and down.
func (t *deviceMove) clean(ctx context.Context, up *bool) error {
	if !t.cleans() {
		return nil
	}
	index := t.from.w.link.Index
	w, restored, err := t.to.restoreSettings(ctx, index, t.want.Settings)
	if err != nil {
		return err
	}
	if err := errors.Join(t.detectDuplicates(ctx, w), t.refuseUppers(ctx, w)); err != nil {
		return err
	}
	if !differs(up, w.link.Up) {
		t.mu.Lock()
		t.restored[index] = restored
		t.mu.Unlock()
		return nil
	}
	flags, change := ifFlags(netstate.Link{Up: up})
	return t.to.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, index, flags, change))
}

// moveAndSet sends the messages that move, rename and set the device.
func (t *deviceMove) moveAndSet(ctx context.Context) error {
	if t.to.host && !t.from.c.host {
		if err := t.arrive(ctx); err != nil {
			return err
		}
	}
	return t.send(ctx)
}

// arrive moves the device to the host and makes sure that it is the device before it
// has a name there or is up. The message names an index of the sandbox, and the owner
// of that namespace may have put another link at that index in the meantime. The link
// arrives down, under a random name; one that is not the device is moved back.
func (t *deviceMove) arrive(ctx context.Context) error {
	aside := "pl" + randomName()
	err := t.from.c.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, t.from.w.link.Index, 0, 0),
		attr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(t.to.ns.Fd()))), attr(unix.IFLA_IFNAME, nl.ZeroTerminated(aside)))
	if err != nil {
		return err
	}
	w, err := t.to.linkByName(ctx, aside)
	if err != nil {
		return err
	}
	if !t.proven(w) {
		return t.sendBack(ctx, w)
	}
	t.from = place{t.to, w}
	t.arrived = w.link.Index
	return t.dropUppers(ctx)
}

// dropUppers deletes the links that are still on the device in the sandbox. A macvlan,
// an ipvlan or a VLAN outlives the move of the link below it and keeps working, in the
// namespace it is in (drivers/net/macvlan.c, macvlan_device_event).
func (t *deviceMove) dropUppers(ctx context.Context) error {
	if t.nothingStacked(t.outside, t.arrived) {
		return nil
	}
	links, err := t.inside.links(ctx)
	if err != nil && !errors.Is(err, reconcile.ErrPartial) {
		return err
	}
	uppers := matching(links, func(w ifLink) bool {
		return w.lower == t.arrived && w.lowerNS >= 0 && w.link.LinkKind != "veth" // its lower link is its other end
	})
	if len(uppers) == 0 {
		return nil
	}
	host, err := t.nsid(ctx, t.inside, t.outside)
	if err != nil {
		return err
	}
	for _, w := range uppers {
		if w.lowerNS != host {
			continue
		}
		if err := t.inside.deleteIndex(ctx, w.link.Index, w.link.LinkKind); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete %s %q, which the pod has on the device: %w", w.link.LinkKind, w.link.Name, err)
		}
	}
	return nil
}

// proven reports whether a link that was moved to the host is the device. Its index may
// have changed.
func (t *deviceMove) proven(w ifLink) bool {
	d := t.device
	d.Index, d.HostIndex = w.link.Index, w.link.Index
	return t.isDevice(t.to, w, d)
}

// sendBack returns a link to the sandbox that is not the device. A virtual link that
// the namespace does not accept is deleted: a pod created it.
func (t *deviceMove) sendBack(ctx context.Context, w ifLink) error {
	why := fmt.Errorf("%w: link %d of the sandbox was %s link when it arrived", errExchanged, t.device.Index, describeLink(w))
	err := t.to.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, w.link.Index, 0, 0),
		attr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(t.from.c.ns.Fd()))), attr(unix.IFLA_IFNAME, nl.ZeroTerminated("dev%d")))
	if err != nil && !w.hardware() {
		err = t.to.deleteIndex(ctx, w.link.Index, w.link.LinkKind)
	}
	return errors.Join(why, err)
}

var errExchanged = fault.New(fault.NotReady, errors.New("another link was put in the device's place while it was moved"))

func describeLink(w ifLink) string {
	if w.hardware() {
		return "another device's"
	}
	return "a " + w.link.LinkKind
}

// dropNames deletes conflicting alternative names: the one that the device is
// to be renamed to, because that fails with "file exists", and before it returns to the
// host those that it did not have there. A pod can give it any name, and one that a
// link of the host has makes the move fail.
func (t *deviceMove) dropNames(ctx context.Context) error {
	var extra []string
	for _, n := range t.from.w.link.AltNames {
		if n == t.base || t.to.host && !t.from.c.host && !slices.Contains(t.want.AltNames, n) {
			extra = append(extra, n)
		}
	}
	return t.from.c.altNames(ctx, unix.RTM_DELLINKPROP, t.from.w.link.Index, extra)
}

// acceptOtherMAC handles an address that was refused. A virtual function may not get
// its own address back yet; that it returns to the host matters more.
func (t *deviceMove) acceptOtherMAC(ctx context.Context, start place, refused error) error {
	link := netstate.Link{Name: t.to.name(t.base), MAC: t.want.MAC, MTU: t.want.MTU, Up: t.want.Up}
	switch {
	case t.to == start.c && t.base == start.w.link.Name:
		return t.adoptMAC(ctx, link, refused)
	case !t.to.host:
		return refused
	}
	t.want.MAC = nil
	if err := t.send(ctx); err != nil {
		t.want.MAC = link.MAC
		return errors.Join(refused, err)
	}
	if t.adoptMAC(ctx, link, refused) != nil {
		t.missing = because(fault.NotReady, refusedMAC(*link.MAC, refused),
			"the device is on the host as %q, but not with its own MAC", t.base)
	}
	return nil
}

func (t *deviceMove) nameIsFree(ctx context.Context) error {
	seen, free := false, false
	t.withCache(func(g *observationCache) {
		if t.to.host {
			seen, free = g.free[t.to.name(t.base)], true
			delete(g.free, t.to.name(t.base))
			return
		}
		seen, free = g.names != nil, !g.names[t.base]
		if g.names != nil {
			g.names[t.base] = true
		}
	})
	if seen && free {
		return nil
	}
	w, err := t.to.linkByName(ctx, t.base)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	if t.to == t.from.c && w.link.Index == t.from.w.link.Index {
		return nil // it is the device, under this name or an alternative one
	}
	return fault.New(fault.Conflict, fmt.Errorf("the name %s is taken by a %s link; the device stays %s",
		where(t.to.name(t.base)), w.link.LinkKind, where(t.from.name())))
}

// send moves, renames and sets what differs, in one message.
func (t *deviceMove) send(ctx context.Context) error {
	have := t.from.w.link
	moves := t.to != t.from.c
	var parts []nl.NetlinkRequestData
	if moves {
		parts = append(parts, attr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(t.to.ns.Fd()))))
	}
	if moves || have.Name != t.base {
		parts = append(parts, attr(unix.IFLA_IFNAME, nl.ZeroTerminated(t.base)))
	}
	if differs(t.want.MAC, have.MAC) {
		hw, err := net.ParseMAC(*t.want.MAC)
		if err != nil {
			return invalid("mac: %q is not a MAC address", *t.want.MAC)
		}
		parts = append(parts, attr(unix.IFLA_ADDRESS, hw))
	}
	if differs(t.want.MTU, have.MTU) {
		parts = append(parts, attr(unix.IFLA_MTU, nl.Uint32Attr(*t.want.MTU)))
	}
	if differs(t.want.Alias, have.Alias) {
		parts = append(parts, attr(unix.IFLA_IFALIAS, []byte(*t.want.Alias)))
	}
	// It arrives down, so only bringing it up needs a flag.
	var flags, change uint32
	if up := t.want.Up; up != nil && (moves && *up || !moves && differs(up, have.Up)) {
		flags, change = ifFlags(netstate.Link{Up: up})
	}
	if len(parts) == 0 && change == 0 {
		return nil
	}
	err := t.from.c.write(ctx, unix.RTM_NEWLINK, 0,
		append([]nl.NetlinkRequestData{ifInfo(unix.AF_UNSPEC, have.Index, flags, change)}, parts...)...)
	if errors.Is(err, unix.EBUSY) && !moves && have.Name != t.base && *have.Up {
		return t.renameDown(ctx)
	}
	return err
}

// renameDown renames a link that is up, which the kernel allows since 6.2.
func (t *deviceMove) renameDown(ctx context.Context) error {
	i := t.from.w.link.Index
	if err := t.from.c.write(ctx, unix.RTM_NEWLINK, 0, ifInfo(unix.AF_UNSPEC, i, 0, unix.IFF_UP)); err != nil {
		return err
	}
	t.from.w.link.Up = new(false)
	t.want.Up = cmp.Or(t.want.Up, new(true))
	return t.send(ctx)
}

func differs[T comparable](want, have *T) bool {
	return want != nil && (have == nil || *want != *have)
}

// restoreAltNames sets the alternative names. A move keeps them, but the one equal to
// the target name had to be deleted, and udev adds names of its own.
func (t *deviceMove) restoreAltNames(ctx context.Context) error {
	// A device that has just arrived has none that are not recorded: no version
	// recorded a device without its alternative names.
	if t.want.AltNames == nil && t.arrived == 0 || t.keepsAltNames() {
		return nil
	}
	w, err := t.to.linkByName(ctx, t.base)
	if err != nil {
		return err
	}
	var missing, extra []string
	for _, n := range t.want.AltNames {
		if n != t.base && !slices.Contains(w.link.AltNames, n) {
			missing = append(missing, n)
		}
	}
	for _, n := range w.link.AltNames {
		if !slices.Contains(t.want.AltNames, n) {
			extra = append(extra, n)
		}
	}
	err = errors.Join(
		t.to.altNames(ctx, unix.RTM_DELLINKPROP, w.link.Index, extra),
		t.to.altNames(ctx, unix.RTM_NEWLINKPROP, w.link.Index, missing))
	if err != nil {
		return because(kindOf(err), err,
			"the device is %s, but without its alternative names %v", where(t.to.name(t.base)), t.want.AltNames)
	}
	return nil
}

// keepsAltNames reports whether the names that move with the device are those wanted.
func (t *deviceMove) keepsAltNames() bool {
	own := func(names []string) []string {
		return slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(n string) bool { return n == t.base })
	}
	return slices.Equal(own(t.want.AltNames), own(t.from.w.link.AltNames))
}

// altNames adds or deletes alternative names.
func (c *conn) altNames(ctx context.Context, typ, index int, names []string) error {
	if len(names) == 0 {
		return nil
	}
	list := attr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, nil)
	for _, n := range names {
		list.AddRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(n))
	}
	flags := 0
	if typ == unix.RTM_NEWLINKPROP {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_APPEND
	}
	return c.write(ctx, typ, flags, ifInfo(unix.AF_UNSPEC, index, 0, 0), list)
}

// restore locates the device after a failed move and restores it.
func (t *deviceMove) restore(ctx context.Context) error {
	was := t.from.w.link
	now, err := t.find(ctx)
	if err != nil {
		return err
	}
	if now == nil {
		return t.vanished(t.device)
	}
	t.forget(t.to.name(t.base))
	if t.from.w.infiniband {
		was.MAC = nil
	}
	back := &deviceMove{
		Sandbox: t.Sandbox, device: t.device, from: *now, to: t.from.c, base: was.Name,
		want: netstate.Device{
			ID: t.device.ID, MAC: was.MAC, MTU: was.MTU, Up: was.Up, Alias: was.Alias,
			AltNames: append([]string{}, was.AltNames...),
		},
	}
	if err := back.send(ctx); err != nil {
		return err
	}
	return back.restoreAltNames(ctx)
}

// find searches both sides for the device, where a failed move can have left it.
func (t *deviceMove) find(ctx context.Context) (*place, error) {
	if t.arrived != 0 {
		w, err := t.to.linkByIndex(ctx, t.arrived)
		if err != nil {
			return nil, err
		}
		return &place{t.to, w}, nil
	}
	for _, c := range []*conn{t.from.c, t.to} {
		p, err := t.search(ctx, c, t.device)
		if p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

func (t *deviceMove) explain(err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return because(fault.Conflict, err,
			"%s cannot move: the name of %s, or an alternative name, is taken there", where(t.from.name()), where(t.to.name(t.base)))
	case errors.Is(err, unix.EADDRNOTAVAIL) && t.want.MAC != nil:
		return refusedMAC(*t.want.MAC, err)
	case errors.Is(err, unix.ENODEV):
		return fault.New(fault.Gone, fmt.Errorf("the device vanished: %w", err))
	case errors.Is(err, unix.EINVAL) && t.to != t.from.c:
		return because(fault.Unsupported, err, "a %s link cannot change its namespace", t.from.w.link.LinkKind)
	}
	return err
}
