//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// storageQoS marks what pods with the label role: store send over topology net-1, to
// 192.0.2.0/24 with one codepoint and to some ports with another and a limit.
const storageQoS = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: storage, namespace: default}
spec:
  priority: 10
  podSelector: {matchLabels: {role: store}}
  netAttachRefs: [{kind: NetworkTopology, name: net-1}]
  egress:
  - {dscp: %[1]d, classifier: {to: [{ipBlock: {cidr: 192.0.2.0/24}}]}}
  - dscp: 26
    bandwidth: {rate: 8000, burst: 800}
    classifier: {ports: [%[2]s]}
`

// TestNetworkQoS holds that the objects of a cluster mark and limit what pods send: before
// their containers start, after every change, and without an effect on others.
func TestNetworkQoS(t *testing.T) {
	b := newAgentBench(t, "2.4", "networkQoS.enabled=true")
	// The filters of all pods: the interface, and the codepoint or the rate of each.
	filters := func() string {
		t.Helper()
		return strings.Join(strings.Fields(b.shell(t, `for n in $(ls /run/netns); do for dev in net1 net2; do
	tc -j -n $n filter show dev $dev egress 2>/dev/null | jq -r '.[] | select(.options.handle != null) | "'$dev':\(.pref)"' || true
done; done | sort`)), " ")
	}
	want := func(what, have string) {
		t.Helper()
		began := time.Now()
		until(t, what, time.Minute, func() bool { return filters() == have })
		t.Logf("%s: within %s", what, time.Since(began).Round(10*time.Millisecond))
	}
	event := func(pod, reason, words string) {
		t.Helper()
		until(t, "the Event "+reason, time.Minute, func() bool {
			return strings.Contains(kubectl(t, b.Cluster, "", "get", "events", "--field-selector", "involvedObject.name="+pod+",reason="+reason, "-o", "jsonpath={.items[*].message}"), words)
		})
	}
	unrestarted := func(pods ...string) {
		t.Helper()
		for _, pod := range pods {
			if n := b.get(t, pod, ".status.containerStatuses[0].restartCount"); n != "0" {
				t.Errorf("pod %s was restarted %s times", pod, n)
			}
		}
	}
	const two = "{protocol: TCP, port: 2049}, {protocol: UDP, port: 2049}"
	b.applied(t, fmt.Sprintf(storageQoS, 8, two))
	labelled := strings.Replace(claimingPod("store", "net-1"), "namespace: default}", "namespace: default, labels: {role: store}}", 1)

	// One filter of the first rule, and of the second two for IPv4 and two for IPv6. As the second limits ports, fragments
	// have a chain, with as many, and two filters lead there.
	const (
		fragments = "net1:23636 net1:23636 net1:23637 net1:23637 net1:23638"
		whole     = fragments + " net1:28080 net1:28081 net1:28114 net1:28114 net1:28156 net1:28309 net1:28309"
	)
	b.create(t, labelled)
	b.create(t, claimingPod("other", "net-2"))
	b.ready(t, "store")
	b.ready(t, "other")
	if n := startedWith(t, b, "store", "net1"); n != 12 {
		t.Errorf("when its container started, the interface had %d filters, want 12", n)
	}
	want("new pods", whole)

	b.applied(t, fmt.Sprintf(storageQoS, 10, "{protocol: TCP, port: 2049}"))
	const part = "net1:23636 net1:23637 net1:23638 net1:28080 net1:28081 net1:28114 net1:28156 net1:28309"
	want("an edit reaches a pod that runs", part)
	event("store", "NetworkQoSApplied", "")
	b.applied(t, fmt.Sprintf(storageQoS, 10, two))
	want("and another edit", whole)

	kubectl(t, b.Cluster, "", "label", "pod", "store", "role-")
	want("the label of the pod removed", "")
	kubectl(t, b.Cluster, "", "label", "pod", "store", "role=store")
	want("and set again", whole)

	b.agent(t, "KILL")
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "rollout", "status", "--timeout=120s", "daemonset/plumbline-agent")
	b.applied(t, fmt.Sprintf(storageQoS, 10, "{protocol: TCP, port: 2049}")) // the new agent has read everything when this arrives
	want("an edit after the agent was killed", part)

	// Destinations that are pods: on each topology the addresses that the selected pods have there,
	// which the controller takes from the claims that the agent has written.
	const toPods = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: to-pods, namespace: default}
spec:
  priority: 11
  networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {}}]
  egress: [{dscp: 1, classifier: {to: [{podSelector: {%s}}]}}]
`
	b.applied(t, fmt.Sprintf(toPods, ""))
	// Of the address, and of it with the port of the rule below.
	want("destinations that are pods", "net1:23598 net1:23636 net1:23637 net1:23638 net1:28080 net1:28081 net1:28082 net1:28114 net1:28148 net1:28156 net1:28309 net2:28148")
	if said := b.shell(t, `for n in $(ls /run/netns); do tc -j -n $n filter show dev net1 egress pref 28148 2>/dev/null | jq -r '.[] | select(.options.handle != null) | .options.keys.dst_ip' || true; done`); strings.TrimSpace(said) != "192.0.2.65" {
		t.Errorf("the filter is to %q", said)
	}
	b.applied(t, fmt.Sprintf(toPods, "matchLabels: {peer: db}"))
	want("an edit that selects none", part)
	kubectl(t, b.Cluster, "", "label", "pod", "other", "peer=db")
	want("the label of a pod that is a destination", part+" net2:28148")
	kubectl(t, b.Cluster, "", "label", "pod", "other", "peer-")
	want("and without it", part)
	kubectl(t, b.Cluster, "", "delete", "networkqos", "to-pods")

	// A limit of all that a virtual function sends is on its physical function, and the filters mark.
	const limitAll = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: all, namespace: default}
