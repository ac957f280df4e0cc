package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
)

// batching is a sandbox that makes changes of ports at once.
type batching struct {
	*sandbox
	alone, at []int // how many ports were changed one by one, and at once
	refuse    bool  // changes of several
}

// Observe and Extend: the host forwards.
func (b *batching) Observe(ctx context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	seen := netstate.NewSnapshot(netstate.All[netstate.Object](b.Snapshot)...)
	return seen, b.Extend(ctx, seen, queried)
}

func (b *batching) Extend(ctx context.Context, seen *netstate.Snapshot, queried []netstate.Object) error {
	err := b.sandbox.Extend(ctx, seen, queried)
	for _, s := range netstate.All[netstate.Sysctl](seen) {
		if netstate.OnHost(s.Path) {
			seen.Put(netstate.Sysctl{Path: s.Path, Value: new("1")})
		}
	}
	return err
}

func (b *batching) Apply(ctx context.Context, c netstate.Change) error {
	if c.Key().Kind == netstate.KindPortMapping {
		b.alone = append(b.alone, 1)
	}
	return b.sandbox.Apply(ctx, c)
}

func (b *batching) ApplyAll(ctx context.Context, changes []netstate.Change) error {
	if b.refuse {
		return errors.New("not all of them")
	}
	b.at = append(b.at, len(changes))
	for _, c := range changes {
		if err := b.sandbox.Apply(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// TestTogether: the ports of a sandbox are one change of the host when it is attached and when it is released. If they cannot
// be deleted at once, one that fails does not keep the others.
func TestTogether(t *testing.T) {
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	k := &batching{sandbox: &sandbox{t: t, Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")})}}
	r := reconcile.New(reconcile.Options{
		Registry: registry, Store: store, BootID: "boot", Now: time.Now,
		Open: func(string) (reconcile.Domain, error) { return k, nil },
	})
	const ports = 20
	var mappings []any
	for i := range ports {
		mappings = append(mappings, map[string]any{"hostPort": int64(8000 + i), "containerPort": int64(80)})
	}
	sb := reconcile.Sandbox{ID: "cni/a/eth0/t", Netns: "/run/netns/a", Topology: &topology.Topology{Name: "t", DriftPolicy: topology.Repair, Steps: []topology.Step{
		{Name: "p", Type: "ptp", Config: map[string]any{"ifName": "net1", "dad": "off", "addresses": []any{"192.0.2.2/24"}, "portMappings": mappings}},
	}}}
	for _, refuse := range []bool{false, true} {
		k.alone, k.at, k.refuse = nil, nil, false
		if _, err := r.Ensure(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		if len(k.alone) != 0 || fmt.Sprint(k.at) != fmt.Sprint([]int{ports}) {
			t.Errorf("attached: %d ports one by one, at once %v", len(k.alone), k.at)
		}
		k.at, k.refuse = nil, refuse
		if _, err := r.Release(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if refuse != (len(k.alone) == ports) || refuse == (fmt.Sprint(k.at) == fmt.Sprint([]int{ports})) {
			t.Errorf("released, refused at once %v: %d ports one by one, at once %v", refuse, len(k.alone), k.at)
		}
		if left := netstate.All[netstate.PortMapping](k.Snapshot); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}
