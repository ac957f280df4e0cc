package ops

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
)

// Undo plans an undo: every change of the history is inverted, last first, and compared
// with what is observed. Objects that no longer exist are skipped, those that the kernel deletes with
// something else is left to the kernel, and only what we created is deleted. It returns
// the changes, or what must be observed first.
//
// Foreign objects on a link that the undo deletes are listed too, as implied and foreign,
// and recreated at the end; a caller adds the foreign changes to its history before it
// applies the first change, so that a crash does not lose them.
//
// Undo of a whole record is a release, undo of one pass is a rollback, and undo of objects
// that no step wants any more is pruning. Of a rollback, kept is the record before the pass: what it holds of links is
// written again where the kernel changes it with the undo: sysctls that it gives each link, and MTUs of links that follow another. A MAC
// that it sets is the link's own.
func Undo(have *netstate.Snapshot, history []netstate.Change, kept ...netstate.Change) (
	changes []netstate.Change, missing []netstate.Object,
) {
	u := &undoer{
		made: map[netstate.Key]bool{}, ends: map[netstate.Key]bool{}, missing: map[netstate.Key]netstate.Object{},
		willDelete: map[string]bool{}, touched: map[string]bool{}, withMTU: map[string]bool{}, leaves: map[string]string{},
		adminMAC: map[string]string{}, ownMAC: map[string]string{}, macs: map[string]bool{}, setMACs: map[string]string{},
		where: map[string]string{}, homes: map[string]string{}, settings: map[string]map[string]string{},
		ownGUIDs: map[string]netstate.Binding{},
	}
	u.overlay = newOverlay(have, u.lose)
	u.locate(history)
	u.collectDeleted(history)
	for _, c := range kept {
		if l, isLink := c.After.(netstate.Link); isLink && l.MAC != nil {
			u.setMACs[l.Name] = *l.MAC
		}
	}
	ofParents := belowParents(history, kept)
	kept = overwritten(history, kept)
	for _, c := range backward(history) {
		if !slices.ContainsFunc(kept, func(k netstate.Change) bool { return k.Key() == c.Key() }) {
			u.undo(c)
		}
	}
	u.undoWaiting()
	for _, k := range kept {
		u.undo(netstate.Change{Step: k.Step, Before: k.After, After: k.After})
	}
	u.inTurn(append(u.mtus, ofParents...), func(have netstate.Link, w raise) bool { return u.fits(have, w.link) })
	u.inTurn(u.ups, func(have netstate.Link, _ raise) bool { return !u.parentDown(have) })
	for i := range u.later {
		u.later[i].Before = u.atHome(u.later[i].Before)
	}
	u.recreateLost(u.later...)
	u.sweep(history)
	if len(u.missing) > 0 {
		return nil, sortedObjects(u.missing)
	}
	return u.changes, nil
}

// overwritten returns of a record the sysctls of links to which the kernel gives another value when a history is undone.
func overwritten(history, record []netstate.Change) []netstate.Change {
	return slices.DeleteFunc(slices.Clone(record), func(c netstate.Change) bool {
		s, is := c.After.(netstate.Sysctl)
		return !is || !slices.ContainsFunc(history, func(of netstate.Change) bool {
			all, is := of.Object().(netstate.Sysctl)
			return is && all.SpreadsTo(s)
		})
	})
}

// belowParents returns of a record the MTUs of links that get that of the link below when a history is undone.
func belowParents(history, record []netstate.Change) (out []raise) {
	for _, c := range record {
		l, isLink := c.After.(netstate.Link)
		if !isLink || l.MTU == nil || l.Parent == nil || !l.KindTraits().ParentMTU {
			continue
		}
		if slices.ContainsFunc(history, func(of netstate.Change) bool {
			return of.Key() == netstate.LinkKey(*l.Parent) && of.Before != nil && netstate.Value(of.Before, "mtu") != nil
		}) {
			out = append(out, raise{c.Step, netstate.Link{Name: l.Name, MTU: l.MTU}})
		}
	}
	return out
}

// backward is a history from its end, but for kinds that are restored in the order
// in which they were changed: all of them come where the last is; and those that are restored last.
func backward(history []netstate.Change) []netstate.Change {
	var out, ordered, last []netstate.Change
	for _, c := range history {
		if c.Object().Traits().InOrder {
			ordered = append(ordered, c)
		}
	}
	for _, c := range slices.Backward(history) {
		if c.Object().Traits().InOrder {
			out, ordered = append(out, ordered...), nil
			continue
		}
		if c.Object().Traits().RestoredLast {
			last = append(last, c)
			continue
		}
		out = append(out, c)
	}
	return append(out, last...)
}

