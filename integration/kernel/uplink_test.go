package kernel

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
)

// uplink is the interface by which a node in a container reaches others: one end of a pair, as kind has it, with the
// node's address and default route. At its other end is a neighbor.
type uplink struct {
	*foreignWriter
	wire string // the namespace of the neighbor
}

const (
	uplinkNode     = "192.0.2.1"
	uplinkNeighbor = "192.0.2.254"
)

func newUplink(t *testing.T) uplink {
	t.Helper()
	u := uplink{&foreignWriter{t: t}, filepath.Base(newNetns(t))}
	t.Cleanup(func() { _, _ = u.try("ip link delete up0") })
	u.run(strings.NewReplacer("WIRE", u.wire, "NODE", uplinkNode, "NEIGHBOR", uplinkNeighbor).Replace(`
		ip link add up0 type veth peer name wire0 netns WIRE
		ip address add NODE/24 dev up0
		ip link set up0 addrgenmode none up
		ip -n WIRE address add NEIGHBOR/24 dev wire0
		ip -n WIRE link set wire0 up
		ip route add default via NEIGHBOR dev up0`))
	return u
}

// reached says whether the neighbor reaches an address that it resolves once more.
func (u uplink) reached(address string) bool {
	_, err := u.try(fmt.Sprintf("ip -n %[1]s neigh flush dev wire0; ip netns exec %[1]s ping -c 1 -W 5 %[2]s", u.wire, address))
	return err == nil
}

// TestSharedUplink: steps of all kinds have links on the uplink of a node in a container, and reach its
// neighbor. While they are there, and after their release, the uplink is as it was, and the node is reached.
func TestSharedUplink(t *testing.T) {
	const address = "192.0.2.20"
	topologies := map[string]string{
		"macvlan":         "{name: net, type: macvlan, config: {name: net0, addresses: [ADDRESS/24]}}",
		"macvlan private": "{name: net, type: macvlan, config: {name: net0, mode: private, addresses: [ADDRESS/24]}}",
		"ipvlan":          "{name: net, type: ipvlan, config: {name: net0, addresses: [ADDRESS/24]}}",
		"bridge":          "{name: net, type: macvlan, config: {name: net0, addresses: [ADDRESS/24]}}, {name: lan, type: bridge, config: {bridge: lan0, ifName: lan1, addresses: [198.51.100.2/24]}}",
		"vlan":            "{name: net, type: macvlan, config: {name: net0, addresses: [ADDRESS/24]}}, {name: tagged, type: vlan, dependOn: [net], config: {name: net0.7, id: 7, addresses: [198.51.100.2/24]}}",
		"bond": "{name: net, type: macvlan, config: {name: net0, addresses: [ADDRESS/24]}}, {name: a, type: dummy, config: {name: d0}}, {name: b, type: dummy, config: {name: d1}}," +
			" {name: both, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 100, addresses: [198.51.100.2/24]}}",
	}
	for _, name := range effort.Sample(t, 2, slices.Sorted(maps.Keys(topologies))) {
		steps := topologies[name]
		t.Run(name, func(t *testing.T) {
			u := newUplink(t)
			_, _ = u.try("ip link add first0 link up0 type macvlan && ip link delete first0; ip link add first0 link up0 type ipvlan && ip link delete first0") // loads modules
			if !u.reached(uplinkNode) {
				t.Fatal("the neighbor does not reach the node before")
			}
			const settings = "ip -o link show up0; ip -o address show up0; ip route show dev up0; ip -6 route show dev up0; tc qdisc show dev up0"
			before, own := readHost(t, false), u.run(settings)
			top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps: [" + strings.ReplaceAll(steps, "ADDRESS", address) + "]\n"))
			if err != nil {
				t.Fatal(err)
			}
			r := newLane(t).engine(nil)
			sb := reconcile.Sandbox{ID: "t/up", Netns: newNetns(t), Topology: top, Given: ops.Givens{"net": {Device: "if:up0", Share: "share-1"}}}
			if _, err := r.Ensure(ctxFor(t), sb); err != nil {
				t.Fatal(err)
			}
			for _, reached := range []string{uplinkNode, address} {
				if !u.reached(reached) {
					t.Errorf("the neighbor does not reach %s", reached)
				}
			}
			if diff := cmp.Diff(own, u.run(settings)); diff != "" {
				t.Errorf("the uplink, below a pod (-before +now):\n%s", diff)
			}
			if _, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil {
				t.Fatal(err)
			}
			eventually.Holds(t, returnTime, "the host is as before (-before +after)", func() string { return cmp.Diff(before, readHost(t, false)) })
			if !u.reached(uplinkNode) {
				t.Error("the neighbor does not reach the node after the release")
			}
		})
	}
}

// TestUplinkIsTheNodes: nothing that a topology says takes the node's packets from it.
func TestUplinkIsTheNodes(t *testing.T) {
	for name, c := range map[string]struct{ step, refused string }{
		"all packets":               {"{name: net, type: macvlan, config: {name: net0, mode: passthru}}", "default route"},
		"its address, by ipvlan":    {"{name: net, type: ipvlan, config: {name: net0, addresses: [" + uplinkNode + "/24]}}", "address"},
		"its address, by ipvlan l3": {"{name: net, type: ipvlan, config: {name: net0, mode: l3, addresses: [" + uplinkNode + "/32]}}", "address"},
		"its address, by macvlan":   {"{name: net, type: macvlan, config: {name: net0, addresses: [" + uplinkNode + "/24]}}", "address"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUplink(t)
			top, err := topology.Decode([]byte("apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: t}\nspec:\n  steps: [" + c.step + "]\n"))
			if err != nil {
				t.Fatal(err)
			}
			r := newLane(t).engine(nil)
			sb := reconcile.Sandbox{ID: "t/up", Netns: newNetns(t), Topology: top, Given: ops.Givens{"net": {Device: "if:up0", Share: "share-1"}}}
			_, err = r.Ensure(ctxFor(t), sb)
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("want a refusal that names the %s, have %v", c.refused, err)
			}
			if !u.reached(uplinkNode) {
				t.Error("the neighbor does not reach the node")
			}
		})
	}
}
