package netstate

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Apply makes the snapshot what the kernel would be after the change, with
// what the kernel does by itself (Implied changes), in order. The model covers
// what planning depends on; where it is wrong, the engine's verifying pass
// finds the difference and plans again.
//
// Sources: net/core/dev.c, net/core/rtnetlink.c, drivers/net/bonding,
// drivers/net/vrf.c, net/8021q/vlan.c, each fact observed on Linux 6.1 to 6.18.
func (s *Snapshot) Apply(c Change) []Change {
	m := &model{Snapshot: s}
	for _, c := range c.Parts() {
		if effects := c.Object().Traits().effects; effects != nil {
			effects(m, c)
		} else {
			m.store(c)
		}
	}
	return m.implied
}

type model struct {
	*Snapshot
	implied []Change
}

// put records a link, and its device as it then looks.
func (m *model) put(l Link) {
	m.Put(l)
	if d, ok := m.deviceOf(l); ok {
		if l.LinkKind == InfiniBandKind {
			l.MAC = nil // its driver's, see Device.PortGUID
		}
		m.Put(Merge(d, Device{MAC: l.MAC, MTU: l.MTU, Up: l.Up, Alias: l.Alias}))
	}
}

func (m *model) imply(before, after Object) {
	m.implied = append(m.implied, Change{Before: before, After: after, Implied: true})
}

// store is all that a change of most objects does.
func (m *model) store(c Change) {
	have, ok := m.objects[c.Key()]
	switch {
	case c.After == nil:
		m.PutAbsent(c.Key())
	case ok:
		m.Put(mergeAny(have, c.After))
	default:
		m.Put(c.After)
	}
}

func (m *model) address(c Change) {
	m.store(c)
	if c.After == nil {
		m.addressGone(c.Before.(Addr))
	}
}

// sysctl: some of all links give each link their value, and a link without IPv6 loses its addresses and routes of it
// (addrconf_disable_ipv6 in net/ipv6/addrconf.c).
func (m *model) sysctl(c Change) {
	m.store(c)
	after, _ := c.After.(Sysctl)
	if after.Value == nil {
		return
	}
	if after.Spreads() {
		for _, s := range All[Sysctl](m.Snapshot) {
			if after.SpreadsTo(s) && s.Value != nil && *s.Value != *after.Value {
				m.sysctl(Change{After: Sysctl{Path: s.Path, Value: after.Value}}) // not ours in a record: it follows in an undo, too
			}
		}
	}
	if link := after.Link(); link == "" || *after.Value == "0" || after.Path != "net/ipv6/conf/"+link+"/disable_ipv6" {
		return
	}
	for _, o := range All[Object](m.Snapshot) {
		a, isAddr := o.(Addr)
		r, isRoute := o.(Route)
		if LinkOf(o) == after.Link() && (isAddr && strings.Contains(a.Address, ":") || isRoute && r.IPv6()) {
			m.imply(o, nil)
			m.PutAbsent(o.Key())
		}
	}
}

// bridgeVLAN: a port has one PVID, so the new one takes the flag from the old (__vlan_add_pvid in
// net/bridge/br_vlan.c).
func (m *model) bridgeVLAN(c Change) {
	m.store(c)
	if after, ok := c.After.(BridgeVLAN); ok && after.PVID != nil && *after.PVID {
		for _, v := range m.vlansOf(after.Link) {
			if v.VID != after.VID {
				m.Put(Merge(v, BridgeVLAN{PVID: new(false)}))
			}
		}
	}
}

func (m *model) vlansOf(link string) (out []BridgeVLAN) {
	for _, o := range m.objects {
		if v, ok := o.(BridgeVLAN); ok && v.Link == link {
			out = append(out, v)
		}
	}
	return out
}

// joinsBridge gives a port, or a new bridge itself, the VLAN of the bridge that it is in by default.
func (m *model) joinsBridge(port string, bridge Link) {
	if vid := bridge.DefaultVLAN(); vid != 0 {
		m.Put(BridgeVLAN{Link: port, VID: vid, PVID: new(true), Untagged: new(true)})
	}
}

func (m *model) leavesBridge(port string) {
	for _, v := range m.vlansOf(port) {
		m.PutAbsent(v.Key())
	}
}

func (m *model) link(c Change) {
	o := c.Object().(Link)
	switch c.Action() {
	case Delete:
		if l, ok := m.Link(o.Name); ok {
			m.dropLink(l, false)
		}
	case Create:
		m.createLink(o)
	default:
		if l, ok := m.Link(o.Name); ok {
			m.updateLink(l, c.After.(Link))
		}
	}
}

