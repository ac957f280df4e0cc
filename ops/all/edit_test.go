package all_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/ops/optest"
	"github.com/plumbline/plumbline/topology"
)

// TestEditedAddress holds that an edit of a link's only address plans what the
// kernel takes along with it, ours and others', after the new address.
func TestEditedAddress(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	version := func(address string) *topology.Topology {
		return steps(t, "  - {name: d, type: dummy, config: {name: d0, mac: \"02:00:00:00:00:01\", addresses: ["+address+"], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}\n")
	}
	plan := func(top *topology.Topology, have *netstate.Snapshot, owned []netstate.Change) *ops.Plan {
		t.Helper()
		for {
			p, err := reg.Plan(t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Have: have, Owned: owned})
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Missing) == 0 {
				return p
			}
			for _, o := range p.Missing {
				have.PutAbsent(o.Key())
			}
		}
	}
	now := netstate.NewSnapshot()
	first := plan(version("192.0.2.5/24"), now, nil)
	for _, c := range first.Changes {
		now.Apply(c)
	}
	now = netstate.NewSnapshot(netstate.All[netstate.Object](now)...) // as observed later: nothing is fresh
	owned := netstate.Coalesce(nil, first.Changes...)
	own := netstate.Route{Link: "d0", Dst: "203.0.113.0/24", Gateway: "192.0.2.9", Table: netstate.TableMain}
	lost := netstate.Route{Link: "d0", Dst: "233.252.0.0/24", Gateway: "10.0.0.1", Table: netstate.TableMain, OnLink: new(true)}
	now.Put(own)
	now.Put(lost)

	second := plan(version("192.0.2.6/24"), now, owned)
	at := func(match func(netstate.Change) bool) int {
		t.Helper()
		i := slices.IndexFunc(second.Changes, match)
		if i < 0 {
			t.Fatalf("not planned:\n%s", second)
		}
		return i
	}
	created := func(k netstate.Key) func(netstate.Change) bool {
		return func(c netstate.Change) bool { return c.Key() == k && c.Action() == netstate.Create }
	}
	address := at(created(netstate.Addr{Link: "d0", Address: "192.0.2.6/24"}.Key()))
	ours := netstate.Route{Link: "d0", Dst: "198.51.100.0/24", Gateway: "192.0.2.1", Table: netstate.TableMain}
	for _, k := range []netstate.Key{ours.Key(), own.Key()} {
		at(func(c netstate.Change) bool { return c.Key() == k && c.Action() == netstate.Delete && c.Implied })
		if route := at(created(k)); route < address {
			t.Errorf("%s is made before the address its gateway is behind:\n%s", k, second)
		}
	}
	at(created(lost.Key()))
	for _, c := range second.Changes {
		now.Apply(c)
	}
	if rest := plan(version("192.0.2.6/24"), now, netstate.Coalesce(owned, second.Changes...)); !rest.Empty() {
		t.Errorf("left to do:\n%s", rest)
	}
}

// TestEditedPrimaryAddress: what the kernel may delete with an address of ours (promote_secondaries) is planned to be there again if
// it is another's, and left to the next plan if it is ours: the kernel may have kept it.
func TestEditedPrimaryAddress(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	version := func(address string) *topology.Topology {
		return steps(t, `  - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01", addresses: [`+address+`, 192.0.2.7/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}`+"\n")
	}
	theirs := []netstate.Object{
		netstate.Addr{Link: "d0", Address: "192.0.2.100/24"},
		netstate.Route{Link: "d0", Dst: "203.0.113.0/24", Gateway: "192.0.2.9", Table: netstate.TableMain, Source: new("192.0.2.100")},
	}
	ours := netstate.Addr{Link: "d0", Address: "192.0.2.7/24"}
	w := world{t: t, reg: reg, have: withoutIPv6(netstate.NewSnapshot())}
	first := w.plan(version("192.0.2.5/24"), nil)
	for _, c := range first.Changes {
		w.have.Apply(c)
	}
	w.have = observed(w.have)
	for _, o := range theirs {
		w.have.Put(o)
	}
	owned := netstate.Coalesce(nil, first.Changes...)
	second := w.plan(version("192.0.2.6/24"), owned)
	for _, o := range theirs {
		if !slices.ContainsFunc(second.Changes, func(c netstate.Change) bool { return c.Key() == o.Key() && c.Foreign && c.Action() == netstate.Create }) {
			t.Errorf("%s is not put back:\n%s", o.Key(), second)
		}
	}
	if slices.ContainsFunc(second.Changes, func(c netstate.Change) bool { return c.Key() == ours.Key() }) {
		t.Errorf("an address that may be there is made:\n%s", second)
	}
	for _, c := range second.Changes {
		w.have.Apply(c)
	}
	w.have = observed(w.have)
	third := w.plan(version("192.0.2.6/24"), netstate.Coalesce(owned, second.Changes...))
	if len(third.Changes) != 2 || third.Changes[0].Key() != ours.Key() { // and the route, which has gone with the last address
		t.Errorf("without promote_secondaries: planned is\n%swant %s", third, ours.Key())
	}
}

