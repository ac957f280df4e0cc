package ops

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// sequencer turns merged wants into changes in an order that the kernel accepts: it
// walks all wants a second time, on a new overlay.
type sequencer struct {
	overlay
	p      *Planner
	full   map[netstate.Key]netstate.Link
	made   map[netstate.Key]bool // created by us, according to the record
	record map[netstate.Key]bool // what the record contains
	stale  []netstate.Change     // filters to delete once others decide instead
	behind []netstate.Change     // bridges and VRFs to leave to others, see leaveBehind
	held   []netstate.Change     // see Plan
	shared []netstate.Change     // see Plan
	stuck  []Pending             // what cannot be undone now
	riser
}

// sequence orders the changes: first deletions of objects that are no longer wanted; then
// links, devices and their settings, step by step, and each link comes up after the last of its
// settings; then addresses; then routes. Links are enslaved before they get addresses, since
// joining a VRF or a bond drops routes and IPv6 addresses.
func (p *Planner) sequence(order []*topology.Step) (*Plan, error) {
	q := &sequencer{p: p, full: map[netstate.Key]netstate.Link{}, made: map[netstate.Key]bool{}, record: map[netstate.Key]bool{}}
	q.overlay = newOverlay(p.req.Have, q.lose)
	for _, c := range p.req.Owned {
		q.record[c.Key()] = true
		if c.Before == nil {
			q.made[c.Key()] = true
		}
	}
	wants := q.withDerivedMTU(p.wants.withChosenMACs(p.claims))
	for _, w := range wants {
		if l, ok := w.obj.(netstate.Link); ok {
			have, seen := q.full[l.Key()]
			if !seen {
				q.full[l.Key()] = l
				continue
			}
			merged := netstate.Merge(have, l)
			merged.LinkKind = cmp.Or(merged.LinkKind, l.LinkKind)
			q.full[l.Key()] = merged
		}
	}
	slices.SortStableFunc(wants, func(a, b want) int { return place(a) - place(b) })
	q.changes = append(q.changes, p.renames.changes...) // the overlay has the old names already
	missing := q.prune()
	if len(missing) > 0 {
		return &Plan{Missing: missing}, nil
	}
	q.riser = newRiser(wants)
	for _, phase := range netstate.Phases() {
		for i, w := range wants {
			if w.obj.Traits().Phase != phase {
				continue
			}
			if err := ended(p.ctx); err != nil {
				return nil, err
			}
			if phase != netstate.PhaseLinks && q.waits(netstate.LinkOf(w.obj)) {
				continue // the next stage knows the settings of its link
			}
			q.share(w)
			if err := q.emit(w); err != nil {
				return nil, p.req.stepError(w.step, err)
			}
			if phase == netstate.PhaseLinks {
				q.rise(i)
			}
		}
		if phase == netstate.PhaseLinks {
			q.leaveBehind()
		}
		q.recreateLost(q.interrupted()...) // those without their gateway follow after the addresses
	}
	q.replaced()
	if err := q.deadlock(); err != nil {
		return nil, err
	}
	plan := &p.plan
	plan.Pending, plan.Changes, plan.Held, plan.Shared = q.stuck, q.changes, q.held, q.shared
	plan.by, plan.leadsTo = p, &prospect{p, q.now, order}
	results := map[string]topology.Result{}
	for _, step := range order {
		st := p.steps[step.Name]
		if st.pending != "" {
			plan.Pending = append(plan.Pending, Pending{Step: step.Name, Needs: st.pending, Withheld: st.withheld, Complete: st.complete})
			continue
		}
		if st.later != "" {
			plan.Pending = append(plan.Pending, Pending{Step: step.Name, Needs: st.later, Withheld: st.withheld})
		}
		res := st.result(p.req.Netns, q.now, pick(results, step.DependOn))
		results[step.Name] = res
		plan.Results = append(plan.Results, topology.StepResult{Name: step.Name, Type: step.Type, Result: res})
	}
	plan.Chosen = p.req.choices(plan.Chosen, len(plan.Pending) > 0)
	return plan, nil
}

// place orders the wants of a phase. The kernel accepts a gateway only once it can be reached: routes on the link come first. What it
// gives each link is written before what a step wants of one.
func place(w want) int {
	switch o := w.obj.(type) {
	case netstate.Route:
		if o.Gateway != "" {
			return 1
		}
	case netstate.Sysctl:
		if o.Spreads() {
			return -1
		}
	}
	return 0
}

