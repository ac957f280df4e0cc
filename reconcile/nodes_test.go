package reconcile_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// nodesChanged records whether the last pass has changed device nodes.
type nodesChanged struct{ last bool }

func (n *nodesChanged) Pass(p reconcile.Pass)                              { n.last = p.NodesChanged }
func (*nodesChanged) Drift(reconcile.SandboxID, string, []reconcile.Drift) {}
func (*nodesChanged) Forget(reconcile.SandboxID)                           {}
func nodesOf(t *testing.T, r *reconcile.Reconciler, id reconcile.SandboxID) string {
	t.Helper()
	rec, _, err := r.Record(id)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(rec.Results[1].Result.Devices.DeviceNodes, " ")
}

// nodesEngine is an engine for one sandbox.
func nodesEngine(t *testing.T, k reconcile.Domain) (*reconcile.Reconciler, *nodesChanged) {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	recorder := &nodesChanged{}
	return reconcile.New(reconcile.Options{
		Registry: registry, Store: store, BootID: "boot", Recorder: recorder,
		Open: func(string) (reconcile.Domain, error) { return k, nil },
	}), recorder
}

// TestNodesChange: when an RDMA device in software was made again, a repair says that the containers have the node of the earlier
// one, and the record has the node of the new one for containers that are created from now on; none while there is no device.
func TestNodesChange(t *testing.T) {
	k := &sandbox{t: t, Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")})}
	engine, recorder := nodesEngine(t, k)
	top, err := topology.Decode([]byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
    - {name: d, type: dummy, config: {name: d0}}
    - {name: roce, type: rxe, dependOn: [d]}
`))
	if err != nil {
		t.Fatal(err)
	}
	sb := reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: top}
	if _, err := engine.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	made, _ := netstate.Lookup(k.Snapshot, netstate.RDMALink{Link: "d0"})
	was := nodesOf(t, engine, sb.ID)
	if len(made.Nodes) != 2 || was != strings.Join(made.Nodes, " ") {
		t.Fatalf("nodes %q, of %v", was, made)
	}
	if rep, err := engine.Repair(t.Context(), sb.ID); err != nil || !rep.Unchanged || recorder.last {
		t.Fatalf("without a change: %v %v, nodes changed: %v", rep, err, recorder.last)
	}
	again := made
	again.Nodes = slices.Clone(made.Nodes)
	again.Nodes[0] = "/dev/infiniband/uverbs6"
	k.Put(again)
	for range 2 {
		if _, err := engine.Repair(t.Context(), sb.ID); fault.Of(err) != fault.NotReady || !strings.Contains(err.Error(), "containers were given uverbs0, the device is uverbs6 now: create the pod again") {
			t.Errorf("with another node: %v", err)
		}
		if now := nodesOf(t, engine, sb.ID); now != strings.Join(again.Nodes, " ") {
			t.Errorf("with another node the record has %q", now)
		}
	}
	if recorder.last {
		t.Error("the second pass says that the nodes have changed")
	}
	k.Put(made)
	if _, err := engine.Repair(t.Context(), sb.ID); err != nil || !recorder.last || nodesOf(t, engine, sb.ID) != was {
		t.Errorf("with the first node again: %v, nodes changed: %v", err, recorder.last)
	}
}

// TestNodesRenamed: after a reload of its driver the RDMA device of a function may have another name; the record of a repair has that,
// by which the gate looks for its character device.
func TestNodesRenamed(t *testing.T) {
	host := netstate.HostName("v0")
	function := netstate.Device{ID: "0000:03:00.2", At: &host, Up: new(true), RDMA: []netstate.RDMADevice{{Name: "mlx5_2", Nodes: []string{"/dev/infiniband/uverbs2"}}}}
	k := &sandbox{t: t, Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")}, function,
		netstate.Link{Name: host, LinkKind: "device", DeviceID: function.ID, Up: new(true), Master: new("")})}
	engine, recorder := nodesEngine(t, k)
	top, err := topology.Decode([]byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
    - {name: d, type: dummy, config: {name: d0}}
    - {name: ib, type: rdma}
`))
	if err != nil {
		t.Fatal(err)
	}
	sb := reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: top, Given: ops.Givens{}.WithDevices(map[string]string{"ib": function.ID})}
	if _, err := engine.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	function.RDMA = []netstate.RDMADevice{{Name: "mlx5_5", Nodes: []string{"/dev/infiniband/uverbs2"}}}
	k.Put(function)
	if _, err := engine.Repair(t.Context(), sb.ID); err != nil || !recorder.last {
		t.Errorf("repair: %v, nodes changed: %t", err, recorder.last)
	}
	if rec, _, err := engine.Record(sb.ID); err != nil || rec.Results[1].Result.Devices.RDMADevice != "mlx5_5" {
		t.Errorf("the record has %+v, %v", rec.Results[1].Result.Devices, err)
	}
}

