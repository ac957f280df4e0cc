package all_test

import (
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/topology"
)

const bridged = `apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
    - {name: b, type: bridge, config: {bridge: br0, hostIfName: h0}}
    - {name: d, type: dummy}
`

// changesOf returns the changes of the plan of a topology, once it has observed all that it asks for.
func changesOf(t *testing.T, text string, req ops.Request) []netstate.Change {
	t.Helper()
	reg, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	if req.Topology, err = topology.Decode([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if req.Have == nil {
		req.Have = netstate.NewSnapshot()
	}
	req.Netns = "/run/netns/blue"
	for range 8 {
		plan, err := reg.Plan(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range plan.Missing {
			req.Have.PutAbsent(o.Key())
		}
		if len(plan.Missing) == 0 {
			return plan.Changes
		}
	}
	t.Fatal("planning does not end")
	return nil
}

// macs plans a topology and returns the MACs of the links that are made.
func macs(t *testing.T, text string, req ops.Request) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range changesOf(t, text, req) {
		if l, ok := c.After.(netstate.Link); ok && l.MAC != nil {
			out[l.Name] = *l.MAC
			if l.Veth != nil {
				out[*l.Veth.Peer] = *l.Veth.PeerMAC
			}
		}
	}
	return out
}

// TestChosenMACs: a link keeps its MAC in the same sandbox, no two sandboxes have one in common, and a
// bridge of the host has the same one whichever sandbox makes it.
func TestChosenMACs(t *testing.T) {
	of := func(sandbox, boot string) map[string]string {
		return macs(t, bridged, ops.Request{Sandbox: sandbox, BootID: boot, Client: boot + sandbox})
	}
	one, again, other, elsewhere := of("a", "1"), of("a", "1"), of("b", "1"), of("a", "2")
	for _, link := range []string{"net1", "net2", "host:h0", "host:br0"} {
		switch mac := one[link]; {
		case mac == "" || ops.MAC("mac", mac) != nil:
			t.Errorf("%s has MAC %q", link, mac)
		case again[link] != mac:
			t.Errorf("%s has MAC %s, and when it is created again %s", link, mac, again[link])
		case (other[link] == mac) != (link == "host:br0"):
			t.Errorf("%s has MAC %s, and that of another sandbox %s", link, mac, other[link])
		case elsewhere[link] == mac:
			t.Errorf("%s has MAC %s on two nodes", link, mac)
		}
	}
}

// TestEarlierMACs: what an earlier version has made, and what is not ours, keeps its MAC.
func TestEarlierMACs(t *testing.T) {
	made := netstate.Link{Name: "net1", LinkKind: "dummy", MTU: new(uint32(1500)), Up: new(true), Master: new(""), Index: 7}
	have := made
	have.MAC, have.Promisc, have.AllMulti = new("02:00:00:00:00:99"), new(false), new(false)
	const dummy = "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: d, type: dummy}\n"
	if got := macs(t, dummy, ops.Request{Have: netstate.NewSnapshot(have), Owned: []netstate.Change{{Step: "d", After: made}}}); len(got) > 0 {
		t.Errorf("changed %v", got)
	}
	if got := macs(t, dummy, ops.Request{Owned: []netstate.Change{{Step: "d", After: made}}}); got["net1"] == "" {
		t.Error("created again without a MAC of ours")
	}
	made.MAC = new("02:00:00:00:00:01")
	if got := macs(t, dummy, ops.Request{Have: netstate.NewSnapshot(have), Owned: []netstate.Change{{Step: "d", After: made}}}); got["net1"] == "" {
		t.Error("a MAC that somebody has changed is kept")
	}
	foreign := netstate.Link{Name: "host:br0", LinkKind: "bridge", MAC: new("02:00:00:00:00:98"), Up: new(true), Master: new(""), Bridge: &netstate.Bridge{}}
	if got := macs(t, bridged, ops.Request{Have: netstate.NewSnapshot(foreign)}); got["host:br0"] != "" {
		t.Errorf("the MAC of a bridge that is not ours is changed to %s", got["host:br0"])
	}
}
