package ops

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops/netstate"
)

// maxNesting is the maximum number of stacked links (MAX_NEST_DEV in net/core/dev.c, which
// counts the lowest one).
const maxNesting = 8

// stacking are the links that steps want, as they stand on one another.
type stacking struct {
	p       *Planner
	known   map[string]int      // heights
	members map[string][]string // that steps want in a master
}

func newStacking(p *Planner) *stacking { return &stacking{p, map[string]int{}, map[string][]string{}} }

// checkGIDs refuses requirements of GIDs of links that are not built on those of their steps.
func (s *stacking) checkGIDs() error {
	for _, g := range s.p.gidLinks {
		if err := g.check(s); err != nil {
			return s.p.req.stepError(g.step, err)
		}
	}
	return nil
}

// check refuses stacks of links that the kernel always refuses. It checks the wants
// of all steps together, so that their order does not matter.
func (s *stacking) check() error {
	for k, fields := range s.p.claims {
		if c, ok := fields["master"]; ok && k.Kind == netstate.KindLink {
			if master, _ := c.value.(string); master != "" {
				s.members[master] = append(s.members[master], k.ID)
			}
		}
	}
	for _, l := range s.p.view.LinksWhere(func(l netstate.Link) bool { return s.p.claims[l.Key()] != nil }) {
		if err := ended(s.p.ctx); err != nil {
			return err
		}
		if step, err := s.checkMaster(l); err != nil {
			return s.p.req.stepError(step, err)
		}
		if err := s.checkParent(l); err != nil {
			return s.p.req.stepError(s.p.wants.maker(l.Name), err)
		}
		if step, err := s.checkDown(l); err != nil {
			return s.p.req.stepError(step, err)
		}
		if c, claimed := s.p.claims[l.Key()]["mac"]; claimed && l.KindTraits().FixedMAC {
			return s.p.req.stepError(c.step, Invalid("mac",
				"%q is %s, which has its master's MAC and cannot be given another: remove mac", l.Name, netstate.KindPhrase(l.LinkKind)))
		}
		n, loop := s.height(l.Name)
		switch step := s.responsible(l); {
		case step == "": // a link of others that happens to stand below
		case loop:
			return s.p.req.stepError(step, Invalid("",
				"link %q would stand on itself, by way of its ports or of the links below: remove one of them", netstate.BaseName(l.Name)))
		case n > maxNesting:
			return s.p.req.stepError(step,
				Invalid("", "link %q would be the %dth of links that stand on one another, and the kernel takes %d at most",
					netstate.BaseName(l.Name), n, maxNesting))
		}
	}
	s.notePorts()
	s.noteSpoofChecks()
	s.noteVLANs()
	return s.checkTunnels()
}

// notePorts adds notes on what ports of bonds and bridges do not use: their addresses, since the master takes what they receive
// (bond_handle_frame in drivers/net/bonding/bond_main.c, br_handle_frame in net/bridge/br_input.c), and, in most bonds, their MACs.
func (s *stacking) notePorts() {
	type on struct{ step, link string }
	masters, first, noted := map[string]netstate.Link{}, map[string]string{}, map[on]bool{}
	for _, w := range s.p.wants {
		l, isLink := w.obj.(netstate.Link)
		if !isLink || l.Master == nil || netstate.OnHost(l.Name) {
			continue
		}
		if m, ok := s.p.view.Link(*l.Master); ok && m.KindTraits().TakesPorts() {
			masters[l.Name] = m
			first[m.Name] = cmp.Or(first[m.Name], l.Name)
		}
	}
	for _, w := range s.p.wants {
		switch o := w.obj.(type) {
		case netstate.Addr:
			m, isPort := masters[o.Link]
			if isPort && !noted[on{w.step, o.Link}] {
				noted[on{w.step, o.Link}] = true
				s.p.plan.noteFor(w.step,
					"its address %s is on %q, a port of the %s %q, which receives in its place: move the address to %q",
					o.Address, o.Link, m.LinkKind, m.Name, m.Name)
			}
		case netstate.Link:
			m, isPort := masters[o.Name]
			if !isPort || o.MAC == nil || !m.GivesMAC() || s.p.makers[o.Name] == w.step {
				continue // of the step that makes it, MACs of virtual functions have another purpose
			}
			if own, given := s.p.claims[m.Key()]["mac"]; given && own.value != *o.MAC || !given && first[m.Name] != o.Name {
				s.p.plan.noteFor(w.step,
					"its mac has no effect on %q, a port of the bond %q, which gives its ports one MAC: set mac in step %q",
					o.Name, m.Name, s.p.wants.maker(m.Name))
			}
		}
	}
}

