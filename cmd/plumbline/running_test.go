package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// TestEffects holds what an edit is said to do to each step, and to connections.
func TestEffects(t *testing.T) {
	was := &topology.Topology{Steps: []topology.Step{{Name: "vf0"}, {Name: "vf1"}, {Name: "data"}, {Name: "inner"}, {Name: "mgmt"}, {Name: "tune"}}}
	is := &topology.Topology{Steps: []topology.Step{{Name: "vf0"}, {Name: "data"}, {Name: "inner"}, {Name: "tune"}, {Name: "extra"}}}
	link := func(name string) netstate.Link { return netstate.Link{Name: name, LinkKind: "vlan"} }
	mtu := func(name string, mtu uint32) netstate.Link { return netstate.Link{Name: name, MTU: &mtu} }
	up := func(name string, up bool) netstate.Link { return netstate.Link{Name: name, Up: &up} }
	changes := []netstate.Change{
		{Step: "mgmt", Before: link("mgmt0")},
		{Step: "vf1", Before: netstate.Device{ID: "1", At: new("net2")}, After: netstate.Device{ID: "1", At: new(netstate.HostName("enp3s0f0v1"))}},
		{Step: "data", Before: link("data0"), After: link("data0"), Recreate: true},
		{Step: "data", Before: link("inner0"), Implied: true},
		{Step: "inner", After: link("inner0")},
		{Step: "data", Before: up("data0", false), After: up("data0", true)},
		{Step: "tune", Before: mtu("net1", 1500), After: mtu("net1", 1400)},
		{Step: "extra", After: link("extra0")},
	}
	want := map[string]string{"mgmt": removed, "vf1": removed, "data": replaced, "inner": replaced, "tune": changedLive, "extra": added}
	if got := effects(was, is, changes); !maps.Equal(got, want) {
		t.Errorf("effects %v, want %v", got, want)
	}
	if got, want := interrupted(changes), []string{"data0", "inner0", "mgmt0", "net2"}; !slices.Equal(got, want) {
		t.Errorf("interrupted %v, want %v", got, want)
	}
	live := []netstate.Change{{Step: "tune", Before: mtu("net1", 1500), After: mtu("net1", 1400)}, {Step: "extra", After: link("extra0")}, {Step: "extra", Before: link("extra0")}}
	if got := interrupted(live); len(got) > 0 {
		t.Errorf("interrupted %v by what is new or changed live", got)
	}
}