// createLink fills in what a new link inherits.
func (m *model) createLink(l Link) {
	l.Up = cmp.Or(l.Up, new(false))
	l.Master = cmp.Or(l.Master, new(""))
	l.Alias = cmp.Or(l.Alias, new(""))
	l.Promisc = cmp.Or(l.Promisc, new(false))
	l.AllMulti = cmp.Or(l.AllMulti, new(false))
	kind := l.KindTraits()
	if born, known := l.atBirth("txQueueLen"); known && l.TxQueueLen == nil {
		l.TxQueueLen = born.TxQueueLen
	}
	if l.Parent != nil {
		if p, ok := m.Link(*l.Parent); ok {
			if !kind.OwnMTU {
				l.MTU = creationMTU(l, p)
			}
			if l.MAC == nil && kind.ParentMAC {
				l.MAC = p.MAC
			}
		}
	}
	if l.MTU == nil && kind.DefaultMTU != 0 && l.LivesOn() == (Key{}) {
		l.MTU = &kind.DefaultMTU
	}
	m.Put(l)
	m.fresh[l.Name] = true
	if kind.PortVLANs {
		m.joinsBridge(l.Name, l)
	}
	if l.Veth != nil && l.Veth.Peer != nil {
		peer := Link{
			Name: *l.Veth.Peer, LinkKind: l.LinkKind, Veth: &Veth{Peer: new(l.Name)},
			MTU: l.MTU, MAC: l.Veth.PeerMAC, Up: new(false), Master: new(""),
		}
		m.Put(peer)
		m.fresh[peer.Name] = true
		m.imply(nil, peer)
	}
	if *l.Master != "" {
		m.masterChanged(Link{Name: l.Name, Master: new("")}, l)
	}
}

// creationMTU is the MTU of a new link on a parent. The kernel cuts one that does not fit
// into the parent's.
func creationMTU(l, parent Link) *uint32 {
	if l.KindTraits().Overhead == nil || parent.MTU == nil {
		return cmp.Or(l.MTU, parent.MTU)
	}
	fits := l.MTUOver(*parent.MTU)
	if l.MTU != nil {
		fits = min(fits, *l.MTU)
	}
	return &fits
}

// dropLink removes a link and all that lives on it. moved says the link goes
// to another namespace: its children then stay behind, which a plan avoids by
// deleting them first.
func (m *model) dropLink(l Link, moved bool) {
	if !moved {
		for _, c := range m.LinksWhere(func(c Link) bool { return c.Parent != nil && *c.Parent == l.Name }) {
			m.imply(c, nil)
			m.dropLink(c, false)
		}
	}
	if l.Veth != nil && l.Veth.Peer != nil {
		if p, ok := m.Link(*l.Veth.Peer); ok && !moved {
			m.PutAbsent(l.Key())
			m.imply(p, nil)
			m.dropLink(p, false)
		}
	}
	for _, p := range m.LinksWhere(func(p Link) bool { return p.Master != nil && *p.Master == l.Name }) {
		after := Link{Name: p.Name, Master: new("")}
		forced := l.KindTraits().ForcesPorts
		if forced {
			after.Up = new(false) // a released port is down, with its own MAC and MTU
		}
		m.imply(Restrict(p, func(f string) bool { return f == "master" || f == "up" && after.Up != nil }), after)
		p = Merge(p, after)
		if l.KindTraits().PortVLANs {
			m.leavesBridge(p.Name)
		}
		m.put(p)
		if forced {
			m.released(p)
		}
	}
	var gone []Object
	for _, o := range All[Object](m.Snapshot) {
		if m.LinkUnder(o) == l.Name {
			gone = append(gone, o)
		}
	}
	for _, o := range gone {
		m.imply(o, nil)
		delete(m.objects, o.Key())
		delete(m.known, o.Key())
	}
	m.PutAbsent(l.Key())
}

func (m *model) updateLink(have, want Link) {
	if want.MAC != nil {
		have = m.setMAC(have, want.MAC)
	}
	next := Merge(have, want)
	m.put(next)
	if want.Up != nil && !*want.Up {
		m.linkDown(next)
	}
	if want.Master != nil && (have.Master == nil || *have.Master != *want.Master) {
		m.masterChanged(have, next)
	}
	if want.MTU != nil {
		m.mtuChanged(next, *want.MTU)
	}
}