spec:
  priority: 12
  netAttachRefs: [{kind: NetworkTopology, name: net-2}]
  egress: [{dscp: 1, bandwidth: {rate: 200000}}]
`
	b.applied(t, limitAll)
	want("a limit of a virtual function", part+" net2:28180 net2:28567")
	limits := func() string {
		t.Helper()
		return strings.Join(strings.Fields(b.shell(t, `ip link show enp3s0f0 | grep -o "max_tx_rate [0-9]*" || true; for n in $(ls /run/netns); do tc -n $n filter show dev net2 egress 2>/dev/null | grep -o police || true; done`)), " ")
	}
	if have := limits(); have != "max_tx_rate 200" {
		t.Errorf("limits: %q", have)
	}
	until(t, "the status names the physical function", 2*time.Minute, func() bool {
		return kubectl(t, b.Cluster, "", "get", "networkqos", "all", "-o", `jsonpath={range .status.backends[*]}{.backend} {.pods} {.inPlace};{end}`) == "tc 1 1;PF 1 1;"
	})
	b.shell(t, "ip link set enp3s0f0 vf 1 max_tx_rate 0")
	until(t, "the limit is repaired", 2*time.Minute, func() bool { return limits() == "max_tx_rate 200" })
	kubectl(t, b.Cluster, "", "delete", "networkqos", "all")
	want("and without the limit", part)
	if have := limits(); have != "" {
		t.Errorf("limits afterwards: %q", have)
	}

	// An invalid object is refused.
	const invalid = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: no-prefix, namespace: default}
spec:
  priority: 12
  networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {}}]
  egress: [{dscp: 1, classifier: {to: [{ipBlock: {cidr: nowhere}}]}}]
`
	if _, err := b.Kubectl(t.Context(), strings.NewReader(invalid), "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), `"nowhere" is not a prefix`) {
		t.Errorf("an invalid object: %v", err)
	}
	b.applied(t, fmt.Sprintf(storageQoS, 10, two))
	want("an edit", whole)
	unrestarted("store", "other")

	// Too many filters: a pod that runs keeps what it has, and a new one does not start.
	var except, ports []string
	for i := range 200 {
		except = append(except, fmt.Sprintf("10.%d.1.0/24", i))
	}
	for i := range 20 {
		ports = append(ports, fmt.Sprintf("{protocol: TCP, port: %d}", i+1))
	}
	crowd := fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: crowd, namespace: default}
spec:
  priority: 20
  podSelector: {matchLabels: {role: store}}
  networkSelectors: [{networkSelectionType: NetworkTopologies, networkTopologySelector: {}}]
  egress: [{dscp: 1, classifier: {to: [{ipBlock: {cidr: 10.0.0.0/8, except: [%s]}}], ports: [%s]}}]
`, strings.Join(except, ", "), strings.Join(ports, ", "))
	kubectl(t, b.Cluster, crowd, "apply", "-f", "-")
	event("store", "NetworkQoSFailed", "too many filters")
	if have := filters(); have != whole {
		t.Errorf("the pod has %q, want %q as before", have, whole)
	}
	kubectl(t, b.Cluster, "", "delete", "networkqos", "crowd")

	// A node reports at most every 30 s.
	until(t, "the status counts the pod", 2*time.Minute, func() bool {
		return kubectl(t, b.Cluster, "", "get", "networkqos", "storage", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {range .status.backends[*]}{.backend} {.rules} {.pods} {.inPlace} {.nodes} {.failingNodes}{end}`) == "True tc 2 1 1 1 0"
	})

	kubectl(t, b.Cluster, "", "delete", "networkqos", "storage")
	want("the object deleted", "")
	unrestarted("store", "other")
	b.drop(t, "store", "other")
}

// startedWith returns how many filters an interface had when the container of a pod started.
func startedWith(t *testing.T, b *agentBench, pod, name string) int {
	t.Helper()
	network := networkAtStart(t, b.Cluster, pod)
	i := network.Interface(name)
	if i == nil {
		t.Fatalf("pod %s has no interface %s: %+v", pod, name, network)
	}
	return i.Filters
}
