package kernel

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
)

// TestLastLeaves: a bridge of the host, and a VRF, that two sandboxes share go with
// the last of them, also when the one that made them leaves first.
func TestLastLeaves(t *testing.T) {
	decode := func(step string) *topology.Topology {
		t.Helper()
		top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n" + step))
		if err != nil {
			t.Fatal(err)
		}
		return top
	}
	for name, c := range map[string]struct {
		one, other string
		together   bool // in one namespace
		show       string
	}{
		"bridge": {
			"    - {name: a, type: bridge, config: {bridge: last0, ifName: a0}}\n",
			"    - {name: b, type: bridge, config: {bridge: last0, ifName: b0}}\n", false, "ip link show last0",
		},
		"VRF": {
			"    - {name: a, type: dummy, config: {name: a0}}\n    - {name: v, type: vrf, dependOn: [a], config: {vrfname: last0}}\n",
			"    - {name: b, type: dummy, config: {name: b0}}\n    - {name: v, type: vrf, dependOn: [b], config: {vrfname: last0}}\n", true, "ip -n NS link show last0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLane(t).engine(nil)
			path := newNetns(t)
			one := reconcile.Sandbox{ID: "t/one", Netns: path, Topology: decode(c.one)}
			other := reconcile.Sandbox{ID: "t/other", Netns: path, Topology: decode(c.other)}
			if !c.together {
				other.Netns = newNetns(t)
			}
			there := func() bool {
				return exec.Command("sh", "-c", strings.ReplaceAll(c.show, "NS", path[strings.LastIndexByte(path, '/')+1:])).Run() == nil
			}
			for _, sb := range []reconcile.Sandbox{one, other} {
				if _, err := r.Ensure(ctxFor(t), sb); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := r.AwaitRelease(ctxFor(t), one.ID); err != nil {
				t.Fatal(err)
			}
			if !there() {
				t.Fatal("it is gone while a sandbox is in it")
			}
			if again, err := r.Ensure(ctxFor(t), other); err != nil || !again.Unchanged {
				t.Errorf("the other sandbox, applied again: %v %v", again.Changes, err)
			}
			if _, err := r.AwaitRelease(ctxFor(t), other.ID); err != nil {
				t.Fatal(err)
			}
			if there() {
				t.Error("it outlives its last port")
			}
		})
	}
}

// TestShares: many pods have links on one master of the host at once, each by its share.
// They reach one another, nothing is planned a second time, the release of some leaves
// the others, and another engine releases the rest: the master is as it was,
// and nothing is left. The long form has 100 pods.
func TestShares(t *testing.T) {
	pods := 12
	if effort.Long() {
		pods = 100
	}
	for _, typ := range []string{"ipvlan", "macvlan"} {
		t.Run(typ, func(t *testing.T) {
			l := newLane(t)
			master := virtualCard(t, "nic0")
			s := &foreignWriter{t: t}
			// The first link of a type may load a module, and with it IPv6.
			s.run("ip link set nic0 up; ip link add first0 link nic0 type " + typ + " && ip link delete first0")
			before := readHost(t, false)
			r := l.engine(nil)
			boxes := make([]reconcile.Sandbox, pods)
			for i := range boxes {
				top, err := topology.Decode(fmt.Appendf(nil, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: net, type: %s, config: {name: net0, addresses: [10.20.0.%d/24]}}\n", typ, i+1))
				if err != nil {
					t.Fatal(err)
				}
				path, err := namespace.Add(fmt.Sprintf("%s-%d", typ, i))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { deleteNetns(path) })
				boxes[i] = reconcile.Sandbox{
					ID: reconcile.SandboxID(fmt.Sprintf("t/%d", i)), Netns: path, Topology: top,
					Given: ops.Givens{"net": {Device: master, Share: fmt.Sprintf("share-%d", i)}},
				}
			}
			each := func(boxes []reconcile.Sandbox, do func(sb reconcile.Sandbox) error) {
				t.Helper()
				began := time.Now()
				work := make(chan reconcile.Sandbox)
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						for sb := range work {
							if err := do(sb); err != nil {
								t.Errorf("%s: %v", sb.ID, err)
							}
						}
					})
				}
				for _, sb := range boxes {
					work <- sb
				}
				close(work)
				wg.Wait()
				t.Logf("%d sandboxes in %v", len(boxes), time.Since(began))
			}
			unchanged := func(sb reconcile.Sandbox) error {
				rep, err := r.Ensure(ctxFor(t), sb)
				if err == nil && !rep.Unchanged {
					err = fmt.Errorf("applied again: %v", rep.Changes)
				}
				return err
			}
			release := func(sb reconcile.Sandbox) error {
				rep, err := r.AwaitRelease(ctxFor(t), sb.ID)
				if err == nil && rep.Unclean != "" {
					err = errors.New(rep.Unclean)
				}
				return err
			}
			each(boxes, func(sb reconcile.Sandbox) error { _, err := r.Ensure(ctxFor(t), sb); return err })
			each(boxes, unchanged)
			s.run(fmt.Sprintf("ip netns exec %s ping -c 1 -W 5 10.20.0.%d", filepath.Base(boxes[0].Netns), pods))
			each(boxes[:pods/2], release)
			each(boxes[pods/2:], unchanged)

			// Some namespaces end while no agent runs.
			for _, sb := range boxes[pods-pods/4:] {
				deleteNetns(sb.Netns)
			}
			r = l.engine(nil)
			each(boxes[pods/2:], release)
			if left, errs := r.List(); len(left)+len(errs) != 0 {
				t.Errorf("%d records are left, %v", len(left), errs)
			}
			// What a namespace leaves on the master ends some time after it.
			eventually.Holds(t, returnTime, "the host is as before (-before +after)", func() string { return cmp.Diff(before, readHost(t, false)) })
		})
	}
}

// TestSharedAllmulti: a link on a master of the host is released with its flag ALLMULTI
// set. The master receives what it did before.
func TestSharedAllmulti(t *testing.T) {
	for _, typ := range []string{"ipvlan", "macvlan"} {
		t.Run(typ, func(t *testing.T) {
			l := newLane(t)
			master := virtualCard(t, "nic0")
			s := &foreignWriter{t: t}
			s.run("ip link set nic0 up")
			counted := func(users int) bool {
				t.Helper()
				out, err := exec.CommandContext(t.Context(), "ip", "-details", "link", "show", "nic0").Output()
				if err != nil {
					t.Fatal(err)
				}
				return strings.Contains(string(out), fmt.Sprintf(" allmulti %d ", users))
			}
			top, err := topology.Decode(fmt.Appendf(nil, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: net, type: %s, config: {name: net0}}\n    - {name: tune, type: tuning, dependOn: [net], config: {allmulti: true}}\n", typ))
			if err != nil {
				t.Fatal(err)
			}
			sb := reconcile.Sandbox{ID: "t/a", Netns: newNetns(t), Topology: top, Given: ops.Givens{"net": {Device: master, Share: "share-1"}}}
			r := l.engine(nil)
			if _, err := r.Ensure(ctxFor(t), sb); err != nil {
				t.Fatal(err)
			}
			if !counted(1) {
				t.Fatal("the master does not receive all multicast for the pod")
			}
			if rep, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil || rep.Unclean != "" {
				t.Fatal(err, rep.Unclean)
			}
			if !counted(0) {
				t.Error("the master still receives all multicast")
			}
		})
	}
}
