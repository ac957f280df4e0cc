package all_test

import (
	"slices"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

// TestEditedAddress holds that an edit of a link's only address plans what the
// kernel takes along with it, ours and others', after the new address.
func TestEditedAddress(t *testing.T) {
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	const header = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n"
	version := func(address string) *topology.Topology {
		top, err := topology.Decode([]byte(header + "  - {name: d, type: dummy, config: {name: d0, mac: \"02:00:00:00:00:01\", addresses: [" + address + "], routes: [{dst: 198.51.100.0/24, gw: 192.0.2.1}]}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return top
	}
	plan := func(top *topology.Topology, have *netstate.Snapshot, owned []netstate.Change) *ops.Plan {
		t.Helper()
		for {
			p, err := reg.Plan(ops.Request{Topology: top, Netns: "/run/netns/pod", Have: have, Owned: owned})
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
