//go:build cluster

package cluster_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
)

// TestTakingOver has a node change from the CNI plugin ptp to plumbline's network and back, as
// docs/primary.md says, with a pod that runs meanwhile.
func TestTakingOver(t *testing.T) {
	b := newAgentBenchIn(t, cluster.Options{PodCIDRs: true}, cluster.NodeOptions{Start: "sysctl -qw net.ipv6.conf.all.forwarding=1"}, thisRelease,
		"podNetwork.enabled=true", "podNetwork.binDir=/usr/lib/cni", "podNetwork.confName=05-plumbline.conflist")
	pods := strings.Replace(story.PodNetwork, "role: primary", "role: primary\n  nodeSelector: {matchLabels: {plumbline.test/network: pods}}", 1)
	b.applied(t, pods)
	configured := func(want string) {
		t.Helper()
		until(t, "/etc/cni/net.d has "+want, 5*time.Minute, func() bool {
			return strings.Join(strings.Fields(b.shell(t, "ls -A /etc/cni/net.d")), " ") == want
		})
	}
	label := func(l string) { kubectl(t, b.Cluster, "", "label", "node", b.node.Name, l) }
	served := func(pod string) {
		t.Helper()
		b.ready(t, pod)
		b.pings(t, pod, b.node.Address)
		b.shell(t, "ping -c 1 -W 5 "+b.get(t, pod, ".status.podIP"))
	}
	ofPlugin := func(pod string) {
		t.Helper()
		if ip := netip.MustParseAddr(b.get(t, pod, ".status.podIP")); !netip.MustParsePrefix("10.244.1.0/24").Contains(ip) {
			t.Errorf("pod %s has %s, which is not of the plugin", pod, ip)
		}
	}

	b.create(t, servingPod("before", b.node.Name))
	served("before")
	ofPlugin("before")
	home := b.networks(t)

	// Drained, but for one pod, and its file comes first. The pod keeps its network.
	configured("10-bench.conflist")
	kubectl(t, b.Cluster, "", "cordon", b.node.Name)
	label("plumbline.test/network=pods")
	configured("05-plumbline.conflist 10-bench.conflist")
	b.create(t, servingPod("during", b.node.Name))
	served("during")
	b.wired(t, "during")
	served("before")
	ofPlugin("before")
	if n := b.get(t, "before", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("the pod of the plugin was restarted %s times", n)
	}
	// The runtime has plumbline end the pod, which it has not started. The plugin is not told.
	left := strings.TrimSpace(b.shell(t, "cd /var/lib/cni/networks/bench && ls | grep '^10[.]' | wc -l"))
	kubectl(t, b.Cluster, "", "delete", "pod", "before", "--timeout=240s")
	if n := strings.TrimSpace(b.shell(t, "cd /var/lib/cni/networks/bench && ls | grep '^10[.]' | wc -l")); n != left {
		t.Errorf("the plugin has %s addresses, before %s", n, left)
	}

	// And back.
	kubectl(t, b.Cluster, "", "delete", "pod", "during", "--timeout=240s")
	label("plumbline.test/network-")
	configured("10-bench.conflist")
	kubectl(t, b.Cluster, "", "uncordon", b.node.Name)
	b.create(t, servingPod("after", b.node.Name))
	served("after")
	ofPlugin("after")
	b.shell(t, "rm $(ls -tr /var/lib/cni/results/bench-* | head -n 1)") // of the first pod, which the plugin would have removed
	b.leaves(t, home)
	kubectl(t, b.Cluster, "", "delete", "pod", "after", "--timeout=240s")
}
