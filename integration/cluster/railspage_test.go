//go:build cluster

package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
	"github.com/plumbline/plumbline/integration/eventually"
)

// railsPage is a cluster whose user types the commands of docs/ai.md.
type railsPage struct{ *laptop }

// switches announces by LLDP, at the other ends of the wires of a quad node, what four switches would: rail 0 is that of enp3s0f0.
const switches = `cp %s /run/pod
rail=0
for far in enp4s0f0 enp4s0f1 enp3s0f0 enp3s0f1; do
	setsid /run/pod announce $far leaf-r$rail </dev/null >/run/switch-$rail.log 2>&1 &
	rail=$((rail + 1))
done`

// railsOfBench is the number of ports of a node, each of which has functions for two pods.
const railsOfBench = 4

// TestRailsPage types the commands of docs/ai.md, with the files of docs/examples/rdma-rails, from an empty cluster to its removal. What the
// machine does not have is replaced:
//
//   - registry: the image is imported. The emulated machine has more time and one controller only.
//   - eight ports: four rails.
//   - cards with RDMA: the host's functions have soft RoCE, by which they are chosen, but which does not move. A step of type rxe makes
//     one in the pod, and has what the page requires of the function.
//   - switches: programs that send their LLDP frames at the other end of the wires; all their ports are called Ethernet7.
//   - GPUs: a driver that publishes devices that do not exist, the first of them below another PCIe root.
//   - busybox: an image with the node's programs, among them perftest.
//
// Not typed are NCCL's own test, which needs GPUs, and the look at the dashboard.
func TestRailsPage(t *testing.T) {
	p := &railsPage{laptop: &laptop{Cluster: start(t, cluster.Options{}), home: t.TempDir()}}
	p.node = addNode(t, p.Cluster, cluster.NodeOptions{
		Kernel: "backports", NICs: "quad", RDMA: true, Packages: []string{"rdma"}, Start: "modprobe -a ib_uverbs rdma_ucm",
		Containerd: "1.7", NRITimeout: 30 * time.Second,
	})
	before := p.devices(t)
	p.installs(t)
	p.types(t, p.home, "mkdir -p docs/examples/rdma-rails")
	p.saves(t)

	if said := p.shell(t, "PATH="+filepath.Join(p.Checkout(), ".cache", "bin")+":$PATH\n"+p.step(t, 2)); strings.Count(said, "rocep") != 4*railsOfBench || !strings.Contains(said, "netns shared") {
		t.Errorf("the node shows\n%s\nwant an RDMA device for each function, and the mode", said)
	}
	p.findsRails(t)
	if said := p.types(t, p.home, p.step(t, 4)); !strings.Contains(said, "rail3") {
		t.Errorf("the graph has no rail3:\n%s", said)
	}
	p.types(t, p.home, p.within(p.step(t, 5)))
	second := strings.Replace(p.file(t, "pod.yaml"), "name: rdma-rails\n", "name: second\n", 1)
	kubectl(t, p.Cluster, second, "apply", "-f", "-")
	kubectl(t, p.Cluster, "", "wait", "--for=condition=Ready", "--timeout=600s", "pod/second")
	p.paired(t, "rdma-rails")
	p.paired(t, "second")
	p.measures(t, p.told(t, "rdma-rails"), p.told(t, "second"))
	kubectl(t, p.Cluster, "", "delete", "pod", "second", "--timeout=240s")
	p.types(t, p.home, p.block(t, "ai.md", "Remove all:", "sh"))
	eventually.Holds(t, 2*time.Minute, "the node's devices are as before (-before +now)", func() string { return cmp.Diff(before, p.devices(t)) })
}

// step is the block of a step of the page.
func (p *railsPage) step(t *testing.T, n int) string {
	t.Helper()
	return p.block(t, "ai.md", fmt.Sprintf("\n%d. ", n), "sh")
}

// within gives commands that wait as long as an emulated machine takes.
func (p *railsPage) within(commands string) string {
	return strings.ReplaceAll(commands, "kubectl wait ", "kubectl wait --timeout=600s ")
}

// devices are the functions and RDMA devices of the node.
func (p *railsPage) devices(t *testing.T) string {
	t.Helper()
	return p.shell(t, "ip -br link | awk '/v[0-9]/ { print $1, $3 }' | sort; rdma link | sort")
}

