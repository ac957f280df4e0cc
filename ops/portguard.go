package ops

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/contract"
)

// GuardConfig is the part of a step's config that says what a port of a bridge of the host may send.
type GuardConfig struct {
	MACSpoofChk *bool `json:"macspoofchk,omitempty"`
	RAGuard     *bool `json:"raGuard,omitempty"`
}

// GuardParams describes GuardConfig.
func GuardParams() []contract.Param {
	return []contract.Param{
		{Name: "macspoofchk", Type: contract.Boolean, Description: "drop frames of the pod with a foreign source MAC, and ARP and " +
			"neighbor discovery that claim an address of another pod or the gateway; default: true on a bridge of plumbline"},
		{
			Name: "raGuard", Type: contract.Boolean,
			Description: "drop router advertisements and redirects of the pod; default: true on a bridge of plumbline",
		},
	}
}

// guardedPort is a port of a bridge of the host that a step wants.
type guardedPort struct {
	step               *stepState
	port, bridge, link string
	ours               bool // the bridge is one that plumbline has created
	cfg                GuardConfig
	gateways           []string
}

// GuardPort wants what a config says, or the default, of the port of a link on a bridge of the host. Gateways are addresses
// of the bridge.
func (p *Planner) GuardPort(port, bridge, link string, cfg GuardConfig, gateways []netip.Addr) error {
	g := guardedPort{step: p.current, port: netstate.BaseName(port), bridge: bridge, link: link, cfg: cfg}
	ours, err := p.Choose(netstate.PortGuard{Port: g.port}.Key(), "default",
		func() (string, error) { return strconv.FormatBool(p.OwnBridge(bridge)), nil })
	if err != nil {
		return err
	}
	if g.ours = ours == "true"; !g.ours && cfg.MACSpoofChk == nil && p.req.imagined == nil {
		p.Note("bridge %q was not created by plumbline, so frames from the pod are not checked: "+
			"set macspoofchk and raGuard to true if the pod has one MAC and is not a router, else to false", netstate.BaseName(bridge))
	}
	for _, a := range gateways {
		g.gateways = append(g.gateways, a.String())
	}
	p.guards.ports = append(p.guards.ports, g)
	return nil
}

// OwnBridge reports whether plumbline has created a bridge of the host, or creates it: for this sandbox, or for
// another one of this boot.
func (p *Planner) OwnBridge(bridge string) bool {
	have, there := p.req.Have.Link(bridge)
	switch {
	case !there, p.Owned(have.Key()):
		return true
	case LeftBehind(have):
		return true
	}
	return have.MAC != nil && *have.MAC == macOf(p.req.BootID, bridge)
}

// guards are those of the ports that steps want on bridges of the host.
type guards struct {
	p     *Planner
	ports []guardedPort
}

// want wants the guards, once all links and addresses of the sandbox are known.
func (s *guards) want() error {
	if len(s.ports) == 0 {
		return nil
	}
	wants := s.p.wants.withChosenMACs(s.p.claims)
	type sends struct {
		senders
		addresses []string
	}
	all := make([]sends, len(s.ports))
	for i, g := range s.ports {
		all[i].senders = standingOn(wants, g.link)
		all[i].addresses = addressesOn(wants, all[i].links)
	}
	for i, g := range s.ports {
		s.p.current = g.step
		check, silent := g.ours, g.ours
		if g.cfg.RAGuard != nil {
			silent = *g.cfg.RAGuard
		}
		switch {
		case g.cfg.MACSpoofChk != nil:
			check = *g.cfg.MACSpoofChk
		case check && all[i].bridged:
			check = false
			s.p.Note("the source MACs of %q are not checked, since a bridge of the pod is on it: "+
				"set macspoofchk to true if only links of the topology send through that, else to false", g.link)
		}
		if !g.ours && !check && !silent {
			continue
		}
		want := netstate.PortGuard{
			Port: g.port, Bridge: new(netstate.BaseName(g.bridge)),
			MACs: []string{}, Addresses: []string{}, Gateways: g.gateways, RAGuard: &silent,
		}
		if check {
			want.MACs = sortedOnce(all[i].macs)
		}
		// A program may answer on one port for an address of another one of the same pod (arp_ignore 0).
		for j, other := range s.ports {
			if other.bridge == g.bridge {
				want.Addresses = append(want.Addresses, all[j].addresses...)
			}
		}
		if l, ok := s.p.view.Link(g.bridge); ok && l.MAC != nil && len(g.gateways) > 0 {
			if local, ok := netstate.LinkLocal(*l.MAC); ok {
				want.Gateways = append(slices.Clip(want.Gateways), local.String())
			}
		}
		if have, there := s.p.req.Have.Get(want.Key()); there && s.p.steps.waiting() {
			want.Addresses = append(want.Addresses, have.(netstate.PortGuard).Addresses...)
		}
		want.Addresses, want.Gateways = sortedOnce(want.Addresses), sortedOnce(want.Gateways)
		if err := s.p.Want(want); err != nil {
			return s.p.req.stepError(g.step.step.Name, err)
		}
	}
	return nil
}

// waiting reports whether a step waits for something, so that not all wants are known.
func (s stepStates) waiting() bool {
	for _, st := range s {
		if st.pending != "" || st.later != "" {
			return true
		}
	}
	return false
}

func sortedOnce(list []string) []string {
	out := append([]string{}, list...) // empty, not nil
	slices.Sort(out)
	return slices.Compact(out)
}

// senders lists the links and MACs that send through a link.
type senders struct {
	links   []string // with the link
	macs    []string
	bridged bool // a bridge of the sandbox is among them
}

// standingOn finds the links that steps put on a link, and those that share a bond or a bridge with it. What a pod makes by
// itself is not among them.
func standingOn(wants []want, link string) senders {
	out := senders{links: []string{link}}
	type place struct{ link, on string }
	var places []place
	kinds := map[string]string{}
	for _, w := range wants {
		l, ok := w.obj.(netstate.Link)
		if !ok || w.none {
			continue
		}
		if l.LinkKind != "" {
			kinds[l.Name] = l.LinkKind
		}
		for _, on := range []*string{l.Parent, l.Master} {
			if on != nil && *on != "" {
				places = append(places, place{l.Name, *on})
			}
		}
	}
	add := func(name string) {
		if !slices.Contains(out.links, name) && !netstate.OnHost(name) {
			out.links = append(out.links, name)
		}
	}
	for i := 0; i < len(out.links); i++ { // it grows
		at := out.links[i]
		kind := netstate.LinkTraitsOf(kinds[at])
		out.bridged = out.bridged || kind.PortVLANs
		for _, pl := range places {
			switch {
			case pl.link == at && netstate.LinkTraitsOf(kinds[pl.on]).TakesPorts():
				add(pl.on)
			case pl.on == at && !kind.L3Master:
				add(pl.link)
			}
		}
	}
	for _, w := range wants {
		if l, ok := w.obj.(netstate.Link); ok && l.MAC != nil && slices.Contains(out.links, l.Name) {
			out.macs = append(out.macs, *l.MAC)
		}
	}
	return out
}

// addressesOn lists the IP addresses that steps give links.
func addressesOn(wants []want, links []string) []string {
	var out []string
	for _, w := range wants {
		a, ok := w.obj.(netstate.Addr)
		if !ok || w.none || !slices.Contains(links, a.Link) {
			continue
		}
		if pre, err := netip.ParsePrefix(a.Address); err == nil {
			out = append(out, pre.Addr().String())
		}
	}
	return out
}
