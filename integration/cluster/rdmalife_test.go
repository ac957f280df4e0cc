//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
)

// rdmaNode is what a node for pods with RDMA does at boot. A file in its folder has its RDMA mode, which the kernel does not change once
// there are other network namespaces.
const rdmaNode = `modprobe -a ib_uverbs rdma_ucm ib_umad vhost_net tun
mode=$(cat rdma-mode 2>/dev/null || echo shared)
if [[ $(rdma system show) != *"netns $mode"* ]]; then rdma system set netns "$mode"; fi`

// The RDMA modes.
const (
	shared    = "shared"
	exclusive = "exclusive"
)

// testRDMAStruck kills the agent while it attaches a pod with RDMA: when it prepares the claim, and between or after the changes.
func (b *agentBench) testRDMAStruck(t *testing.T, phases ...string) {
	for _, when := range phases {
		t.Run(when, func(t *testing.T) {
			b.strike(t, when, "KILL", verbsPod("struck", b.node.Name, "roce"), func() {
				b.startedOnceWith(t, "struck", "rail0")
				b.active(t, "struck")
			})
		})
	}
}

// testRDMANewSandbox ends the sandboxes of two pods: in the next ones they have what they had.
func (p nodePair) testRDMANewSandbox(t *testing.T) {
	pods := p.claimVerbs(t, "renewed")
	var before [2]rail
	var containers [2]string
	for i, b := range p {
		before[i], containers[i] = b.active(t, pods[i]), b.container(t, pods[i])
		b.newSandbox(t, pods[i])
	}
	for i, b := range p {
		b.startedAgain(t, pods[i], containers[i])
		if now := b.active(t, pods[i]); now.address != before[i].address {
			t.Errorf("in another sandbox pod %s has the address %s, before %s", pods[i], now.address, before[i].address)
		}
	}
	p.writes(t, pods)
	p.drop(t, pods)
}

// container is the container of a pod, such as "containerd://…".
func (b *agentBench) container(t *testing.T, pod string) string {
	t.Helper()
	return b.get(t, pod, ".status.containerStatuses[0].containerID")
}

// startedAgain waits for another container of the pod, which is ready. The kubelet may count no restart after a power cut, and several
// after starts that were refused.
func (b *agentBench) startedAgain(t *testing.T, pod, before string) {
	t.Helper()
	until(t, "the pod "+pod+" has another container", 5*time.Minute, func() bool {
		now := b.container(t, pod)
		return now != "" && now != before
	})
	b.ready(t, pod)
}

// active fails the test unless the pod opens its RDMA device, whose port is active, and returns the device.
func (b *agentBench) active(t *testing.T, pod string) rail {
	t.Helper()
	r := b.toldRails(t, pod, 1)[0]
	if said, err := b.runs(t, pod, "ibv_devinfo -d "+r.device); err != nil || !strings.Contains(said, "PORT_ACTIVE") {
		t.Errorf("pod %s and its own device: %v\n%s", pod, err, said)
	}
	return r
}

