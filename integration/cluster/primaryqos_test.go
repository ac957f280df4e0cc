//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
)

// TestNetworkQoSOnPodNetwork holds, on a node without CNI plugins and on both versions of containerd, that an object which selects no
// network is enforced on the eth0 of pods without claims before their containers start, that edits and a killed agent's successor reach
// them, and what its status says.
func TestNetworkQoSOnPodNetwork(t *testing.T) {
	for _, containerd := range []string{"2.4", "1.7"} {
		t.Run(containerd, func(t *testing.T) { testNetworkQoSOnPodNetwork(t, containerd) })
	}
}

func testNetworkQoSOnPodNetwork(t *testing.T, containerd string) {
	b := newAgentBenchIn(t, cluster.Options{PodCIDRs: true}, cluster.NodeOptions{Containerd: containerd, NoCNI: true, Kubelet: "staticPodPath: " + staticPods}, thisRelease, "podNetwork.enabled=true", "networkQoS.enabled=true")
	object := func(dscp int) string {
		return fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: paid, namespace: default}
spec:
  priority: 2
  egress: [{dscp: %d, classifier: {to: [{ipBlock: {cidr: 0.0.0.0/0}}]}}]
`, dscp)
	}
	accepted := func() string {
		return kubectl(t, b.Cluster, "", "get", "networkqos", "paid", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].status} {.status.conditions[?(@.type=="Accepted")].reason} {.status.conditions[?(@.type=="Ready")].reason}`)
	}
	kubectl(t, b.Cluster, object(40), "apply", "-f", "-")
	until(t, "no topology makes the primary network", time.Minute, func() bool { return strings.HasPrefix(accepted(), "False NoTopology") })
	began := time.Now()
	b.applied(t, story.PodNetwork)
	if err := b.node.WaitReady(t.Context(), began); err != nil {
		t.Fatal(err)
	}
	b.create(t, servingPod("paying", b.node.Name))
	b.ready(t, "paying")
	if n := startedWith(t, b, "paying", "eth0"); n == 0 {
		t.Error("the container has started without filters")
	}
	marks := func() string {
		return strings.TrimSpace(b.shell(t, `for n in $(ls /run/netns); do
	if [[ $(ip -o -n "$n" address show dev eth0 2>/dev/null) == *" `+b.get(t, "paying", ".status.podIP")+`/"* ]]; then tc -n "$n" filter show dev eth0 egress; fi
done | grep -o 'val [0-9a-f]* mask' | sort -u || true`))
	}
	before := marks()
	if before == "" {
		t.Fatalf("eth0 marks nothing:\n%s", b.shell(t, `for n in $(ls /run/netns); do tc -n "$n" filter show dev eth0 egress; done`))
	}
	until(t, "the status counts the pod", 3*time.Minute, func() bool {
		return kubectl(t, b.Cluster, "", "get", "networkqos", "paid", "-o", `jsonpath={.status.status}: {range .status.backends[*]}{.backend} {.pods} {.inPlace}{end}`) == "NetworkQoS Destinations applied: tc 1 1"
	})
	if have := accepted(); have != "True Accepted InPlace" {
		t.Errorf("conditions %q", have)
	}
	kubectl(t, b.Cluster, object(10), "apply", "-f", "-")
	until(t, "an edit reaches the pod", time.Minute, func() bool { now := marks(); return now != before && now != "" })
	edited := marks()
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "delete", "pod", "-l", "app.kubernetes.io/component=agent", "--grace-period=0", "--force")
	kubectl(t, b.Cluster, object(40), "apply", "-f", "-")
	until(t, "an edit reaches the pod by the next agent", 3*time.Minute, func() bool { return marks() == before })
	if edited == before {
		t.Error("nothing was edited")
	}
	kubectl(t, b.Cluster, "", "delete", "networkqos", "paid")
	until(t, "the object deleted", time.Minute, func() bool { return marks() == "" })
	t.Run("nodes as destinations", b.testNodesAsDestinations)
	t.Run("API server away", b.testAPIServerAway)
	t.Run("objects of the enhancement", b.testObjectsOfTheEnhancement)
	if n := b.get(t, "paying", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("the pod was restarted %s times", n)
	}
	kubectl(t, b.Cluster, "", "wait", "--for=delete", "namespace/games", "--timeout=240s") // its claim is unprepared then
	b.drop(t, "paying")
}

