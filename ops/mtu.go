package ops

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/ref"
)

// mtus are the MTUs that steps want and refer to, by link, in bytes.
type mtus struct {
	p       *Planner
	read    map[string]uint32 // those that references were resolved to
	below   map[string]bool   // by link: whether its MTU was taken as one below that of IPv6
	again   bool              // one was misread
	settled map[string]uint32 // those that an earlier try of the plan has led to, see misread
}

// settle raises MTUs bottom-up. The kernel refuses an upper link whose MTU
// exceeds its parent's (EINVAL at create, ERANGE later) and forces a bond's MTU
// on its ports. So the MTU of a VLAN is a demand on all links below it, and that
// of a port is a demand on its bond. A demand never lowers an MTU, and never
// overrides a step silently.
//
// It terminates because claims only grow, and are bounded: a demand passes on a value that
// a step wrote, plus the headers of tunnels, of which the kernel stacks few. The steps'
// own values are settled from the largest down, so without tunnels no link is raised
// twice: one visit per link and per port of a bond.
func (m *mtus) settle() error {
	var own []string
	ports := map[string][]string{} // of bonds
	for _, l := range m.p.view.LinksWhere(func(l netstate.Link) bool { return m.managed(l.Name) }) {
		if _, ok := m.claimOf(l.Name); ok {
			own = append(own, l.Name)
		}
		if bond, ok := m.p.claims.bondOf(m.p.view, l.Name); ok {
			ports[bond] = append(ports[bond], l.Name)
		}
	}
	slices.SortStableFunc(own, func(a, b string) int { return cmp.Compare(m.claimed(b), m.claimed(a)) })
	// A bond may give a port less than what stands on the port was content with.
	for again := true; again; {
		again = false
		for _, name := range own {
			raised := []string{name}
			for len(raised) > 0 {
				if err := ended(m.p.ctx); err != nil {
					return err
				}
				more, err := m.demand(raised[0], ports)
				if err != nil {
					return err
				}
				raised = append(raised[1:], more...)
				again = again || len(more) > 0
			}
		}
	}
	m.fitPorts(ports)
	return m.smallPorts(ports)
}

// fitPorts claims the MTU that a bond without an mtu forces on its ports, for ports with links on them. Without a claim, a port gets that
// MTU when it joins or with the bond's step, perhaps after the step of the link on it. After an edit has removed the bond's mtu, the
// kernel refuses the link its new MTU while the port has the old one (ERANGE). A tunnel gets its MTU from the port when it is made,
// and keeps it.
func (m *mtus) fitPorts(ports map[string][]string) {
	below, tunnels := map[string]bool{}, map[string]bool{} // links with one on them, and with a tunnel anywhere above
	for _, l := range m.p.view.LinksWhere(func(l netstate.Link) bool { return l.Parent != nil && m.managed(l.Name) }) {
		below[*l.Parent] = true
		for on := l; l.KindTraits().Tunnel && on.Parent != nil && !tunnels[*on.Parent]; on, _ = m.p.view.Link(*on.Parent) {
			tunnels[*on.Parent] = true
		}
	}
	for _, bond := range slices.Sorted(maps.Keys(ports)) {
		forced := m.standing(bond, 0)
		if _, claimed := m.claimOf(bond); claimed || forced == 0 {
			continue
		}
		for _, port := range ports[bond] {
			own := m.standing(port, 0)
			least, most := own, own
			if m.staysInBond(port) { // it has been given another
				bondHas, portHas := mtuIn(m.p.req.Have, bond), mtuIn(m.p.req.Have, port)
				least, most = max(bondHas, portHas), min(bondHas, portHas)
			}
			raised := below[port] && least != 0 && least < forced
			lowered := tunnels[port] && most > forced
			if m.claimed(port) == 0 && (raised || lowered) {
				m.setClaim(port, claim{m.p.claims[netstate.LinkKey(port)]["master"].step, forced, true})
			}
		}
	}
}

// smallPorts refuses a bond without a configured MTU if its default is more than a port can have over the link below it, such as
// a VLAN or a tunnel. The bond sets its MTU on each port, and the kernel refuses that (EINVAL, ERANGE).
func (m *mtus) smallPorts(ports map[string][]string) error {
	for _, bond := range slices.Sorted(maps.Keys(ports)) {
		if _, claimed := m.claimOf(bond); claimed {
			continue
		}
		forced := m.standing(bond, 0)
		for _, port := range ports[bond] {
			l, _ := m.p.view.Link(port)
			room := m.standing(port, 0)
			if l.Parent == nil || *l.Parent == "" || l.KindTraits().OwnMTU || room == 0 || room >= forced {
				continue
			}
			return m.p.req.stepError(m.p.claims[l.Key()]["master"].step, Invalid("mtu",
				"bond %q sets its default MTU %d on its port %q, which can have %d over %q: "+
					"set an mtu of %d or less on the bond, or a larger one on %q",
				bond, forced, port, room, netstate.BaseName(*l.Parent), room, netstate.BaseName(*l.Parent)))
		}
	}
	return nil
}