// world is a sandbox and its host in memory.
type world struct {
	t     *testing.T
	reg   *ops.Registry
	have  *netstate.Snapshot
	given ops.Givens
}

// observed returns a later observation of it: nothing is fresh then, and of a route the kernel
// says more than was wanted.
func observed(s *netstate.Snapshot) *netstate.Snapshot {
	all := netstate.All[netstate.Object](s)
	for i, o := range all {
		if r, ok := o.(netstate.Route); ok {
			defaults := netstate.Route{Source: new(""), Scope: new("global"), MTU: new(uint32(0)), AdvMSS: new(uint32(0)), OnLink: new(false)}
			all[i] = netstate.Merge(netstate.Merge(r, defaults), r)
		}
	}
	return netstate.NewSnapshot(all...)
}

// plan is one stage.
func (w *world) plan(top *topology.Topology, owned []netstate.Change) *ops.Plan {
	w.t.Helper()
	for {
		p, err := w.reg.Plan(w.t.Context(), ops.Request{Topology: top, Netns: "/run/netns/pod", Given: w.given, Have: w.have, Owned: owned})
		if err != nil {
			w.t.Fatal(err)
		}
		if len(p.Missing) == 0 {
			return p
		}
		for _, o := range p.Missing {
			w.have.PutAbsent(o.Key())
		}
	}
}

// recorded is the record after more changes.
func recorded(owned, more []netstate.Change) []netstate.Change {
	return netstate.Coalesce(owned, netstate.Lasting(more)...)
}

// ensure makes a topology true, and returns the changes.
func (w *world) ensure(top *topology.Topology, owned []netstate.Change) []netstate.Change {
	w.t.Helper()
	var all []netstate.Change
	for range 8 {
		p := w.plan(top, recorded(owned, all))
		if p.Empty() {
			return all
		}
		for _, c := range p.Changes {
			if err := optest.Apply(w.have, c); err != nil {
				w.t.Fatal(err)
			}
		}
		w.have = observed(w.have)
		all = append(all, p.Changes...)
	}
	w.t.Fatal("no end of changes")
	return nil
}

func (w *world) undo(history []netstate.Change, kept ...netstate.Change) error {
	var text []string
	for range 16 {
		changes, missing := ops.Undo(w.have, netstate.Coalesce(nil, history...), kept...)
		for _, o := range missing {
			w.have.PutAbsent(o.Key())
		}
		if len(missing) > 0 {
			continue
		}
		if len(changes) == 0 {
			return nil
		}
		text = append(text, "round:")
		for _, c := range changes {
			text = append(text, c.String())
			if err := optest.Apply(w.have, c); err != nil {
				return err
			}
		}
		w.have = observed(w.have)
	}
	return fmt.Errorf("no end:\n%s", strings.Join(text, "\n"))
}

