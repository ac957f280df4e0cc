//go:build cluster

package story_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
)

// TestStory runs the whole example on a real cluster, from kubectl apply until every
// VF is back on the host. The node has no CNI plugin but ours.
func TestStory(t *testing.T) {
	c, err := cluster.Start(t.Context(), cluster.Options{Log: os.Stderr, PodCIDRs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	node, err := c.AddNode(t.Context(), cluster.NodeOptions{
		CPUs:       1, // beside another machine, as in CI, it is faster with one
		RDMA:       true,
		NoCNI:      true,
		Containerd: "1.7", // Debian's: nothing is to be built for it; the demo plays the same on 2.4
		// The machine is emulated: what takes a tenth of a second takes three when its
		// host is busy.
		NRITimeout: 10 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(t *testing.T, input string, arguments ...string) string {
		t.Helper()
		said, err := c.Kubectl(t.Context(), strings.NewReader(input), arguments...)
		if err != nil {
			t.Fatal(err)
		}
		return said
	}
	vfs := func(t *testing.T) string {
		t.Helper()
		said, err := node.Shell(t.Context(), "ip -br link | awk '/v[0-9]/ { print $1, $3 }' | sort")
		if err != nil {
			t.Fatal(err)
		}
		return said
	}
	if err := c.Install(t.Context(), "podNetwork.enabled=true"); err != nil {
		t.Fatal(err)
	}
	ready, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := story.InstallPodNetwork(ready, c, node); err != nil {
		t.Fatal(err)
	}
	if err := story.InstallGPU(t.Context(), c, node); err != nil {
		t.Fatal(err)
	}
	home := vfs(t)

	if err := c.Apply(t.Context(), story.Topology); err != nil {
		t.Fatal(err)
	}
	if err := c.Await(t.Context(), "deviceclass/ai-bonded-rdma-vf0", "deviceclass/ai-bonded-rdma-vf1"); err != nil {
		t.Fatalf("%v\n%s\n%s", err, kubectl(t, "", "get", "networktopology", "-o", "yaml"),
			kubectl(t, "", "-n", cluster.ProductNamespace, "logs", "--tail=40", "deployment/plumbline-controller"))
	}
	kubectl(t, story.Claim, "apply", "-f", "-")
	kubectl(t, story.Pod(), "apply", "-f", "-")
	if _, err := c.Kubectl(t.Context(), nil, "wait", "--for=condition=Ready", "--timeout=300s", "pod/ai-training"); err != nil {
		t.Fatalf("%v\n%s\n%s", err, kubectl(t, "", "describe", "pod", "ai-training"),
			kubectl(t, "", "-n", cluster.ProductNamespace, "logs", "--tail=40", "daemonset/plumbline-agent"))
	}

	t.Run("network", func(t *testing.T) {
		said, err := story.Said(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := story.CheckNetwork(said); err != nil {
			t.Error(err)
		}
	})
	t.Run("co-location", func(t *testing.T) {
		devices := kubectl(t, "", "get", "resourceclaims", "-o", `jsonpath={range .items[*].status.allocation.devices.results[*]}{.request}={.device}{"\n"}{end}`)
		if !strings.Contains(devices, "gpu=gpu-1\n") {
			t.Errorf("want the GPU below the cards' PCIe root, gpu-1; allocated:\n%s", devices)
		}
	})
	t.Run("status", func(t *testing.T) {
		if _, err := c.Kubectl(t.Context(), nil, "wait", `--for=jsonpath={.status.devices[1].networkData.interfaceName}`, "--timeout=120s", "resourceclaims", "--all"); err != nil {
			t.Fatalf("%v\n%s\n%s", err, kubectl(t, "", "get", "resourceclaims", "-o", "yaml"),
				kubectl(t, "", "-n", cluster.ProductNamespace, "logs", "--tail=60", "daemonset/plumbline-agent"))
		}
		names := strings.Fields(kubectl(t, "", "get", "resourceclaims", "-o", `jsonpath={.items[*].status.devices[*].networkData.interfaceName}`))
		slices.Sort(names)
		if !slices.Equal(names, []string{"net1", "net2"}) {
			t.Errorf("interfaces in the claim's status: %q", names)
		}
		if ready := kubectl(t, "", "get", "resourceclaims", "-o", `jsonpath={.items[*].status.devices[*].conditions[?(@.type=="Ready")].status}`); ready != "True True" {
			t.Errorf("conditions Ready: %q, want \"True True\"", ready)
		}
	})
	t.Run("told", func(t *testing.T) { testTold(t, c, node) })
	t.Run("home", func(t *testing.T) {
		kubectl(t, "", "delete", "pod", "ai-training", "--timeout=120s")
		if now := vfs(t); now != home {
			t.Errorf("VFs after the pod:\n%s\nbefore:\n%s", now, home)
		}
		kubectl(t, "", "delete", "networktopology", "ai-bonded-rdma", "--timeout=60s")
		kubectl(t, "", "wait", "--for=delete", "--timeout=60s", "deviceclass/ai-bonded-rdma-vf0", "deviceclass/ai-bonded-rdma-vf1")
	})
}
