package optest

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
)

// upEarly are the cases in which a link is up before its settings, by test.
var upEarly = []string{}

// Order checks that no link is up before its settings: once a change has brought a link up, no later
// one gives it a MAC, an MTU, a sysctl or another attribute. Until it is written, the kernel acts by the
// old one: it makes addresses of a router's advertisement, or announces a MAC that the link will not have.
// Only the name of a primary port has to wait for the port, and an MTU for the DHCP server that gives it.
func Order(t *testing.T, c *Case, changes []netstate.Change) {
	t.Helper()
	w := NewWorld(c)
	raised := map[string]netstate.Change{} // links, and what brought them up
	known, broken := slices.Contains(upEarly, t.Name()), false
	defer func() {
		if known && !broken {
			t.Error("no link is up before its settings: take the case from the list of those where one is")
		}
	}()
	for _, ch := range netstate.Parts(changes) {
		if by, up := raised[settingOf(ch)]; up && !ch.Implied && !offered(w.Snapshot, ch) {
			if broken = true; !known {
				t.Errorf("after %q the link is up, and only then: %s", by, ch)
			}
		}
		before := upLinks(w.Snapshot)
		if err := w.settle([]netstate.Change{ch}); err != nil {
			t.Fatal(err)
		}
		after := upLinks(w.Snapshot)
		for name := range after {
			if !before[name] {
				raised[name] = ch
			}
		}
		for name := range raised {
			if !after[name] {
				delete(raised, name)
			}
		}
	}
}

// offered reports whether a change gives a link, or the bond that it is in, the MTU of its DHCP server, which answers over it.
func offered(s *netstate.Snapshot, c netstate.Change) bool {
	l, ok := c.After.(netstate.Link)
	return ok && l.MTU != nil && slices.ContainsFunc(netstate.All[netstate.DHCPLease](s), func(lease netstate.DHCPLease) bool {
		port, _ := s.Link(lease.Link)
		return lease.MTU == *l.MTU && (lease.Link == l.Name || port.Master != nil && *port.Master == l.Name)
	}) && !slices.ContainsFunc(c.Fields(), func(f netstate.FieldDiff) bool { return f.Path != "mtu" })
}

func upLinks(s *netstate.Snapshot) map[string]bool {
	out := map[string]bool{}
	for _, l := range s.LinksWhere(func(l netstate.Link) bool { return l.Up != nil && *l.Up }) {
		out[l.Name] = true
	}
	return out
}

// settingOf returns the link that a change gives a setting, "" if it gives none.
func settingOf(c netstate.Change) string {
	switch o := c.After.(type) {
	case nil:
		return ""
	case netstate.Link:
		later := func(f netstate.FieldDiff) bool {
			return f.Path == "up" || f.Path == "master" || f.Mode == netstate.Ports
		}
		if c.Action() == netstate.Update && slices.ContainsFunc(c.Fields(), func(f netstate.FieldDiff) bool { return !later(f) }) {
			return o.Name
		}
		return ""
	case netstate.BridgeVLAN:
		return o.Link
	}
	if c.After.Traits().Setting {
		return netstate.LinkOf(c.After)
	}
	return ""
}

// Addressed checks that the plan chooses the MAC of each link that would get one at random: neighbors
// know the link by it, also when it is created again.
func Addressed(t *testing.T, changes []netstate.Change) {
	t.Helper()
	for _, c := range netstate.Parts(changes) {
		l, ok := c.After.(netstate.Link)
		passthru := l.MACVLAN != nil && l.MACVLAN.Mode != nil && *l.MACVLAN.Mode == "passthru"
		if !ok || c.Before != nil || c.Implied || c.Foreign || !l.KindTraits().OwnMAC || passthru {
			continue
		}
		if l.MAC == nil {
			t.Errorf("the kernel chooses the MAC: %s", c)
		}
		if l.Veth != nil && l.Veth.PeerMAC == nil {
			t.Errorf("the kernel chooses the MAC of the other end: %s", c)
		}
	}
}