// steps is a topology of the steps.
func steps(t *testing.T, steps string) *topology.Topology {
	t.Helper()
	top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n" + strings.TrimPrefix(steps, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// vf is a virtual function on the host.
func vf(n int) []netstate.Object {
	id, at, mac := fmt.Sprintf("0000:01:10.%d", n), netstate.HostName(fmt.Sprintf("enp3s0f%dv0", n)), fmt.Sprintf("52:54:00:aa:bb:0%d", n+1)
	return []netstate.Object{
		netstate.Device{ID: id, At: &at, MAC: &mac, MTU: new(uint32(1500)), Up: new(false)},
		netstate.Link{Name: at, LinkKind: "device", DeviceID: id, MAC: &mac, MTU: new(uint32(1500)), Up: new(false), Master: new("")},
		netstate.VF{ID: id, MAC: &mac, VLAN: new(uint16(0)), QoS: new(uint8(0)), Protocol: new("802.1q"), SpoofCheck: new(true), Trust: new(false)},
	}
}

// TestEditUndone holds that an edit that fails at any of its changes, made or half
// made, is undone to what was there.
func TestEditUndone(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name          string
		have          []netstate.Object
		devices       map[string]string
		before, after string
	}{
		{name: "replaced, removed, added", before: `
  - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
  - {name: v, type: vlan, dependOn: [d], config: {id: 100, name: data0, addresses: [192.0.2.5/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
  - {name: inner, type: vlan, dependOn: [v], config: {id: 7, name: inner0}}
  - {name: w, type: vlan, dependOn: [d], config: {id: 200, name: mgmt0}}
  - {name: tune, type: tuning, dependOn: [v], config: {mtu: 2000}}
`, after: `
  - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
  - {name: v, type: vlan, dependOn: [d], config: {id: 101, name: data0, addresses: [192.0.2.6/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
  - {name: inner, type: vlan, dependOn: [v], config: {id: 7, name: inner0}}
  - {name: tune, type: tuning, dependOn: [v], config: {mtu: 3000}}
  - {name: e, type: dummy, config: {name: extra0, mac: "02:00:00:00:00:02"}}
`},
		{name: "above a bond", before: `
  - {name: a, type: dummy, config: {name: a0, mac: "02:00:00:00:00:01"}}
  - {name: b, type: dummy, config: {name: b0, mac: "02:00:00:00:00:02"}}
  - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 100}}
  - {name: data, type: vlan, dependOn: [bond], config: {id: 100, name: data0, mtu: 2000, addresses: [192.0.2.5/24], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
`, after: `
  - {name: a, type: dummy, config: {name: a0, mac: "02:00:00:00:00:01"}}
  - {name: b, type: dummy, config: {name: b0, mac: "02:00:00:00:00:02"}}
  - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 50}}
  - {name: data, type: vlan, dependOn: [bond], config: {id: 101, name: data0, mtu: 1800, addresses: [192.0.2.6/24]}}
  - {name: blue, type: vrf, dependOn: [data], config: {vrfname: blue, table: 9}}
`},
		{name: "what takes a bond down", before: `
  - {name: a, type: dummy, config: {name: a0}}
  - {name: b, type: dummy, config: {name: b0}}
  - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: 802.3ad, miimon: 100, lacpRate: slow, adSelect: stable, addresses: [192.0.2.5/24, "2001:db8::5/64"], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
  - {name: v, type: vlan, dependOn: [bond], config: {id: 100, name: data0, addresses: [192.0.3.5/24]}}
`, after: `
  - {name: a, type: dummy, config: {name: a0}}
  - {name: b, type: dummy, config: {name: b0}}
  - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: 802.3ad, miimon: 100, lacpRate: fast, adSelect: count, addresses: [192.0.2.6/24, "2001:db8::5/64"], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}
  - {name: v, type: vlan, dependOn: [bond], config: {id: 100, name: data0, addresses: [192.0.3.6/24]}}
`},
		{name: "what takes the ports of a bond", before: `
  - {name: a, type: dummy, config: {name: a0}}
  - {name: b, type: dummy, config: {name: b0}}
  - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 100, addresses: ["2001:db8::5/64"]}}
`, after: `
  - {name: a, type: dummy, config: {name: a0}}
  - {name: b, type: dummy, config: {name: b0}}
  - {name: bond, type: bond, dependOn: [a, b], config: {name: bond0, mode: 802.3ad, miimon: 100, addresses: ["2001:db8::6/64"]}}
`},
		{name: "a VLAN with the MAC of another link", before: `
  - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
  - {name: e, type: dummy, config: {name: e0, mac: "02:00:00:00:00:02"}}
  - {name: v, type: vlan, dependOn: [d], config: {id: 100, name: data0, mac: "02:00:00:00:00:02"}}
`, after: `
  - {name: d, type: dummy, config: {name: d0, mac: "02:00:00:00:00:01"}}
  - {name: e, type: dummy, config: {name: e0, mac: "02:00:00:00:00:02"}}
  - {name: v, type: vlan, dependOn: [d], config: {id: 101, name: data0, mac: "02:00:00:00:00:02"}}
`},
		{name: "the group of a tunnel", before: `
  - {name: d, type: dummy, config: {name: d0, addresses: [192.0.2.5/24]}}
  - {name: x, type: vxlan, dependOn: [d], config: {id: 7, name: x0, group: 239.1.1.1, addresses: [192.0.3.5/24, "2001:db8::5/64"]}}
`, after: `
  - {name: d, type: dummy, config: {name: d0, addresses: [192.0.2.5/24]}}
  - {name: x, type: vxlan, dependOn: [d], config: {id: 7, name: x0, group: 239.1.1.2, addresses: [192.0.3.6/24, "2001:db8::5/64"]}}
`},
		{name: "a port out of the default VLAN", before: `
  - {name: a, type: bridge, config: {bridge: br7, vlan: 5, preserveDefaultVlan: false}}
  - {name: b, type: bridge, config: {bridge: br7, vlanTrunk: [{id: 5}]}}
`, after: `
  - {name: a, type: bridge, config: {bridge: br7, vlan: 5}}
  - {name: b, type: bridge, config: {bridge: br7, vlanTrunk: [{id: 5}], preserveDefaultVlan: false}}
`},
		{
			name: "a function with a VLAN", have: vf(0), devices: map[string]string{"vf": "0000:01:10.0"},
			before: `
  - {name: vf, type: sriov, config: {vlan: 7, mac: "02:00:00:00:00:0a", mtu: 2000, addresses: [192.0.2.10/24]}}
  - {name: up, type: vlan, dependOn: [vf], config: {id: 9, name: up0}}
`, after: `
  - {name: vf, type: sriov, config: {vlan: 8, mac: "02:00:00:00:00:0b", mtu: 1800, addresses: [192.0.2.11/24]}}
  - {name: up, type: vlan, dependOn: [vf], config: {id: 10, name: up0}}
`,
		},
		{
			name: "a device returns to the host", have: append(vf(0), vf(1)...), devices: map[string]string{"vf0": "0000:01:10.0", "vf1": "0000:01:10.1"},
			before: `
  - {name: vf0, type: sriov, config: {name: net1}}
  - {name: vf1, type: sriov, config: {name: net2, trust: "on", spoofchk: "off"}}
  - {name: bond, type: bond, dependOn: [vf0, vf1], config: {name: bond0, mode: active-backup, miimon: 100}}
  - {name: v, type: vlan, dependOn: [bond], config: {id: 100, name: data0}}
`, after: `
  - {name: vf0, type: sriov, config: {name: net1}}
  - {name: v, type: vlan, dependOn: [vf0], config: {id: 100, name: data0}}
`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{t: t, reg: reg, have: netstate.NewSnapshot(c.have...), given: ops.Givens{}.WithDevices(c.devices)}
			owned := recorded(nil, w.ensure(steps(t, c.before), nil))
			start := observed(w.have)
			changes := w.ensure(steps(t, c.after), owned)
			released := func(when string, owned []netstate.Change) {
				t.Helper()
				if err := w.undo(owned); err != nil {
					t.Errorf("%s: release: %v", when, err)
				}
				if diff := netstatetest.Differences(netstate.NewSnapshot(c.have...), w.have); len(diff) > 0 {
					t.Errorf("%s, is released to:\n%s", when, strings.Join(diff, "\n"))
				}
			}
			released("edited", netstate.Compact(recorded(owned, changes), w.have))
			for n := range changes {
				if changes[n].Implied {
					continue
				}
				end := optest.RecordedWith(changes, n)
				for _, made := range []bool{true, false} {
					w.have = observed(start)
					for i, ch := range changes[:n+1] {
						if i < n || made {
							w.have.Apply(ch)
						}
					}
					w.have = observed(w.have)
					if err := w.undo(changes[:end], owned...); err != nil {
						t.Errorf("change %d, made %t: %v", n+1, made, err)
						continue
					}
					if diff := netstatetest.Differences(start, w.have); len(diff) > 0 {
						t.Errorf("change %d (%s), made %t, is undone to:\n%s", n+1, changes[n], made, strings.Join(diff, "\n"))
						continue
					}
					released(fmt.Sprintf("change %d, made %t, undone", n+1, made), owned)
				}
			}
			if t.Failed() {
				for i, ch := range changes {
					t.Logf("%d %s implied %t foreign %t", i+1, ch, ch.Implied, ch.Foreign)
				}
			}
		})
	}
}

