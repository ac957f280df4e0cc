package ops

import (
	"cmp"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
)

// leftovers are the fields that the record says we have set, of objects that we made, and that no step wants any more. An edit gives
// them the values that the objects had at birth, or has a link made again where those are not known. A record has no other
// value to restore: before us there was no such object.
//
// Without an edit nothing is left over: what runs is not changed because a version of plumbline wants less.
type leftovers struct {
	p *Planner
	// fields are the paths, by object; all of a setting.
	fields map[netstate.Key]map[string]bool
	// outdated are the links to be made again.
	outdated map[string]string // with the reason
	leaving  []netstate.Link   // links that leave their masters
	reborn   map[string]bool   // links whose MTU is to be that of birth, unless a step wants one
}

// edited reports whether the topology is another one than was applied last, or was interrupted, perhaps as that.
func (l *leftovers) edited() bool { return !l.p.req.Kept || l.p.req.Interrupted }

// reset shows the steps the links that we made without what we set: so they appear where they are made.
func (l *leftovers) reset() {
	if !l.edited() {
		return
	}
	l.reborn = map[string]bool{}
	for _, c := range l.p.req.Owned {
		made, isLink := c.After.(netstate.Link)
		have, there := l.p.view.Link(made.Name)
		if !isLink || !there || c.Foreign || have.KindTraits().Shared {
			continue
		}
		if before, was := c.Before.(netstate.Link); was {
			if before.MTU != nil && made.MTU != nil {
				l.p.view.Put(netstate.Merge(have, netstate.Link{MTU: before.MTU}))
			}
			continue
		}
		fields := netstate.Fields(made)
		if made.Outdated || followsMTU(have) {
			fields = append(fields, netstate.Field{Path: "mtu"}) // the record of an edit that was interrupted does not have it any more
		}
		for _, f := range fields {
			born, known := netstate.AtBirth(have, f.Path)
			switch f.Path {
			case "mtu":
				l.reborn[made.Name] = true
				if parent, on := l.parentOf(have); !known && on && !have.KindTraits().OwnMTU && parent.MTU != nil {
					born, known = netstate.Link{Name: made.Name, MTU: new(have.MTUOver(*parent.MTU))}, true
				}
				if !known && have.MTU != nil { // which is known once it is made again, and large enough for IPv6
					born, known = netstate.Link{Name: made.Name, MTU: new(max(*have.MTU, netstate.MinIPv6MTU))}, true
				}
			case "promisc", "allMulti", "txQueueLen":
			default:
				continue
			}
			if known {
				have = netstate.Merge(have, born.(netstate.Link))
			}
		}
		l.p.view.Put(have)
	}
}

// followsMTU reports whether a new link has the MTU of the one below. The kernel lowers it with that, and never raises it.
func followsMTU(link netstate.Link) bool {
	return link.Parent != nil && *link.Parent != "" && !link.KindTraits().OwnMTU && !link.KindTraits().ParentMTU
}

// staysOn reports whether a link that follows the MTU of another is not made again on yet another.
func (l *leftovers) staysOn(name string) bool {
	have, there := l.p.req.Have.Link(name)
	then, _ := l.p.view.Link(name)
	return there && followsMTU(have) && then.Parent != nil && *then.Parent == *have.Parent
}

func (l *leftovers) parentOf(link netstate.Link) (netstate.Link, bool) {
	if link.Parent == nil {
		return netstate.Link{}, false
	}
	return l.p.view.Link(*link.Parent)
}

// leave shows rules, once all steps are planned, the links that leave their masters.
func (l *leftovers) leave() error {
	if !l.edited() || len(l.p.missing) > 0 || l.p.steps.waiting() {
		return nil
	}
	for _, c := range l.p.req.Owned {
		set, isLink := c.After.(netstate.Link)
		have, there := l.p.view.Link(set.Name)
		// The record of an edit that was interrupted may have only the link that is made in its place.
		again := l.p.req.Interrupted && set.Master == nil && have.Master != nil && l.p.Owned(netstate.LinkKey(*have.Master))
		if _, wanted := l.p.claims[c.Key()]["master"]; !isLink || wanted || set.Master == nil && !again || l.ofOther(c.Key(), "master") {
			continue
		}
		if there {
			l.p.view.Put(netstate.Merge(have, netstate.Link{Master: new("")}))
		}
	}
	return nil
}