// testRDMAReplaced deletes the RDMA device of a pod between the attachment and the start of the container that has the claim. The agent
// makes it again, perhaps with another device node, and the container starts once, with that.
func (b *agentBench) testRDMAReplaced(t *testing.T) {
	waits := fmt.Sprintf(`
  initContainers:
  - name: waits
    image: %q
    imagePullPolicy: Never
    command: [/usr/bin/bash, -c, "until [[ -e /dev/shm/go ]]; do /usr/bin/sleep 0.2; done"]
    volumeMounts:`, cluster.PodImage)
	pod := verbsPod("replaced", b.node.Name, "roce")
	_, mounts, _ := strings.Cut(pod, "    volumeMounts:")
	mounts, _, _ = strings.Cut(mounts, "\n    resources:")
	b.create(t, strings.Replace(pod, "\n  containers:", waits+mounts+"\n  containers:", 1))
	until(t, "the first container of the pod runs", 4*time.Minute, func() bool {
		return b.get(t, "replaced", ".status.initContainerStatuses[0].state.running") != ""
	})
	device := ""
	until(t, "the pod has an RDMA device", 2*time.Minute, func() bool { // perhaps attached in the background
		device = strings.TrimSpace(b.shell(t, "ls /sys/class/infiniband | grep ^pl || true"))
		return device != ""
	})
	until(t, "the claim is attached", 2*time.Minute, func() bool {
		return strings.Contains(kubectl(t, b.Cluster, "", "get", "resourceclaims", "-o", "yaml"), "rdmaDevice: "+device)
	})
	b.shell(t, "rdma link delete "+device)
	kubectl(t, b.Cluster, "", "exec", "replaced", "-c", "waits", "--", "/usr/bin/touch", "/dev/shm/go")
	b.ready(t, "replaced")
	b.startedOnceWith(t, "replaced", "rail0")
	if r := b.active(t, "replaced"); r.device != device {
		t.Errorf("the pod is told %s, it had %s", r.device, device)
	}
	b.drop(t, "replaced")
}

// testRDMAImage replaces the agents by those of another image and back below pods that keep their RDMA devices, and exchange data then.
func (p nodePair) testRDMAImage(t *testing.T) {
	pods := p.claimVerbs(t, "kept")
	seen := func(i int) string {
		b, r := p[i], p[i].active(t, pods[i])
		of := "/sys/class/infiniband/" + r.device
		return kubectl(t, b.Cluster, "", "exec", pods[i], "--", "/pod", "show") +
			kubectl(t, b.Cluster, "", "exec", pods[i], "--", "/usr/bin/ls", "-l", "/dev/infiniband") +
			kubectl(t, b.Cluster, "", "exec", pods[i], "--", "/usr/bin/cat", of+"/node_guid", of+"/ports/1/gids/"+r.gid) +
			b.container(t, pods[i])
	}
	before := [2]string{seen(0), seen(1)}
	other, err := p[0].Variant(t.Context(), "another")
	check(t, err)
	for _, of := range []struct {
		release cluster.Release
		tag     string
	}{{other, "another"}, {cluster.Release{}, "dev"}} {
		check(t, p[0].InstallRelease(t.Context(), of.release, "agent.driverBinding=true", "agent.lldp=true"))
		until(t, "the agents are of the image "+of.tag, 2*time.Minute, func() bool { // those of before end last
			images := strings.Fields(kubectl(t, p[0].Cluster, "", "-n", cluster.ProductNamespace, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "jsonpath={.items[*].spec.containers[*].image}"))
			return len(images) == len(p) && !slices.ContainsFunc(images, func(image string) bool { return !strings.HasSuffix(image, ":"+of.tag) })
		})
		for i := range p {
			if diff := cmp.Diff(before[i], seen(i)); diff != "" {
				t.Errorf("below agents of %s, pod %s (-before +now):\n%s", of.tag, pods[i], diff)
			}
		}
	}
	p.writes(t, pods)
	p.drop(t, pods)
}

// claimVerbs creates a pod with a soft RoCE device on each node.
func (p nodePair) claimVerbs(t *testing.T, name string) (pods [2]string) {
	t.Helper()
	for i, b := range p {
		pods[i] = fmt.Sprintf("%s-%d", name, i)
		b.create(t, verbsPod(pods[i], b.node.Name, "roce"))
	}
	for i, b := range p {
		b.ready(t, pods[i])
	}
	return pods
}

// writes has the second pod write to the memory of the first.
func (p nodePair) writes(t *testing.T, pods [2]string) {
	t.Helper()
	var rails [2]rail
	for i, b := range p {
		rails[i] = b.active(t, pods[i])
	}
	command := func(r rail) string {
		// Without -F it exits when it cannot measure the frequency of the processor, as on a busy host.
		return fmt.Sprintf("ib_write_bw -F -d %s -x %s -s 1024 -n 200 ", r.device, r.gid)
	}
	if said := p.exchange(t, pods, command(rails[0]), command(rails[1])+rails[0].address); !strings.Contains(said, "remote address:") {
		t.Errorf("ib_write_bw: %s", said)
	}
}