// TestDriftIsNotGivenBack holds that a card's setting which was as wanted before us
// is so after us too, though somebody changed it in between.
func TestDriftIsNotGivenBack(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	top := steps(t, `  - {name: vf, type: sriov, config: {name: net1, vlan: 7, trust: "off", mtu: 2000}}`)
	w := &world{t: t, reg: reg, have: netstate.NewSnapshot(vf(0)...), given: ops.Givens{}.WithDevices(map[string]string{"vf": "0000:01:10.0"})}
	held := w.plan(top, nil).Held
	owned := recorded(nil, slices.Concat(w.ensure(top, nil), held))
	w.have.Apply(netstate.Change{Before: netstate.VF{ID: "0000:01:10.0", Trust: new(false)}, After: netstate.VF{ID: "0000:01:10.0", Trust: new(true)}})
	repairs := w.ensure(top, owned)
	if len(repairs) != 1 {
		t.Errorf("repaired by %v, want trust", repairs)
	}
	if err := w.undo(netstate.Compact(recorded(owned, repairs), w.have, held...)); err != nil {
		t.Error(err)
	}
	if diff := netstatetest.Differences(netstate.NewSnapshot(vf(0)...), w.have); len(diff) > 0 {
		t.Errorf("released to:\n%s", strings.Join(diff, "\n"))
	}
}

