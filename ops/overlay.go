package ops

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
)

// overlay is a snapshot as it will be after the changes planned so far. Plan and Undo
// both use it.
type overlay struct {
	have    *netstate.Snapshot // as observed
	now     *netstate.Snapshot
	changes []netstate.Change
	lost    []netstate.Change // foreign objects that our changes delete
	// gone decides about an object that the kernel deletes with a change: whether it is
	// listed, and whether it is foreign.
	gone func(netstate.Change) (listed, foreign bool)
}

func newOverlay(have *netstate.Snapshot, gone func(netstate.Change) (listed, foreign bool)) overlay {
	return overlay{have: have, now: have.Clone(), gone: gone}
}

// do appends a change and applies it to the overlay. Objects that the kernel deletes with
// it are listed too, as implied: a rollback must recreate them.
func (o *overlay) do(c netstate.Change) {
	o.changes = append(o.changes, c)
	implied := o.now.Apply(c)
	_, ofAddress := c.Before.(netstate.Addr)
	perhaps := ofAddress && slices.ContainsFunc(implied, func(gone netstate.Change) bool { return gone.Key().Kind == netstate.KindAddress })
	for _, gone := range implied {
		if gone.Before == nil {
			continue
		}
		listed, foreign := o.gone(gone)
		if perhaps && !foreign {
			// The kernel may have been told to keep it (promote_secondaries). If not, what is ours
			// is missing afterwards, and planned again. To recreate what is left of others does no harm.
			o.now.Put(gone.Before)
			continue
		}
		if _, observed := o.have.Get(gone.Key()); !observed || !listed {
			continue
		}
		gone.Step, gone.Foreign = c.Step, foreign
		o.changes = append(o.changes, gone)
		if foreign && gone.After == nil {
			o.lost = append(o.lost, gone)
		}
	}
}

func (o *overlay) update(step string, have, want netstate.Object) {
	if c, differs := netstate.NewUpdate(step, have, want); differs {
		o.do(c)
	}
}

// updateLink changes fields of a link. Fields that the kernel accepts only while the link is
// down or without ports are changed in that state. The removed ports are returned, and, unless it
// is nil, the state that the link is to have once it has them again.
func (o *overlay) updateLink(step string, have, want netstate.Link) (released []netstate.Link, up *bool) {
	diff := netstate.Diff(want, have)
	noPorts := hasMode(diff, netstate.NoPorts)
	if !noPorts && !hasMode(diff, netstate.Down) {
		o.update(step, have, want)
		return nil, nil
	}
	if noPorts {
		released = o.ports(want.Name)
		for _, port := range released {
			o.update(step, port, netstate.Link{Name: port.Name, Master: new("")})
		}
	}
	up, want.Up = want.Up, nil
	if have.Up != nil && *have.Up {
		o.update(step, have, netstate.Link{Name: want.Name, Up: new(false)})
		up = cmp.Or(up, new(true))
	}
	have, _ = o.now.Link(want.Name)
	o.update(step, have, want)
	return released, up
}

func (o *overlay) ports(master string) []netstate.Link {
	return o.now.LinksWhere(func(l netstate.Link) bool { return l.Master != nil && *l.Master == master })
}

func hasMode(diff []netstate.FieldDiff, m netstate.Mode) bool {
	return slices.ContainsFunc(diff, func(d netstate.FieldDiff) bool { return d.Mode == m })
}

// parentDown reports whether the kernel refuses to set the link up because it is a VLAN
// whose parent is down (ENETDOWN, vlan_dev_open in net/8021q/vlan_dev.c).
func (o *overlay) parentDown(l netstate.Link) bool {
	if !l.KindTraits().ParentState || l.Parent == nil {
		return false
	}
	parent, there := o.now.Link(*l.Parent)
	return there && parent.Up != nil && !*parent.Up
}

// enslave makes a link a bond's port. A bond accepts only a link that is down, and sets it
// up itself. The names of VLANs on it that went down with it are returned.
func (o *overlay) enslave(step string, have, want netstate.Link) (lowered []string) {
	lowered = o.raisedVLANs(have)
	if have.Up != nil && *have.Up {
		o.update(step, have, netstate.Link{Name: have.Name, Up: new(false)})
		have, _ = o.now.Link(have.Name)
	}
	want.Up = nil
	o.update(step, have, want)
	return lowered
}

