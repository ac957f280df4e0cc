package ops

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

// settleMTU raises MTUs bottom-up. The kernel refuses an upper link whose MTU
// exceeds its parent's (EINVAL at create, ERANGE later) and forces a bond's MTU
// on its ports. So the MTU of a VLAN is a demand on all links below it, and that
// of a port is a demand on its bond. A demand never lowers an MTU, and never
// overrides a step silently.
//
// It terminates because claims only grow, and are bounded: a demand passes on a value that
// a step wrote, plus the headers of tunnels, of which the kernel stacks few. The steps'
// own values are settled from the largest down, so without tunnels no link is raised
// twice: one visit per link and per port of a bond.
func (p *Planner) settleMTU() error {
	var own []string
	ports := map[string][]string{} // of bonds
	for _, l := range p.view.LinksWhere(func(l netstate.Link) bool { return p.managed(l.Name) }) {
		if _, ok := p.mtuClaim(l.Name); ok {
			own = append(own, l.Name)
		}
		if bond, ok := p.bondOf(l.Name); ok {
			ports[bond] = append(ports[bond], l.Name)
		}
	}
	slices.SortStableFunc(own, func(a, b string) int { return cmp.Compare(p.mtu(b), p.mtu(a)) })
	for _, name := range own {
		raised := []string{name}
		for len(raised) > 0 {
			if err := p.ended(); err != nil {
				return err
			}
			more, err := p.demandMTU(raised[0], ports)
			if err != nil {
				return err
			}
			raised = append(raised[1:], more...)
		}
	}
	return p.tunnelsInBonds(ports)
}

// tunnelsInBonds refuses a bond without a configured MTU whose MTU is larger than that of
// a tunnel in it can be: the kernel refuses such a port (EINVAL).
func (p *Planner) tunnelsInBonds(ports map[string][]string) error {
	for _, bond := range slices.Sorted(maps.Keys(ports)) {
		if _, claimed := p.mtuClaim(bond); claimed {
			continue
		}
		forced := p.standingMTU(bond, 0)
		for _, port := range ports[bond] {
			l, _ := p.view.Link(port)
			room := p.standingMTU(port, 0)
			if l.Headers() == 0 || l.LivesOn() == (netstate.Key{}) || room == 0 || room >= forced {
				continue
			}
			return p.stepError(p.claims[l.Key()]["master"].step, Invalid("mtu",
				"the bond %q has %d without one, and the tunnel %q in it can have %d: give the bond an mtu of %d or less, or the link below the tunnel a larger one", bond, forced, port, room, room))
		}
	}
	return nil
}

// demandMTU passes a link's wanted MTU on to its parent, its bond, and its
// ports, and returns those whose claim was raised.
func (p *Planner) demandMTU(name string, ports map[string][]string) (raised []string, err error) {
	l, _ := p.view.Link(name)
	own, _ := p.mtuClaim(name)
	demand := func(lower string, headers uint32, why string) error {
		more, err := p.raiseMTU(name, own, headers, lower, why)
		if more {
			raised = append(raised, lower)
		}
		return err
	}
	if l.Parent != nil && *l.Parent != "" {
		headers, why := l.Headers(), "it is below"
		if headers > 0 {
			why = fmt.Sprintf("it is below and carries %d bytes of headers too", headers)
		}
		if err := demand(*l.Parent, headers, why); err != nil {
			return nil, err
		}
	}
	if bond, ok := p.bondOf(name); ok {
		if err := demand(bond, 0, bondRule); err != nil {
			return nil, err
		}
	}
	for _, port := range ports[name] {
		prev, had := p.mtuClaim(port)
		switch {
		case had && !prev.derived && prev.value != own.value:
			return nil, p.mtuConflict(port, prev, name, own, bondRule)
		case p.mtu(port) < own.value.(uint32):
			p.setMTUClaim(port, claim{own.step, own.value, true})
			raised = append(raised, port)
		}
	}
	return raised, nil
}

// bondOf returns the bond that a step wants the link in. A bond to which the pod added
// the link does not count.
func (p *Planner) bondOf(port string) (string, bool) {
	c, ok := p.claims[netstate.LinkKey(port)]["master"]
	if !ok {
		return "", false
	}
	bond, ok := p.view.Link(c.value.(string))
	return bond.Name, ok && bond.KindTraits().ForcesPorts
}

const bondRule = "a bond has the MTU of its ports"

