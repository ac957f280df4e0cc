package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
)

// TestEffects holds the reported effects of an edit on each step, and on connections.
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
	want := map[string]Effect{"mgmt": Removed, "vf1": Removed, "data": Replaced, "inner": Replaced, "tune": ChangedLive, "extra": Added}
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

// TestPreviewOf holds what the engine gets to plan an edit, and the result when the sandbox
// keeps its generation.
func TestPreviewOf(t *testing.T) {
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	devices := given().Devices
	decode := func(edit func(t *topology.Topology)) *topology.Topology {
		out, err := topology.FromObject(pair(2))
		if err != nil {
			t.Fatal(err)
		}
		edit(out)
		return out
	}
	was := decode(func(*topology.Topology) {})
	sb := reconcile.Sandbox{ID: "blue/pair", Netns: "/run/netns/blue", Topology: was, Given: ops.Givens{"vf1": {Device: "of an earlier version", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.5/24")}}}}
	ported := func(context.Context) (bool, error) { return true, nil }
	fail := errors.New("no answer")
	changes := []netstate.Change{{Step: "vf0", Before: netstate.Link{Name: "net1", Up: new(true)}, After: netstate.Link{Name: "net1", Up: new(false)}}}
	for name, c := range map[string]struct {
		later       *topology.Topology
		err         error
		planned     bool // and the error is that of the plan
		held        bool
		devices     map[string]string
		effects     map[string]Effect
		interrupted []string
	}{
		"the same":     {later: was, devices: map[string]string{"vf0": devices[0].Host.ID, "vf1": devices[1].Host.ID}, effects: map[string]Effect{"vf0": ChangedLive}, interrupted: []string{"net1"}},
		"a step less":  {later: decode(func(t *topology.Topology) { t.Steps = t.Steps[:1] }), devices: map[string]string{"vf0": devices[0].Host.ID}, effects: map[string]Effect{"vf0": ChangedLive}, interrupted: []string{"net1"}},
		"another card": {later: decode(func(t *topology.Topology) { t.Steps[0].Selector = `device.driver == "ice"` }), held: true},
		"a first port": {later: decode(func(t *topology.Topology) {
			t.Steps = append(t.Steps, topology.Step{Name: "net", Type: "ovn-k8s-cni-overlay", Config: map[string]any{"topology": "layer2", "netAttachDefName": "default/blue"}})
		}), held: true},
		"no plan":     {later: was, err: fail, planned: true},
		"no selector": {later: decode(func(t *topology.Topology) { t.Steps[0].Selector = "this is none" }), err: errors.New("invalid selector")},
	} {
		planned := 0
		p, err := PreviewOf(t.Context(), sb, c.later, devices, registry, ported, func(_ context.Context, sb reconcile.Sandbox) (*ops.Plan, error) {
			planned++
			if sb.Topology != c.later || sb.ID != "blue/pair" || !maps.Equal(sb.Given.Devices(), c.devices) && c.err == nil {
				t.Errorf("%s: planned for %+v with %v", name, sb.Topology, sb.Given)
			}
			if kept := fmt.Sprint(sb.Given.Addresses()); kept != map[bool]string{true: "map[vf1:[192.0.2.5/24]]", false: "map[]"}[len(c.later.Steps) > 1] {
				t.Errorf("%s: has addresses %s", name, kept)
			}
			return &ops.Plan{Changes: changes}, c.err
		})
		switch {
		case c.err != nil:
			if err == nil || c.planned && !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", name, err, c.err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.held != (p.HeldBack != nil), c.held != (planned == 0), c.held != (p.Plan == nil):
			t.Errorf("%s: held back by %v, planned %d times", name, p.HeldBack, planned)
		case !maps.Equal(p.Effects, c.effects), !slices.Equal(p.Interrupted, c.interrupted):
			t.Errorf("%s: effects %v, interrupted %v", name, p.Effects, p.Interrupted)
		}
		if p.Effects == nil || p.Interrupted == nil {
			t.Errorf("%s: prints null for lists that are empty", name)
		}
		if sb.Topology != was || len(sb.Given) != 1 {
			t.Errorf("%s: the record was changed: %+v", name, sb)
		}
	}
}
