package reconcile_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology/fault"
)

// nameTaken is a node of which another RDMA device has the name: one is moved, and not renamed.
type nameTaken struct{ *sandbox }

func (n nameTaken) Apply(ctx context.Context, c netstate.Change) error {
	r, ok := c.After.(netstate.RDMANetns)
	if !ok || r.Name == nil {
		return n.sandbox.Apply(ctx, c)
	}
	if r.Netns != nil {
		if err := n.sandbox.Apply(ctx, netstate.Change{After: netstate.RDMANetns{ID: r.ID, Netns: r.Netns}}); err != nil {
			return err
		}
	}
	return fault.New(fault.Conflict, errors.New("another RDMA device of the node has the name"))
}

// TestRDMANameIsTaken: a pod has renamed its RDMA device, and another one has the name by now. The release ends, with the device on the
// host under the pod's name, and says so.
func TestRDMANameIsTaken(t *testing.T) {
	const id = "0000:03:00.2"
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before := netstate.RDMANetns{ID: id, Netns: new(netstate.RDMAOfHost), Name: new("mlx5_2")}
	after := netstate.RDMANetns{ID: id, Netns: new(netstate.RDMAOfSandbox), Name: new("mlx5_2")}
	k := &sandbox{t: t, Snapshot: netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device"},
		netstate.RDMANetns{ID: id, Netns: new(netstate.RDMAOfSandbox), Name: new("mine0")},
	)}
	sb := shared(t, "t", "d0", bare)
	rec := reconcile.Record{
		Sandbox: sb, BootID: "boot", NetnsID: k.NetnsID(), Phase: reconcile.Applied,
		History: []netstate.Change{{Step: "d", Before: before, After: after}},
	}
	if err := store.Put(rec); err != nil {
		t.Fatal(err)
	}
	r := reconcile.New(reconcile.Options{Store: store, BootID: "boot", Open: func(string) (reconcile.Domain, error) { return nameTaken{k}, nil }})
	rep, err := r.Release(t.Context(), sb.ID)
	if err != nil || rep.Unclean != "" {
		t.Fatal(err, rep.Unclean)
	}
	if !slices.ContainsFunc(rep.Notes, func(n string) bool {
		return strings.Contains(n, "of the host is not restored: another RDMA device of the node has the name")
	}) {
		t.Errorf("notes %q", rep.Notes)
	}
	if got, _ := netstate.Lookup(k.Snapshot, before); *got.Netns != netstate.RDMAOfHost || *got.Name != "mine0" {
		t.Errorf("the RDMA device is in namespace %s with name %s", *got.Netns, *got.Name)
	}
	if _, ok, _ := r.Record(sb.ID); ok {
		t.Error("the record stays")
	}
}