// Absent lists the devices of a history that are in neither namespace although a driver is
// bound to them, or whose RDMA device is in neither: a namespace that is being torn down has not returned them yet, or another
// program has moved them.
func Absent(have *netstate.Snapshot, history []netstate.Change) []string {
	var out []string
	for _, c := range history {
		switch o := c.Object().(type) {
		case netstate.Device:
			if d, ok := have.Device(o.ID); ok && absent(d) {
				out = append(out, o.ID)
			}
		case netstate.RDMANetns:
			if r, ok := netstate.Lookup(have, o); ok && r.Netns != nil && *r.Netns == netstate.RDMAOfOther && !slices.Contains(out, o.ID) {
				out = append(out, o.ID)
			}
		}
	}
	return out
}

// absent reports whether a device has an interface somewhere else.
func absent(d netstate.Device) bool {
	return d.At == nil && !netstate.UserspaceDriver(d.Driver) && (d.Driver != "" || d.Lost)
}

type undoer struct {
	overlay
	made       map[netstate.Key]bool // what the history says we made
	ends       map[netstate.Key]bool // of pairs, whose other end we made
	ups        []raise               // links to set up once all links are there again
	mtus       []raise               // MTUs to restore, and bonds to join, once the MTUs of the links below are restored, see fitting
	waiting    []netstate.Change     // of links whose parent or master is not there (again)
	last       bool                  // nothing is waited for any more
	later      []netstate.Change     // addresses and routes to recreate
	missing    map[netstate.Key]netstate.Object
	willDelete map[string]bool   // links that will be deleted
	touched    map[string]bool   // links in the history
	withMTU    map[string]bool   // of these, those whose MTU it restores
	leaves     map[string]string // links that the undo takes out of a master, by their names
	// adminMAC is the MAC the physical function held for a VF before.
	adminMAC map[string]string
	ownMAC   map[string]string // see ownMAC
	macs     map[string]bool   // those that links have or have had in the history, without VLANs and ipvlans
	setMACs  map[string]string // those that the record before the pass sets, by link
	// ownGUIDs are those that drivers of functions had read, of those that have read ours, by the function.
	ownGUIDs map[string]netstate.Binding
	where    map[string]string // name we gave a device -> its name now
	homes    map[string]string // name a device had on the host -> the device
	// settings are those with which a device is returned, by its name now.
	settings map[string]map[string]string
}

// locate finds the devices of the history in either namespace: the kernel returns devices
// of a deleted namespace to the host under the names they had in it.
func (u *undoer) locate(history []netstate.Change) {
	for _, c := range history {
		if vf, ok := c.Before.(netstate.VF); ok && vf.MAC != nil {
			u.adminMAC[vf.ID], u.ownMAC[vf.ID] = *vf.MAC, ownMAC(history, vf)
			if !u.now.Known(vf) {
				u.missing[vf.Key()] = vf
			}
		}
		if b, ok := c.Before.(netstate.Binding); ok && len(netstate.Diff(c.After, b)) > 0 {
			u.ownGUIDs[b.ID] = b
		}
		after, ok := c.After.(netstate.Device)
		if !ok || after.At == nil || returnsToHost(c) {
			continue
		}
		if before, ok := c.Before.(netstate.Device); ok && before.At != nil {
			u.homes[*before.At] = after.ID
		}
		if d, ok := u.now.Device(after.ID); ok && d.At != nil {
			u.where[*after.At] = *d.At
			if before, ok := c.Before.(netstate.Device); ok {
				u.settings[*d.At] = before.Settings.All()
			}
		} else if !u.now.Known(after) {
			u.missing[after.Key()] = after
		}
	}
}

// returnsToHost reports whether the change returned a device to the host, so that its undo moves
// the device back, with everything on its link.
func returnsToHost(c netstate.Change) bool {
	before, ok := c.Before.(netstate.Device)
	return ok && before.At != nil && !netstate.OnHost(*before.At)
}

// collectDeleted lists the links that the undo deletes, and the MACs of others.
func (u *undoer) collectDeleted(history []netstate.Change) {
	for _, l := range u.now.LinksWhere(func(l netstate.Link) bool { return l.MAC != nil && !l.KindTraits().ParentMAC }) {
		u.macs[*l.MAC] = true
	}
	for _, c := range history {
		u.made[c.Key()] = c.Before == nil
		for _, o := range []netstate.Object{c.Before, c.After} {
			l, isLink := o.(netstate.Link)
			if now, _ := u.now.Link(l.Name); isLink && l.MAC != nil && !l.KindTraits().ParentMAC && !now.KindTraits().ParentMAC {
				u.macs[*l.MAC] = true
			}
		}
		made, ok := c.After.(netstate.Link)
		if ok && c.Before == nil && made.Veth != nil && made.Veth.Peer != nil {
			u.ends[netstate.LinkKey(*made.Veth.Peer)] = true
		}
		if ok {
			u.touched[made.Name] = true
		}
		before, _ := c.Before.(netstate.Link)
		u.withMTU[before.Name] = u.withMTU[before.Name] || before.MTU != nil
		if ok && before.Master != nil && made.Master != nil && *before.Master != *made.Master {
			u.leaves[made.Name] = *made.Master
		}
		if !ok || c.Before != nil {
			continue
		}
		if l, ok := u.findMade(made); ok {
			u.willDelete[l.Name] = true
		} else if !u.now.Known(made) {
			u.missing[made.Key()] = made
		}
	}
}