// TestFeaturesInOrder holds that a feature is restored after the one it needs, and
// while its link is where it was.
func TestFeaturesInOrder(t *testing.T) {
	feature := func(name, value string) netstate.Ethtool {
		return netstate.Ethtool{Link: "net1", Class: netstate.EthtoolFeature, Name: name, Value: &value}
	}
	at, inside := netstate.HostName("enp3s0f0v0"), "net1"
	history := []netstate.Change{
		{Before: netstate.Device{ID: "a", At: &at}, After: netstate.Device{ID: "a", At: &inside}},
		{Before: feature("tx-tcp-segmentation", "on"), After: feature("tx-tcp-segmentation", "off")},
		{Before: netstate.Link{Name: "net1", MTU: new(uint32(1500))}, After: netstate.Link{Name: "net1", MTU: new(uint32(1400))}},
		{Before: feature("tx-tcp-mangleid-segmentation", "on"), After: feature("tx-tcp-mangleid-segmentation", "off")},
	}
	have := netstate.NewSnapshot(
		netstate.Device{ID: "a", At: &inside}, netstate.Link{Name: "net1", LinkKind: "device", DeviceID: "a", MTU: new(uint32(1400))},
		feature("tx-tcp-segmentation", "off"), feature("tx-tcp-mangleid-segmentation", "off"),
	)
	have.PutAbsent(netstate.LinkKey(at))
	changes, missing := ops.Undo(have, history)
	var got []string
	for _, c := range changes {
		got = append(got, c.Key().ID)
	}
	want := []string{feature("tx-tcp-segmentation", "").Key().ID, feature("tx-tcp-mangleid-segmentation", "").Key().ID, "a"}
	if !slices.Equal(got, want) || len(missing) > 0 {
		t.Errorf("undone are %q, and missing %v; want %q", got, missing, want)
	}
}

// TestNameEdited holds that an edit may give another name to a link of which the
// kernel allows one: the old one goes first.
func TestNameEdited(t *testing.T) {
	for _, config := range []string{"type: vlan, dependOn: [d], config: {id: 100, name: NAME}", "type: macvlan, dependOn: [d], config: {mode: passthru, name: NAME}"} {
		reg, err := all.Registry()
		if err != nil {
			t.Fatal(err)
		}
		version := func(name string) *topology.Topology {
			return steps(t, "  - {name: d, type: dummy, config: {name: d0, mac: \"02:00:00:00:00:01\"}}\n  - {name: v, "+strings.ReplaceAll(config, "NAME", name)+"}\n")
		}
		w := &world{t: t, reg: reg, have: netstate.NewSnapshot()}
		owned := recorded(nil, w.ensure(version("data0"), nil))
		w.ensure(version("data1"), owned)
		_, old := w.have.Link("data0")
		if _, renamed := w.have.Link("data1"); old || !renamed {
			t.Errorf("%s: data0 %t, data1 %t", config, old, renamed)
		}
	}
}