// withDerivedMTU adds the MTUs that follow from other steps' wants: to a bond's
// port where it is enslaved, to another link where it is first wanted.
func (q *sequencer) withDerivedMTU(wants []want) []want {
	var out []want
	done := map[netstate.Key]bool{}
	for _, w := range wants {
		l, ok := w.obj.(netstate.Link)
		if below, found := q.linkBelow(l); found && !done[below.Key()] {
			done[below.Key()] = true
			out = append(out, want{step: w.step, obj: below})
		}
		out = append(out, w)
		if !ok || done[l.Key()] {
			continue
		}
		c, ok := q.p.mtus.claimOf(l.Name)
		if !ok || !c.derived {
			continue
		}
		mtu := netstate.Link{Name: l.Name, MTU: new(c.value.(uint32))}
		if _, port := q.p.claims.bondOf(q.p.view, l.Name); port && l.Master == nil {
			continue
		}
		done[l.Key()] = true
		if l.LinkKind == "" && l.Master == nil {
			w.obj = netstate.Merge(l, mtu) // in one message with the rest, before the link is up
			out[len(out)-1] = w
			continue
		}
		out = append(out, want{step: c.step, obj: mtu})
	}
	return out
}

// linkBelow returns the link below, with the MTU that steps want of it, if the MTU of the upper link depends on the order: it keeps the
// one with which it is made (followsMTU), or the kernel resets it with each change below (an ipvlan with an mtu).
func (q *sequencer) linkBelow(l netstate.Link) (below netstate.Link, found bool) {
	resetByParent := l.KindTraits().ParentMTU && l.Parent != nil && l.MTU != nil
	if !followsMTU(l) && !resetByParent || netstate.OnHost(*l.Parent) {
		return below, false
	}
	c, claimed := q.p.mtus.claimOf(*l.Parent)
	if have, there := q.p.view.Link(*l.Parent); !claimed || !there || q.p.view.Fresh(have.Name) && have.LinkKind != "device" {
		return below, false // it is made with its MTU
	}
	return netstate.Link{Name: *l.Parent, MTU: new(c.value.(uint32))}, true
}

// prune plans to undo what we made and no step wants any more.
func (q *sequencer) prune() []netstate.Object {
	var gone []netstate.Change
	for _, c := range Unshared(q.p.req.Owned, q.p.req.Others) {
		if st, ok := q.p.steps[c.Step]; ok && (st.pending != "" || c.Foreign) {
			continue
		}
		claims, wanted := q.p.claims[c.Key()]
		if why := q.now.Withheld(c.Object()); why != nil && !wanted {
			q.stuck = append(q.stuck, Pending{Step: c.Step, Needs: why.Error(), Withheld: why, Complete: true})
			continue
		}
		if !wanted {
			gone = append(gone, c)
			continue
		}
		if c.Action() != netstate.Update || c.Key().Kind == netstate.KindDevice {
			continue
		}
		// A bond sets the MTU of its ports. The earlier one stays on record until the link leaves.
		inBond := c.Key().Kind == netstate.KindLink && q.p.mtus.staysInBond(c.Key().ID)
		unwanted := func(path string) bool { _, ok := claims[path]; return !ok && (!inBond || path != "mtu") }
		c.Before, c.After = netstate.Restrict(c.Before, unwanted), netstate.Restrict(c.After, unwanted)
		if len(netstate.Fields(c.Before)) > 0 {
			gone = append(gone, c)
		}
	}
	for _, l := range q.p.leftovers.leaving { // first, so that nothing is in a master that is deleted
		if have, there := q.now.Link(l.Name); there {
			q.update(q.p.claims[l.Key()]["master"].step, have, l)
		}
	}
	changes, missing := Undo(q.now, gone)
	for _, c := range gone {
		// It ends with its link, and is restored with it if the plan fails.
		if o := c.Object(); c.Key().Kind == netstate.KindSysctl && !q.now.Known(o) {
			missing = append(missing, o)
		}
	}
	for _, c := range changes {
		// Implied deletions are computed again, now that all wants are known, and the
		// objects are recreated as soon as those they depend on exist.
		switch {
		case c.Implied || c.Foreign && !netstate.OfHost(c.Object()):
		case q.isReplaced(c):
			q.stale = append(q.stale, c)
		case leaves(c):
			q.behind = append(q.behind, c)
		default:
			q.do(c)
		}
	}
	return missing
}