// find finds what is left over, once all steps are planned, and wants it as it was at birth, but for MTUs (see settleMTUs).
func (l *leftovers) find() error {
	if l.p.req.imagined != nil {
		return nil
	}
	for _, c := range l.p.req.Owned {
		if made, ok := c.After.(netstate.Link); ok && made.Outdated && c.Before == nil {
			if have, there := l.p.req.Have.Link(made.Name); there && have.Index == made.Index {
				l.remake(made.Name, "an edit was interrupted")
			}
		}
	}
	return l.among(func(k netstate.Kind) bool { return k != netstate.KindRoute })
}

// findRoutes does it for routes, which are wanted last.
func (l *leftovers) findRoutes() error {
	return l.among(func(k netstate.Kind) bool { return k == netstate.KindRoute })
}

func (l *leftovers) among(kinds func(netstate.Kind) bool) error {
	if !l.edited() || len(l.p.missing) > 0 || len(l.p.req.Owned) == 0 || l.p.steps.waiting() {
		return nil
	}
	wanted := map[netstate.Key]map[string]bool{}
	for _, w := range l.p.wants {
		k := w.obj.Key()
		if wanted[k] == nil {
			wanted[k] = map[string]bool{}
		}
		for _, f := range netstate.Fields(w.obj) {
			wanted[k][f.Path] = true
		}
	}
	for _, c := range l.p.req.Owned {
		if c.Before != nil || c.After == nil || c.Foreign || c.Implied || !kinds(c.Key().Kind) {
			continue
		}
		fields, isWanted := wanted[c.Key()]
		switch {
		case isWanted:
			l.fieldsOf(c, fields)
		case c.After.Traits().Setting:
			l.setting(c)
		}
	}
	return nil
}

func noLonger(what string) string { return "the topology has no " + what + " for it any more" }

// remake has a link made again, but for a bridge or VRF that others are in, or may be: it stays as it is.
func (l *leftovers) remake(link, why string) {
	if l.p.wants.maker(link) != "" && !l.sharedWithOthers(link) {
		l.outdated[link] = cmp.Or(l.outdated[link], why)
	}
}

func (l *leftovers) sharedWithOthers(link string) bool {
	have, _ := l.p.req.Have.Link(link)
	return have.KindTraits().Shared && (netstate.OnHost(link) || len(l.p.req.Have.LinksWhere(func(port netstate.Link) bool {
		ours := l.p.claims[port.Key()]["master"]
		return port.Master != nil && *port.Master == link && ours.value != link
	})) > 0)
}

// fieldsOf finds the fields of an object that no step wants, and no other topology.
func (l *leftovers) fieldsOf(c netstate.Change, wanted map[string]bool) {
	o, isLink := c.After.(netstate.Link)
	if isLink && (l.p.wants.maker(o.Name) == "" || netstate.OnHost(o.Name) && o.KindTraits().Shared) {
		return // all pods of the node have the bridge
	}
	if isLink && !wanted["mtu"] && l.staysOn(o.Name) && !l.ofOther(c.Key(), "mtu") {
		l.add(c.Key(), "mtu")
	}
	for _, f := range netstate.Fields(c.After) {
		if wanted[f.Path] || f.Path == "up" || f.Path == "name" || l.ofOther(c.Key(), f.Path) {
			continue
		}
		if isLink && f.Path == "mtu" {
			l.add(c.Key(), f.Path)
			continue // see settleMTUs
		}
		of := c.After
		if have, there := l.p.view.Get(c.Key()); there {
			of = have
		}
		born, known := netstate.AtBirth(of, f.Path)
		switch {
		case known:
			l.add(c.Key(), f.Path)
			l.want(c.Step, born)
		case isLink:
			l.add(c.Key(), f.Path)
			l.remake(o.Name, noLonger(f.Path))
		}
	}
}

// ofOther reports whether another topology of the namespace has set the field too.
func (l *leftovers) ofOther(k netstate.Key, path string) bool {
	return slices.ContainsFunc(l.p.ownership.others(k), func(o owner) bool { return netstate.Value(o.change.After, path) != nil })
}

// setting finds a setting of a link that we made. A new link has the sysctls of the namespace's default.
func (l *leftovers) setting(c netstate.Change) {
	link := netstate.LinkOf(c.After)
	if l.p.makers[link] == "" || l.ofOther(c.Key(), "value") {
		return
	}
	l.add(c.Key(), "")
	s, isSysctl := c.After.(netstate.Sysctl)
	base, hasDefault := s.OfNewLinks()
	if !isSysctl || !hasDefault {
		l.remake(link, noLonger(c.Key().String()))
		return
	}
	for _, o := range []netstate.Sysctl{base, s} {
		if !l.p.req.Have.Known(o) {
			l.p.need(o)
		}
	}
	_, there := netstate.Lookup(l.p.req.Have, s)
	on, _ := l.p.view.Link(link)
	got, known := netstate.Lookup(l.p.req.Have, base)
	switch {
	case !there, strings.HasPrefix(s.Path, "net/ipv6/") && on.MTU != nil && *on.MTU < netstate.MinIPv6MTU: // it ends with IPv6 on the link
	case !known || got.Value == nil:
		l.remake(link, noLonger(c.Key().String()))
	default:
		s.Value = l.spread(s, got.Value)
		l.want(c.Step, s)
	}
}