// testNodesAsDestinations has a pod that uses the host's network: no selector of pods matches its address, which the object says, and an
// ipBlock does. The pod paying runs.
func (b *agentBench) testNodesAsDestinations(t *testing.T) {
	const to = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: to-node, namespace: default}
spec:
  priority: 3
  egress: [{dscp: 12, classifier: {to: [%s]}}]
`
	const note = "so it matches no packet: use ipBlock for nodes and for pods on the host network"
	says := func() string {
		return kubectl(t, b.Cluster, "", "get", "networkqos", "to-node", "-o", `jsonpath={.status.status}: {.status.conditions[?(@.type=="Accepted")].message}`)
	}
	on := strings.NewReplacer("namespace: default}", "namespace: default, labels: {app: on-host}}", "\nspec:", "\nspec:\n  hostNetwork: true", "8080", "18081").Replace(servingPod("on-host", b.node.Name))
	b.create(t, on)
	b.ready(t, "on-host")
	if address := b.get(t, "on-host", ".status.podIP"); address != b.node.Address {
		t.Fatalf("the pod on the host's network has %s, the node %s", address, b.node.Address)
	}
	b.applied(t, fmt.Sprintf(to, "{podSelector: {matchLabels: {app: on-host}}}, {ipBlock: {cidr: 198.51.100.1/32}}"))
	until(t, "the object says that its selector matches no packet", 3*time.Minute, func() bool {
		said := says()
		return strings.HasPrefix(said, "NetworkQoS Destinations applied: ") && strings.Contains(said, note)
	})
	b.marked(t, "default/paying", "eth0", map[string]string{"198.51.100.1": "tos 0x30", b.node.Address: "tos 0x0"})

	kubectl(t, b.Cluster, "", "label", "pod", "paying", "app=on-host")
	until(t, "the selector matches a pod of this network, too", 3*time.Minute, func() bool { return !strings.Contains(says(), note) })
	own := b.get(t, "paying", ".status.podIP")
	until(t, "a filter to that pod", time.Minute, func() bool {
		return strings.Contains(b.shell(t, "tc -n "+b.netnsOf(t, "default/paying")+" filter show dev eth0 egress"), "dst_ip "+own)
	})
	b.marked(t, "default/paying", "eth0", map[string]string{b.node.Address: "tos 0x0"})
	kubectl(t, b.Cluster, "", "label", "pod", "paying", "app-")

	b.applied(t, fmt.Sprintf(to, "{ipBlock: {cidr: "+b.node.Address+"/32}}"))
	b.marked(t, "default/paying", "eth0", map[string]string{b.node.Address: "tos 0x30", "198.51.100.1": "tos 0x0"})
	if said := says(); strings.Contains(said, note) {
		t.Errorf("the object with an ipBlock says %q", said)
	}
	kubectl(t, b.Cluster, "", "delete", "networkqos", "to-node")
	kubectl(t, b.Cluster, "", "delete", "pod", "on-host", "--timeout=120s")
}

// testAPIServerAway stops the API server. Pods keep their filters. A static pod that the agent knows starts again, with its filters; one
// that it does not know waits for the API server, and so does each when the agent was started meanwhile. The pod paying runs.
func (b *agentBench) testAPIServerAway(t *testing.T) {
	b.applied(t, `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: always, namespace: default}
spec:
  priority: 4
  egress: [{dscp: 44, classifier: {to: [{ipBlock: {cidr: 0.0.0.0/0}}]}}]
