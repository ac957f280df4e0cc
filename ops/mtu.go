package ops

import (
	"errors"
	"fmt"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/ops/netstate"
)

// settleMTU raises MTUs bottom-up. The kernel refuses an upper link whose MTU
// exceeds its parent's (EINVAL at create, ERANGE later) and forces a bond's MTU
// on its ports, so what a step wants of a VLAN is a demand on all below it. A
// demand never lowers anything, and never contradicts a step silently.
func (p *Planner) settleMTU() error {
	for changed := true; changed; {
		changed = false
		claimed := func(l netstate.Link) bool {
			_, ok := p.mtuClaim(l.Name)
			return ok && !netstate.OnHost(l.Name)
		}
		for _, l := range p.view.LinksWhere(claimed) {
			more, err := p.demandMTU(l)
			if err != nil {
				return err
			}
			changed = changed || more
		}
	}
	return nil
}

// demandMTU passes a link's wanted MTU on to its parent, its bond, or its
// ports, and reports whether that changed a claim.
func (p *Planner) demandMTU(l netstate.Link) (bool, error) {
	own, ok := p.mtuClaim(l.Name)
	if !ok {
		return false, nil
	}
	changed := false
	if l.Parent != nil {
		more, err := p.raiseMTU(l.Name, own, *l.Parent)
		if err != nil {
			return false, err
		}
		changed = changed || more
	}
	if l.Master != nil {
		if bond, ok := p.view.Link(*l.Master); ok && bond.LinkKind == "bond" && !own.derived {
			more, err := p.raiseMTU(l.Name, own, bond.Name)
			if err != nil {
				return false, err
			}
			changed = changed || more
		}
	}
	if l.LinkKind != "bond" {
		return changed, nil
	}
	for _, port := range p.view.LinksWhere(func(port netstate.Link) bool {
		return !netstate.OnHost(port.Name) && port.Master != nil && *port.Master == l.Name
	}) {
		prev, had := p.mtuClaim(port.Name)
		switch {
		case had && !prev.derived && prev.value != own.value:
			return false, p.mtuConflict(port.Name, prev, l.Name, own, "a bond has the MTU of its ports")
		case !had || prev.derived && prev.value != own.value:
			p.setMTUClaim(port.Name, claim{own.step, own.value, true})
			changed = true
		}
	}
	return changed, nil
}

// raiseMTU demands at least c's value of the lower link.
func (p *Planner) raiseMTU(upper string, c claim, lower string) (bool, error) {
	want := c.value.(uint32)
	prev, had := p.mtuClaim(lower)
	low, _ := p.view.Link(lower)
	switch {
	case had && prev.value.(uint32) >= want:
		return false, nil
	case had && !prev.derived:
		return false, p.mtuConflict(upper, c, lower, prev, "it is below")
	case low.MTU != nil && *low.MTU >= want && !had && !p.managed(lower):
		return false, nil
	case !p.managed(lower):
		have := "unknown"
		if low.MTU != nil {
			have = fmt.Sprint(*low.MTU)
		}
		return false, p.stepError(c.step, Invalid("mtu", "%d of %q exceeds the %s of %q below it, which is not part of the topology: raise it there first, or ask for less",
			want, upper, have, netstate.BaseName(lower)))
	}
	p.setMTUClaim(lower, claim{c.step, want, true})
	return true, nil
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
	typ := ""
	if st, ok := p.steps[step]; ok {
		typ = st.step.Type
	}
	return &StepError{p.req.Topology.Name, step, typ, err}
}