// demand passes a link's wanted MTU on to its parent, its bond, and its
// ports, and returns those whose claim was raised.
func (m *mtus) demand(name string, ports map[string][]string) (raised []string, err error) {
	l, _ := m.p.view.Link(name)
	own, _ := m.claimOf(name)
	demand := func(lower string, headers uint32, why string) error {
		more, err := m.raise(name, own, headers, lower, why)
		if more {
			raised = append(raised, lower)
		}
		return err
	}
	if l.Parent != nil && *l.Parent != "" && !l.KindTraits().OwnMTU {
		headers, why := l.Headers(), "it is below"
		if headers > 0 {
			why = fmt.Sprintf("it is below and carries %d bytes of headers too", headers)
		}
		if err := demand(*l.Parent, headers, why); err != nil {
			return nil, err
		}
	}
	if bond, ok := m.p.claims.bondOf(m.p.view, name); ok {
		if err := demand(bond, 0, bondRule); err != nil {
			return nil, err
		}
	}
	for _, port := range ports[name] {
		prev, had := m.claimOf(port)
		switch {
		case had && !prev.derived && prev.value != own.value:
			return nil, m.conflict(port, prev, name, own, bondRule)
		case m.claimed(port) < own.value.(uint32):
			m.setClaim(port, claim{own.step, own.value, true})
			raised = append(raised, port)
		}
	}
	return raised, nil
}

// bondOf returns the bond that a step wants the link in. A bond to which the pod added
// the link does not count.
func (c claims) bondOf(view *netstate.Snapshot, port string) (string, bool) {
	master, ok := c[netstate.LinkKey(port)]["master"]
	if !ok {
		return "", false
	}
	bond, ok := view.Link(master.value.(string))
	return bond.Name, ok && bond.KindTraits().ForcesPorts
}

const bondRule = "a bond has the MTU of its ports"

// maxMTU is the largest of any link (ETH_MAX_MTU).
const maxMTU = 65535

// raise demands that the lower link's MTU is at least c's value plus the headers; why is
// the reason, for the message.
func (m *mtus) raise(upper string, c claim, headers uint32, lower, why string) (bool, error) {
	want := c.value.(uint32) + headers
	prev, had := m.claimOf(lower)
	low, _ := m.p.view.Link(lower)
	switch {
	case had && prev.value.(uint32) >= want:
		return false, nil
	case had && !prev.derived:
		return false, m.conflict(upper, c, lower, prev, why)
	case !had && why != bondRule && min(m.standing(lower, 0), m.carrying(lower, 0)) >= want:
		return false, nil
	case !m.managed(lower):
		have := "unknown"
		if low.MTU != nil {
			have = fmt.Sprint(*low.MTU)
		}
		with := ""
		if headers > 0 {
			with = fmt.Sprintf(" and %d bytes of headers", headers)
		}
		return false, m.p.req.stepError(c.step, Invalid("mtu",
			"%d of %q%s exceeds the %s of %q below it, which is not part of the topology: raise it there first, or ask for less",
			c.value, upper, with, have, netstate.BaseName(lower)))
	case want > maxMTU:
		return false,
			m.p.req.stepError(c.step, Invalid("mtu", "%d of %q needs %d of %q below it, and no link has more than %d: ask for less",
				c.value, upper, want, netstate.BaseName(lower), maxMTU))
	}
	if !had && why != bondRule {
		want = max(want, m.unlowered(lower))
	}
	m.setClaim(lower, claim{c.step, want, true})
	return true, nil
}

// standing is the MTU that a link has without any claim on it, in bytes, 0 when
// it is not known. A value that we set earlier does not count: it would be dropped as soon
// as it was reached.
func (m *mtus) standing(name string, depth int) uint32 {
	born, kept := m.birth(name, depth)
	if kept {
		return min(born, mtuIn(m.p.req.Have, name))
	}
	return born
}