// findMade finds a link we made, whatever its name now.
func (u *undoer) findMade(made netstate.Link) (netstate.Link, bool) {
	if l, ok := u.now.Link(made.Name); ok && (sameIdentity(l, made) ||
		made.Index != 0 && l.Index == made.Index && l.LinkKind == made.LinkKind) {
		return l, true
	}
	if l, ok := renamed(u.now, made); ok {
		return l, true
	}
	return u.movedToHost(made)
}

// movedToHost finds a link we made that the kernel has moved to the host, as it does at the end of a namespace with links of kinds of
// devices: under its name, or that of its index if it is taken (default_device_exit_net in net/core/dev.c). Its alias says whose it is.
// It has a parent: a pod can give the name and the alias of a partition's interface to the device's, which has none.
func (u *undoer) movedToHost(made netstate.Link) (netstate.Link, bool) {
	if !made.KindTraits().OfDevice || made.Alias == nil || netstate.OnHost(made.Name) {
		return netstate.Link{}, false
	}
	for _, name := range []string{made.Name, fmt.Sprintf("dev%d", made.Index)} {
		at := netstate.Link{Name: netstate.HostName(name)}
		switch l, ok := u.now.Link(at.Name); {
		case ok && l.LinkKind == made.LinkKind && l.Parent != nil && l.Alias != nil && *l.Alias == *made.Alias:
			return l, true
		case !ok && !u.now.Known(at):
			u.missing[at.Key()] = at
		}
	}
	return netstate.Link{}, false
}

// renamed finds a link of the sandbox that we made and somebody has renamed, by the index
// in the record: in one namespace the kernel does not reuse an index until it has used all.
func renamed(now *netstate.Snapshot, made netstate.Link) (netstate.Link, bool) {
	if made.Index == 0 || netstate.OnHost(made.Name) {
		return netstate.Link{}, false
	}
	found := now.LinksWhere(func(l netstate.Link) bool {
		return l.Index == made.Index && l.LinkKind == made.LinkKind && l.Name != made.Name && !netstate.OnHost(l.Name)
	})
	if len(found) != 1 {
		return netstate.Link{}, false
	}
	return found[0], true
}

// sameIdentity prevents the deletion of a foreign link that has the name of a link we made.
func sameIdentity(have, made netstate.Link) bool {
	return (made.LinkKind == "" || have.LinkKind == made.LinkKind) && len(netstate.Diff(made.Identity(), have)) == 0
}

// lose decides about objects that the kernel deletes with a change: foreign objects on a
// link that stays.
func (u *undoer) lose(gone netstate.Change) (listed, foreign bool) {
	_, stays := survivor(u.now, gone.Before)
	stays = stays && !u.made[gone.Key()]
	return stays, stays
}

func (u *undoer) undo(c netstate.Change) {
	if u.now.Withheld(c.Object()) != nil {
		return // whoever keeps the history keeps this of it
	}
	c, ends := u.ofKind(c)
	if ends {
		return
	}
	c = u.retarget(c)
	if c.Before != nil {
		c.Before = u.atHome(c.Before)
	}
	if c.After != nil {
		c.After = u.atHome(c.After)
	}
	if l, ok := c.Before.(netstate.Link); ok && u.released(l.Name) {
		c.Before = netstate.Restrict(l, func(path string) bool { return !u.withDevice(l.Name, path) })
	}
	if e, ok := c.Before.(netstate.Ethtool); ok && u.hasSetting(e.Link, e.Class+"."+e.Name) {
		return
	}
	if !u.deletedWithLink(c) {
		u.invert(c)
	}
}

// undoWaiting undoes changes of links once the links that they are on and in are there again.
func (u *undoer) undoWaiting() {
	for before := len(u.waiting) + 1; len(u.waiting) > 0; {
		u.last = len(u.waiting) == before
		waiting := u.waiting
		before, u.waiting = len(waiting), nil
		for _, c := range waiting {
			u.invert(c)
		}
	}
}

// waits reports whether a link is to be on or in another one that is not there.
func (u *undoer) waits(o netstate.Object) bool {
	l, isLink := o.(netstate.Link)
	if !isLink || u.last {
		return false
	}
	masterThere := l.Master == nil || *l.Master == ""
	if !masterThere {
		_, masterThere = u.now.Link(*l.Master)
	}
	return !masterThere || hasLinkKind(l) && !u.parentThere(l)
}

