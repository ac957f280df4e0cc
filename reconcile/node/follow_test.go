package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/watch"
)

const followFile = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: ai}
spec:
  steps:
  - {name: vf0, type: sriov, config: {name: net1, linkState: follow}}
`

// TestLinkStateFollows: a virtual function follows the LACP state of its physical function. The
// notification comes from the host, and that a returned partner is stable comes without one.
func TestLinkStateFollows(t *testing.T) {
	const vf, id = "0000:01:10.0", reconcile.SandboxID("blue/ai")
	var n *node
	held := func() netstate.VF {
		n.world.mu.Lock()
		defer n.world.mu.Unlock()
		got, _ := netstate.Lookup(n.world.netns[n.world.identity(t, n.path("blue"))], netstate.VF{ID: vf})
		return got
	}
	lacp := func(port *netstate.LACPPort) {
		now := held()
		now.LACP = port
		n.world.mu.Lock()
		n.world.netns[n.world.identity(t, n.path("blue"))].Put(now)
		n.world.mu.Unlock()
	}
	expect := func(when, state string) {
		t.Helper()
		synctest.Wait()
		if got := held(); *got.LinkState != state {
			t.Errorf("%s: link state %s, want %s; log:\n%s", when, *got.LinkState, state, n.log.take())
		}
	}
	running(t, func(node *node) {
		n = node
		n.make("blue")
		ns, err := identify(n.path("blue"))
		if err != nil {
			t.Fatal(err)
		}
		host := netstate.HostName("enp3s0f0v0")
		n.world.netns[ns] = netstate.NewSnapshot(
			netstate.Device{ID: vf, At: &host, Up: new(false)},
			netstate.Link{Name: host, LinkKind: "device", DeviceID: vf, Up: new(false), Master: new("")},
			netstate.VF{ID: vf, PF: "host:enp3s0f0", LinkState: new("enable"), LACP: &netstate.LACPPort{Agreed: true}})
		topo, _, err := Load(n.t.Context(), parsed(t, followFile), nil, n.Contracts)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.engine.Ensure(n.t.Context(), reconcile.Sandbox{ID: id, Netns: n.path("blue"), Topology: topo, Given: ops.Givens{"vf0": {Device: vf}}}); err != nil {
			t.Fatal(err)
		}
	}, func(n *node) {
		expect("LACP uses the port", "auto")
		lacp(&netstate.LACPPort{})
		n.notify(watch.Event{Host: true})
		expect("the partner is lost", "disable")

		n.world.change(t, n.path("blue"), netstate.Change{Before: netstate.VF{ID: vf, LinkState: new("disable")}, After: netstate.VF{ID: vf, LinkState: new("auto")}})
		time.Sleep(time.Second)
		n.notify(watch.Event{Host: true})
		expect("another writer has enabled it", "disable")

		lacp(&netstate.LACPPort{Agreed: true, SettlesMillis: 5000})
		time.Sleep(time.Second)
		n.notify(watch.Event{Host: true})
		expect("the partner has just come back", "disable")
		lacp(&netstate.LACPPort{Agreed: true})
		time.Sleep(5*time.Second - time.Millisecond)
		expect("it is not stable yet", "disable")
		time.Sleep(time.Millisecond)
		expect("it is stable, and nothing was notified", "auto")

		lacp(&netstate.LACPPort{})
		time.Sleep(time.Second)
		n.notify(watch.Event{Host: true})
		expect("it is lost again", "disable")
		if _, err := n.engine.Release(n.t.Context(), id); err != nil {
			t.Fatal(err)
		}
		expect("released", "enable")
		if len(n.recorder.contended) > 0 {
			t.Errorf("taken for contention: %+v", n.recorder.contended)
		}
	})
}