// earlierKernel exchanges no data over soft RoCE in network namespaces of pods.
type earlierKernel struct{ *sandbox }

func (k earlierKernel) Apply(ctx context.Context, c netstate.Change) error {
	err := k.sandbox.Apply(ctx, c)
	if made, ok := netstate.Lookup(k.Snapshot, netstate.RDMALink{Link: "d0"}); ok {
		made.HostOnly = true
		k.Put(made)
	}
	return err
}

// TestSoftRDMAOfHostOnly: where the kernel exchanges no data over soft RoCE in a pod, apply says so, once.
func TestSoftRDMAOfHostOnly(t *testing.T) {
	const says = "the kernel exchanges data over soft RoCE on the host only, and programs of the pod hang"
	k := earlierKernel{&sandbox{t: t, Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")})}}
	engine, _ := nodesEngine(t, k)
	top, err := topology.Decode([]byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
    - {name: d, type: dummy, config: {name: d0}}
    - {name: roce, type: rxe, dependOn: [d]}
`))
	if err != nil {
		t.Fatal(err)
	}
	sb := reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: top}
	rep, err := engine.Ensure(t.Context(), sb)
	if err != nil || !strings.Contains(strings.Join(rep.Notes, "\n"), `step "roce": `+says) {
		t.Errorf("notes %q, %v", rep.Notes, err)
	}
	if rep, err := engine.Repair(t.Context(), sb.ID); err != nil || !rep.Unchanged || len(rep.Notes) > 0 {
		t.Errorf("repaired: %+v %v", rep, err)
	}
}

// TestNodesOfClock: the device nodes of a device without RDMA, such as its clock, follow a change of their number, too.
func TestNodesOfClock(t *testing.T) {
	const function = "0000:03:00.2"
	host := netstate.HostName("enp3s0f0v0")
	k := &sandbox{t: t, Snapshot: netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")},
		netstate.Device{ID: function, At: &host, Up: new(true), Driver: "ice", Nodes: map[string][]string{netstate.NodePTP: {"/dev/ptp3"}}},
		netstate.Link{Name: host, LinkKind: "device", DeviceID: function, Up: new(true), Master: new("")},
	)}
	engine, recorder := nodesEngine(t, k)
	top, err := topology.Decode([]byte(`
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: t}
spec:
  steps:
    - {name: d, type: dummy, config: {name: d0}}
    - {name: vf, type: sriov, config: {deviceNodes: [ptp]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	sb := reconcile.Sandbox{ID: "blue/t", Netns: "/run/netns/blue", Topology: top, Given: ops.Givens{}.WithDevices(map[string]string{"vf": function})}
	if _, err := engine.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	if was := nodesOf(t, engine, sb.ID); was != "/dev/ptp3" {
		t.Fatalf("nodes %q", was)
	}
	renumbered, _ := k.Device(function)
	renumbered.Nodes = map[string][]string{netstate.NodePTP: {"/dev/ptp0"}}
	k.Put(renumbered)
	for _, changes := range []bool{true, false} {
		if _, err := engine.Repair(t.Context(), sb.ID); err != nil || recorder.last != changes || nodesOf(t, engine, sb.ID) != "/dev/ptp0" {
			t.Errorf("with another number: %v, nodes changed: %v, want %v, the record has %q", err, recorder.last, changes, nodesOf(t, engine, sb.ID))
		}
	}
	lost := renumbered
	lost.Nodes = map[string][]string{}
	k.Put(lost)
	if _, err := engine.Repair(t.Context(), sb.ID); fault.Of(err) != fault.NotReady || !recorder.last || nodesOf(t, engine, sb.ID) != "" {
		t.Errorf("without the node: %v, nodes changed: %v, the record has %q", err, recorder.last, nodesOf(t, engine, sb.ID))
	}
	k.Put(renumbered)
	if _, err := engine.Repair(t.Context(), sb.ID); err != nil || !recorder.last || nodesOf(t, engine, sb.ID) != "/dev/ptp0" {
		t.Errorf("with the node again: %v, nodes changed: %v, the record has %q", err, recorder.last, nodesOf(t, engine, sb.ID))
	}
}
