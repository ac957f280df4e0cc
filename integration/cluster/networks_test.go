//go:build cluster

package cluster_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// physnets is a node whose first PF is wired to one physical network and whose second to
// two, and a topology with two functions of the first network and one of the last.
const physnets = `
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: physnet2}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f0"'}
  physicalNetworks: [{name: physnet2, vlan: 102}]
---
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: physnet3}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1"'}
  physicalNetworks: [{name: physnet4, vlan: 104}, {name: physnet3, vlan: 103}]
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: physnets}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - name: a
    type: sriov
    extendedResourceName: example.com/sriov-vf-physnet2
    selector: {cel: 'device.attributes["dra.networking"].physicalNetworkName == "physnet2"'}
    config: {name: net2a, addresses: ["192.0.2.2/26"]}
  - name: b
    type: sriov
    extendedResourceName: example.com/sriov-vf-physnet2
    selector: {cel: 'device.attributes["dra.networking"].physicalNetworkName == "physnet2"'}
    config: {name: net2b, addresses: ["192.0.2.3/26"]}
  - name: c
    type: sriov
    extendedResourceName: example.com/sriov-vf-physnet3
    selector: {cel: '"physnet3" in device.attributes["dra.networking"].physicalNetworks.split(",")'}
    config: {name: net3, addresses: ["192.0.2.66/26"]}
`

// withholdAll is a policy that leaves no device for new pods.
const withholdAll = `{apiVersion: networking.dra.io/v1alpha1, kind: DeviceExposurePolicy, metadata: {name: none}, spec: {priority: 100, action: withhold}}`

// testPhysicalNetworks runs pods with two functions of one physical network and one of
// another. Their init containers have the network too, whether they request devices in
// their limits or by a claim that no other container lists. The policies are edited, and
// all devices withheld, below a pod that runs; it keeps what it has.
func (b *agentBench) testPhysicalNetworks(t *testing.T) {
	kubectl(t, b.Cluster, physnets, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/physnets", "deviceexposurepolicy/physnet2", "deviceexposurepolicy/physnet3")

	const two, three = "example.com/sriov-vf-physnet2", "example.com/sriov-vf-physnet3"
	b.create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: summed, namespace: default}
spec:
  terminationGracePeriodSeconds: 5
  initContainers:
  - {name: first, image: %[1]q, imagePullPolicy: Never, args: [show], resources: {limits: {%[2]s: 1, %[3]s: 1}}}
  containers:
  - {name: vf-container, image: %[1]q, imagePullPolicy: Never, resources: {limits: {%[2]s: 1}}}
  - {name: vf-other-container, image: %[1]q, imagePullPolicy: Never, resources: {limits: {%[2]s: 1, %[3]s: 1}}}
`, cluster.PodImage, two, three))
	b.ready(t, "summed")
	for _, container := range []string{"first", "vf-container", "vf-other-container"} {
		b.startedWithin(t, "summed", container)
	}
	b.tagged(t, "while the pod runs", 2, 1)
	b.drop(t, "summed")
	b.tagged(t, "after the pod", 0, 0)

	b.create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: claimed, namespace: default}
spec:
  terminationGracePeriodSeconds: 5
  resourceClaims: [{name: net, resourceClaimTemplateName: physnets}]
  initContainers: [{name: first, image: %[1]q, imagePullPolicy: Never, args: [show], resources: {claims: [{name: net}]}}]
  containers: [{name: pod, image: %[1]q, imagePullPolicy: Never}]
`, cluster.PodImage))
	b.ready(t, "claimed")
	b.startedWithin(t, "claimed", "first")
	b.startedWithin(t, "claimed", "pod")

	kubectl(t, b.Cluster, "", "patch", "devpol", "physnet2", "--type=merge", "-p", `{"spec":{"physicalNetworks":[{"name":"physnet5","vlan":105}]}}`)
	kubectl(t, b.Cluster, "", "delete", "devpol", "physnet3")
	kubectl(t, b.Cluster, withholdAll, "create", "-f", "-")
	b.published(t, "withheld but for those in use", 3)
	// The network is that of the record: an agent that has seen only the edit repairs to it.
	b.agent(t, "STOP")
	b.shell(t, "for pf in enp3s0f0 enp3s0f1; do for vf in 0 1 2 3; do ip link set $pf vf $vf vlan 0; done; done")
	b.agent(t, "KILL")
	until(t, "another agent has repaired the VLANs", 3*time.Minute, func() bool { return b.tags(t) == [2]int{2, 1} })
	if n := b.get(t, "claimed", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("the pod was restarted %s times", n)
	}
	b.published(t, "still", 3)
	b.drop(t, "claimed")
	b.published(t, "withheld when they are free", 0)
	b.tagged(t, "in the end", 0, 0)
	kubectl(t, b.Cluster, "", "delete", "devpol", "physnet2", "none")
	kubectl(t, b.Cluster, "", "delete", "networktopology", "physnets", "--timeout=60s")
	b.published(t, "without policies", 8)
}