// inheritsMAC reports whether the MAC recorded of a deleted or replaced link is that of another link, now or during the history, as it is
// of one below, and not set by a step. To write it would make it the link's own, and the link would not follow the one below any more.
func (u *undoer) inheritsMAC(l netstate.Link) bool {
	return hasLinkKind(l) && l.MAC != nil && l.KindTraits().ParentMAC && u.macs[*l.MAC] && u.setMACs[l.Name] != *l.MAC
}

// invert makes a change as undo has prepared it.
func (u *undoer) invert(c netstate.Change) {
	if l, isLink := c.Before.(netstate.Link); isLink && u.inheritsMAC(l) {
		l.MAC = nil
		c.Before = l
	}
	have, ok := u.now.Get(c.Key())
	if !ok && !u.now.Known(c.Object()) {
		u.missing[c.Key()] = c.Object()
		return
	}
	switch {
	case u.waits(c.Before):
		u.waiting = append(u.waiting, c)
	case c.Before == nil && c.After.Traits().Setting:
		// The earlier value is not known: the object came with a link of ours, and is
		// deleted or recreated with that.
	case c.Before == nil: // we created it
		if ok {
			u.do(netstate.Change{Step: c.Step, Before: have})
		}
	case !ok && u.ends[c.Key()]: // it has ended with the other one
	case !ok:
		u.recreate(c)
	case hasLinkKind(c.Before) && needsReplace(netstate.Diff(c.Before, have)):
		if !u.parentThere(c.Before) {
			return
		}
		u.do(netstate.Change{Step: c.Step, Before: have, After: u.downFirst(c), Recreate: true})
	default:
		u.restore(c, have)
	}
}

// ofKind returns a change with what is restored of its kind of object. It ends there if nothing is left to do.
func (u *undoer) ofKind(c netstate.Change) (restored netstate.Change, ends bool) {
	switch o := c.Object().(type) {
	case netstate.Device:
		u.device(c)
		return c, true
	case netstate.VF:
		if d, ok := u.now.Device(o.ID); ok && d.At == nil && d.Driver != "" && !netstate.UserspaceDriver(d.Driver) {
			return c, true // its settings are restored when the function is back on the host
		}
		if before, ok := c.Before.(netstate.VF); ok && u.hasOwnMAC(o.ID) {
			before.MAC = nil
			c.Before = before
		}
		c.Before = u.withOwnGUIDs(c.Before)
	case netstate.Binding:
		c = u.whileOurs(c)
		return c, len(netstate.Fields(c.Before)) == 0
	case netstate.Link:
		if c.Before == nil {
			u.dropLink(c, o)
			return c, true
		}
	}
	return c, false
}

// withDevice reports whether a field of a device's link is restored with the device. The
// value that a step recorded for such a field may come from the pod; restoring that too
// would never terminate.
func (u *undoer) withDevice(link, path string) bool {
	switch path {
	case "mtu", "mac", "up", "master":
		return true
	case "txQueueLen":
		return u.hasSetting(link, "link.txqlen")
	case "promisc", "allMulti":
		return u.hasSetting(link, "link.flags")
	}
	return false
}

// hasSetting reports whether a device's record holds one of its settings.
func (u *undoer) hasSetting(link, name string) bool {
	_, ok := u.settings[link][name]
	return ok
}

// recreate recreates an object that our change deleted or replaced. Addresses and routes
// are recreated after all links are restored: before that, gateways may be unreachable,
// and later changes of links could delete them again.
func (u *undoer) recreate(c netstate.Change) {
	if _, isLink := c.Before.(netstate.Link); isLink && !hasLinkKind(c.Before) {
		return // fields of a link that somebody else makes
	}
	// No update changes a field that one of them has otherwise, or that only one has.
	replaced := c.After != nil && (needsReplace(netstate.Diff(c.Before, c.After)) || needsReplace(netstate.Diff(c.After, c.Before)))
	// The kernel drops neighbors when their link gets another MAC or goes down (neigh_changeaddr). One has one field, so the change has
	// all of it.
	neighbor, isNeighbor := c.Before.(netstate.Neighbor)
	lost := isNeighbor && u.touched[neighbor.Link]
	if c.Before.Traits().Setting ||
		c.After != nil && !hasLinkKind(c.Before) && !c.Restored() && !fuller(c.Before, c.After) && !replaced && !lost {
		return
	}
	switch {
	case c.Before.Traits().Phase > netstate.PhaseLinks:
		u.later = append(u.later, c)
	case c.Before.Traits().OfPort && !u.staysPort(netstate.LinkOf(c.Before)):
	case u.parentThere(c.Before):
		u.do(netstate.Change{Step: c.Step, After: u.downFirst(c)})
	}
}

