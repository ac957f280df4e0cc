package kernel

import (
	"os/exec"
	"strings"
	"testing"

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