// birth is the MTU with which a link comes, in bytes, 0 when it is not known, and whether the link keeps a smaller one that it has.
func (m *mtus) birth(name string, depth int) (born uint32, kept bool) {
	link, there := m.p.req.Have.Link(name)
	have := mtuIn(m.p.req.Have, name)
	forced := inBond(m.p.req.Have, link)
	for _, c := range m.p.req.Owned {
		if before, ok := c.Before.(netstate.Link); ok && before.Name == name && before.MTU != nil {
			return *before.MTU, false
		}
		if before, ok := c.Before.(netstate.Device); ok && forced && before.ID == link.DeviceID && before.MTU != nil {
			return *before.MTU, false
		}
	}
	made := !there || m.p.Owned(netstate.LinkKey(name))
	if !made {
		return have, false
	}
	view, _ := m.p.view.Link(name)
	switch kind := view.KindTraits(); {
	case view.LinkKind == "device": // on its way here, where a bond may force another on it
		d, _ := m.p.req.Have.Device(view.DeviceID)
		if mtu := cmp.Or(d.MTU, view.MTU); mtu != nil {
			born = *mtu
		}
	case kind.OwnMTU && m.recorded(name):
		return 0, false
	case kind.OwnMTU:
		return have, false // of the fabric, known once the link is there
	case view.Parent != nil && *view.Parent != "":
		if depth > maxNesting {
			return 0, false
		}
		if born = m.carrying(*view.Parent, depth+1); born != 0 {
			born = view.MTUOver(born)
		}
	case !kind.PortsMTU:
		born = kind.DefaultMTU
	}
	return born, there && !forced && !m.p.leftovers.reborn[name] && !view.KindTraits().ParentMTU
}

// staysInBond reports whether a link is a port of the bond in which a step wants it.
func (m *mtus) staysInBond(link string) bool {
	have, there := m.p.req.Have.Link(link)
	bond, isPort := m.p.claims.bondOf(m.p.view, link)
	return there && isPort && have.Master != nil && *have.Master == bond
}

// withOwnMTUs returns a record with the own MTU of each device that is in a bond now, as the earlier one. A change made while the device
// was in the bond has recorded the MTU that the bond forced on it, or none.
func withOwnMTUs(record []netstate.Change, have *netstate.Snapshot) []netstate.Change {
	own := map[string]*uint32{} // by device
	for _, c := range record {
		if before, isDevice := c.Before.(netstate.Device); isDevice && own[before.ID] == nil {
			own[before.ID] = before.MTU
		}
	}
	out := slices.Clone(record)
	for i, c := range out {
		before, isLink := c.Before.(netstate.Link)
		after, _ := c.After.(netstate.Link)
		link, _ := have.Link(before.Name)
		if isLink && inBond(have, link) && own[link.DeviceID] != nil && (before.MTU != nil || after.MTU != nil) {
			before.MTU = own[link.DeviceID]
			out[i].Before = before
		}
	}
	return out
}

// inBond reports whether a link is a port of a bond, which has given it the MTU that it has: it has its own again when it leaves.
func inBond(s *netstate.Snapshot, link netstate.Link) bool {
	if link.Master == nil {
		return false
	}
	bond, _ := s.Link(*link.Master)
	return bond.KindTraits().ForcesPorts
}

// recorded reports whether the record has an MTU of ours for a link, or that the link is to be made again.
func (m *mtus) recorded(name string) bool {
	return slices.ContainsFunc(m.p.req.Owned, func(c netstate.Change) bool {
		l, isLink := c.After.(netstate.Link)
		return isLink && l.Name == name && (l.MTU != nil || l.Outdated)
	})
}

// unlowered is the MTU that a link without a claim would have, had no other program lowered it, in bytes, 0 when it is not known.
func (m *mtus) unlowered(name string) uint32 {
	if bond, isPort := m.p.claims.bondOf(m.p.view, name); isPort {
		return m.carrying(bond, 0)
	}
	if born, kept := m.birth(name, 0); kept {
		return born
	}
	return 0
}

// carrying is the MTU of a link for what stands on it, in bytes, 0 when it is not known: without a claim, that of a port is the one
// that its bond forces on it, or less if another program has lowered it since.
func (m *mtus) carrying(name string, depth int) uint32 {
	if bond, isPort := m.p.claims.bondOf(m.p.view, name); isPort && m.claimed(name) == 0 {
		forced := m.carrying(bond, depth)
		if m.staysInBond(name) && mtuIn(m.p.req.Have, bond) == forced { // the bond does not set it again
			return min(forced, mtuIn(m.p.req.Have, name))
		}
		return forced
	}
	if mtu := m.claimed(name); mtu != 0 {
		return mtu
	}
	return m.standing(name, depth)
}

// managed reports whether some step wants the link.
func (m *mtus) managed(link string) bool {
	_, ok := m.p.claims[netstate.LinkKey(link)]
	return ok && !netstate.OnHost(link)
}