// leaveBehind deletes bridges and VRFs that no step wants any more, if all ports that they had have joined others, and leaves
// the rest to whoever has ports in them.
func (q *sequencer) leaveBehind() {
	for _, c := range q.behind {
		l, there := q.now.Link(c.Key().ID)
		switch {
		case !there:
		case q.hasPorts(l):
			q.do(c)
		default:
			q.do(netstate.Change{Step: c.Step, Before: l})
		}
	}
}

func (q *sequencer) hasPorts(master netstate.Link) bool {
	return len(q.ports(master.Name)) > 0 || slices.ContainsFunc(master.Ports, func(port string) bool {
		_, there := q.now.Link(netstate.HostName(port))
		return !there && !q.now.Known(netstate.Link{Name: netstate.HostName(port)})
	})
}

// lose decides about objects that the kernel deletes with a change: all are listed; those
// that no step wants and the record does not contain are foreign.
func (q *sequencer) lose(gone netstate.Change) (listed, foreign bool) {
	_, wanted := q.p.claims[gone.Key()]
	return true, !wanted && !q.owned(gone.Key())
}

// interrupted lists the foreign objects that the last pass deleted, if it was interrupted.
func (q *sequencer) interrupted() []netstate.Change {
	if !q.p.req.Interrupted {
		return nil
	}
	var out []netstate.Change
	for _, c := range q.p.req.Owned {
		if r, isRoute := c.After.(netstate.Route); isRoute && c.Before == nil && r.Table != tableOf(q.now, r.Link) {
			continue // it was in the table of a VRF that its link has left
		}
		if c.Foreign && c.After != nil {
			out = append(out, netstate.Change{Step: c.Step, Before: c.After, Foreign: true, Why: keptForOwner})
		}
	}
	return out
}

// owned reports whether the record contains the object.
func (q *sequencer) owned(k netstate.Key) bool { return q.record[k] }

func (q *sequencer) emit(w want) error {
	if w.none {
		if have, there := q.now.Get(w.obj.Key()); there {
			q.do(netstate.Change{Step: w.step, Before: have})
		}
		return nil
	}
	switch o := w.obj.(type) {
	case netstate.Link:
		return q.link(w, o)
	case netstate.Device:
		return q.device(w, o)
	}
	if w.obj.Traits().Setting {
		return q.setting(w)
	}
	have, ok := q.now.Get(w.obj.Key())
	switch {
	case !ok:
		q.do(netstate.Change{Step: w.step, After: w.obj})
	case needsReplace(netstate.Diff(w.obj, have)):
		q.do(netstate.Change{Step: w.step, Before: have, After: w.obj, Recreate: true})
	default:
		q.update(w.step, have, w.obj)
	}
	return nil
}

// setting plans an object that is never created. A setting that outlives the sandbox is
// held.
func (q *sequencer) setting(w want) error {
	have, ok := q.now.Get(w.obj.Key())
	link := netstate.LinkOf(w.obj)
	if s, is := w.obj.(netstate.Sysctl); is && !ok {
		if err := q.p.mtus.checkIPv6(s, q.now); err != nil {
			return err
		}
	}
	switch {
	case !ok && (q.now.Fresh(link) || getsIPv6(q.p.req.Have, link)):
		q.do(netstate.Change{Step: w.step, After: w.obj})
		return nil
	case !ok:
		return netstate.Absent(w.obj)
	}
	if e, ok := have.(netstate.Ethtool); ok && e.Fixed && len(netstate.Diff(w.obj, have)) > 0 {
		return fault.New(fault.Unsupported,
			fmt.Errorf("link %q: ethtool %s %q is %s and its driver does not let it change", e.Link, e.Class, e.Name, *e.Value))
	}
	if w.obj.Traits().Held || q.ofNamespace(w.obj) {
		wanted := func(path string) bool { return netstate.Value(w.obj, path) != nil }
		q.held = append(q.held, netstate.Change{Step: w.step, Before: netstate.Restrict(have, wanted), After: w.obj})
	}
	q.update(w.step, have, w.obj)
	return nil
}

