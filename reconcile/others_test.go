package reconcile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

// shared is a topology with objects of the namespace as a whole.
func shared(t *testing.T, name, link, steps string) reconcile.Sandbox {
	t.Helper()
	top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: " + name + "}\nspec:\n  steps:\n" + strings.ReplaceAll(steps, "LINK", link)))
	if err != nil {
		t.Fatal(err)
	}
	return reconcile.Sandbox{ID: reconcile.SandboxID("blue/" + name), Netns: "/run/netns/blue", Topology: top}
}

const (
	ruled = `    - {name: d, type: dummy, config: {name: LINK, rules: [{priority: 100, table: 100, from: 192.0.2.0/24}]}}
    - {name: t, type: tuning, dependOn: [d], config: {sysctl: {net.core.somaxconn: "500"}}}
    - {name: v, type: vrf, dependOn: [d], config: {vrfname: red, table: 1001}}
`
	otherwise = `    - {name: d, type: dummy, config: {name: LINK}}
    - {name: t, type: tuning, dependOn: [d], config: {sysctl: {net.core.somaxconn: "700"}}}
`
	bare = `    - {name: d, type: dummy, config: {name: LINK}}
`
)

// TestTwoTopologies holds that objects of the namespace have an owner across records: what two
// topologies of a pod want in the same way stays until the last of them is released, which
// restores what was there before the first; what they want differently is refused to the second,
// with the first named.
func TestTwoTopologies(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, e *pair){
		"the first ends first":  func(t *testing.T, e *pair) { e.release(t, e.a); e.unchanged(t, e.b); e.release(t, e.b) },
		"the second ends first": func(t *testing.T, e *pair) { e.release(t, e.b); e.unchanged(t, e.a); e.release(t, e.a) },
		"the first is edited": func(t *testing.T, e *pair) {
			e.ensure(t, shared(t, "first", "a0", bare))
			e.unchanged(t, e.b)
			e.unchanged(t, e.a)
			e.release(t, e.b)
			e.unchanged(t, e.a)
			e.release(t, e.a)
		},
		"the second is edited": func(t *testing.T, e *pair) {
			e.ensure(t, shared(t, "second", "b0", bare))
			e.unchanged(t, e.a)
			e.release(t, e.a)
			e.unchanged(t, e.b)
			e.release(t, e.b)
		},
		"the first is edited, and the VRF that it made ends": func(t *testing.T, e *pair) {
			e.ensure(t, shared(t, "first", "a0", bare))
			red, _ := e.k.Link("red")
			e.k.Snapshot.Apply(netstate.Change{Before: red})
			e.repairedAndEnded(t)
		},
		"an edit of the second is interrupted": func(t *testing.T, e *pair) {
			e.ensure(t, shared(t, "second", "b0", ruled+"    - {name: x, type: dummy, config: {name: x0}}\n"))
			ended := false
			e.k.dead = func(c *netstate.Change) bool { ended = ended || c != nil; return ended }
			if _, err := e.Ensure(t.Context(), shared(t, "second", "b0", bare)); err == nil {
				t.Fatal("the edit was not interrupted")
			}
			e.k.dead = nil
			if st, err := e.Check(t.Context(), e.b.ID); err != nil || slices.ContainsFunc(st.Changes, func(c netstate.Change) bool { return c.Key().Kind == netstate.KindUnreachable }) {
				t.Errorf("a check would take from the first: %v, %v", st.Changes, err)
			}
			e.repairedAndEnded(t)
		},
		"the pod changed it between": func(t *testing.T, e *pair) {
			e.k.Put(netstate.Sysctl{Path: somaxconn, Value: new("9")})
			e.release(t, e.a)
			if _, err := e.Repair(t.Context(), e.b.ID); err != nil {
				t.Error(err)
			}
			e.unchanged(t, e.b)
			e.release(t, e.b)
		},
	} {
		for before, path := range map[string]string{"128": "/run/netns/blue", "500": "/run/netns/blue", "129": "/proc/7/ns/net"} {
			t.Run(name+", "+before+" before, at "+path, func(t *testing.T) {
				e := newPair(t, before)
				e.ensure(t, e.a)
				third := shared(t, "third", "c0", otherwise)
				e.b.Netns, third.Netns = path, path
				_, err := e.Ensure(t.Context(), third)
				if fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), `step "t"`) || !strings.Contains(err.Error(), `wants sysctl net/core/somaxconn value = 700, but topology "first", which the pod has too, wants 500`) {
					t.Errorf("another value: %v", err)
				}
				e.ensure(t, e.b)
				e.unchanged(t, e.a)
				end(t, e)
				if diff := netstatetest.Differences(e.start, e.k.Snapshot); len(diff) > 0 {
					t.Errorf("after both are released: %v", diff)
				}
			})
		}
	}
}

const somaxconn = "net/core/somaxconn"

// pair is two topologies that want the same of a namespace.
type pair struct {
	*reconcile.Reconciler
	k     *sandbox
	start *netstate.Snapshot
	a, b  reconcile.Sandbox
}

func newPair(t *testing.T, before string) *pair {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	k := &sandbox{t: t, Snapshot: netstate.NewSnapshot(
		netstate.Link{Name: "lo", LinkKind: "device", Up: new(true), Master: new("")}, netstate.Sysctl{Path: somaxconn, Value: &before},
	)}
	return &pair{
		Reconciler: reconcile.New(reconcile.Options{Registry: registry, Store: store, BootID: "boot", Open: func(string) (reconcile.Domain, error) { return k, nil }}),
		k:          k, start: k.Clone(), a: shared(t, "first", "a0", ruled), b: shared(t, "second", "b0", ruled),
	}
}

