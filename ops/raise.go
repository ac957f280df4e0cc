package ops

import (
	"fmt"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// riser holds back changes that bring links up until these have their settings. The settings that a link has when it comes
// up decide what the kernel does by itself: whether it makes addresses of an advertisement, how it
// makes its link-local address, which MAC it announces.
type riser struct {
	last    map[string]int // the last want of each link in the phase of links, by its position
	waiting []raise        // in the order of their wants
}

// raise is a pending change: a link that is to be up or to join a bond, which brings it up, or options
// that a bond takes once it has its ports.
type raise struct {
	step string
	link netstate.Link // the fields to set
}

func (r raise) joins() bool { return r.link.Master != nil }
func (r raise) ups() bool   { return r.link.Up != nil }

// newRiser finds the last want of each link. That of a port is also one of its master, which has its
// ports when it comes up.
func newRiser(wants []want) riser {
	r := riser{last: map[string]int{}}
	for i, w := range wants {
		if w.obj.Traits().Phase != netstate.PhaseLinks {
			continue
		}
		r.last[netstate.LinkOf(w.obj)] = i
		switch o := w.obj.(type) {
		case netstate.Link:
			r.last[o.Name] = i
			if o.Master != nil {
				r.last[*o.Master] = i
			}
		case netstate.Device:
			if o.At != nil {
				r.last[*o.At] = i
			}
		}
	}
	return r
}

// hold lets a change of a link wait. A held change is not held twice.
func (r *riser) hold(step string, link netstate.Link) {
	if !slices.ContainsFunc(r.waiting, func(w raise) bool { return len(netstate.Diff(link, w.link)) == 0 && w.link.Name == link.Name }) {
		r.waiting = append(r.waiting, raise{step, link})
	}
}

// waits reports whether something of a link is held.
func (r *riser) waits(link string) bool {
	return slices.ContainsFunc(r.waiting, func(w raise) bool { return w.link.Name == link })
}

// awaitsPorts reports whether links are held that are to join another.
func (r *riser) awaitsPorts(master string) bool {
	return slices.ContainsFunc(r.waiting, func(w raise) bool { return w.joins() && *w.link.Master == master })
}

// rise makes the changes that nothing has to come before, once the want at a position is planned.
func (q *sequencer) rise(at int) {
	for some := true; some; {
		some = false
		for i := 0; i < len(q.waiting); i++ {
			w := q.waiting[i]
			if !q.ready(w, at) || w.joins() && behindPort(q.waiting[:i], *w.link.Master) {
				continue
			}
			q.waiting = slices.Delete(q.waiting, i, i+1)
			i, some = i-1, true
			have, _ := q.now.Link(w.link.Name)
			if w.joins() {
				for _, vlan := range q.enslave(w.step, have, w.link) {
					if maker := q.p.makers[vlan]; maker != "" {
						q.hold(maker, netstate.Link{Name: vlan, Up: new(true)})
					}
				}
			} else {
				q.update(w.step, have, w.link)
			}
		}
	}
}

// behindPort reports whether a link waits that is to join a bond earlier: the bond takes the MAC of its first port.
func behindPort(earlier []raise, bond string) bool {
	return slices.ContainsFunc(earlier, func(w raise) bool { return w.joins() && *w.link.Master == bond })
}

// deadlock refuses a plan that would leave out what is wanted, as each link waits for another.
func (q *sequencer) deadlock() error {
	if len(q.waiting) == 0 || len(q.changes) > 0 || len(q.stuck) > 0 {
		return nil
	}
	for _, step := range q.p.steps {
		if step.pending != "" || step.later != "" {
			return nil // the next plan, with what is known then
		}
	}
	w := q.waiting[0]
	return q.p.req.stepError(w.step, fault.New(fault.Unsupported,
		fmt.Errorf("link %q and another link wait for each other to come up: change the order of the steps in dependOn", w.link.Name)))
}

// ready reports whether the link, its bond if it joins one, and what has to be up before it have all
// that is wanted of them.
func (q *sequencer) ready(w raise, at int) bool {
	name := w.link.Name
	if q.p.unsettledLinks[name] || at < q.last[name] {
		return false
	}
	switch {
	case w.joins():
		if q.p.unsettledLinks[*w.link.Master] || at < q.last[*w.link.Master] {
			return false
		}
	case q.awaitsPorts(name):
		return false
	case w.ups() && slices.ContainsFunc(q.waiting, func(o raise) bool { return o.link.Name == name && !o.ups() }):
		return false
	}
	have, _ := q.now.Link(name)
	return !q.parentDown(have) || !q.waits(*have.Parent) && at >= q.last[*have.Parent]
}