// ofNamespace reports whether a setting outlives the links of this topology: a record has it
// although it is right already, so that another topology that wants it otherwise is refused.
func (q *sequencer) ofNamespace(o netstate.Object) bool {
	_, isSysctl := o.(netstate.Sysctl)
	return isSysctl && q.p.makers[netstate.LinkOf(o)] == ""
}

func needsReplace(diff []netstate.FieldDiff) bool {
	return slices.ContainsFunc(diff, func(d netstate.FieldDiff) bool { return d.Mode == netstate.Immutable })
}

func (q *sequencer) device(w want, o netstate.Device) error {
	if o.At == nil {
		return nil // another change removes the object, such as that of its driver
	}
	have, ok := netstate.Lookup(q.now, o)
	if !ok || have.At == nil {
		return fault.New(fault.Gone, fmt.Errorf("device %q is neither on the host nor in the sandbox", o.ID))
	}
	if *have.At == *o.At {
		if !q.moved(o.ID) {
			return fault.New(fault.Conflict,
				fmt.Errorf("device %q is in the sandbox as %q already, and not by us: another sandbox or program owns it", o.ID, *have.At))
		}
		return nil
	}
	if taken, ok := q.now.Link(*o.At); ok {
		return ConflictWith(taken.Name, "the name %q is taken in the sandbox by a %s that is not ours", taken.Name, describeKind(taken))
	}
	if !netstate.OnHost(*have.At) && !q.moved(o.ID) {
		return fault.New(fault.Conflict, fmt.Errorf("device %q is in the sandbox as %q already, and not by us", o.ID, *have.At))
	}
	q.do(netstate.Change{Step: w.step, Before: have, After: o})
	return nil
}

// moved reports whether we brought the device here.
func (q *sequencer) moved(id string) bool {
	return slices.ContainsFunc(q.p.req.Owned, func(c netstate.Change) bool { return c.Key() == netstate.DeviceKey(id) })
}

func describeKind(l netstate.Link) string {
	if l.LinkKind == "" {
		return "link"
	}
	return l.LinkKind + " link"
}

// link plans one wanted link.
func (q *sequencer) link(w want, o netstate.Link) error {
	full := q.full[o.Key()]
	have, exists := q.now.Link(o.Name)
	creates := o.LinkKind != "" && o.LinkKind != "device"
	if up := full.Up; up != nil && *up {
		bond, port := q.p.claims.bondOf(q.p.view, o.Name)
		joins := port && (have.Master == nil || *have.Master != bond) // which sets it up
		if !joins && (o.Up != nil || creates && !exists) {
			q.hold(w.step, netstate.Link{Name: o.Name, Up: up})
		}
		o.Up, full.Up = nil, nil
	}
	if creates {
		ours := q.made[o.Key()] || q.now.Fresh(o.Name)
		switch {
		case !exists:
			return q.makeLink(w, o, full, netstate.Change{})
		case !ours && !w.adopt && !LeftBehind(have):
			return ConflictWith(o.Name, "the name %q is taken in the sandbox by a %s that is not ours", o.Name, describeKind(have))
		case needsReplace(netstate.Diff(o, have)), q.p.leftovers.outdated[o.Name] != "" && !q.now.Fresh(o.Name):
			// On the host, a link of another kind is foreign, even if we made one of
			// this name.
			if !ours || netstate.OnHost(o.Name) && have.LinkKind != o.LinkKind {
				return ConflictWith(o.Name, "%s %q exists and differs in %s", describeKind(have),
					netstate.BaseName(o.Name), diffText(netstate.Diff(o, have)))
			}
			// Until the new link is made, the record holds the old link's index, by which
			// undo finds that.
			why := q.p.leftovers.outdated[o.Name]
			full.Index, full.Outdated = have.Index, why != ""
			return q.makeLink(w, o, full, netstate.Change{Before: have, Recreate: true, Why: why})
		}
	} else if !exists {
		return fault.New(fault.NotReady, fmt.Errorf("no link %q in the sandbox", netstate.BaseName(o.Name)))
	}
	return q.updateLink(w, o, full, have)
}

// makeLink creates a link, and sets what the message that creates it cannot.
func (q *sequencer) makeLink(w want, o, full netstate.Link, c netstate.Change) error {
	c.Step, c.After = w.step, atCreation(full)
	q.do(c)
	rest := netstate.Link{Name: o.Name, Promisc: o.Promisc, AllMulti: o.AllMulti, Alias: o.Alias}
	have, _ := q.now.Link(o.Name)
	return q.updateLink(w, rest, full, have)
}