// testRDMAReboot cuts the power of both nodes below pods with RDMA. Each comes back in the mode that the other had.
func (p nodePair) testRDMAReboot(t *testing.T) {
	pods := p.claimVerbs(t, "risen")
	var before [2]rail
	var containers, modes [2]string
	for i, b := range p {
		before[i], containers[i] = b.active(t, pods[i]), b.container(t, pods[i])
		modes[i] = exclusive
		if b.rdmaMode(t) == exclusive {
			modes[i] = shared
		}
		b.bootsInto(t, modes[i])
	}
	p.cutPower(t)
	for i, b := range p {
		if mode := b.rdmaMode(t); mode != modes[i] {
			t.Fatalf("%s is in mode %s, want %s", b.node.Name, mode, modes[i])
		}
	}
	for i, b := range p {
		b.startedAgain(t, pods[i], containers[i])
		if now := b.active(t, pods[i]); now.address != before[i].address {
			t.Errorf("pod %s has the address %s, before %s", pods[i], now.address, before[i].address)
		}
	}
	p.writes(t, pods)
	kubectl(t, p[0].Cluster, "", "delete", "pod", "--timeout=240s", pods[0], pods[1])
	for _, b := range p {
		b.home = b.returned(t, b.home) // this boot's
		b.nothingLeft(t)
	}
}

// testRDMAExclusive boots the second node into exclusive mode, in which the RDMA device of a function is in one namespace.
func (p nodePair) testRDMAExclusive(t *testing.T) {
	b := p[1]
	b.bootsInto(t, exclusive)
	reboot(t, b.node)
	if mode := b.rdmaMode(t); mode != exclusive {
		t.Fatalf("%s is in mode %s", b.node.Name, mode)
	}
	b.home = b.returned(t, b.home) // this boot's
	t.Run("placement", p.testRDMAPlacement)
	t.Run("agent killed", func(t *testing.T) { b.testRDMAStruck(t, "applying") })
	t.Run("sandbox killed", p.testRDMANewSandbox)
}

// bootsInto sets the RDMA mode of the node from its next boot on.
func (b *agentBench) bootsInto(t *testing.T, mode string) {
	t.Helper()
	check(t, os.WriteFile(filepath.Join(b.node.Dir(), "rdma-mode"), []byte(mode), 0o644))
}

// rdmaMode is the RDMA mode of the node.
func (b *agentBench) rdmaMode(t *testing.T) string {
	t.Helper()
	if strings.Contains(b.shell(t, "rdma system show"), "netns "+exclusive) {
		return exclusive
	}
	return shared
}

// placed are topologies that exclusive mode has no devices for, and one that has none for shared mode.
const placed = `
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: master}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1v3"'}
  exposure: {allowMultipleAllocations: true, supportedCNIPlugins: [{name: macvlan}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: shares}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - {name: net, type: macvlan, config: {master: enp3s0f1v3, name: net1, rdma: true, ipam: {type: pool, pool: rail-0}}}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: verbs}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - {name: ib, type: rdma, selector: {cel: 'device.attributes["dra.networking"].rdma'}}
`