// replaced is a text of the page or its files with some words replaced, each of which it has to have.
func replaced(t *testing.T, text string, words ...string) string {
	t.Helper()
	for pair := range slices.Chunk(words, 2) {
		if !strings.Contains(text, pair[0]) {
			t.Fatalf("the page has no %q to replace:\n%s", pair[0], text)
		}
		text = strings.ReplaceAll(text, pair[0], pair[1])
	}
	return text
}

// installs types step 1, and installs the driver of GPUs: four for each pod below the root of the cards.
func (p *railsPage) installs(t *testing.T) {
	t.Helper()
	archive, err := p.Product(t.Context())
	check(t, err)
	check(t, p.node.Import(t.Context(), archive))
	p.types(t, p.Checkout(), replaced(t, p.step(t, 1),
		"helm install ", "helm install --set image.repository=plumbline.test/plumbline,image.tag=dev,image.pullPolicy=Never,webhook.timeoutSeconds=30,controller.replicas=1 ",
		"helm test ", "helm test --timeout 10m "))
	check(t, story.InstallGPU(t.Context(), p.Cluster, p.node))
	arguments := []string{`"--node-name=$(NODE_NAME)"`, `"gpu-0=pci0000:80"`}
	for i := range 2 * railsOfBench {
		arguments = append(arguments, fmt.Sprintf(`"gpu-%d=pci0000:00"`, i+1))
	}
	kubectl(t, p.Cluster, "", "-n", "kube-system", "patch", "daemonset/gpu", "--type=json", "-p",
		`[{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": [`+strings.Join(arguments, ",")+`]}]`)
	kubectl(t, p.Cluster, "", "-n", "kube-system", "rollout", "status", "--timeout=600s", "daemonset/gpu")
	kubectl(t, p.Cluster, strings.Replace(story.GPUClass, "name: nvidia-gpu-h100", "name: gpu.example.com", 1), "apply", "-f", "-")
}

func (p *railsPage) file(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(p.home, "docs", "examples", "rdma-rails", name))
	check(t, err)
	return string(content)
}

// saves writes the files of the example into the user's folder, with what this machine has instead.
func (p *railsPage) saves(t *testing.T) {
	t.Helper()
	const require = "\n        require: {gid: {type: RoCEv2, family: IPv4, scope: global}, state: ACTIVE, mtu: 4096}"
	_, mounted, _ := strings.Cut(verbsPod("x", "x", "x"), "\n  volumes:")
	volumes, _, _ := strings.Cut(mounted, "\n  terminationGracePeriodSeconds")
	_, mounts, _ := strings.Cut(mounted, "\n    volumeMounts:")
	mounts, _, _ = strings.Cut(mounts, "\n    resources:")
	for name, words := range map[string][]string{
		"topology.yaml": {
			`["0", "1", "2", "3", "4", "5", "6", "7"]`, `["0", "1", "2", "3"]`,
			require, "",
			"\n  export:", `
    - name: roce
      forEach: ["0", "1", "2", "3"]
      type: rxe
      dependOn: [rail]
      config:` + require + "\n  export:",
		},
		"cluster.yaml": nil,
		"pod.yaml": {
			"image: busybox:1.37", fmt.Sprintf("image: %q\n      imagePullPolicy: Never\n      env: [{name: PATH, value: /usr/bin}]\n      volumeMounts:%s", cluster.PodImage, strings.ReplaceAll(mounts, "\n    ", "\n      ")),
			"\nspec:", "\nspec:\n  terminationGracePeriodSeconds: 1\n  volumes:" + volumes,
		},
	} {
		content, err := os.ReadFile(filepath.Join(p.Checkout(), "docs", "examples", "rdma-rails", name))
		check(t, err)
		check(t, os.WriteFile(filepath.Join(p.home, "docs", "examples", "rdma-rails", name), []byte(replaced(t, string(content), words...)), 0o644))
	}
}

// findsRails does step 3 by the policy of docs/policies.md.
func (p *railsPage) findsRails(t *testing.T) {
	t.Helper()
	program := p.PodProgram()
	p.shell(t, fmt.Sprintf(switches, program))
	kubectl(t, p.Cluster, replaced(t, p.block(t, "policies.md", "\n## Neighbours\n", "yaml"), "Ethernet[0-9]+/1", "Ethernet[0-9]+"), "apply", "-f", "-")
	eventually.Holds(t, 4*time.Minute, "all functions have a rail", func() string {
		said := p.types(t, p.home, "{ "+strings.TrimSpace(p.step(t, 3))+"; } || true")
		for rail := range railsOfBench {
			if strings.Count(said, fmt.Sprintf("string: %q", fmt.Sprint(rail))) != 4 {
				return said
			}
		}
		return ""
	})
}

