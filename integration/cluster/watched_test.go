//go:build cluster

package cluster_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/eventually"
)

// watched is a bond over functions of both PFs, which is evicted when both are down.
const watched = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: watched}
spec:
  onFailure: {lost: Evict, after: 5s}
  claimTemplate: {namespaces: [default]}
  steps:
  - name: left
    type: sriov
    selector: {cel: 'device.attributes["dra.networking"].pfName == "enp3s0f0"'}
  - name: right
    type: sriov
    selector: {cel: 'device.attributes["dra.networking"].pfName == "enp3s0f1"'}
  - name: bond0
    type: bond
    dependOn: [left, right]
    config: {name: bond0, mode: active-backup, miimon: 100, addresses: ["192.0.2.2/26"]}
`

// TestWatched takes the wires from a pod with a bond, one after the other: what is seen
// of that in the claim, in the pod's status, in metrics and as taints, and that the pod is
// evicted with the last.
func TestWatched(t *testing.T) {
	b := newAgentBench(t, "2.4")
	kubectl(t, b.Cluster, watched, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/watched")
	b.create(t, claimingPod("watched", "watched"))
	b.ready(t, "watched")
	claim := strings.TrimSpace(b.get(t, "watched", ".status.resourceClaimStatuses[0].resourceClaimName"))
	links := func() string {
		return kubectl(t, b.Cluster, "", "get", "resourceclaim", claim, "-o", `jsonpath={range .status.devices[*]}{.conditions[?(@.type=="LinkUp")].status} {.conditions[?(@.type=="LinkUp")].reason};{end}`)
	}
	health := func() string {
		return b.get(t, "watched", `range .status.containerStatuses[0].allocatedResourcesStatus[0].resources[*]}{.resourceID} {.health} {.message};{end`)
	}
	taints := func() string {
		return kubectl(t, b.Cluster, "", "get", "resourceslices", "-o", `jsonpath={range .items[*].spec.devices[*].taints[*]}{.key}={.effect};{end}`)
	}
	await := func(what, want string, have func() string) {
		t.Helper()
		eventually.Holds(t, 2*time.Minute, what, func() string { return cmp.Diff(want, have()) })
	}
	await("both are up", "True Carrier;True Carrier;", links)
	const left, right = "dra.networking/device=pci-0000-01-10-0", "dra.networking/device=pci-0000-02-10-0"
	await("the kubelet shows both", left+` Healthy link "net1" has a carrier;`+right+` Healthy link "net2" has a carrier;`, health)
	for _, want := range []string{
		`plumbline_interface_receive_bytes_total{claim="` + claim + `",interface="bond0",namespace="default",pod="watched",step="bond0",topology="watched"}`,
		`plumbline_interface_transmit_packets_total{claim="` + claim + `",interface="net1",namespace="default",pod="watched",step="left",topology="watched"}`,
		`plumbline_ports{status="Up",step="right",topology="watched"} 1`,
	} {
		if said := b.metrics(t); !strings.Contains(said, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	await("nothing is tainted", "", taints)

	b.shell(t, "ip link set enp3s0f1 down")
	await("one is down", "True Carrier;False NoCarrier;", links)
	await("the kubelet shows one", left+` Healthy link "net1" has a carrier;`+right+` Unhealthy link "net2" has no carrier;`, health)
	await("it is tainted", "dra.networking/degraded=None;", taints)
	b.saysWhy(t, "watched", `NetworkLinkDown: topology "watched" step "right": link "net2" has no carrier; links built on it continue without it`)
	if gone := b.get(t, "watched", ".metadata.deletionTimestamp"); gone != "" {
		t.Errorf("a pod that works was deleted at %s", gone)
	}
	b.shell(t, "ip link set enp3s0f1 up")
	await("both are up again", "True Carrier;True Carrier;", links)
	await("and no taint is left", "", taints)
	b.flood(t, claim)

	b.shell(t, "ip link set enp3s0f1 down; ip link set enp3s0f0 down")
	until(t, "the pod is evicted", 2*time.Minute, func() bool {
		said, err := b.Kubectl(t.Context(), nil, "get", "pod", "watched", "-o", `jsonpath={.metadata.deletionTimestamp}`)
		return err != nil || said != ""
	})
	b.shell(t, "ip link set enp3s0f0 up; ip link set enp3s0f1 up")
	kubectl(t, b.Cluster, "", "wait", "--for=delete", "--timeout=120s", "pod/watched")
	until(t, "the devices are back", time.Minute, func() bool { return b.vfs(t) == b.home })
	b.nothingLeft(t)
}

// metrics are those of the agent.
func (b *agentBench) metrics(t *testing.T) string {
	t.Helper()
	return b.shell(t, `exec 3<>/dev/tcp/127.0.0.1/9808; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3`)
}

// flood lets the owner of a namespace set a link down and up as fast as it can, for half a
// minute: how often the claim is written is bounded.
func (b *agentBench) flood(t *testing.T, claim string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	written := make(chan string, 1)
	go func() {
		said, _ := b.Kubectl(ctx, nil, "get", "resourceclaim", claim, "--watch", "--output=name", "--request-timeout=40s")
		written <- said
	}()
	flips := b.shell(t, `ns=$(basename "$(jq -r '.devices[0].containerEdits.mounts[0].hostPath' /var/run/cdi/dra.networking-gate-*)")
end=$((SECONDS + 30)); n=0
while ((SECONDS < end)); do ip -n $ns -batch - <<<$'link set net2 down\nlink set net2 up\nlink set net2 down\nlink set net2 up' || true; n=$((n + 4)); done 2>/dev/null
echo $n`)
	writes := strings.Count(<-written, "\n")
	memory := ""
	for line := range strings.Lines(b.metrics(t)) {
		if strings.HasPrefix(line, "process_resident_memory_bytes") {
			memory = strings.TrimSpace(line)
		}
	}
	t.Logf("%s changes in 30 s: the claim was written %d times; %s", strings.TrimSpace(flips), writes, memory)
	if writes > 30 {
		t.Errorf("the claim was written %d times", writes)
	}
	until(t, "the link is repaired, and the flapping is over", 3*time.Minute, func() bool {
		said := kubectl(t, b.Cluster, "", "get", "resourceclaim", claim, "-o", `jsonpath={range .status.devices[*]}{.conditions[?(@.type=="LinkUp")].status}{.conditions[?(@.type=="InSync")].status};{end}`)
		return said == "TrueTrue;TrueTrue;"
	})
}