// testRDMAPlacement has the scheduler choose the node by its RDMA mode, of which the steps or a selector need one.
func (p nodePair) testRDMAPlacement(t *testing.T) {
	in := map[string]*agentBench{}
	for _, b := range p {
		in[b.rdmaMode(t)] = b
	}
	if len(in) != 2 {
		t.Fatal("both nodes are in one RDMA mode")
	}
	p.sharesMaster(t)
	p[0].applied(t, placed+strings.Replace(roceRails("moves", "IPv4", 1), `.type == "vf"`,
		`.type == "vf" && device.attributes["dra.networking"].?rdmaNetns.orValue("") == "exclusive"`, 1))
	for _, template := range []string{"shares", "verbs", "moves"} {
		kubectl(t, p[0].Cluster, "", "wait", "--for=create", "--timeout=300s", "resourceclaimtemplate/"+template)
	}
	for mode, b := range in {
		eventually.Holds(t, 2*time.Minute, "the shared function of "+b.node.Name+" is published with the mode", func() string {
			said := kubectl(t, b.Cluster, "", "get", "resourceslices", "--field-selector=spec.nodeName="+b.node.Name, "-o",
				`jsonpath={range .items[?(@.spec.driver=="dra.networking")].spec.devices[*]}{.name} {.attributes.rdmaNetns.string}{"\n"}{end}`)
			if strings.Contains(said, "-shared "+mode) {
				return ""
			}
			return said
		})
	}
	program := filepath.Join(t.TempDir(), "plumbline")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/plumbline")
	build.Dir = p[0].Checkout()
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for template, mode := range map[string]string{"verbs": shared, "shares": shared, "moves": exclusive} {
		right, wrong := in[mode], in[exclusive]
		if mode == exclusive {
			wrong = in[shared]
		}
		t.Run(template, func(t *testing.T) { right.testPlaced(t, wrong, template, program) })
	}
}

// testPlaced creates pods that may be on either node, of which one is the right one, and a pod that must be on the wrong one: the
// program names the mode that leaves this node out.
func (b *agentBench) testPlaced(t *testing.T, wrong *agentBench, template, program string) {
	wrong.create(t, verbsPod("misplaced", wrong.node.Name, template))
	wrong.saysWhy(t, "misplaced", "cannot allocate all claims")
	explain := exec.CommandContext(t.Context(), program, "pod", "explain", "misplaced", "-n", "default", "--kubeconfig", wrong.Admin())
	said, err := explain.CombinedOutput()
	why := fmt.Sprintf("(attribute rdmaNetns); nodes in %s mode are left out: %s; it fits devices of: %s", wrong.rdmaMode(t), wrong.node.Name, b.node.Name)
	if explain.ProcessState == nil || explain.ProcessState.ExitCode() != 2 || !strings.Contains(string(said), why) {
		t.Errorf("plumbline pod explain: %v: %s\nlacks %q", err, said, why)
	}
	kubectl(t, wrong.Cluster, "", "delete", "pod", "misplaced", "--timeout=60s")
	names := []string{"placed-0", "placed-1", "placed-2"} // by chance all would be on the right node in one case of eight
	for _, name := range names {
		b.create(t, strings.Replace(verbsPod(name, "", template), "{kubernetes.io/hostname: }", "{kubernetes.io/os: linux}", 1))
	}
	for _, name := range names {
		b.ready(t, name)
		network := networkAtStart(t, b.Cluster, name)
		delete(network.RDMA, "rdma_cm")
		if on := b.get(t, name, ".spec.nodeName"); on != b.node.Name || len(network.RDMA) != 1 {
			t.Errorf("pod %s is on %s with the RDMA devices %v, want it on %s with one", name, on, network.RDMA, b.node.Name)
		}
	}
	b.drop(t, names...)
}

// sharesMaster sets the function of both nodes up that placed shares, and in the end everything back.
func (p nodePair) sharesMaster(t *testing.T) {
	t.Helper()
	for _, b := range p {
		before := b.rdma
		b.shell(t, "ip link set enp3s0f1v3 up")
		until(t, "the port of the shared function is active", time.Minute, func() bool {
			b.rdma = b.rdmaLinks(t)
			return strings.Contains(b.rdma, "state ACTIVE physical_state LINK_UP netdev enp3s0f1v3")
		})
		t.Cleanup(func() {
			_, _ = b.node.Shell(context.WithoutCancel(t.Context()), "ip link set enp3s0f1v3 down")
			b.rdma = before
		})
	}
	t.Cleanup(func() {
		_, _ = p[0].Kubectl(context.WithoutCancel(t.Context()), nil, "delete", "--ignore-not-found", "--timeout=120s",
			"networktopology/shares", "networktopology/verbs", "networktopology/moves", "deviceexposurepolicy/master")
	})
}