func (e *pair) ensure(t *testing.T, sb reconcile.Sandbox) {
	t.Helper()
	if _, err := e.Ensure(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
}

func (e *pair) release(t *testing.T, sb reconcile.Sandbox) {
	t.Helper()
	if _, err := e.Release(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}

// repairedAndEnded holds that a repair of the second topology takes nothing from either, and releases the second before the first.
func (e *pair) repairedAndEnded(t *testing.T) {
	t.Helper()
	if _, err := e.Repair(t.Context(), e.b.ID); err != nil {
		t.Error(err)
	}
	e.unchanged(t, e.a)
	e.unchanged(t, e.b)
	e.release(t, e.b)
	e.unchanged(t, e.a)
	e.release(t, e.a)
}

// unchanged holds that a topology has all that it wants, and that a check of it writes nothing.
func (e *pair) unchanged(t *testing.T, sb reconcile.Sandbox) {
	t.Helper()
	if rep, err := e.Repair(t.Context(), sb.ID); err != nil || !rep.Unchanged {
		t.Errorf("topology %q is disturbed: %v, %v", sb.Topology.Name, rep.Changes, err)
	}
	rec, _, err := e.Record(sb.ID)
	if err != nil || rec.Phase != reconcile.Applied || slices.ContainsFunc(rec.History, func(c netstate.Change) bool { return c.After == nil }) {
		t.Errorf("record: %v, %+v", err, rec)
	}
}

// TestHolderByAnotherPath: a conflict names the sandbox of this boot that made the link, also one whose record has another path of the namespace.
func TestHolderByAnotherPath(t *testing.T) {
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	k := &sandbox{t: t, Snapshot: netstate.NewSnapshot(netstate.Link{Name: "lo", LinkKind: "device"})}
	boot := func(id string) *reconcile.Reconciler {
		return reconcile.New(reconcile.Options{Registry: registry, Store: store, BootID: id, Open: func(string) (reconcile.Domain, error) { return k, nil }})
	}
	first := shared(t, "first", "d0", "    - {name: d, type: dummy, config: {name: LINK}}\n")
	second := shared(t, "second", "d0", "    - {name: e, type: dummy, config: {name: e0}}\n    - {name: v, type: vrf, dependOn: [e], config: {vrfname: LINK, table: 7}}\n")
	second.Netns = "/proc/7/ns/net"
	if _, err := boot("boot").Ensure(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	const by = `(sandbox "blue/first" made it)`
	if _, err := boot("boot").Ensure(t.Context(), second); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), by) {
		t.Errorf("of this boot: %v", err)
	}
	if _, err := boot("next").Ensure(t.Context(), second); fault.Of(err) != fault.Conflict || strings.Contains(err.Error(), by) {
		t.Errorf("of another boot: %v", err)
	}
}

// TestStepTakenBack: a bridge that an edit has left with a port in it is used again by an edit that wants it, and ends with the release.
func TestStepTakenBack(t *testing.T) {
	e := newPair(t, "128")
	const port = "    - {name: a, type: dummy, config: {name: a0}}\n"
	bridged := shared(t, "first", "", port+"    - {name: br, type: bridge, dependOn: [a], config: {bridge: br0}}\n")
	e.ensure(t, bridged)
	e.ensure(t, shared(t, "first", "", port))
	e.ensure(t, bridged)
	e.unchanged(t, bridged)
	e.release(t, bridged)
	if diff := netstatetest.Differences(e.start, e.k.Snapshot); len(diff) > 0 {
		t.Errorf("after the release: %v", diff)
	}
}

// TestTableChosenTwice: an attachment that ended before its VRF was made does not keep the table, which another topology has chosen
// since.
func TestTableChosenTwice(t *testing.T) {
	e := newPair(t, "128")
	const steps = "    - {name: d, type: dummy, config: {name: LINK}}\n    - {name: v, type: vrf, dependOn: [d], config: {vrfname: vLINK}}\n"
	a, b := shared(t, "first", "a0", steps), shared(t, "second", "b0", steps)
	changes := 0
	e.k.dead = func(c *netstate.Change) bool {
		if c != nil {
			changes++
		}
		return changes > 1
	}
	if _, err := e.Ensure(t.Context(), b); err == nil {
		t.Fatal("the attachment was not interrupted")
	}
	e.k.dead = nil
	e.ensure(t, a)
	if _, err := e.Repair(t.Context(), b.ID); err != nil {
		t.Error(err)
	}
	e.ensure(t, b)
	e.unchanged(t, a)
	e.unchanged(t, b)

	made, _ := e.k.Link("vb0") // with another table: somebody deletes it, and another topology takes the table
	e.k.Snapshot.Apply(netstate.Change{Before: made})
	e.ensure(t, shared(t, "third", "c0", steps))
	if _, err := e.Repair(t.Context(), b.ID); err != nil {
		t.Error(err)
	}
	e.unchanged(t, shared(t, "third", "c0", steps))
	e.unchanged(t, b)
}

// TestAliasOfPod: a pod that gives a link of its own the name of a link of ours, and the alias of what was left behind, does not have it
// taken for ours.
func TestAliasOfPod(t *testing.T) {
	e := newPair(t, "128")
	e.k.Put(netstate.Link{Name: "a0", LinkKind: "dummy", Alias: new("plumbline: deleted with its last port"), Master: new("")})
	if _, err := e.Ensure(t.Context(), shared(t, "first", "a0", bare)); fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), "is not ours") {
		t.Errorf("a link of the pod is used: %v", err)
	}
}