// raisedVLANs are the names of VLANs on a link, and on those, which are up and go down with it.
func (o *overlay) raisedVLANs(l netstate.Link) (names []string) {
	for _, on := range o.now.LinksWhere(func(on netstate.Link) bool {
		return on.KindTraits().ParentState && on.Parent != nil && *on.Parent == l.Name && on.Up != nil && *on.Up
	}) {
		names = append(append(names, on.Name), o.raisedVLANs(on)...)
	}
	return names
}

// recreateLost recreates foreign objects that our changes deleted, and those in more,
// if their link still exists. A route of the main table follows its link into a VRF.
func (o *overlay) recreateLost(more ...netstate.Change) {
	all := o.lost
	o.lost = nil
	for i := range all {
		all[i].Why = keptForOwner
	}
	for _, c := range byReachability(append(all, more...)) {
		again, ok := survivor(o.now, c.Before)
		if !ok {
			continue
		}
		if r, isRoute := again.(netstate.Route); isRoute && !reachable(o.now, r) {
			if c.Foreign {
				o.lost = append(o.lost, c) // perhaps later
			}
			continue
		}
		if _, there := o.now.Get(again.Key()); !there {
			o.do(netstate.Change{Step: c.Step, After: again, Foreign: c.Foreign, Why: c.Why})
		}
	}
}

const keptForOwner = "kept for its owner"

// byReachability puts addresses first, then routes on the link, then routes
// whose gateway those make reachable.
func byReachability(changes []netstate.Change) []netstate.Change {
	rank := func(c netstate.Change) int {
		n := 2 * int(c.Before.Traits().Phase)
		if r, ok := c.Before.(netstate.Route); ok && r.Gateway != "" {
			n++
		}
		return n
	}
	out := slices.Clone(changes)
	slices.SortStableFunc(out, func(a, b netstate.Change) int { return rank(a) - rank(b) })
	return out
}

// survivor returns the object to recreate, false for an object that the kernel creates by
// itself or whose link no longer exists.
func survivor(now *netstate.Snapshot, o netstate.Object) (netstate.Object, bool) {
	l, there := now.Link(netstate.LinkOf(o))
	alone := o.LivesOn() == (netstate.Key{})
	if !there && !alone || o.Traits().Phase <= netstate.PhaseLinks {
		return nil, false
	}
	r, isRoute := o.(netstate.Route)
	switch {
	case isRoute && netstate.OnHost(l.Name):
		return r, true // NetworkManager makes routes with the kernel's protocol, and of those only they are recorded
	case netstate.KernelMade(o), isRoute && r.Protocol == netstate.RouteProtocolKernel: // a default route too
		return nil, false
	case !isRoute:
		return o, true
	}
	if l.Master != nil && *l.Master != "" && r.Table == netstate.TableMain {
		if m, ok := now.Link(*l.Master); ok && m.VRF != nil && m.VRF.Table != nil {
			r.Table = *m.VRF.Table
		}
	}
	return r, true
}

// reachable reports whether the kernel would accept a route's gateway: an IPv4 gateway
// must be in the subnet of an address of the link, or covered by a route of the link
// without a gateway. Cases that cannot be decided here are left to the kernel.
func reachable(now *netstate.Snapshot, r netstate.Route) bool {
	gateway, err := netip.ParseAddr(r.Gateway)
	if err != nil || !gateway.Is4() || r.OnLink != nil && *r.OnLink {
		return true
	}
	covers := func(prefix string) bool {
		p, err := netip.ParsePrefix(prefix)
		return err == nil && p.Masked().Contains(gateway)
	}
	return slices.ContainsFunc(netstate.All[netstate.Addr](now), func(a netstate.Addr) bool {
		return a.Link == r.Link && covers(a.Address)
	}) || slices.ContainsFunc(netstate.All[netstate.Route](now), func(other netstate.Route) bool {
		return other.Link == r.Link && other.Gateway == "" && covers(other.Dst)
	})
}