// staysPort reports whether a link is a port, and its master is not deleted.
func (u *undoer) staysPort(link string) bool {
	l, there := u.now.Link(link)
	return there && l.Master != nil && *l.Master != "" && !u.dies(*l.Master)
}

// downFirst returns the object to recreate. A link comes up when its parent has. It joins its master, if that is there.
func (u *undoer) downFirst(c netstate.Change) netstate.Object {
	l, ok := c.Before.(netstate.Link)
	if !ok {
		return c.Before
	}
	if l.Master != nil && *l.Master != "" {
		if _, there := u.now.Link(*l.Master); !there {
			l.Master = nil
		}
	}
	l = u.fitting(c.Step, l, l)
	if l.Up != nil && *l.Up {
		u.ups = append(u.ups, raise{c.Step, netstate.Link{Name: l.Name, Up: l.Up}})
		l.Up = nil
	}
	return l
}

// fitting returns the fields of a link that the links below allow now. An MTU above theirs comes when those are restored, and so does
// a bond that has such an MTU.
func (u *undoer) fitting(step string, fields, link netstate.Link) netstate.Link {
	if u.fits(link, fields) {
		return fields
	}
	later := netstate.Link{Name: fields.Name, MTU: fields.MTU}
	fields.MTU = nil
	if !u.fits(link, fields) {
		later.Master, fields.Master = fields.Master, nil
	}
	u.mtus = append(u.mtus, raise{step, later})
	return fields
}

// fits reports whether the links below allow the MTU that a link gets by itself, from a bond that it joins, and gives the ports of its own.
func (u *undoer) fits(have, gets netstate.Link) bool {
	mtu := gets.MTU
	if gets.Master != nil {
		if bond, _ := u.now.Link(*gets.Master); bond.KindTraits().ForcesPorts && bond.MTU != nil {
			mtu = new(max(*bond.MTU, *cmp.Or(mtu, bond.MTU)))
		}
	}
	return mtu == nil || !u.exceedsParent(have, *mtu) && (!have.KindTraits().ForcesPorts ||
		!slices.ContainsFunc(u.ports(have.Name), func(port netstate.Link) bool { return !u.fits(port, netstate.Link{MTU: mtu}) }))
}

// exceedsParent reports whether an MTU in bytes, with the headers of a tunnel, is above that of the link below.
func (u *undoer) exceedsParent(link netstate.Link, mtu uint32) bool {
	if link.Parent == nil || link.KindTraits().OwnMTU {
		return false
	}
	parent, there := u.now.Link(*link.Parent)
	return there && parent.MTU != nil && link.MTUOver(*parent.MTU) < mtu
}

// inTurn sets fields of links, each once it can be set, such as that of a parent before those of its VLANs.
func (u *undoer) inTurn(waiting []raise, can func(have netstate.Link, w raise) bool) {
	for len(waiting) > 0 {
		next := max(0, slices.IndexFunc(waiting, func(w raise) bool {
			have, _ := u.now.Link(w.link.Name)
			return can(have, w)
		}))
		w := waiting[next]
		waiting = slices.Delete(waiting, next, next+1)
		switch have, there := u.now.Link(w.link.Name); {
		case !there:
		case w.joins():
			u.enslave(w.step, have, w.link)
		default:
			u.update(w.step, have, w.link)
		}
	}
}

// hasLinkKind reports whether the object is a link with its kind, as a deletion records it,
// so that it can be recreated.
func hasLinkKind(o netstate.Object) bool {
	l, ok := o.(netstate.Link)
	return ok && l.LinkKind != "" && l.LinkKind != "device"
}

// fuller reports whether an object has a field that another lacks. What an update changed
// has the same fields before and after; one with more was deleted and created again, and
// is complete.
func fuller(o, than netstate.Object) bool {
	return slices.ContainsFunc(netstate.Fields(o), func(f netstate.Field) bool { return netstate.Value(than, f.Path) == nil })
}

