//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

func addNode(t *testing.T, c *cluster.Cluster, options cluster.NodeOptions) *cluster.Node {
	t.Helper()
	began := time.Now()
	n, err := c.AddNode(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s Ready after %s", n.Name, time.Since(began).Round(10*time.Millisecond))
	return n
}

func kubectl(t *testing.T, c *cluster.Cluster, input string, arguments ...string) string {
	t.Helper()
	output, err := c.Kubectl(t.Context(), strings.NewReader(input), arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// runPod creates a pod on a node and waits until it is Ready.
func runPod(t *testing.T, c *cluster.Cluster, name, node string) {
	t.Helper()
	began := time.Now()
	kubectl(t, c, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 10
  containers: [{name: pod, image: %q, imagePullPolicy: Never}]
`, name, node, cluster.PodImage), "create", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "--timeout=300s", "pod/"+name)
	t.Logf("pod %s Ready after %s", name, time.Since(began).Round(10*time.Millisecond))
}

// hasAddress fails the test unless the pod itself reports an address in the range
// of its node on an interface eth0, by its log: so this also shows that the API
// server reaches the kubelet.
func hasAddress(t *testing.T, c *cluster.Cluster, pod, prefix string) {
	t.Helper()
	if have := addressesAtStart(t, c, pod, "eth0"); !slices.ContainsFunc(have, func(a netip.Prefix) bool { return strings.HasPrefix(a.String(), prefix) }) {
		t.Errorf("pod %s has %v on eth0, without %s...", pod, have, prefix)
	}
}

// networkAtStart is the network that a pod's container was started with.
func networkAtStart(t *testing.T, c *cluster.Cluster, pod string) cluster.PodNetwork {
	t.Helper()
	n, err := c.PodNetwork(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// addressesAtStart are those of an interface that the container of a pod was started with;
// none, if it has no such interface.
func addressesAtStart(t *testing.T, c *cluster.Cluster, pod, link string) []netip.Prefix {
	t.Helper()
	if i := networkAtStart(t, c, pod).Interface(link); i != nil {
		return i.Addresses
	}
	return nil
}

// TestNodeReady holds for both versions of containerd what every other test
// builds upon.
func TestNodeReady(t *testing.T) {
	for _, containerd := range []string{"1.7", "2.4"} {
		t.Run(containerd, func(t *testing.T) {
			c := start(t, cluster.Options{})
			n := addNode(t, c, cluster.NodeOptions{Containerd: containerd})
			version := kubectl(t, c, "", "get", "node", n.Name, "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}")
			if !strings.HasPrefix(strings.TrimPrefix(version, "containerd://v"), containerd) &&
				!strings.HasPrefix(strings.TrimPrefix(version, "containerd://"), containerd) {
				t.Errorf("want containerd %s, have %q", containerd, version)
			}
			// NRI's socket, where plugins register.
			if _, err := n.Exec(t.Context(), "test", "-S", "/var/run/nri/nri.sock"); err != nil {
				t.Error(err)
			}
			links, err := n.Shell(t.Context(), "echo /sys/class/net/*v[0-9]")
			if err != nil || len(strings.Fields(links)) != 8 {
				t.Errorf("want 8 virtual functions, have %q (%v)", links, err)
			}

			runPod(t, c, "first", n.Name)
			hasAddress(t, c, "first", "10.244.1.")
			// The node, as kubectl exec reaches it: by way of the pod's own program.
			answer := kubectl(t, c, "", "exec", "first", "--", "/pod", "ping", n.Address)
			if !strings.Contains(answer, "answer from "+n.Address) {
				t.Errorf("ping from the pod: %q", answer)
			}

			for _, daemon := range []cluster.Daemon{cluster.Containerd, cluster.Kubelet} {
				if err := n.Kill(t.Context(), daemon); err != nil {
					t.Error(err)
				}
				if err := n.Start(t.Context(), daemon); err != nil {
					t.Error(err)
				}
			}
			// The machine's clock does not matter.
			if _, err := n.Shell(t.Context(), "date -s '10 seconds ago'"); err != nil {
				t.Error(err)
			}
			soon, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := n.WaitReady(soon, time.Now()); err != nil {
				t.Error(err)
			}
			if restarts := kubectl(t, c, "", "get", "pod", "first", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); restarts != "0" {
				t.Errorf("the pod was restarted %s times with its node's daemons", restarts)
			}

			boot := bootID(t, n)
			reboot(t, n)
			if bootID(t, n) == boot {
				t.Error("the boot ID is the same after a reboot")
			}
			// The pod is of the same UID, in a new sandbox.
			kubectl(t, c, "", "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=300s", "pod/first")
			kubectl(t, c, "", "wait", "--for=condition=Ready", "--timeout=300s", "pod/first")
			hasAddress(t, c, "first", "10.244.1.")
			kubectl(t, c, "", "delete", "pod", "first", "--timeout=300s")
		})
	}
}

// reboot cuts a node's power. libcni's cache of the pods' first network is not
// durable; containerd cannot take down a sandbox whose cache the power has cut to
// nothing.
func reboot(t *testing.T, n *cluster.Node) {
	t.Helper()
	if _, err := n.Shell(t.Context(), "cd /var/lib/cni/results 2>/dev/null || exit 0; shopt -s nullglob; sync * ."); err != nil { // no folder before the first pod
		t.Fatal(err)
	}
	if err := n.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func bootID(t *testing.T, n *cluster.Node) string {
	t.Helper()
	id, err := n.Exec(t.Context(), "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestTwoNodes has one of each containerd, on one wire.
func TestTwoNodes(t *testing.T) {
	c := start(t, cluster.Options{})
	one := addNode(t, c, cluster.NodeOptions{Containerd: "2.4", CPUs: 1})
	two := addNode(t, c, cluster.NodeOptions{Containerd: "1.7", CPUs: 1, Wired: one.Name})
	runPod(t, c, "on-one", one.Name)
	runPod(t, c, "on-two", two.Name)
	hasAddress(t, c, "on-one", "10.244.1.")
	hasAddress(t, c, "on-two", "10.244.2.")

	for side, n := range []*cluster.Node{one, two} {
		if _, err := n.Shell(t.Context(), fmt.Sprintf("ip link set enp3s0f0v0 up && ip addr add 192.0.2.%d/24 dev enp3s0f0v0", side+1)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// A virtual function needs a moment to its carrier.
	if _, err := one.Shell(ctx, "until ping -c 1 -W 1 192.0.2.2 >/dev/null; do sleep 0.2; done"); err != nil {
		t.Errorf("no way from one virtual function to that of the other node: %v", err)
	}
	if _, err := two.Exec(t.Context(), "true"); err != nil {
		t.Error(err)
	}
}