func (m *mtus) claimOf(link string) (claim, bool) {
	c, ok := m.p.claims[netstate.LinkKey(link)]["mtu"]
	return c, ok
}

// claimed returns the claimed MTU of a link, in bytes, 0 where none is.
func (m *mtus) claimed(link string) uint32 {
	c, ok := m.claimOf(link)
	if !ok {
		return 0
	}
	return c.value.(uint32)
}

func (m *mtus) setClaim(link string, c claim) {
	m.p.claims[netstate.LinkKey(link)]["mtu"] = c
}

func (m *mtus) conflict(upper string, c claim, lower string, prev claim, why string) error {
	return m.p.req.stepError(c.step, fault.New(fault.Invalid, fmt.Errorf(
		"mtu: step %q wants %v on %q, but step %q wants %v on %q, and %s: make them agree",
		c.step, c.value, upper, prev.step, prev.value, lower, why)))
}

// belowIPv6 reports whether a link gets an MTU with which it has no IPv6, as far as it is known before MTUs are settled: see misread.
func (m *mtus) belowIPv6(link string) bool {
	mtu, ok := m.settled[link]
	l, _ := m.p.view.Link(link)
	switch own := l.KindTraits().OwnMTU; {
	case ok:
	case own:
		mtu = cmp.Or(m.claimed(link), mtuIn(m.p.view, link), netstate.MinIPv6MTU)
	default:
		mtu = cmp.Or(m.claimed(link), m.standing(link, 0), mtuIn(m.p.req.Have, link), netstate.MinIPv6MTU)
	}
	if m.below == nil {
		m.below = map[string]bool{}
	}
	m.below[link] = mtu < netstate.MinIPv6MTU
	return m.below[link]
}

// checkIPv6 refuses what a step wants of IPv6 on a link that has none, as its MTU is too small.
func (m *mtus) checkIPv6(s netstate.Sysctl, now *netstate.Snapshot) error {
	link := s.Link()
	mtu := mtuIn(now, link)
	if !strings.HasPrefix(s.Path, "net/ipv6/") || mtu == 0 || mtu >= netstate.MinIPv6MTU ||
		m.p.req.imagined.givesAddresses(link) { // a pool may have no IPv6
		return nil
	}
	if below, ok := m.below[link]; ok && !below {
		m.settled[link], m.again = mtu, true
	}
	return fault.New(fault.Invalid, fmt.Errorf("sysctl %q is of IPv6, which needs an mtu of at least %d on %q, not %d: "+
		"give the link a larger mtu, or remove its sysctls and addresses of IPv6",
		s.Path, netstate.MinIPv6MTU, link, mtu))
}

// mtuIn is a link's MTU in bytes, 0 where it is not known.
func mtuIn(s *netstate.Snapshot, link string) uint32 {
	l, _ := s.Link(link)
	if l.MTU == nil {
		return 0
	}
	return *l.MTU
}

// misread reports whether the plan leads to another MTU than a reference was resolved to, because a later step raises it, or than
// belowIPv6 assumed. The right values are kept for the next try. This terminates: a try without new values is the last.
func (m *mtus) misread(plan *Plan) bool {
	if plan == nil || plan.leadsTo == nil {
		return m.again
	}
	to := plan.leadsTo.now
	for link, read := range m.read {
		if mtu := mtuIn(to, link); mtu != 0 && mtu != read {
			m.settled[link], m.again = mtu, true
		}
	}
	for link, below := range m.below {
		if mtu := mtuIn(to, link); mtu != 0 && (mtu < netstate.MinIPv6MTU) != below {
			m.settled[link], m.again = mtu, true
		}
	}
	return m.again
}

// withSettled gives a result the MTUs that an earlier try has led to.
func (m *mtus) withSettled(res topology.Result) topology.Result {
	for i := range res.Interfaces {
		if mtu, ok := m.settled[placeOf(res.Interfaces[i])]; ok {
			res.Interfaces[i].MTU = int(mtu)
		}
	}
	return res
}

// note remembers which MTU a reference was resolved to.
func (m *mtus) note(res topology.Result, t ref.Ref, v any) {
	mtu, ok := v.(int64)
	if !ok || t.Sub != "mtu" || t.Index == nil || *t.Index >= len(res.Interfaces) {
		return
	}
	if m.read == nil {
		m.read = map[string]uint32{}
	}
	m.read[placeOf(res.Interfaces[*t.Index])] = uint32(mtu)
}

// placeOf is the name of a result's interface as snapshots have it.
func placeOf(i topology.Interface) string {
	if i.Sandbox == "" {
		return netstate.HostName(i.Name)
	}
	return i.Name
}