// restore restores the fields that an update of ours changed.
func (u *undoer) restore(c netstate.Change, have netstate.Object) {
	if l, isLink := netstate.Merge(have, c.Before).(netstate.Link); isLink && (l.Master == nil || *l.Master == "") {
		c.Before = netstate.Restrict(c.Before, func(path string) bool { return !strings.HasPrefix(path, "port.") }) // of a port
	}
	if before, isLink := c.Before.(netstate.Link); isLink && before.MTU != nil && u.leavesBond(have, before) {
		u.update(c.Step, have, netstate.Link{Name: before.Name, Master: before.Master}) // resets its MTU to the one at joining
		have, _ = u.now.Link(before.Name)
	}
	back, differs := netstate.NewUpdate(c.Step, have, c.Before)
	if !differs {
		return
	}
	if l, ok := back.After.(netstate.Link); ok && l.Master != nil && *l.Master != "" {
		master, there := u.now.Link(*l.Master)
		if !there {
			return // its old master is gone
		}
		link := have.(netstate.Link)
		switch {
		case !master.KindTraits().ForcesPorts:
		case !u.fits(link, l):
			u.mtus = append(u.mtus, raise{c.Step, l})
			return
		default:
			u.enslave(c.Step, link, l)
			return
		}
	}
	l, isLink := back.After.(netstate.Link)
	if !isLink {
		u.do(back)
		return
	}
	l = u.fitting(c.Step, l, have.(netstate.Link))
	if before := c.Before.(netstate.Link); l.Master != nil && l.Up == nil && before.Up != nil && *before.Up {
		u.ups = append(u.ups, raise{c.Step, netstate.Link{Name: l.Name, Up: before.Up}}) // a port that leaves a bond goes down
	}
	if link := have.(netstate.Link); l.Up != nil && *l.Up && u.parentDown(link) {
		u.ups = append(u.ups, raise{c.Step, netstate.Link{Name: l.Name, Up: l.Up}})
		l.Up = nil
	}
	// The ports are enslaved in another order than before, and the first would give the
	// bond its MAC.
	if link := have.(netstate.Link); hasMode(netstate.Diff(l, link), netstate.NoPorts) && l.MAC == nil && !link.PortsKeepMAC() {
		l.MAC = link.MAC
	}
	ports, up := u.updateLink(c.Step, have.(netstate.Link), l)
	for _, port := range ports {
		released, _ := u.now.Link(port.Name)
		u.enslave(c.Step, released, netstate.Link{Name: port.Name, Master: port.Master})
	}
	now, _ := u.now.Link(l.Name)
	u.update(c.Step, now, netstate.Link{Name: l.Name, Up: up})
}

// enslave makes a link a bond's port. VLANs on it, which go down with it, come up again.
func (u *undoer) enslave(step string, have, want netstate.Link) {
	for _, vlan := range u.overlay.enslave(step, have, want) {
		u.ups = append(u.ups, raise{step, netstate.Link{Name: vlan, Up: new(true)}})
	}
}

// leavesBond reports whether a link leaves a bond by a change of its fields, and joins nothing.
func (u *undoer) leavesBond(have netstate.Object, fields netstate.Link) bool {
	link, isLink := have.(netstate.Link)
	return isLink && fields.Master != nil && *fields.Master == "" && inBond(u.now, link)
}

// dropLink deletes a link we made, unless its parent's deletion takes it along:
// deleting a parent costs one wait in the kernel, deleting each child costs one
// each.
func (u *undoer) dropLink(c netstate.Change, made netstate.Link) {
	have, ok := u.findMade(made)
	if !ok || !u.willDelete[have.Name] {
		return
	}
	if have.Parent != nil && u.willDelete[*have.Parent] {
		return
	}
	if have.Veth != nil && have.Veth.Peer != nil && u.willDelete[*have.Veth.Peer] && strings.Compare(have.Name, *have.Veth.Peer) > 0 {
		return
	}
	if have.KindTraits().Shared && u.occupied(have) {
		if have.Alias != nil && *have.Alias == "" {
			u.update(c.Step, have, netstate.Link{Name: have.Name, Alias: new(leftBehind)})
		}
		return
	}
	u.do(netstate.Change{Step: c.Step, Before: have})
}

// leftBehind is the alias of a bridge or VRF whose sandbox was released, or wants it no more, while others had
// ports in it: no record contains it any more, and the release of the last port deletes it.
// A bridge or VRF with another alias keeps that, and stays.
const leftBehind = "plumbline: deleted with its last port"

// LeftBehind reports whether a link is a bridge or VRF that was left to the others that have ports in it. In its namespace a pod can
// give the alias to any link, so that of another kind says nothing.
func LeftBehind(l netstate.Link) bool {
	return l.KindTraits().Shared && l.Alias != nil && *l.Alias == leftBehind
}

// leaves reports whether a change of an undo leaves a bridge or VRF behind.
func leaves(c netstate.Change) bool {
	l, ok := c.After.(netstate.Link)
	return ok && l.Alias != nil && *l.Alias == leftBehind
}

// occupied reports whether others are in a bridge or VRF.
func (u *undoer) occupied(master netstate.Link) bool {
	if slices.ContainsFunc(master.Ports, func(port string) bool { return !u.touched[netstate.HostName(port)] }) {
		return true
	}
	return len(u.now.LinksWhere(func(l netstate.Link) bool {
		return l.Master != nil && *l.Master == master.Name && u.leaves[l.Name] != master.Name &&
			!u.willDelete[l.Name] && !u.released(l.Name)
	})) > 0
}

