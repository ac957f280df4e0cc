//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
)

// TestNetworkQoSOnPodNetwork holds, on a node without CNI plugins, that an object which selects no network is enforced on the eth0 of
// pods without claims before their containers start, that edits and a killed agent's successor reach them, and what its status says.
func TestNetworkQoSOnPodNetwork(t *testing.T) {
	b := newAgentBenchIn(t, cluster.Options{PodCIDRs: true}, cluster.NodeOptions{Containerd: "2.4", NoCNI: true, Kubelet: "staticPodPath: " + staticPods}, thisRelease, "podNetwork.enabled=true", "networkQoS.enabled=true")
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
	t.Run("objects of the enhancement", b.testObjectsOfTheEnhancement)
	if n := b.get(t, "paying", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("the pod was restarted %s times", n)
	}
	kubectl(t, b.Cluster, "", "wait", "--for=delete", "namespace/games", "--timeout=240s") // its claim is unprepared then
	b.drop(t, "paying")
}
