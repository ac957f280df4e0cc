package ops

import (
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// Other is another topology that was applied in the same namespace, and what it changed there.
type Other struct {
	Name    string // of the topology
	History []netstate.Change
}

// owner is another topology that changed an object, and its change.
type owner struct {
	topology string
	change   netstate.Change
}

// ownership maps objects to their makers, by the records of the request.
type ownership struct {
	req   *Request
	ours  map[netstate.Key]bool
	byKey map[netstate.Key][]owner // in other topologies
}

// made reports whether this sandbox made an object.
func (o *ownership) made(k netstate.Key) bool {
	if o.ours == nil {
		o.ours = make(map[netstate.Key]bool, len(o.req.Owned))
		for _, c := range o.req.Owned {
			o.ours[c.Key()] = o.ours[c.Key()] || c.Before == nil
		}
	}
	return o.ours[k]
}

// others returns what other topologies of the namespace have made of an object.
func (o *ownership) others(k netstate.Key) []owner {
	if o.byKey == nil {
		o.byKey = map[netstate.Key][]owner{}
		for _, other := range o.req.Others {
			for _, c := range other.History {
				if holdsShare(c) {
					o.byKey[c.Key()] = append(o.byKey[c.Key()], owner{other.Name, c})
				}
			}
		}
	}
	return o.byKey[k]
}

// holdsShare reports whether a change of a record is a share in an object: what is in the
// namespace, is still there, and is not another writer's.
func holdsShare(c netstate.Change) bool {
	if c.After == nil || c.Foreign || netstate.OfHost(c.After) {
		return false
	}
	switch o := c.After.(type) {
	case netstate.Sysctl:
		return !netstate.OnHost(o.Path)
	case netstate.Link, netstate.Addr, netstate.Route, netstate.Rule, netstate.Unreachable, netstate.Neighbor, netstate.Ethtool:
		return true
	}
	return false
}

// refuseContradiction refuses a value of a field for which another topology of the namespace has
// another one: both would be repaired in turn forever. An applied value stays, with a note.
func (p *Planner) refuseContradiction(o netstate.Object) error {
	for _, other := range p.ownership.others(o.Key()) {
		for _, f := range netstate.Fields(o) {
			theirs := netstate.Value(other.change.After, f.Path)
			if theirs == nil || netstate.FormatValue(theirs) == netstate.FormatValue(f.Value) {
				continue
			}
			what := fmt.Sprintf("wants %s %s = %s, but topology %q, which the pod has too, wants %s", o.Key(), f.Path,
				netstate.FormatValue(f.Value), other.topology, netstate.FormatValue(theirs))
			if p.Kept() {
				p.Note("%s: each topology would undo the change of the other; remove it from one of them", what)
				continue
			}
			return fault.New(fault.Conflict, fmt.Errorf("%s: remove it from one of them", what))
		}
	}
	return nil
}

// share records an object that another topology has made and this one wants the same way, with
// the state before either: whichever is released last restores that.
func (q *sequencer) share(w want) {
	if w.adopt {
		return
	}
	for _, other := range q.p.ownership.others(w.obj.Key()) {
		before := other.change.Before
		if before == nil && w.obj.Key().Kind == netstate.KindLink {
			continue // it is the other's link, which this one may change as long as it is there
		}
		if before != nil {
			before = netstate.Restrict(before, func(path string) bool { return netstate.Value(w.obj, path) != nil })
			if len(netstate.Fields(before)) == 0 {
				continue
			}
		}
		q.shared = append(q.shared, netstate.Change{Step: w.step, Before: before, After: w.obj})
		return
	}
}

// Unshared leaves out of a history what other topologies of the namespace have a share in, and
// returns the changes that may be undone.
func Unshared(history []netstate.Change, others []Other) []netstate.Change {
	theirs := map[netstate.Key][]netstate.Change{}
	for _, other := range others {
		for _, c := range other.History {
			if holdsShare(c) {
				theirs[c.Key()] = append(theirs[c.Key()], c)
			}
		}
	}
	var out []netstate.Change
	for _, c := range history {
		with := theirs[c.Key()]
		switch {
		case len(with) == 0 || c.After == nil:
		case c.Before == nil:
			if slices.ContainsFunc(with, func(o netstate.Change) bool { return o.Before == nil }) && c.Key().Kind != netstate.KindLink {
				continue
			}
		default:
			alone := func(path string) bool {
				return !slices.ContainsFunc(with, func(o netstate.Change) bool { return netstate.Value(o.After, path) != nil })
			}
			c.Before, c.After = netstate.Restrict(c.Before, alone), netstate.Restrict(c.After, alone)
			if len(netstate.Fields(c.Before)) == 0 && len(netstate.Fields(c.After)) == 0 {
				continue
			}
		}
		out = append(out, c)
	}
	return out
}