// linkDown drops what a link loses when it goes down; its VLANs follow it down
// (vlan_device_event in net/8021q/vlan.c). An ipvlan or macvlan does not: it loses
// its carrier.
func (m *model) linkDown(l Link) {
	m.flush(l)
	for _, c := range m.vlansUp(l) {
		m.imply(Link{Name: c.Name, Up: c.Up}, Link{Name: c.Name, Up: new(false)})
		m.put(Merge(c, Link{Up: new(false)}))
		m.linkDown(c)
	}
}

func (m *model) vlansUp(l Link) []Link {
	return m.LinksWhere(func(c Link) bool {
		return c.KindTraits().ParentState && c.Parent != nil && *c.Parent == l.Name && c.Up != nil && *c.Up
	})
}

// flush drops every route and neighbor of a link, and its IPv6 addresses, unless they
// are to be kept (addrconf_ifdown in net/ipv6/addrconf.c).
func (m *model) flush(l Link) {
	keep, _ := m.Get(Sysctl{Path: "net/ipv6/conf/" + l.Name + "/keep_addr_on_down"}.Key())
	kept := keep != nil && Value(keep, "value") == "1"
	for _, o := range All[Object](m.Snapshot) {
		k := o.Key()
		if LinkOf(o) != l.Name {
			continue
		}
		a, isAddr := o.(Addr)
		if o.Traits().Flushed || isAddr && strings.Contains(a.Address, ":") && (!kept || a.Kernel) {
			m.imply(o, nil)
			delete(m.objects, k)
		}
	}
}

// addressGone drops what a link loses with an IPv4 address: the later ones in its network, unless the kernel promotes the first of
// them (__inet_del_ifa in net/ipv4/devinet.c); and with the last address every IPv4 route through it, those of other tables
// included, and every IPv4 neighbor (fib_disable_ip in net/ipv4/fib_frontend.c). IPv6 has no such rule.
func (m *model) addressGone(a Addr) {
	if strings.Contains(a.Address, ":") {
		return
	}
	if net, err := netip.ParsePrefix(a.Address); err == nil && !m.promotes(a.Link) {
		m.secondariesGone(a.Link, net.Masked())
	}
	for _, o := range m.objects {
		if other, ok := o.(Addr); ok && other.Link == a.Link && !strings.Contains(other.Address, ":") {
			return
		}
	}
	for _, o := range All[Object](m.Snapshot) {
		r, isRoute := o.(Route)
		n, isNeighbor := o.(Neighbor)
		if LinkOf(o) == a.Link && (isRoute && !r.IPv6() || isNeighbor && !strings.Contains(n.Address, ":")) {
			m.imply(o, nil)
			delete(m.objects, o.Key())
		}
	}
}

// secondariesGone drops the addresses of a link in a network, and the routes with one of them as their source (fib_sync_down_addr).
func (m *model) secondariesGone(link string, network netip.Prefix) {
	var others []Addr
	for _, o := range m.objects { // addresses are few, and routes may be many
		if other, ok := o.(Addr); ok && other.Link == link {
			if p, err := netip.ParsePrefix(other.Address); err == nil && p.Masked() == network {
				others = append(others, other)
			}
		}
	}
	if len(others) == 0 {
		return
	}
	slices.SortFunc(others, func(a, b Addr) int { return strings.Compare(a.Address, b.Address) })
	secondary := map[string]bool{}
	for _, other := range others {
		secondary[netip.MustParsePrefix(other.Address).Addr().String()] = true
		m.imply(other, nil)
		delete(m.objects, other.Key())
	}
	for _, r := range All[Route](m.Snapshot) {
		if r.Source != nil && secondary[*r.Source] {
			m.imply(r, nil)
			delete(m.objects, r.Key())
		}
	}
}

// promotes reports whether it is known that another address of a link takes the place of one that is deleted.
func (m *model) promotes(link string) bool {
	for _, of := range []string{link, "all"} {
		if o, ok := m.Get(Sysctl{Path: "net/ipv4/conf/" + of + "/promote_secondaries"}.Key()); ok && Value(o, "value") == "1" {
			return true
		}
	}
	return false
}

// released records a port that has left a bond: its MAC and MTU are its own again, and observed when needed.
func (m *model) released(l Link) {
	if !l.KindTraits().FixedMAC {
		l = m.setMAC(l, nil)
	}
	l.MTU = nil
	m.Put(l)
	if d, ok := m.deviceOf(l); ok {
		d.MTU = nil
		m.Put(d)
	}
}

// deviceOf is the device of a link, if that is where the device is.
func (m *model) deviceOf(l Link) (Device, bool) {
	d, ok := m.Device(l.DeviceID)
	return d, ok && deref(d.At) == l.Name
}