// sweep deletes bridges and VRFs that were left behind and now have no ports except those
// of the history.
func (u *undoer) sweep(history []netstate.Change) {
	for _, c := range history {
		port, ok := c.After.(netstate.Link)
		if !ok || port.Master == nil || *port.Master == "" || u.made[netstate.LinkKey(*port.Master)] {
			continue
		}
		master, there := u.now.Link(*port.Master)
		switch {
		case !there && !u.now.Known(netstate.Link{Name: *port.Master}):
			u.missing[netstate.LinkKey(*port.Master)] = netstate.Link{Name: *port.Master}
		case there && LeftBehind(master) && !u.occupied(master):
			u.do(netstate.Change{Step: c.Step, Before: master})
		}
	}
}

// atHome is an address or a route that the host had over a device, with the name that the
// device has on the host now: its own one may be taken.
func (u *undoer) atHome(o netstate.Object) netstate.Object {
	id, ok := u.homes[netstate.LinkOf(o)]
	if !ok || o.Traits().Phase <= netstate.PhaseLinks {
		return o
	}
	d, there := u.now.Device(id)
	if !there || d.At == nil || !netstate.OnHost(*d.At) {
		return o
	}
	return netstate.On(o, netstate.LinkKey(*d.At))
}

// released reports whether the link is one of the devices that return to the host.
func (u *undoer) released(link string) bool {
	for _, at := range u.where {
		if at == link {
			return true
		}
	}
	return false
}

// deletedWithLink reports whether the object disappears with a link that is deleted or
// moved to the host, so that it needs no change of its own.
func (u *undoer) deletedWithLink(c netstate.Change) bool {
	o := c.Object()
	if l, ok := o.(netstate.Link); ok {
		return u.dies(l.Name)
	}
	link := u.now.LinkUnder(o)
	return !o.Traits().Elsewhere && link != "" && (u.dies(link) ||
		!o.Traits().MovesWithCarrier && u.released(link) && !netstate.OnHost(link))
}

// dies reports whether the link will be deleted, itself or with a parent.
func (u *undoer) dies(link string) bool {
	for range 16 { // deeper nesting than any kernel allows
		if u.willDelete[link] {
			return true
		}
		l, ok := u.now.Link(link)
		if !ok || l.Parent == nil {
			return false
		}
		link = *l.Parent
	}
	return false
}

// retarget points a change of a device's link at the name it bears now.
func (u *undoer) retarget(c netstate.Change) netstate.Change {
	rename := func(o netstate.Object) netstate.Object {
		if l, ok := o.(netstate.Link); ok {
			if at, ok := u.where[l.Name]; ok {
				l.Name = at
			}
			return l
		}
		if at, ok := u.where[netstate.LinkOf(o)]; ok && o.Traits().MovesWithCarrier {
			return netstate.On(o, netstate.LinkKey(at))
		}
		return o
	}
	if c.Before != nil {
		c.Before = rename(c.Before)
	}
	if c.After != nil {
		c.After = rename(c.After)
	}
	return c
}

// parentThere reports whether the parent of a link is there, true for what is none.
func (u *undoer) parentThere(o netstate.Object) bool {
	l, isLink := o.(netstate.Link)
	if !isLink || l.LivesOn() == (netstate.Key{}) {
		return true
	}
	_, ok := u.now.Link(*l.Parent)
	return ok
}

// device returns a device to the host and restores its name, MAC, MTU and state.
func (u *undoer) device(c netstate.Change) {
	before, ok := c.Before.(netstate.Device)
	if !ok || before.At == nil {
		return
	}
	have, there := u.now.Device(before.ID)
	if !there {
		if !u.now.Known(before) {
			u.missing[before.Key()] = before
		}
		return // the device is gone: nothing can be restored
	}
	if have.At == nil {
		return // bound to another driver now
	}
	hostName, known := u.homeOf(*before.At, *have.At)
	if !known {
		u.missing[netstate.LinkKey(hostName)] = netstate.Link{Name: hostName}
		return
	}
	after := before
	after.At = &hostName
	if u.adminMACPending(before.ID) {
		// A driver refuses a MAC that the physical function does not hold; the
		// next round sets it, when that is restored.
		after.MAC = nil
	}
	if u.withMTU[*before.At] {
		after.MTU = nil // what the device had between two changes of its link
	}
	if have.Made() && !netstate.LinkTraitsOf(have.LinkKind).Inert {
		// The link may not be the original: a pod can make a link of the same kind and
		// index, and send packets over it. It stays down.
		after.Up = nil
	}
	why := ""
	if hostName != *before.At {
		why = fmt.Sprintf("its own name %q is taken", netstate.BaseName(*before.At))
	}
	if *have.At == hostName {
		if have.Settings == nil {
			after.Settings = nil // nobody can say whether they differ
		}
		if returnsToHost(c) {
			after.Up = nil // in the pod, the link's own change restores it
		}
		u.update(c.Step, have, after)
		return
	}
	u.do(netstate.Change{Step: c.Step, Before: have, After: after, Why: why})
}

