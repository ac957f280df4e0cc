package kernel

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
)

// TestNeighbors: a neighbor that knows an address by the MAC of a pod that has ended knows that of the
// pod that has it now, of both families: after attaching, and after a repair that makes the link again,
// which keeps its MAC. A neighbor's entry is as if it had just been confirmed, so it asks nobody.
func TestNeighbors(t *testing.T) {
	for _, step := range []string{
		"type: macvlan, config: {master: nb0, addresses: [192.0.2.5/24, \"2001:db8:5::5/64\"]}",
		"type: macvlan, config: {master: nb0, dad: off, addresses: [192.0.2.5/24, \"2001:db8:5::5/64\"]}",
		"type: ipvlan, config: {master: nb0, mode: l2, addresses: [192.0.2.5/24, \"2001:db8:5::5/64\"]}",
		"type: bridge, config: {bridge: nbbr, addresses: [192.0.2.5/24, \"2001:db8:5::5/64\"]}",
	} {
		kind, _, _ := strings.Cut(strings.TrimPrefix(step, "type: "), ",")
		t.Run(kind, func(t *testing.T) {
			l, path, neighbor := newLane(t), newNetns(t), newNetns(t)
			s := &foreignWriter{t: t}
			other := filepath.Base(neighbor)
			t.Cleanup(func() { s.run("(ip link delete nb0; ip link delete nbbr) 2>/dev/null || true") })
			s.run(fmt.Sprintf("ip link add nb0 type veth peer name nb1 && ip link set nb0 up && ip link set nb1 netns %[1]s && ip -n %[1]s link set nb1 up && ip -n %[1]s address add 192.0.2.9/24 dev nb1 && ip -n %[1]s address add 2001:db8:5::9/64 dev nb1 nodad", other))
			if kind == "bridge" {
				s.run("ip link add nbbr type bridge && ip link set nbbr up && ip link set nb0 master nbbr")
			}
			top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: net, " + step + "}\n"))
			if err != nil {
				t.Fatal(err)
			}
			sb := reconcile.Sandbox{ID: reconcile.SandboxID("t/neighbors"), Netns: path, Topology: top}
			dead := func() {
				for _, ip := range []string{"192.0.2.5", "2001:db8:5::5"} {
					s.run(fmt.Sprintf("ip -n %s neigh replace %s lladdr 02:00:00:00:00:dd dev nb1 nud reachable", other, ip))
				}
			}
			mac := func() string {
				return strings.TrimSpace(s.run(fmt.Sprintf("ip -n %s -o link show dev net1 | sed 's/.*link.ether \\([^ ]*\\).*/\\1/'", filepath.Base(path))))
			}
			known := func(when string) {
				t.Helper()
				for _, ip := range []string{"192.0.2.5", "2001:db8:5::5"} {
					l.await(fmt.Sprintf("%s: the neighbor sends to %s at its MAC", when, ip), func() bool {
						return strings.Contains(s.run(fmt.Sprintf("ip -n %s neigh show %s dev nb1", other, ip)), mac())
					})
				}
			}
			dead()
			if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil {
				t.Fatal(err)
			}
			known("attached")
			had := mac()
			s.run(fmt.Sprintf("ip -n %s link delete net1", filepath.Base(path)))
			dead()
			if _, err := l.engine(nil).Repair(ctxFor(t), sb.ID); err != nil {
				t.Fatal(err)
			}
			known("repaired")
			if now := mac(); now != had {
				t.Errorf("MAC %s before the repair, %s after it", had, now)
			}
			if rep, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil || !rep.Unchanged {
				t.Errorf("again: %v %v", rep.Changes, err)
			}
			if _, err := l.engine(nil).AwaitRelease(ctxFor(t), sb.ID); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestBridgeKeepsMAC: a bridge of the host that several pods share keeps its MAC whichever of them
// ends, so that the others keep their gateway.
func TestBridgeKeepsMAC(t *testing.T) {
	l := newLane(t)
	s := &foreignWriter{t: t}
	s.run("ip link delete gwbr 2>/dev/null || true")
	var ids []reconcile.SandboxID
	var before string
	mac := func() string { return s.run("cat /sys/class/net/gwbr/address") }
	for i := range 4 {
		top, err := topology.Decode(fmt.Appendf(nil, "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps:\n    - {name: net, type: bridge, config: {bridge: gwbr, isGateway: true, addresses: [{address: 192.0.2.%d/24, gateway: 192.0.2.1}]}}\n", i+2))
		if err != nil {
			t.Fatal(err)
		}
		sb := reconcile.Sandbox{ID: reconcile.SandboxID(fmt.Sprintf("t/shared%d", i)), Netns: newNetns(t), Topology: top}
		if _, err := l.engine(nil).Ensure(ctxFor(t), sb); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = mac()
		}
		if now := mac(); now != before {
			t.Errorf("pod %d came: %s, was %s", i, now, before)
		}
		ids = append(ids, sb.ID)
	}
	for i, id := range ids {
		if _, err := l.engine(nil).AwaitRelease(ctxFor(t), id); err != nil {
			t.Fatal(err)
		}
		if i == len(ids)-1 {
			break // the bridge goes with its last port
		}
		if now := mac(); now != before {
			t.Errorf("pod %d ended: %s, was %s", i, now, before)
		}
	}
}
