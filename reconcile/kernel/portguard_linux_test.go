package kernel_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology/fault"
)

func portGuard(port, bridge string, macs, addresses, gateways []string, ra bool) netstate.PortGuard {
	some := func(s []string) []string { return append([]string{}, s...) }
	return netstate.PortGuard{Port: port, Bridge: &bridge, MACs: some(macs), Addresses: some(addresses), Gateways: some(gateways), RAGuard: &ra}
}

// TestPortGuards: what is written is read back, whatever another port of the bridge has in common with it; with the last
// port the table is gone. Each element that others delete is missed.
func TestPortGuards(t *testing.T) {
	b := newBench(t)
	gateways := []string{"192.0.2.1", "2001:db8::1"}
	all := []netstate.PortGuard{
		portGuard("plone", "br0", []string{"02:00:00:00:00:01"}, []string{"192.0.2.5", "2001:db8::5"}, gateways, true),
		portGuard("pltwo", "br0", []string{"02:00:00:00:00:02", "02:00:00:00:00:03"}, []string{"192.0.2.5"}, gateways, false),
		portGuard("a-name-of-fifte", "another-of-fift", nil, []string{"192.0.2.5"}, nil, true),
		portGuard("plthree", "br1", []string{"02:00:00:00:00:01"}, nil, nil, false),
	}
	for i, g := range all {
		b.absent(g)
		b.create(g)
		b.create(g) // idempotent: a crash may have come between the change and the record
		for _, g := range all[:i+1] {
			b.holds(g)
		}
	}
	for set, element := range map[string]string{
		"ports": `"br0" . "plone"`, "macs": `"plone" . 02:00:00:00:00:01`, "checked": `"plone"`, "no-routers": `"plone"`, "owners4": `"plone" . 192.0.2.5`, "claimed6": `"br0" . 2001:db8::5`,
		"owners6": `"plone" . fe80::ff:fe00:1`, "gateways4": `"plone" . 192.0.2.1`, "claimed4": `"br0" . 192.0.2.1`,
	} {
		nftIn(t, b.hostNS, "delete", "element", "bridge", "plumbline-guard", set, "{ "+element+" }")
		have, there := b.observe(all[0]).Get(all[0].Key())
		if there && len(netstate.Diff(all[0], have)) == 0 {
			t.Errorf("%s without %s: the guard counts as there", set, element)
		}
		b.create(all[0])
		b.create(all[1])
		for _, g := range all {
			b.holds(g)
		}
	}
	for i, g := range all {
		g.Addresses, g.RAGuard = []string{"198.51.100.7"}, new(!*g.RAGuard)
		b.update(netstate.PortGuard{Port: g.Port, Addresses: g.Addresses, RAGuard: g.RAGuard})
		all[i] = g
		for _, g := range all {
			b.holds(g)
		}
	}
	g := all[0]
	g.Bridge, g.MACs, g.Gateways = new("br9"), []string{"02:00:00:00:00:09"}, []string{}
	b.update(netstate.PortGuard{Port: g.Port, Bridge: g.Bridge, MACs: g.MACs, Gateways: g.Gateways})
	all[0] = g
	for i, g := range all {
		b.holds(g)
		b.remove(g)
		b.remove(g)
		b.absent(g)
		for _, g := range all[i+1:] {
			b.holds(g)
		}
	}
	if out := nftIn(t, b.hostNS, "list", "ruleset"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
	bad := portGuard("plone", "br0", []string{"none"}, nil, nil, true)
	b.refused(fault.Invalid, netstate.Change{After: bad}, "is not a MAC address")
	bad.MACs, bad.Addresses = []string{}, []string{"192.0.2.0/24"}
	b.refused(fault.Invalid, netstate.Change{After: bad}, "is not an address")
}

// TestPortGuardsOfOthers: a table that is not as we write it guards nothing for sure, and is written again with the next change;
// not if others have a chain in it.
func TestPortGuardsOfOthers(t *testing.T) {
	b := newBench(t)
	one, two := portGuard("plone", "br0", []string{"02:00:00:00:00:01"}, []string{"192.0.2.5"}, nil, true), portGuard("pltwo", "br0", []string{"02:00:00:00:00:02"}, nil, nil, true)
	b.create(one)
	b.create(two)
	for _, disturb := range []string{
		"flush chain bridge plumbline-guard prerouting", "flush chain bridge plumbline-guard neighbors", "insert rule bridge plumbline-guard prerouting accept",
		"insert rule bridge plumbline-guard neighbors accept", "delete table bridge plumbline-guard", "add table bridge plumbline-guard { flags dormant; }",
	} {
		nftIn(t, b.hostNS, strings.Fields(disturb)...)
		b.absent(one)
		b.absent(two)
		b.create(one)
		b.holds(one)
		b.create(two)
		b.holds(two)
	}
	nftIn(t, b.hostNS, "add", "chain", "bridge", "plumbline-guard", "theirs")
	b.holds(one)
	nftIn(t, b.hostNS, "flush", "chain", "bridge", "plumbline-guard", "neighbors")
	b.refused(fault.Conflict, netstate.Change{After: one}, `table "bridge plumbline-guard" of nftables is not plumbline's alone, and would be created again: remove its chain "theirs"`)
	b.remove(one)
	b.remove(two)
	if out := nftIn(t, b.hostNS, "list", "ruleset"); !strings.Contains(out, "chain theirs") || strings.Contains(out, "plone") {
		t.Errorf("left is\n%s", out)
	}
}

// TestPortGuardsAtOnce: pods come and go at the same time. No port loses its guard to another one.
func TestPortGuardsAtOnce(t *testing.T) {
	b := newBench(t)
	var all sync.WaitGroup
	for i := range 8 {
		s := b.open()
		all.Go(func() {
			g := portGuard(fmt.Sprintf("pl%d", i), "br0", []string{fmt.Sprintf("02:00:00:00:00:%02x", i)}, []string{fmt.Sprintf("192.0.2.%d", i+5)}, []string{"192.0.2.1"}, true)
			for range 10 {
				if err := s.Apply(b.ctx, netstate.Change{After: g}); err != nil {
					t.Errorf("create: %v", err)
				}
				have, err := s.Observe(b.ctx, []netstate.Object{g})
				if err != nil {
					t.Error(err)
					return
				}
				if got, ok := have.Get(g.Key()); !ok || len(netstate.Diff(g, got)) > 0 {
					t.Errorf("%s: %v", g.Key(), got)
				}
				if err := s.Apply(b.ctx, netstate.Change{Before: g}); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
		})
	}
	all.Wait()
	b.absent(portGuard("pl0", "br0", nil, nil, nil, true))
}
