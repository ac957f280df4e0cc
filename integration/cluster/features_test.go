//go:build cluster && soak

package cluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// TestNodeWithoutFeatures is the life of a pod on a cluster of the oldest version that is
// supported, without the features of DRA that can be off there, and with a kubelet without
// ResourceHealthStatus. The API server drops the status of the claim's devices: nothing is
// written repeatedly.
func TestNodeWithoutFeatures(t *testing.T) {
	without := []string{"--emulated-version=1.36", "--feature-gates=DRAConsumableCapacity=false,DRAPartitionableDevices=false,DRADeviceTaints=false," +
		"DRADeviceBindingConditions=false,DRAExtendedResource=false,DRAResourceClaimDeviceStatus=false,DRAResourceClaimGranularStatusAuthorization=false"}
	b := newAgentBenchIn(t, cluster.Options{APIServer: without, ControllerManager: without, Scheduler: without},
		cluster.NodeOptions{Kubelet: "featureGates: {ResourceHealthStatus: false, ResourceHealthStatusMessage: false}"},
		thisRelease)

	b.create(t, claimingPod("plain", "net-1"))
	b.ready(t, "plain")
	b.has(t, "plain", "net1")
	if said := kubectl(t, b.Cluster, "", "get", "resourceclaims", "-o", "jsonpath={.items[*].status.devices}"); said != "" {
		t.Fatalf("the API server keeps the status of devices: %s", said)
	}

	// Each message is counted while nothing changes.
	writes := func() string {
		t.Helper()
		var of []string
		for line := range strings.Lines(kubectl(t, b.Cluster, "", "get", "--raw", "/metrics")) {
			if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `resource="resourceclaims"`) && !strings.Contains(line, `verb="GET"`) && !strings.Contains(line, `verb="LIST"`) && !strings.Contains(line, `verb="WATCH"`) {
				of = append(of, line)
			}
		}
		return strings.Join(of, "")
	}
	settled := ""
	until(t, "no more writes of the claim", 2*time.Minute, func() bool {
		before := settled
		settled = writes()
		time.Sleep(20 * time.Second) // no sleep ends sooner: a status waits less than that before it is written, and none must be
		return before == settled
	})
	if settled == "" {
		t.Error("the API server counts no writes of claims at all")
	}

	b.shell(t, `for n in $(ls /run/netns); do ip -n $n address flush dev net1 2>/dev/null || true; done`)
	until(t, "the address is repaired", time.Minute, func() bool {
		return strings.TrimSpace(b.shell(t, `for n in $(ls /run/netns); do ip -br -n $n address show dev net1 2>/dev/null || true; done | grep 192.0.2. || true`)) != ""
	})
	b.agent(t, "KILL")
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "rollout", "status", "--timeout=120s", "daemonset/plumbline-agent")
	b.hasNow(t, "plain", "net1")
	b.create(t, claimingPod("second", "net-2"))
	b.ready(t, "second")
	b.has(t, "second", "net2")
	if n := b.get(t, "plain", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("the pod was restarted %s times", n)
	}
	b.drop(t, "plain", "second")
}
