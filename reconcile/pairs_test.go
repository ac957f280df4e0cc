package reconcile_test

import (
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
)

// TestRemovedPair: a pair to the host that an edit removed, and perhaps added again, is nothing that a release restores.
func TestRemovedPair(t *testing.T) {
	for name, again := range map[string]bool{"removed": false, "removed and added": true} {
		t.Run(name, func(t *testing.T) {
			store, err := journal.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			registry, err := all.Registry()
			if err != nil {
				t.Fatal(err)
			}
			k := &sandbox{Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")},
				netstate.Sysctl{Path: "host:net/ipv4/ip_forward", Value: new("1")}), t: t}
			r := reconcile.New(reconcile.Options{
				Registry: registry, Store: store, BootID: "boot", Now: time.Now,
				Open: func(string) (reconcile.Domain, error) { return k, nil },
			})
			steps := []topology.Step{
				{Name: "d", Type: "dummy", Config: map[string]any{"name": "d0"}},
				{Name: "q", Type: "ptp", Config: map[string]any{"name": "q0", "hostIfName": "plq0", "addresses": []any{"192.0.2.5/24"}}},
			}
			whole, less := &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: steps}, &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: steps[:1]}
			edits := []*topology.Topology{whole, less}
			if again {
				edits = append(edits, whole)
			}
			for _, edit := range edits {
				if _, err := r.Ensure(t.Context(), reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: edit}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := r.Release(t.Context(), "blue/t"); err != nil {
				t.Error(err)
			}
			if k.has("host:plq0") || k.has("q0") {
				t.Error("the pair is left")
			}
		})
	}
}