`)
	manifest := func(name string) string {
		return strings.Replace(servingPod(name, b.node.Name), "namespace: default}", "namespace: default, labels: {static: \"yes\"}}", 1)
	}
	known, other := "known-"+b.node.Name, "other-"+b.node.Name
	b.static(t, "known", manifest("known"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		_, _ = b.node.Shell(ctx, "rm -f "+staticPods+"/known.yaml "+staticPods+"/other.yaml")
	})
	kubectl(t, b.Cluster, "", "wait", "--for=create", "--timeout=180s", "pod/"+known)
	b.ready(t, known)
	b.marked(t, "default/paying", "eth0", map[string]string{"8.8.8.8": "tos 0xb0"})
	filters := "tc -n " + b.netnsOf(t, "default/paying") + " filter show dev eth0 egress"
	before := b.shell(t, filters)

	b.StopAPIServer()
	back := sync.OnceValue(func() error { return b.StartAPIServer(context.WithoutCancel(t.Context())) })
	t.Cleanup(func() {
		if err := back(); err != nil {
			t.Error(err)
		}
	})
	// ended ends the sandbox of the known pod, and returns how often the pod has started until then.
	ended := func() int {
		t.Helper()
		starts, _ := b.startedOnNode(t, known)
		b.signal(t, "KILL", `labels."io.kubernetes.pod.name"=="`+known+`",labels."io.cri-containerd.kind"==sandbox`)
		return starts
	}
	// comes waits until a pod has started more than so many times.
	comes := func(name string, starts int) {
		t.Helper()
		until(t, name+" starts", 5*time.Minute, func() bool {
			n, network := b.startedOnNode(t, name)
			if n <= starts {
				return false
			}
			if i := network.Interface("eth0"); i == nil || i.Filters == 0 {
				t.Errorf("%s has started with %+v", name, network)
			}
			return true
		})
	}
	comes(known, ended())

	// waits fails the test if a pod starts before the agent has refused it for a reason.
	waits := func(name string, starts int, why string) {
		t.Helper()
		until(t, name+" waits", 5*time.Minute, func() bool {
			if n, network := b.startedOnNode(t, name); n != starts {
				t.Fatalf("pod %s has started: %+v", name, network)
			}
			return strings.Contains(b.shell(t, `cat /var/log/pods/`+cluster.ProductNamespace+`_plumbline-agent-*/agent/*.log | grep 'command=ADD.*pod=default/`+name+` ' | tail -n 1 || true`), why)
		})
	}
	b.static(t, "other", manifest("other"))
	waits(other, 0, `by which NetworkQoS objects select it, are not known yet`)
	b.agent(t, "KILL")
	starts := ended()
	waits(known, starts, `the labels of node \"`+b.node.Name+`\" are not known yet`)
	if now := b.shell(t, filters); now != before {
		t.Errorf("the filters of a pod that runs are\n%s\nbefore\n%s", now, before)
	}
	if n, network := b.startedOnNode(t, other); n != 0 {
		t.Errorf("pod %s has started without the API server: %+v", other, network)
	}

	if err := back(); err != nil {
		t.Fatal(err)
	}
	kubectl(t, b.Cluster, "", "wait", "--for=create", "--timeout=300s", "pod/"+other)
	comes(known, starts)
	comes(other, 0)
	for _, pod := range []string{known, other} {
		until(t, "the status has the address of "+pod, 2*time.Minute, func() bool { return b.netnsOf(t, "default/"+pod) != "" })
		b.ready(t, pod)
		b.marked(t, "default/"+pod, "eth0", map[string]string{"8.8.8.8": "tos 0xb0"})
	}
	kubectl(t, b.Cluster, "", "delete", "networkqos", "always")
	b.shell(t, "rm "+staticPods+"/known.yaml "+staticPods+"/other.yaml")
	kubectl(t, b.Cluster, "", "wait", "--for=delete", "--timeout=240s", "pod/"+known, "pod/"+other)
}

// startedOnNode returns how often the container of a pod of namespace default has started, by its log on the node, and the network with
// which it was started last.
func (b *agentBench) startedOnNode(t *testing.T, pod string) (starts int, network cluster.PodNetwork) {
	t.Helper()
	const script = `log=$(ls -v /var/log/pods/default_%s_*/pod/*.log 2>/dev/null | tail -n 1 || true)
if [[ -n $log ]]; then basename "$log" .log; tail -n 1 "$log"; fi`
	number, line, _ := strings.Cut(b.shell(t, fmt.Sprintf(script, pod)), "\n")
	_, said, ok := strings.Cut(line, " F ")
	if !ok { // it has not printed all
		return 0, network
	}
	if _, err := fmt.Sscan(number, &starts); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(said), &network); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return starts + 1, network
}
