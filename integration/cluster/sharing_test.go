//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// sharedMaster is a PF with functions that pods have macvlan links on.
const sharedMaster = `
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: master}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f0"'}
  exposure: {allowMultipleAllocations: true, supportedCNIPlugins: [{name: macvlan}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: store}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - {name: net, type: macvlan, config: {name: store0, addresses: ["192.0.2.200/26"]}}
`

// testSharedDevice runs pods on one device at once, by claims and by limits. One ends, the
// policy is withdrawn, the agent is killed: the others keep what they have, and the last
// one takes nothing with it that was on the host.
func (b *agentBench) testSharedDevice(t *testing.T) {
	kubectl(t, b.Cluster, sharedMaster, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/store", "deviceexposurepolicy/master")
	b.published(t, "with the shared one", 9)
	const pods = 6
	var names []string
	began := time.Now()
	for i := range pods {
		name := fmt.Sprintf("sharer-%d", i)
		names = append(names, name)
		manifest := claimingPod(name, "store")
		if i%2 == 1 {
			manifest = askingPod(name, "deviceclass.resource.kubernetes.io/store-net: 1")
		}
		b.create(t, manifest)
	}
	for _, name := range names {
		b.ready(t, name)
		b.has(t, name, "store0")
	}
	t.Logf("%d pods on one device are Ready after %s", pods, time.Since(began).Round(10*time.Millisecond))
	until(t, "each claim's status has its share", time.Minute, func() bool {
		seen := map[string]bool{}
		for line := range strings.Lines(kubectl(t, b.Cluster, "", "get", "resourceclaims", "-o", `jsonpath={range .items[*].status.devices[*]}{.shareID} {.device} {.networkData.interfaceName}{"\n"}{end}`)) {
			if f := strings.Fields(line); len(f) == 3 && strings.HasSuffix(f[1], "-shared") && f[2] == "store0" {
				seen[f[0]] = true
			}
		}
		return len(seen) == pods
	})

	kubectl(t, b.Cluster, "", "delete", "deviceexposurepolicy", "master")
	kubectl(t, b.Cluster, "", "delete", "pod", names[0], names[1], "--timeout=120s")
	b.published(t, "withdrawn, while shares are in use", 9)
	b.agent(t, "KILL")
	until(t, "the agent runs again", 2*time.Minute, func() bool {
		return strings.TrimSpace(kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "get", "daemonset/plumbline-agent", "-o", "jsonpath={.status.numberUnavailable}")) == ""
	})
	b.published(t, "by another agent", 9)
	for _, name := range names[2:] {
		b.hasNow(t, name, "store0")
		if n := b.get(t, name, ".status.containerStatuses[0].restartCount"); n != "0" {
			t.Errorf("pod %s was restarted %s times", name, n)
		}
	}
	b.drop(t, names[2:]...)
	b.published(t, "when the last share is released", 8)
	if left := b.shell(t, "ip -o link show type macvlan"); strings.TrimSpace(left) != "" {
		t.Errorf("left on the host: %s", left)
	}
	kubectl(t, b.Cluster, "", "delete", "networktopology", "store", "--timeout=60s")
}