// startedWithin fails the test unless a container was started with the interfaces of the
// topology.
func (b *agentBench) startedWithin(t *testing.T, pod, container string) {
	t.Helper()
	var network struct {
		Interfaces []struct{ Name string }
	}
	said := kubectl(t, b.Cluster, "", "logs", pod, "-c", container)
	if err := json.Unmarshal([]byte(said), &network); err != nil {
		t.Fatalf("container %q said %q: %v", container, said, err)
	}
	var names []string
	for _, link := range network.Interfaces {
		names = append(names, link.Name)
	}
	for _, want := range []string{"net2a", "net2b", "net3"} {
		if !slices.Contains(names, want) {
			t.Errorf("container %q of pod %q was started with %q, without %q", container, pod, names, want)
		}
	}
}

// tags counts the functions that the first PF tags with the VLAN of physnet2, and the
// second with that of physnet3.
func (b *agentBench) tags(t *testing.T) [2]int {
	t.Helper()
	return [2]int{
		strings.Count(b.shell(t, "ip link show enp3s0f0"), " vlan 102,"),
		strings.Count(b.shell(t, "ip link show enp3s0f1"), " vlan 103,"),
	}
}

// tagged fails the test unless that many functions are tagged, and no other with any VLAN.
func (b *agentBench) tagged(t *testing.T, when string, two, three int) {
	t.Helper()
	if have := b.tags(t); have != [2]int{two, three} {
		t.Errorf("%s: %d and %d functions are tagged, want %d and %d", when, have[0], have[1], two, three)
	}
	if all := strings.Count(b.shell(t, "ip link show"), " vlan "); all != two+three {
		t.Errorf("%s: %d functions are tagged in all, want %d", when, all, two+three)
	}
}

// published waits until the node's slices have that many devices.
func (b *agentBench) published(t *testing.T, when string, want int) {
	t.Helper()
	until(t, fmt.Sprintf("%d devices are published, %s", want, when), 2*time.Minute, func() bool {
		names := kubectl(t, b.Cluster, "", "get", "resourceslices", "-o", `jsonpath={range .items[?(@.spec.driver=="dra.networking")].spec.devices[*]}{.name}{"\n"}{end}`)
		return len(strings.Fields(names)) == want
	})
}

// announcing is a pod that does on the second PF what a switch does at the other end of the
// wire of the first.
const announcing = `
apiVersion: v1
kind: Pod
metadata: {name: switch, namespace: default}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 5
  containers: [{name: pod, image: %q, imagePullPolicy: Never, args: [announce, enp3s0f1, leaf-1], securityContext: {capabilities: {add: [NET_RAW]}}}]
`

// rails expects a switch at the first PF.
const rails = `
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: rails}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f0"'}
  neighbour: {expect: {switch: %q}, rail: {match: 'leaf-([0-9]+)'}}
`

// testNeighbours lets the agent receive by LLDP what its first PF is connected to.
func (b *agentBench) testNeighbours(t *testing.T) {
	kubectl(t, b.Cluster, fmt.Sprintf(rails, "leaf-1"), "apply", "-f", "-")
	b.create(t, fmt.Sprintf(announcing, cluster.PodImage))
	functions := func(when, want string, count int) {
		t.Helper()
		said := ""
		until(t, when, 3*time.Minute, func() bool {
			said = kubectl(t, b.Cluster, "", "get", "resourceslices", "-o", `jsonpath={range .items[?(@.spec.driver=="dra.networking")].spec.devices[*]}{.attributes.pfName.string} {.attributes.switch.string} {.attributes.switchPort.string} {.attributes.rail.string} {.taints[*].key}{"\n"}{end}`)
			return strings.Count(said, want+"\n") == count
		})
		t.Logf("%s:\n%s", when, said)
	}
	functions("the functions of the first PF have its switch", "enp3s0f0 leaf-1 Ethernet7 1 ", 4)
	kubectl(t, b.Cluster, fmt.Sprintf(rails, "leaf-2"), "apply", "-f", "-")
	functions("another switch is expected", "enp3s0f0 leaf-1 Ethernet7 1 dra.networking/miswired", 4)
	kubectl(t, b.Cluster, "", "delete", "devpol", "rails")
	functions("no switch is expected", "enp3s0f0 leaf-1 Ethernet7  ", 4)
	kubectl(t, b.Cluster, "", "delete", "pod", "switch", "--timeout=60s")
}