// spread is the value that the kernel gives a sysctl of a link with one of all links, where this plan writes one, else the given.
func (l *leftovers) spread(s netstate.Sysctl, value *string) *string {
	for _, w := range l.p.wants {
		if of, is := w.obj.(netstate.Sysctl); is && of.SpreadsTo(s) {
			return of.Value
		}
	}
	for _, c := range l.p.req.Owned {
		if of, is := c.Before.(netstate.Sysctl); is && of.Value != nil && of.SpreadsTo(s) {
			return of.Value
		}
	}
	return value
}

func (l *leftovers) add(k netstate.Key, path string) {
	if l.fields[k] == nil {
		l.fields[k] = map[string]bool{}
	}
	l.fields[k][path] = true
}

// want wants a field of an object that steps want, as it was at birth.
func (l *leftovers) want(step string, o netstate.Object) {
	k := o.Key()
	if l.p.claims[k] == nil {
		l.p.claims[k] = map[string]claim{}
	}
	for _, f := range netstate.Fields(o) {
		l.p.claims[k][f.Path] = claim{step: step, value: f.Value}
	}
	link, isLink := o.(netstate.Link)
	switch first := slices.IndexFunc(l.p.wants, func(w want) bool { return w.obj.Key() == k }); {
	case isLink: // before what is on the link, whose MTU may be larger than that of the link is now
		l.p.wants = slices.Insert(l.p.wants, first+1, want{step: step, obj: o})
	case o.Traits().Setting:
		l.p.wants = append(l.p.wants, want{step: step, obj: o})
	}
	for i, w := range l.p.wants {
		if !isLink && w.obj.Key() == k {
			l.p.wants[i].obj = netstate.Merge(o, w.obj) // in one change with the rest
		}
	}
	if have, there := l.p.view.Get(k); there {
		l.p.view.Put(netstate.Merge(have, o))
	}
	if isLink && link.Master != nil {
		l.leaving = append(l.leaving, link)
	}
}

// settleMTUs wants MTUs as they were at birth, where no step wants one and none follows from those of other links.
func (l *leftovers) settleMTUs() error {
	for _, c := range l.p.req.Owned {
		k := c.Key()
		if !l.fields[k]["mtu"] || k.Kind != netstate.KindLink {
			continue
		}
		if _, claimed := l.p.mtus.claimOf(k.ID); claimed {
			delete(l.fields[k], "mtu")
			continue
		}
		if _, port := l.p.claims.bondOf(l.p.view, k.ID); port {
			delete(l.fields[k], "mtu") // stays on record: the link has it again when it leaves the bond
			continue
		}
		have, _ := l.p.view.Link(k.ID)
		mtu := l.p.mtus.standing(k.ID, 0)
		if mtu == 0 || have.KindTraits().PortsMTU || have.KindTraits().OwnMTU {
			if netstate.Value(c.After, "mtu") != nil {
				l.remake(k.ID, noLonger("mtu"))
			}
			continue
		}
		l.want(c.Step, netstate.Link{Name: k.ID, MTU: &mtu})
	}
	return nil
}

// Record returns a history as the record is to have it after a pass, of which p is the last plan: without what was left over, and with the
// own MTUs of ports of bonds.
func (p *Plan) Record(history []netstate.Change) []netstate.Change {
	if p.by == nil {
		return history
	}
	out := withOwnMTUs(history, p.by.req.Have)
	for i, c := range out {
		fields := p.by.leftovers.fields[c.Key()]
		if c.After == nil || len(fields) == 0 || fields[""] {
			continue
		}
		out[i].After = netstate.Restrict(c.After, func(path string) bool { return !fields[path] })
	}
	return slices.DeleteFunc(out, func(c netstate.Change) bool { return p.by.leftovers.fields[c.Key()][""] })
}

func newLeftovers(p *Planner) leftovers {
	return leftovers{p: p, fields: map[netstate.Key]map[string]bool{}, outdated: map[string]string{}}
}