func (m *model) masterChanged(have, l Link) {
	master, ok := m.Link(*l.Master)
	if have.Master != nil && *have.Master != "" {
		m.leavesBridge(l.Name)
	}
	if ok && master.KindTraits().PortVLANs {
		m.joinsBridge(l.Name, master)
	}
	switch {
	case ok && master.KindTraits().ForcesPorts:
		// The bond opens the port, forces its MTU on it, and either takes the
		// first port's MAC or gives the port its own.
		up := Link{Up: new(true), MTU: master.MTU}
		if m.ports(master.Name) == 1 && !m.macChosen(master) {
			if l.MAC != nil {
				m.setMAC(master, l.MAC)
			}
		} else if !master.PortsKeepMAC() && !l.KindTraits().FixedMAC {
			l = m.setMAC(l, master.MAC) // nil: it gets one that only an observation tells
		}
		m.put(Merge(l, up))
		if master.MTU != nil {
			m.mtuChanged(l, *master.MTU)
		}
		for _, o := range All[Object](m.Snapshot) {
			k := o.Key()
			if a, isAddr := o.(Addr); isAddr && a.Link == l.Name && strings.Contains(a.Address, ":") {
				m.imply(a, nil)
				delete(m.objects, k)
			}
		}
	case have.Master != nil && *have.Master != "":
		if old, ok := m.Link(*have.Master); ok && old.KindTraits().ForcesPorts {
			p := Merge(l, Link{Up: new(false)})
			if l.Up != nil && *l.Up {
				m.imply(Link{Name: l.Name, Up: l.Up}, Link{Name: l.Name, Up: p.Up})
			}
			m.released(p)
			m.linkDown(p)
			if m.ports(old.Name) == 0 && old.MAC != nil {
				// The last port leaves it with a random MAC (bond_release in
				// drivers/net/bonding/bond_main.c).
				m.imply(Link{Name: old.Name, MAC: old.MAC}, Link{Name: old.Name})
				m.setMAC(old, nil)
			}
			return
		}
		m.bounce(l)
	case ok && master.KindTraits().Bounces:
		m.bounce(l)
	}
}

// bounce models a running link that enters or leaves a VRF: it goes down
// and up again, and its VLANs with it. Routes and global IPv6 addresses go, IPv4
// addresses stay.
func (m *model) bounce(l Link) {
	if l.Up == nil || !*l.Up {
		return
	}
	m.flush(l)
	for _, c := range m.vlansUp(l) {
		m.bounce(c)
	}
}

// macChosen says the bond's MAC was set rather than inherited; such a bond
// keeps it when a port comes in. An inherited MAC is random until then, which
// the model keeps as nil.
func (m *model) macChosen(bond Link) bool { return bond.MAC != nil }