// noteSpoofChecks adds notes on links that send with another MAC than the virtual function below them, whose physical function drops
// such frames, as the config of the function says: bridges, macvlans, and bonds that give their ports the MAC of the first one.
func (s *stacking) noteSpoofChecks() {
	functions, links, first := map[string]string{}, map[string]string{}, map[string]string{} // steps by device and by link; ports by bond
	for _, w := range s.p.wants {
		if vf, ok := w.obj.(netstate.VF); ok && vf.SpoofCheck != nil && *vf.SpoofCheck && (vf.Trust == nil || !*vf.Trust) {
			functions[vf.ID] = w.step
		}
	}
	for _, w := range s.p.wants {
		switch o := w.obj.(type) {
		case netstate.Device:
			if step, checked := functions[o.ID]; checked && o.At != nil {
				links[*o.At] = step
			}
		case netstate.Link:
			if o.Master != nil {
				first[*o.Master] = cmp.Or(first[*o.Master], o.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.p.makers)) {
		l, ok := s.p.view.Link(name)
		if !ok || len(links) == 0 {
			continue
		}
		var below []string
		instead := ""
		switch passthru := l.MACVLAN != nil && l.MACVLAN.Mode != nil && *l.MACVLAN.Mode == "passthru"; {
		case l.GivesMAC():
			below = slices.DeleteFunc(slices.Sorted(slices.Values(s.below(name))), func(port string) bool { return port == first[name] })
			if *l.Bond.Mode == "active-backup" {
				instead = ", or failOverMac to active"
			}
		case l.LinkKind == "bridge", l.LinkKind == "macvlan" && !passthru:
			below = slices.Sorted(slices.Values(s.below(name)))
		}
		for i := 0; i < len(below); i++ {
			if step, checked := links[below[i]]; checked {
				s.p.plan.noteFor(s.p.wants.maker(name),
					"%q sends with another MAC than the virtual function of step %q, whose spoofchk drops such frames: "+
						"set spoofchk to off and trust to on there%s",
					name, step, instead)
				continue
			}
			for _, b := range s.below(below[i]) {
				if !slices.Contains(below, b) { // each link once, by however many ways it is below
					below = append(below, b)
				}
			}
		}
	}
}

// noteVLANs adds notes on bonds of virtual functions that their physical functions put into different VLANs.
func (s *stacking) noteVLANs() {
	type function struct {
		step string
		vlan uint16
	}
	vlans, functions, first := map[string]uint16{}, map[string]function{}, map[string]function{} // by device, by link, by bond
	for _, w := range s.p.wants {
		if vf, ok := w.obj.(netstate.VF); ok && vf.VLAN != nil {
			vlans[vf.ID] = *vf.VLAN
		}
	}
	for _, w := range s.p.wants {
		if d, ok := w.obj.(netstate.Device); ok && d.At != nil {
			if vlan, has := vlans[d.ID]; has {
				functions[*d.At] = function{w.step, vlan}
			}
		}
	}
	for _, w := range s.p.wants {
		l, ok := w.obj.(netstate.Link)
		port, has := functions[l.Name]
		if !ok || !has || l.Master == nil {
			continue
		}
		if m, there := s.p.view.Link(*l.Master); !there || m.LinkKind != "bond" {
			continue
		}
		switch other, seen := first[*l.Master]; {
		case !seen:
			first[*l.Master] = port
		case other.vlan != port.vlan:
			s.p.plan.noteFor(w.step, "the ports of the bond %q are in different VLANs, %d by step %q and %d by step %q: a frame is in "+
				"that of the port that sends it; give both steps the same vlan", *l.Master, other.vlan, other.step, port.vlan, port.step)
		}
	}
}

// checkTunnels refuses two tunnels on one UDP port where one goes through a VRF and
// the other does not. The socket of the first is bound to the VRF (vxlan_socket_create
// in drivers/net/vxlan/vxlan_core.c), and that of the other uses the port in all VRFs.
func (s *stacking) checkTunnels() error {
	type socket struct {
		port   uint16
		family string
	}
	seen := map[socket]map[bool]netstate.Link{}
	for _, l := range s.p.view.LinksWhere(func(l netstate.Link) bool {
		return l.VXLAN != nil && !netstate.OnHost(l.Name) && !s.p.Leaves(l.Key())
	}) {
		if l.VXLAN.Port == nil || l.VXLAN.Family == nil {
			continue
		}
		at, vrf := socket{*l.VXLAN.Port, *l.VXLAN.Family}, s.vrfOf(l.LivesOn().ID)
		if seen[at] == nil {
			seen[at] = map[bool]netstate.Link{}
		}
		seen[at][vrf != ""] = l
		other, conflict := seen[at][vrf == ""]
		if !conflict {
			continue
		}
		in, out := l, other
		if vrf == "" {
			in, out = other, l
		}
		step := s.p.wants.maker(l.Name)
		if step == "" {
			step = s.p.wants.maker(other.Name)
		}
		if step == "" {
			continue // both belong to the pod
		}
		return s.p.req.stepError(step, ConflictWith(other.Name,
			"the tunnel %q goes through the VRF %q and %q through none, and both use UDP port %d: give one of them another port",
			in.Name, s.vrfOf(in.LivesOn().ID), out.Name, at.port))
	}
	return nil
}

// vrfOf is the VRF that a link is, or is in by way of its masters.
func (s *stacking) vrfOf(link string) string {
	for range maxNesting {
		l, ok := s.p.view.Link(link)
		if !ok {
			return ""
		}
		if l.KindTraits().L3Master {
			return l.Name
		}
		link = ""
		if l.Master != nil {
			link = *l.Master
		}
	}
	return ""
}

// responsible is the step that makes a link, or enslaves it.
func (s *stacking) responsible(l netstate.Link) string {
	if step := s.p.wants.maker(l.Name); step != "" {
		return step
	}
	return s.p.claims[l.Key()]["master"].step
}

// checkMaster checks a link that a step makes a port or member.
func (s *stacking) checkMaster(l netstate.Link) (step string, err error) {
	c, claimed := s.p.claims[l.Key()]["master"]
	if !claimed || l.Master == nil || *l.Master == "" {
		return "", nil
	}
	m, ok := s.p.view.Link(*l.Master)
	if !ok {
		return "", nil
	}
	masters, phrase := l.KindTraits().Masters, netstate.KindPhrase(l.LinkKind)
	if what := s.infiniBand(l); masters == nil && what != "" && m.KindTraits().OnEthernet {
		masters, phrase = []string{"vrf"}, what
	}
	if masters == nil || slices.Contains(masters, m.LinkKind) {
		return c.step, nil
	}
	only := ""
	if len(masters) > 0 {
		phrases := make([]string, len(masters))
		for i, kind := range masters {
			phrases[i] = netstate.KindPhrase(kind)
		}
		only = ", only in " + strings.Join(phrases, " or ")
	}
	return c.step, Invalid("", "%q is %s, which cannot be in the %s %q%s",
		netstate.BaseName(l.Name), phrase, m.LinkKind, netstate.BaseName(m.Name), only)
}

// checkParent checks the parent of a link.
func (s *stacking) checkParent(l netstate.Link) error {
	kind := l.KindTraits()
	if l.Parent == nil || kind.Tunnel {
		return nil
	}
	below, ok := s.p.view.Link(*l.Parent)
	if !ok {
		return nil
	}
	name, under := netstate.BaseName(below.Name), below.KindTraits()
	imagined := s.p.req.imagined != nil && below.LinkKind == "device" // of no kind
	if kind.OfDevice && (below.LinkKind != l.LinkKind || below.Parent != nil) && !imagined {
		return Invalid("master",
			"%q cannot carry %s: name the interface of a device, of kind %s", name, netstate.KindPhrase(l.LinkKind), l.LinkKind)
	}
	if what := s.infiniBand(below); what != "" && kind.OnEthernet {
		return Invalid("master",
			"%q is %s, which cannot carry %s: use type ipoib, for an interface of a partition", name, what, netstate.KindPhrase(l.LinkKind))
	}
	if under.Bare || kind.SkipsOwn && below.LinkKind == l.LinkKind {
		instead := "the link below it"
		if under.L3Master {
			instead = "one of its members"
		}
		return Invalid("master", "%q is %s, which cannot carry %s: name %s", name,
			netstate.KindPhrase(below.LinkKind), netstate.KindPhrase(l.LinkKind), instead)
	}
	c, claimed := s.p.claims[below.Key()]["master"]
	if !claimed || !kind.RxHandler {
		return nil // the master is foreign, or its step no longer exists
	}
	master, _ := c.value.(string)
	if m, ok := s.p.view.Link(master); ok && m.KindTraits().TakesPorts() {
		master = netstate.BaseName(m.Name)
		return Invalid("master",
			"%q is a port of the %s %q, and a port carries no %s link: stack it on %q", name, m.LinkKind, master, l.LinkKind, master)
	}
	return nil
}

// checkDown refuses a link on one that a step keeps down: a VLAN there cannot be set up, a macvlan or ipvlan has no carrier, and the
// kernel sets a port of a bond up (bond_enslave in drivers/net/bonding/bond_main.c).
func (s *stacking) checkDown(l netstate.Link) (step string, err error) {
	step, below, what := s.p.wants.maker(l.Name), "", "carry "+netstate.KindPhrase(l.LinkKind)
	if l.Parent != nil && !l.KindTraits().Tunnel {
		below = *l.Parent
	}
	if c, claimed := s.p.claims[l.Key()]["master"]; claimed && l.Master != nil {
		if m, ok := s.p.view.Link(*l.Master); ok && m.LinkKind == "bond" {
			step, below, what = c.step, l.Name, "be a port of a bond"
		}
	}
	down, claimed := s.p.claims[netstate.Link{Name: below}.Key()]["up"]
	if up, isBool := down.value.(bool); !claimed || !isBool || up || s.p.Kept() {
		return "", nil
	}
	return step, Invalid("", "step %q keeps link %q down, and a link that is down cannot %s: "+
		"remove disableContainerInterface from that step", down.step, netstate.BaseName(below), what)
}

// infiniBand is what a link of InfiniBand is, "" for others. A bond is of the kind of its ports (bond_setup_by_slave in
// drivers/net/bonding/bond_main.c).
func (s *stacking) infiniBand(l netstate.Link) string {
	of := func(name string) bool {
		port, _ := s.p.view.Link(name)
		return port.LinkKind == netstate.InfiniBandKind
	}
	switch {
	case l.LinkKind == netstate.InfiniBandKind:
		return netstate.KindPhrase(l.LinkKind)
	case l.LinkKind == "bond" && slices.ContainsFunc(s.members[l.Name], of):
		return "a bond of InfiniBand interfaces"
	}
	return ""
}

// below returns the links on which a link stands: its members and its parent.
func (s *stacking) below(link string) []string {
	below := s.members[link]
	if l, ok := s.p.view.Link(link); ok && l.Parent != nil && *l.Parent != "" {
		below = append(slices.Clip(below), *l.Parent)
	}
	return below
}

// height returns the number of links in the stack up to this one; loop reports that the stack
// contains a link twice.
func (s *stacking) height(link string) (n int, loop bool) {
	if n, ok := s.known[link]; ok {
		return n, n < 0
	}
	s.known[link] = -1 // on the way down
	for _, b := range s.below(link) {
		m, again := s.height(b)
		if again {
			return 0, true
		}
		n = max(n, m)
	}
	s.known[link] = n + 1
	return n + 1, false
}