// TestLastLeaves holds that a bridge of the host and a VRF that several topologies
// share go with the last of them, whichever made them.
func TestLastLeaves(t *testing.T) {
	for name, tt := range map[string]struct{ a, b, shared string }{
		"bridge": {
			"  - {name: a, type: bridge, config: {bridge: br7, ifName: net1, vlan: 5}}\n",
			"  - {name: b, type: bridge, config: {bridge: br7, ifName: net2, vlan: 6}}\n", netstate.HostName("br7"),
		},
		"VRF": {
			"  - {name: a, type: dummy, config: {name: a0}}\n  - {name: v, type: vrf, dependOn: [a], config: {vrfname: red}}\n",
			"  - {name: b, type: dummy, config: {name: b0}}\n  - {name: v, type: vrf, dependOn: [b], config: {vrfname: red}}\n", "red",
		},
	} {
		for _, makerFirst := range []bool{true, false} {
			reg, err := all.Registry()
			if err != nil {
				t.Fatal(err)
			}
			w := &world{t: t, reg: reg, have: netstate.NewSnapshot()}
			first, last := recorded(nil, w.ensure(steps(t, tt.a), nil)), recorded(nil, w.ensure(steps(t, tt.b), nil))
			// Created links have no alias, as an observation shows.
			l, _ := w.have.Link(tt.shared)
			l.Alias = new("")
			w.have.Put(l)
			if !makerFirst {
				first, last = last, first
			}
			if err := w.undo(first); err != nil {
				t.Fatal(err)
			}
			if _, there := w.have.Link(tt.shared); !there {
				t.Errorf("%s, maker first %t: gone while one is in it", name, makerFirst)
			}
			if err := w.undo(last); err != nil {
				t.Fatal(err)
			}
			if _, there := w.have.Link(tt.shared); there {
				t.Errorf("%s, maker first %t: outlives its last port", name, makerFirst)
			}
		}
	}
}

// TestRDMADeviceRenamedByPod: a pod that renames the RDMA device that was moved to it gets back the name, and so does the host.
func TestRDMADeviceRenamedByPod(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const id = "0000:01:10.0"
	start := vf(0)
	d := start[0].(netstate.Device)
	d.RDMA, d.RDMAExclusive = []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2"}}}, true
	start[0] = d
	start = append(start, netstate.RDMANetns{ID: id, Netns: new(netstate.RDMAOfHost), Name: new("mlx5_2")})
	top := steps(t, `  - {name: vf, type: sriov, config: {name: net1}}`)
	w := &world{t: t, reg: reg, have: netstate.NewSnapshot(start...), given: ops.Givens{}.WithDevices(map[string]string{"vf": id})}
	held := w.plan(top, nil).Held
	owned := netstate.Compact(recorded(nil, slices.Concat(w.ensure(top, nil), held)), w.have, held...)

	w.have.Apply(netstate.Change{Before: netstate.RDMANetns{ID: id, Name: new("mlx5_2")}, After: netstate.RDMANetns{ID: id, Name: new("mine0")}})
	renamed := w.have.Clone()
	if repairs := w.ensure(top, owned); len(repairs) != 1 || repairs[0].String() != "~ rdma-netns "+id+" name mine0 → mlx5_2" {
		t.Errorf("repaired by %v, want the name", repairs)
	}
	for when, have := range map[string]*netstate.Snapshot{"after the repair": w.have, "without one": renamed} {
		w.have = have
		if err := w.undo(owned); err != nil {
			t.Error(err)
		}
		if diff := netstatetest.Differences(netstate.NewSnapshot(start...), w.have); len(diff) > 0 {
			t.Errorf("released %s to:\n%s", when, strings.Join(diff, "\n"))
		}
	}
}