// paired fails the test unless each rail of a pod has a GPU below its PCIe root, which the first GPU is not.
func (p *railsPage) paired(t *testing.T, pod string) {
	t.Helper()
	said := kubectl(t, p.Cluster, "", "get", "resourceclaims", "-o",
		`jsonpath={range .items[?(@.status.reservedFor[0].name=="`+pod+`")].status.allocation.devices.results[*]}{.request} {.driver} {.device}{"\n"}{end}`)
	for rail := range railsOfBench {
		if !strings.Contains(said, fmt.Sprintf("rail%d-pair gpu.nvidia.com gpu-", rail)) || strings.Contains(said, "gpu-0\n") {
			t.Fatalf("pod %s is allocated\n%s\nwant a GPU for each rail, but not gpu-0", pod, said)
		}
	}
}

// told types step 6 for a pod, and returns its variables.
func (p *railsPage) told(t *testing.T, pod string) map[string]string {
	t.Helper()
	said := p.types(t, p.home, replaced(t, p.step(t, 6), "exec rdma-rails", "exec "+pod))
	t.Logf("pod %s:\n%s", pod, said)
	if n := len(regexp.MustCompile(`uverbs[0-9]+`).FindAllString(said, -1)); n != railsOfBench {
		t.Errorf("pod %s has %d uverbs, want %d", pod, n, railsOfBench)
	}
	out := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^([A-Z_]+)=(.*)$`).FindAllStringSubmatch(said, -1) {
		out[line[1]] = strings.TrimPrefix(line[2], "=")
	}
	devices := strings.Split(out["NCCL_IB_HCA"], ",")
	if len(devices) != railsOfBench || out["NCCL_SOCKET_IFNAME"] != "rail0,rail1,rail2,rail3" || out["UCX_NET_DEVICES"] != strings.Join(devices, ":1,")+":1" {
		t.Errorf("pod %s is told %v", pod, out)
	}
	for _, d := range devices {
		if !strings.Contains(said, "rdmaDevice: "+d) {
			t.Errorf("no claim has the RDMA device %s of pod %s", d, pod)
		}
	}
	return out
}

// measures types step 7 for each rail. For the emulated machine it is shorter, and needs no processor of a known frequency (-F).
func (p *railsPage) measures(t *testing.T, server, client map[string]string) {
	t.Helper()
	command := regexp.MustCompile("`(ib_write_bw [^`]*)`").FindStringSubmatch(p.page(t, "ai.md"))
	if command == nil {
		t.Fatal("the page has no measurement of a rail")
	}
	addresses := strings.Split(server["RAIL_ADDRESSES"], ",")
	of := func(pod, device, to string) string {
		return fmt.Sprintf("kubectl exec %s -- sh -c 'timeout 60 %s -F -s 1024 -n 200 %s'", pod, replaced(t, command[1], "DEVICE", device), to)
	}
	for rail := range railsOfBench {
		to, _, _ := strings.Cut(addresses[rail], "/")
		said := p.types(t, p.home, of("rdma-rails", strings.Split(server["NCCL_IB_HCA"], ",")[rail], "")+" >server.log 2>&1 &\n"+
			"for try in $(seq 20); do\n"+of("second", strings.Split(client["NCCL_IB_HCA"], ",")[rail], to)+" && break\nsleep 1\ndone\nwait || true")
		if !strings.Contains(said, "BW average") || !strings.Contains(said, "remote address:") {
			t.Errorf("rail %d:\n%s\n%s", rail, said, p.shell(t, railState))
		}
	}
}

// railState shows where packets of the rails were counted.
const railState = `for n in $(ls /run/netns); do for l in rail0 rail1 rail2 rail3; do ip -s -n "$n" link show "$l" 2>/dev/null || true; done; done
cd /sys/class/infiniband && grep -H . pl*/ports/1/hw_counters/* | grep -v ':0$'
ip -s link; dmesg | tail -20`