// maxMTU is the largest of any link (ETH_MAX_MTU).
const maxMTU = 65535

// raiseMTU demands that the lower link's MTU is at least c's value plus the headers; why is
// the reason, for the message.
func (p *Planner) raiseMTU(upper string, c claim, headers uint32, lower, why string) (bool, error) {
	want := c.value.(uint32) + headers
	prev, had := p.mtuClaim(lower)
	low, _ := p.view.Link(lower)
	switch {
	case had && prev.value.(uint32) >= want:
		return false, nil
	case had && !prev.derived:
		return false, p.mtuConflict(upper, c, lower, prev, why)
	case !had && why != bondRule && p.standingMTU(lower, 0) >= want:
		return false, nil
	case !p.managed(lower):
		have := "unknown"
		if low.MTU != nil {
			have = fmt.Sprint(*low.MTU)
		}
		with := ""
		if headers > 0 {
			with = fmt.Sprintf(" and %d bytes of headers", headers)
		}
		return false, p.stepError(c.step, Invalid("mtu", "%d of %q%s exceeds the %s of %q below it, which is not part of the topology: raise it there first, or ask for less",
			c.value, upper, with, have, netstate.BaseName(lower)))
	case want > maxMTU:
		return false, p.stepError(c.step, Invalid("mtu", "%d of %q needs %d of %q below it, and no link has more than %d: ask for less",
			c.value, upper, want, netstate.BaseName(lower), maxMTU))
	}
	p.setMTUClaim(lower, claim{c.step, want, true})
	return true, nil
}

// standingMTU is the MTU that a link has without any claim on it, in bytes, 0 when
// it is not known. A value that we set earlier does not count: it would be dropped as soon
// as it was reached.
func (p *Planner) standingMTU(name string, depth int) uint32 {
	l, there := p.req.Have.Link(name)
	have := uint32(0)
	if there && l.MTU != nil {
		have = *l.MTU
	}
	for _, c := range p.req.Owned {
		if c.Key() != netstate.LinkKey(name) {
			continue
		}
		if before, ok := c.Before.(netstate.Link); ok && before.MTU != nil {
			return *before.MTU
		}
	}
	made := !there || p.Owned(netstate.LinkKey(name))
	if !made {
		return have
	}
	view, _ := p.view.Link(name)
	born := uint32(0)
	switch kind := view.KindTraits(); {
	case view.LinkKind == "device": // on its way here
		if view.MTU != nil {
			born = *view.MTU
		}
	case view.Parent != nil && *view.Parent != "":
		if depth > maxNesting {
			return 0
		}
		if born = p.mtu(*view.Parent); born == 0 {
			born = p.standingMTU(*view.Parent, depth+1)
		}
		if born != 0 {
			born = view.MTUOver(born)
		}
	case !kind.PortsMTU:
		born = kind.DefaultMTU
	}
	if there {
		return min(born, have)
	}
	return born
}

// managed reports whether some step wants the link.
func (p *Planner) managed(link string) bool {
	_, ok := p.claims[netstate.LinkKey(link)]
	return ok && !netstate.OnHost(link)
}

func (p *Planner) mtuClaim(link string) (claim, bool) {
	c, ok := p.claims[netstate.LinkKey(link)]["mtu"]
	return c, ok
}

// mtu returns the claimed MTU of a link, in bytes, 0 where none is.
func (p *Planner) mtu(link string) uint32 {
	c, ok := p.mtuClaim(link)
	if !ok {
		return 0
	}
	return c.value.(uint32)
}

func (p *Planner) setMTUClaim(link string, c claim) {
	p.claims[netstate.LinkKey(link)]["mtu"] = c
}

func (p *Planner) mtuConflict(upper string, c claim, lower string, prev claim, why string) error {
	return p.stepError(c.step, fault.New(fault.Invalid, fmt.Errorf(
		"mtu: step %q wants %v on %q, but step %q wants %v on %q, and %s: make them agree",
		c.step, c.value, upper, prev.step, prev.value, lower, why)))
}

func (p *Planner) stepError(step string, err error) error {
	if already, ok := errors.AsType[*StepError](err); ok {
		return already
	}
	if errors.As(err, new(*cutShort)) {
		return err
	}
	typ := ""
	if st, ok := p.steps[step]; ok {
		typ = st.step.Type
	}
	return &StepError{p.req.Topology.Name, step, typ, err}
}
