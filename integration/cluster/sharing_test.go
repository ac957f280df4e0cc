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
  - {name: net, type: macvlan, allowDuplicate: true, config: {name: store0, addresses: ["192.0.2.200/26"]}}
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

// limited is a PF whose functions are given away as shares of it, with a bandwidth that
// the emulated card has: a tenth of 10 Gbit/s.
const limited = `
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: functions}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1"'}
  exposure:
    allowMultipleAllocations: true
    supportedCNIPlugins: [{name: sriov}]
    capacity: {bandwidth: {value: 1G, requestPolicy: {default: 100M, validRange: {min: 100M, max: 1G, step: 100M}}}}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: limited}
spec:
  steps:
  - name: fn
    type: sriov
    allowDuplicate: true
    selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1"'}
    config: {name: fast0, addresses: ["192.0.2.210/26"]}
`

// testFunctionsAsShares runs pods with functions of a PF by their bandwidth: two fit, the
// third waits. The agent is killed in between, a rate is removed, and a share released.
func (b *agentBench) testFunctionsAsShares(t *testing.T) {
	kubectl(t, b.Cluster, limited, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/limited", "deviceexposurepolicy/functions")
	b.published(t, "with four functions as shares of their PF", 5)
	for _, mbit := range []int{300, 600, 200} {
		kubectl(t, b.Cluster, claimTemplate(fmt.Sprintf("limited-%d", mbit), fmt.Sprintf("{name: fn, exactly: {deviceClassName: limited-fn, capacity: {requests: {bandwidth: %dM}}}}", mbit)), "apply", "-f", "-")
	}
	b.create(t, claimingPod("three", "limited-300"))
	b.ready(t, "three")
	b.has(t, "three", "fast0")
	b.agent(t, "KILL")
	b.create(t, claimingPod("six", "limited-600"))
	b.ready(t, "six")
	b.has(t, "six", "fast0")
	b.create(t, claimingPod("two-more", "limited-200"))
	b.saysWhy(t, "two-more", "FailedScheduling")
	if node := b.get(t, "two-more", ".spec.nodeName"); node != "" {
		t.Errorf("the third pod is on node %q", node)
	}
	b.rates(t, 300, 600)
	for pod, mbit := range map[string]float64{"three": 300, "six": 600} {
		claim := b.get(t, pod, ".status.resourceClaimStatuses[0].resourceClaimName")
		for _, side := range []string{"reserved", "enforced"} {
			metric := fmt.Sprintf(`plumbline_bandwidth_%s_bytes_per_second{claim="%s",namespace="default",pod="%s",step="fn",topology="limited"} %v`, side, claim, pod, mbit*1e6/8)
			until(t, metric, time.Minute, func() bool { return strings.Contains(b.metrics(t), metric) })
		}
	}
	b.shell(t, "for vf in 0 1 2 3; do ip link set enp3s0f1 vf $vf max_tx_rate 0; done")
	b.rates(t, 300, 600)

	kubectl(t, b.Cluster, "", "delete", "pod", "six", "--timeout=120s")
	b.ready(t, "two-more")
	b.has(t, "two-more", "fast0")
	b.hasNow(t, "three", "fast0")
	if n := b.get(t, "three", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("the pod that keeps its share was restarted %s times", n)
	}
	b.rates(t, 200, 300)
	kubectl(t, b.Cluster, "", "delete", "deviceexposurepolicy", "functions")
	b.published(t, "withdrawn: the two that are free, and the PF that is in use", 7)
	b.drop(t, "three", "two-more")
	b.rates(t)
	b.published(t, "without the policy", 8)
	kubectl(t, b.Cluster, "", "delete", "networktopology", "limited", "--timeout=60s")
	kubectl(t, b.Cluster, "", "delete", "resourceclaimtemplates", "limited-300", "limited-600", "limited-200")
}

// rates waits until the second PF limits functions to these rates in Mbit/s, sorted, and
// no other.
func (b *agentBench) rates(t *testing.T, want ...int) {
	t.Helper()
	until(t, fmt.Sprintf("functions are limited to %v", want), 2*time.Minute, func() bool {
		have := strings.Fields(b.shell(t, `ip link show enp3s0f1 | awk '{ for (i = 1; i < NF; i++) if ($i == "max_tx_rate") print $(i+1)+0 }' | sort -n`))
		return strings.Join(have, " ") == strings.Trim(fmt.Sprint(want), "[]")
	})
}

// testSharesReboot cuts the power of the node below pods that have shares: one of links on
// a device, and one of the functions of another.
func (b *agentBench) testSharesReboot(t *testing.T) {
	kubectl(t, b.Cluster, sharedMaster, "apply", "-f", "-")
	kubectl(t, b.Cluster, limited, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/store", "networktopology/limited", "deviceexposurepolicy/master", "deviceexposurepolicy/functions")
	b.published(t, "shared", 6)
	kubectl(t, b.Cluster, claimTemplate("limited-300", "{name: fn, exactly: {deviceClassName: limited-fn, capacity: {requests: {bandwidth: 300M}}}}"), "apply", "-f", "-")
	pods := map[string]string{"linked-1": "store0", "linked-2": "store0", "functional": "fast0"}
	for pod, link := range pods {
		template := "store"
		if link == "fast0" {
			template = "limited-300"
		}
		b.create(t, claimingPod(pod, template))
	}
	for pod, link := range pods {
		b.ready(t, pod)
		b.has(t, pod, link)
	}
	b.rates(t, 300)
	reboot(t, b.node)
	b.registeredSince(t, "reboot, since the kubelet was started", b.clock(t, "date -r /run/node/kubelet +%s%N"))
	for pod, link := range pods {
		kubectl(t, b.Cluster, "", "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=240s", "pod/"+pod)
		b.ready(t, pod)
		b.has(t, pod, link)
	}
	b.rates(t, 300)
	b.published(t, "shared, after the reboot", 6)
	kubectl(t, b.Cluster, "", "delete", "deviceexposurepolicy", "master", "functions")
	kubectl(t, b.Cluster, "", "delete", "pod", "linked-1", "linked-2", "functional", "--timeout=120s")
	b.rates(t)
	b.published(t, "without policies", 8)
	b.home = b.returned(t, b.home) // this boot's
	b.nothingLeft(t)
	kubectl(t, b.Cluster, "", "delete", "networktopology", "store", "limited", "--timeout=60s")
	kubectl(t, b.Cluster, "", "delete", "resourceclaimtemplate", "limited-300")
}