func diffText(diff []netstate.FieldDiff) string {
	for _, d := range diff {
		if d.Mode == netstate.Immutable {
			return fmt.Sprintf("%s (%s, wanted %s)", d.Path, netstate.FormatValue(d.Before), netstate.FormatValue(d.After))
		}
	}
	return ""
}

// atCreation is everything wanted of a link that can be set when it is created, so that one
// message creates the link completely.
func atCreation(full netstate.Link) netstate.Link {
	l := full
	l.Master, l.Promisc, l.AllMulti, l.Alias, l.Port = nil, nil, nil, nil, nil
	if l.Bond != nil && l.Bond.Primary != nil {
		l = netstate.Restrict(l, func(path string) bool { return path != "bond.primary" })
	}
	return l
}

func (q *sequencer) updateLink(w want, o, full, have netstate.Link) error {
	o.LinkKind = ""
	if q.bondSetsMAC(have) {
		o.MAC = nil
	}
	if q.bondWillSetMTU(o) {
		o.MTU = nil
	}
	joins := full.Master != nil && *full.Master != "" && (have.Master == nil || *have.Master != *full.Master)
	if joins && o.Master != nil {
		return q.join(w, o, have)
	}
	if o.Bond != nil && o.Bond.Primary != nil {
		q.hold(w.step, o) // this want has nothing else
		return nil
	}
	// The ports are wanted, so their steps enslave them again.
	if _, up := q.overlay.updateLink(w.step, have, o); up != nil {
		q.hold(w.step, netstate.Link{Name: o.Name, Up: up})
	}
	return nil
}

// bondSetsMAC reports whether the link is a bond's port and has the bond's MAC, whatever
// its own step sets.
func (q *sequencer) bondSetsMAC(l netstate.Link) bool {
	if l.Master == nil || *l.Master == "" {
		return false
	}
	m, ok := q.now.Link(*l.Master)
	return ok && m.KindTraits().ForcesPorts && !m.PortsKeepMAC()
}

// bondWillSetMTU reports whether the link is to join a bond that gives it the MTU wanted. What stands on the link may be made before.
func (q *sequencer) bondWillSetMTU(o netstate.Link) bool {
	return o.MTU != nil && slices.ContainsFunc(q.waiting, func(w raise) bool {
		if w.link.Name != o.Name || !w.joins() {
			return false
		}
		bond, _ := q.now.Link(*w.link.Master)
		return bond.MTU != nil && *bond.MTU == *o.MTU
	}) && !slices.ContainsFunc(q.p.wants, func(w want) bool {
		l, isLink := w.obj.(netstate.Link)
		return isLink && l.Parent != nil && *l.Parent == o.Name
	})
}

// join makes a link a port or member. One of a bond waits until both have their settings: the
// bond brings it up.
func (q *sequencer) join(w want, o, have netstate.Link) error {
	master, ok := q.now.Link(*o.Master)
	if !ok {
		return fault.New(fault.NotReady, fmt.Errorf("no link %q in the sandbox to be the master of %q", *o.Master, o.Name))
	}
	if have.Master != nil && *have.Master != "" {
		if !q.ownsField(o.Key(), "master") {
			return ConflictWith(o.Name, "link %q belongs to %q already, and not by us", o.Name, *have.Master)
		}
		q.update(w.step, have, netstate.Link{Name: o.Name, Master: new("")})
		have, _ = q.now.Link(o.Name)
	}
	if master.KindTraits().ForcesPorts {
		q.hold(w.step, o)
		return nil
	}
	if master.KindTraits().PortVLANs {
		have.Port = &netstate.Port{Hairpin: new(false), Isolated: new(false)} // as it has joined (new_nbp in net/bridge/br_if.c)
	}
	q.update(w.step, have, o)
	return nil
}

// ownsField reports whether the record says we changed that field before.
func (q *sequencer) ownsField(k netstate.Key, path string) bool {
	return q.made[k] || slices.ContainsFunc(q.p.req.Owned, func(c netstate.Change) bool {
		return c.Key() == k && c.After != nil && netstate.Value(c.After, path) != nil
	})
}