// TestSysctlOfAllRemoved: a step goes that has written a sysctl of all links, and one of a link beside it. The link has what the kernel
// gives it then, and what another step wants of it, in one pass.
func TestSysctlOfAllRemoved(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	var start []netstate.Object
	for _, path := range []string{"ipv4/ip_forward", "ipv4/conf/default/forwarding", "ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6"} {
		start = append(start, netstate.Sysctl{Path: "net/" + path, Value: new("0")})
	}
	const link = `
  - {name: d, type: dummy, config: {name: d0, addresses: ["2001:db8::5/64"]}}
`
	before := steps(t, link+`  - {name: t, type: tuning, dependOn: [d], config: {sysctl: {net.ipv6.conf.all.disable_ipv6: 1, net.ipv4.ip_forward: 1, net.ipv4.conf.IFNAME.forwarding: 0}}}
`)
	w := &world{t: t, reg: reg, have: netstate.NewSnapshot(start...)}
	held := w.plan(before, nil).Held
	owned := netstate.Compact(recorded(nil, slices.Concat(w.ensure(before, nil), held)), w.have, held...)
	after := steps(t, link)
	p := w.plan(after, owned)
	for _, c := range p.Changes {
		if err := optest.Apply(w.have, c); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"ipv4/ip_forward", "ipv4/conf/d0/forwarding", "ipv6/conf/all/disable_ipv6", "ipv6/conf/d0/disable_ipv6"} {
		if s, ok := netstate.Lookup(w.have, netstate.Sysctl{Path: "net/" + path}); !ok || s.Value == nil || *s.Value != "0" {
			t.Errorf("%s is %v %v, want 0, after %v", path, ok, netstate.Value(s, "value"), p.Changes)
		}
	}
	if !slices.ContainsFunc(netstate.All[netstate.Addr](w.have), func(a netstate.Addr) bool { return a.Link == "d0" }) {
		t.Error("the address is gone")
	}
}

// TestSysctlOfAllUndone: an edit that removes a sysctl of all links, or adds one, fails and is undone. The sysctls of links, and addresses,
// are as before it.
func TestSysctlOfAllUndone(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const link = `
  - {name: d, type: dummy, config: {name: d0, addresses: ["2001:db8::5/64"]}}
`
	of := func(sysctls string) *optest.Case {
		c := &optest.Case{Topology: steps(t, link+"  - {name: t, type: tuning, dependOn: [d], config: {sysctl: {"+sysctls+"}}}\n")}
		for _, path := range []string{"ipv4/ip_forward", "ipv4/conf/default/forwarding", "ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6"} {
			c.Have = append(c.Have, netstate.Sysctl{Path: "net/" + path, Value: new("0")})
		}
		return c
	}
	const ofLink = "net.ipv4.conf.IFNAME.forwarding: 0"
	for _, with := range []string{"net.ipv6.conf.all.disable_ipv6: 1", "net.ipv4.ip_forward: 1", "net.ipv6.conf.all.disable_ipv6: 1, net.ipv4.ip_forward: 1"} {
		for _, edit := range [][2]string{{with + ", " + ofLink, ofLink}, {ofLink, with + ", " + ofLink}, {with + ", " + ofLink, "net.ipv4.conf.IFNAME.forwarding: 1"}} {
			t.Run(edit[0]+" to "+edit[1], func(t *testing.T) {
				if !edited(t, reg, of(edit[0]), of(edit[1]), nil) {
					t.Error("the edit was not made")
				}
			})
		}
	}
}

// TestMTULeftInBond holds that a link has its first MTU after two edits: one that takes its mtu away and puts it in a bond, which keeps
// the earlier MTU for it, and one that takes it out again.
func TestMTULeftInBond(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const steps = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: d, type: dummy, config: {name: d0%s}}\n    - {name: e, type: dummy, config: {name: e0}}\n%s"
	var cases [3]*optest.Case
	for i, text := range [][2]string{
		{", mtu: 4000"},
		{"", "    - {name: b, type: bond, dependOn: [d, e], config: {name: b0, mode: active-backup}}\n"},
		{},
	} {
		cases[i] = &optest.Case{Topology: decode(t, fmt.Sprintf(steps, text[0], text[1]))}
	}
	if !editedTwice(t, reg, cases) {
		t.Error("the topology is refused")
	}
}
