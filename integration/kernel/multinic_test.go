package kernel

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/integration/namespace"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestMultiNIC is the example of multi-nic-cni on one node: two pods have an ipvlan link each
// on both interfaces of the host, which are found by their networks, with addresses of the
// node's block of each interface. They reach one another on both. A pod keeps its masters
// when an address of the host moves: they are chosen once. The release leaves nothing.
func TestMultiNIC(t *testing.T) {
	layout, err := addresspool.New(addresspool.Spec{
		Name: "multi-nic", Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.168.0.0/16"}}, HostBlock: 6, InterfaceBlock: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range effort.Sample(t, 2, []string{"l2", "l3", "l3s"}) {
		t.Run(mode, func(t *testing.T) {
			l := newLane(t)
			s := &foreignWriter{t: t}
			for i := range 3 {
				virtualCard(t, fmt.Sprintf("nic%d", i))
				s.run(fmt.Sprintf("ip link set nic%d up", i))
			}
			s.run("ip link add first0 link nic0 type ipvlan && ip link delete first0; ip address add 10.0.1.1/24 dev nic1; ip address add 10.0.2.1/24 dev nic0")
			before := readHost(t, false)
			decoded, err := topology.Decode(fmt.Appendf(nil, `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: multi-nic}
spec:
  steps:
    - name: net1
      type: ipvlan
      config:
        masterNets: [10.0.1.0/24, 10.0.2.0/24]
        ipam: {type: multi-nic-ipam, subnet: 192.168.0.0/16, hostBlock: 6, interfaceBlock: 2, vlanMode: %s}
`, mode))
			if err != nil {
				t.Fatal(err)
			}
			var h addresspool.Holdings
			block, _ := layout.Groups()[0].At(1) // the second node
			h.Gain(layout, block, "uid")
			r := l.engine(nil)
			boxes := make([]reconcile.Sandbox, 2)
			for i := range boxes {
				path, err := namespace.Add(fmt.Sprintf("multi-nic-%d", i))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { deleteNetns(path) })
				sb := reconcile.Sandbox{ID: reconcile.SandboxID(fmt.Sprintf("t/%d", i)), Netns: path, Topology: decoded, Given: ops.Givens{}}
				for j := range decoded.Steps {
					step := &decoded.Steps[j]
					_, iface, _ := topology.FromPool(step)
					got, err := h.Take(layout, addresspool.Owner{Claim: path, Step: step.Name}, iface, 0)
					if err != nil {
						t.Fatal(err)
					}
					sb.Given[step.Name] = ops.Allocated(layout, got)
				}
				boxes[i] = sb
				if _, err := r.Ensure(ctxFor(t), sb); err != nil {
					t.Fatal(err)
				}
			}
			reach := func() {
				t.Helper()
				for _, sb := range boxes {
					if rep, err := r.Ensure(ctxFor(t), sb); err != nil || !rep.Unchanged {
						t.Errorf("%s, applied again: %v, %v", sb.ID, rep.Changes, err)
					}
				}
				pod := filepath.Base(boxes[0].Netns)
				s.run(fmt.Sprintf("ip netns exec %s ping -c 1 -W 5 -I net1-0 192.168.1.2 && ip netns exec %s ping -c 1 -W 5 -I net1-1 192.168.65.2", pod, pod))
			}
			reach()

			// The address of the first network moves to another interface.
			s.run("ip address del 10.0.1.1/24 dev nic1; ip address add 10.0.1.1/24 dev nic2")
			for _, sb := range boxes {
				if rep, err := r.Ensure(ctxFor(t), sb); err != nil || !rep.Unchanged {
					t.Errorf("%s, whose network moved: %v, %v", sb.ID, rep.Changes, err)
				}
			}
			reach()
			s.run("ip address del 10.0.1.1/24 dev nic2; ip address add 10.0.1.1/24 dev nic1")
			for _, sb := range boxes {
				if rep, err := r.AwaitRelease(ctxFor(t), sb.ID); err != nil || rep.Unclean != "" {
					t.Errorf("%s: %v, %v", sb.ID, rep.Unclean, err)
				}
			}
			if diff := cmp.Diff(before, readHost(t, false)); diff != "" {
				t.Errorf("the host (-before +after):\n%s", diff)
			}
		})
	}
}