func (m *model) ports(master string) int {
	n := 0
	for _, o := range m.objects {
		if l, ok := o.(Link); ok && l.Master != nil && *l.Master == master {
			n++
		}
	}
	return n
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (m *model) mtuChanged(l Link, mtu uint32) {
	if mtu < MinIPv6MTU {
		m.ipv6Gone(l)
	}
	below := func(c Link) bool {
		return c.Master != nil && *c.Master == l.Name || c.Parent != nil && *c.Parent == l.Name
	}
	for _, c := range m.LinksWhere(below) {
		switch {
		case c.Master != nil && *c.Master == l.Name && l.KindTraits().ForcesPorts:
			m.put(Merge(c, Link{MTU: &mtu}))
			m.mtuChanged(c, mtu) // it may be a bond itself
		case c.Parent == nil || *c.Parent != l.Name || c.MTU == nil || c.KindTraits().Tunnel || c.KindTraits().OwnMTU:
		case c.KindTraits().ParentMTU && *c.MTU != mtu, *c.MTU > c.MTUOver(mtu):
			fits := c.MTUOver(mtu)
			m.imply(Link{Name: c.Name, MTU: c.MTU}, Link{Name: c.Name, MTU: &fits})
			m.put(Merge(c, Link{MTU: &fits}))
			m.mtuChanged(c, fits)
		}
	}
}

// MinIPv6MTU is in bytes: a link with a smaller MTU has no IPv6 at all (RFC 8200 section 5).
const MinIPv6MTU = 1280

// ipv6Gone drops what a link loses that is too small for IPv6 (addrconf_notify in net/ipv6/addrconf.c).
func (m *model) ipv6Gone(l Link) {
	for _, o := range All[Object](m.Snapshot) {
		if LinkOf(o) != l.Name {
			continue
		}
		s, isSysctl := o.(Sysctl)
		a, isAddr := o.(Addr)
		r, isRoute := o.(Route)
		if isSysctl && strings.HasPrefix(s.Path, "net/ipv6/") || isAddr && strings.Contains(a.Address, ":") || isRoute && r.IPv6() {
			m.imply(o, nil)
			m.PutAbsent(o.Key())
		}
	}
}

// setMAC gives a link a MAC, nil for one that is not known. Neighbors of the link are dropped. Ports of a bond get the MAC too, and so
// do links on the link, unless they have one of their own (vlan_device_event, NET_ADDR_STOLEN). MACs that follow are not listed as
// changes: an undo that wrote one would make it the link's own.
func (m *model) setMAC(l Link, mac *string) Link {
	had := deref(l.MAC)
	l.MAC = mac
	m.put(l)
	if d, ok := m.deviceOf(l); ok && mac == nil {
		d.MAC = nil
		m.Put(d)
	}
	for _, n := range All[Neighbor](m.Snapshot) {
		if n.Link == l.Name {
			m.imply(n, nil)
			delete(m.objects, n.Key())
		}
	}
	for _, c := range m.LinksWhere(func(c Link) bool {
		kind := c.KindTraits()
		return deref(c.Parent) == l.Name && kind.ParentMAC && (kind.FixedMAC || c.MAC == nil || *c.MAC == had) ||
			deref(c.Master) == l.Name && l.KindTraits().ForcesPorts && !l.PortsKeepMAC()
	}) {
		m.setMAC(c, mac)
	}
	return l
}

// Rename gives a link another name where it is. What lives on it stays, and what
// refers to it goes by its index. To what is observed on demand it is new.
func (s *Snapshot) Rename(old, name string) {
	l, ok := s.Link(old)
	if !ok {
		return
	}
	follow := func(ref *string) *string {
		if ref != nil && *ref == old {
			return &name
		}
		return ref
	}
	for _, o := range All[Object](s) {
		if LinkOf(o) == old {
			delete(s.objects, o.Key())
			delete(s.known, o.Key())
			s.Put(On(o, LinkKey(name)))
			continue
		}
		if o, ok := o.(Link); ok && o.Name != old {
			o.Parent, o.Master = follow(o.Parent), follow(o.Master)
			if o.Veth != nil {
				o.Veth = &Veth{Peer: follow(o.Veth.Peer)}
			}
			if o.Bond != nil {
				bond := *o.Bond
				bond.Primary = follow(bond.Primary)
				o.Bond = &bond
			}
			s.Put(o)
		}
	}
	s.PutAbsent(l.Key())
	l.Name = name
	s.Put(l)
	s.fresh[name] = true
}

// device moves a device. It arrives down, without addresses, routes, master or
// per-interface sysctls; name, MAC, MTU and ethtool settings travel with it.
func (m *model) device(c Change) {
	after, ok := c.After.(Device)
	if !ok {
		return
	}
	have, known := m.Device(after.ID)
	if !known {
		return
	}
	next := Merge(have, after)
	if !OnHost(deref(next.At)) {
		next.Settings = nil // they are read on the host only
	}
	m.Put(next)
	if after.At == nil || have.At == nil || *after.At == *have.At {
		if l, ok := m.Link(deref(next.At)); ok {
			m.Put(Merge(l, Link{MAC: after.MAC, MTU: after.MTU, Up: after.Up, Alias: after.Alias}))
		}
		return
	}
	if l, ok := m.Link(*have.At); ok && OnHost(l.Name) == OnHost(*after.At) {
		m.Rename(l.Name, *after.At)
		l, _ = m.Link(*after.At)
		m.put(Merge(l, Link{MAC: after.MAC, MTU: after.MTU, Up: after.Up, Alias: after.Alias}))
		return
	}
	link := Link{LinkKind: "device", MTU: have.MTU, MAC: have.MAC}
	for _, o := range All[Object](m.Snapshot) {
		if o.Traits().MovesWithCarrier && LinkOf(o) == *have.At {
			m.PutAbsent(o.Key())
			m.Put(On(o, LinkKey(*after.At)))
		}
	}
	if l, ok := m.Link(*have.At); ok {
		link = l
	}
	link.Name = *have.At
	m.dropLink(link, true) // with what is on it, also where only that was observed
	link.Name, link.DeviceID = *after.At, after.ID
	link.Port = nil // it is in no bridge there
	link = Merge(link, Link{Up: new(false), Master: new(""), MTU: after.MTU, MAC: after.MAC, Alias: after.Alias})
	if after.Up != nil {
		link.Up = after.Up
	}
	m.put(link)
	m.fresh[link.Name] = true
}