// zeroMAC is reported by a physical function that holds no MAC for a virtual one.
const zeroMAC = "00:00:00:00:00:00"

// InsteadOf returns the change that an undo makes where a device refuses another one, false if there is none. The next round takes
// it for the same.
func InsteadOf(history []netstate.Change, refused netstate.Change) (netstate.Change, bool) {
	vf, ok := refused.After.(netstate.VF)
	if !ok {
		return refused, false
	}
	mac := ownMAC(history, vf)
	if mac == "" {
		return refused, false
	}
	vf.MAC = &mac
	refused.After = vf
	return refused, true
}

// ownMAC returns the MAC with which a device is returned by a history, "" if that has none. A virtual function gets it from its
// physical one, too, if that had none and its driver refuses to take the other away (be2net, qede, cxgb4, octeontx2 check
// is_valid_ether_addr).
func ownMAC(history []netstate.Change, vf netstate.VF) string {
	if vf.MAC == nil || *vf.MAC != zeroMAC {
		return ""
	}
	for _, c := range history {
		d, ok := c.Before.(netstate.Device)
		if !ok || d.ID != vf.ID {
			continue
		}
		if d.MAC != nil && *d.MAC != zeroMAC {
			return *d.MAC
		}
		return d.PermMAC
	}
	return ""
}

// hasOwnMAC reports whether the physical function, which held no MAC for a virtual one, holds the one that this has itself.
func (u *undoer) hasOwnMAC(id string) bool {
	vf, there := netstate.Lookup(u.now, netstate.VF{ID: id})
	return there && vf.MAC != nil && u.ownMAC[id] != "" && *vf.MAC == u.ownMAC[id]
}

// withOwnGUIDs gives a function that had GUIDs, and whose physical function held none for it, its own ones: a driver reads them there, and
// the firmware takes the physical function's for none.
func (u *undoer) withOwnGUIDs(o netstate.Object) netstate.Object {
	vf, ok := o.(netstate.VF)
	if !ok {
		return o
	}
	own := u.ownGUIDs[vf.ID]
	for _, guid := range []struct{ restored, own **string }{{&vf.NodeGUID, &own.NodeGUID}, {&vf.PortGUID, &own.PortGUID}} {
		if to := *guid.restored; to != nil && *to == "" && *guid.own != nil {
			*guid.restored = *guid.own
		}
	}
	return vf
}

// whileOurs leaves out the GUIDs of a function whose driver has not read ours, or has read others since: the firmware decides which ones
// it reads when it is bound again. A function without a driver is bound again.
func (u *undoer) whileOurs(c netstate.Change) netstate.Change {
	have, there := netstate.Lookup(u.now, netstate.Binding{ID: c.Key().ID})
	ours, _ := c.After.(netstate.Binding)
	guids := netstate.Binding{ID: ours.ID, NodeGUID: ours.NodeGUID, PortGUID: ours.PortGUID}
	if !there || have.Driver != nil && *have.Driver == "" || len(netstate.Diff(guids, have)) == 0 {
		return c
	}
	notGUIDs := func(path string) bool { return path != "nodeGUID" && path != "portGUID" }
	c.Before, c.After = netstate.Restrict(c.Before, notGUIDs), netstate.Restrict(c.After, notGUIDs)
	return c
}

// homeOf is the name on the host of a device that is at another place now: its own one, or one that is free if that is taken.
// If nobody has looked yet whether the host has a link of the name, it is not known.
func (u *undoer) homeOf(home, now string) (name string, known bool) {
	name = home
	for i := 1; name != now; i++ {
		if _, taken := u.now.Link(name); !taken {
			return name, u.now.Known(netstate.Link{Name: name})
		}
		if netstate.OnHost(now) && fallbackOf(now, home) {
			return now, true // an earlier undo gave the device another name
		}
		name = fallback(home, i)
	}
	return name, true
}

// adminMACPending reports whether the physical function still holds a MAC of
// ours for the device.
func (u *undoer) adminMACPending(id string) bool {
	mac, ok := u.adminMAC[id]
	vf, there := netstate.Lookup(u.now, netstate.VF{ID: id})
	trusted := vf.Trust != nil && *vf.Trust
	return ok && there && !trusted && vf.MAC != nil && *vf.MAC != mac && !u.hasOwnMAC(id)
}

// fallback is the i-th name of a device on the host if its own is taken.
func fallback(hostName string, i int) string {
	base, suffix := netstate.BaseName(hostName), fmt.Sprintf("-%d", i)
	return netstate.HostName(base[:min(len(base), 15-len(suffix))] + suffix)
}

// fallbackOf reports whether name is a fallback for home.
func fallbackOf(name, home string) bool {
	i, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	return err == nil && name == fallback(home, i)
}
