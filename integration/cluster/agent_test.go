//go:build cluster

package cluster_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
)

// oneVF is a topology with one virtual function, by its name on the host: a request for it
// is for that one device. In the pod it has the topology's name without the dash, so that a
// pod may have several.
const oneVF = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: %[1]s}
spec:
  steps:
  - name: vf
    type: sriov
    selector: {cel: 'device.driver == "dra.networking" && device.attributes["dra.networking"].ifName == "%[2]s"'}
    config: {vlan: 0, name: "%[4]s"}
  - name: tune
    type: tuning
    dependOn: [vf]
    config: {dev: "{{ vf.interfaceName }}", addresses: ["%[3]s"]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %[1]s, namespace: default}
spec: {spec: {devices: {requests: [{name: vf, exactly: {deviceClassName: %[1]s-vf}}]}}}
`

// claimingPod is a pod with a claim of each of the templates.
func claimingPod(name string, templates ...string) string {
	var claims, uses strings.Builder
	for _, t := range templates {
		fmt.Fprintf(&claims, "  - {name: %s, resourceClaimTemplateName: %s}\n", t, t)
		fmt.Fprintf(&uses, "{name: %s},", t)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 5
  resourceClaims:
%s
  containers:
  - name: pod
    image: %q
    imagePullPolicy: Never
    resources: {claims: [%s]}
`, name, claims.String(), cluster.PodImage, strings.TrimSuffix(uses.String(), ","))
}

// askingPod is a pod without a claim, with these among the limits of its container.
func askingPod(name string, limits ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: pod
    image: %q
    imagePullPolicy: Never
    resources: {limits: {%s}}
`, name, cluster.PodImage, strings.Join(limits, ", "))
}

// agentBench is a node with the product installed.
type agentBench struct {
	*cluster.Cluster
	node  *cluster.Node
	home  string // the virtual functions on the host before a case
	rdma  string // its RDMA devices then; empty: not looked at
	files string // the records and gates then
}

// thisRelease chooses the product of this checkout.
func thisRelease(context.Context, *cluster.Cluster) (cluster.Release, error) {
	return cluster.Release{}, nil
}

func newAgentBench(t *testing.T, containerd string, values ...string) *agentBench {
	t.Helper()
	return newAgentBenchOf(t, cluster.NodeOptions{Containerd: containerd}, thisRelease, values...)
}

// newAgentBenchOf is newAgentBench with the release that choose returns, and with values.
func newAgentBenchOf(t *testing.T, options cluster.NodeOptions, choose func(context.Context, *cluster.Cluster) (cluster.Release, error), values ...string) *agentBench {
	t.Helper()
	return newAgentBenchIn(t, cluster.Options{}, options, choose, values...)
}

// newAgentBenchIn is newAgentBenchOf with a control plane that has these options.
func newAgentBenchIn(t *testing.T, control cluster.Options, options cluster.NodeOptions, choose func(context.Context, *cluster.Cluster) (cluster.Release, error), values ...string) *agentBench {
	t.Helper()
	b := &agentBench{Cluster: start(t, control)}
	// The machine is emulated: what takes a tenth of a second takes three when its host
	// is busy. Other cases test the end of that time.
	options.NRITimeout = cmp.Or(options.NRITimeout, 10*time.Second)
	options.Kubelet += "\ncrashLoopBackOff: {maxContainerRestartPeriod: 1s}" // agents are killed in close succession
	b.node = addNode(t, b.Cluster, options)
	release, err := choose(t.Context(), b.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	b.install(t, release, values...)
	b.home = b.vfs(t)
	for i, ifName := range []string{"enp3s0f0v0", "enp3s0f0v1"} {
		topology := fmt.Sprintf("net-%d", i+1)
		b.applied(t, fmt.Sprintf(oneVF, topology, ifName, fmt.Sprintf("192.0.2.%d/26", 65+64*i), fmt.Sprintf("net%d", i+1)))
		kubectl(t, b.Cluster, "", "wait", "--for=create", "--timeout=60s", "deviceclass/"+topology+"-vf")
	}
	return b
}

// install installs a release on all nodes, and prints what the cluster has if the test fails.
func (b *agentBench) install(t *testing.T, release cluster.Release, values ...string) {
	t.Helper()
	began := time.Now()
	if release == (cluster.Release{}) {
		values = append(values, "agent.driverBinding=true", "agent.lldp=true") // which earlier charts do not know
	}
	if err := b.InstallRelease(t.Context(), release, values...); err != nil {
		t.Fatal(err)
	}
	t.Logf("installed after %s", time.Since(began).Round(10*time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
			defer cancel()
			for _, what := range [][]string{
				{"get", "pods,resourceclaims", "-A", "-o", "wide"},
				{"get", "events", "-A"},
				{"-n", cluster.ProductNamespace, "logs", "--tail=120", "daemonset/plumbline-agent"},
			} {
				said, err := b.Kubectl(ctx, nil, what...)
				t.Logf("kubectl %s (%v):\n%s", strings.Join(what, " "), err, said)
			}
		}
	})
}

// applied applies a manifest, again if need be: the webhook of a controller that has just
// started on a busy machine may not answer in time.
func (b *agentBench) applied(t *testing.T, manifest string) {
	t.Helper()
	until(t, "the manifest is applied", 5*time.Minute, func() bool {
		_, err := b.Kubectl(t.Context(), strings.NewReader(manifest), "apply", "-f", "-")
		if err == nil {
			return true
		}
		if strings.Contains(err.Error(), "denied the request") || strings.Contains(err.Error(), "strict decoding error") {
			t.Fatal(err)
		}
		t.Logf("not applied: %v", err)
		return false
	})
}

func (b *agentBench) shell(t *testing.T, script string) string {
	t.Helper()
	said, err := b.node.Shell(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

func (b *agentBench) vfs(t *testing.T) string {
	t.Helper()
	return b.shell(t, "ip -br link | awk '/v[0-9]/ { print $1, $3 }' | sort")
}

// agent sends the agent's process a signal.
func (b *agentBench) agent(t *testing.T, signal string) {
	t.Helper()
	b.signal(t, signal, agentFilter)
}

const agentFilter = `labels."io.kubernetes.container.name"==agent`

// signal sends a signal to the first processes of the containers that a filter of
// containerd finds; that there are any is part of the test.
func (b *agentBench) signal(t *testing.T, signal, filter string) {
	t.Helper()
	b.shell(t, signalScript(signal, filter))
}

func signalScript(signal, filter string) string {
	return `ids=$(ctr -n k8s.io containers ls -q '` + filter + `')
sent=0
for id in $ids; do if ctr -n k8s.io tasks kill -s SIG` + signal + ` "$id" 2>/dev/null; then sent=1; fi; done
[[ $sent = 1 ]]`
}

// place lets the agent run on the node, or takes it away and waits until it is.
func (b *agentBench) place(t *testing.T, there bool) {
	t.Helper()
	selector := `{"plumbline.test/none":null}`
	if !there {
		selector = `{"plumbline.test/none":"true"}`
	}
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "patch", "daemonset/plumbline-agent", "-p", `{"spec":{"template":{"spec":{"nodeSelector":`+selector+`}}}}`)
	if !there {
		kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "wait", "--for=delete", "--timeout=60s", "pod", "-l", "app.kubernetes.io/component=agent")
		return
	}
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "rollout", "status", "--timeout=120s", "daemonset/plumbline-agent")
}

func (b *agentBench) create(t *testing.T, pod string) {
	t.Helper()
	t.Cleanup(func() { // of a case that failed, so that the next one finds an agent, and the devices free
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if t.Failed() {
			_, _ = b.node.Shell(ctx, signalScript("CONT", agentFilter))
			_, _ = b.Kubectl(ctx, strings.NewReader(pod), "delete", "--ignore-not-found", "--timeout=50s", "-f", "-")
		}
	})
	kubectl(t, b.Cluster, pod, "create", "-f", "-")
}

func (b *agentBench) ready(t *testing.T, pod string) {
	t.Helper()
	began := time.Now()
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=300s", "pod/"+pod)
	t.Logf("pod %s Ready after %s", pod, time.Since(began).Round(10*time.Millisecond))
}

// has fails the test unless the container was started with these interfaces, by
// what it printed first of all.
func (b *agentBench) has(t *testing.T, pod string, names ...string) {
	t.Helper()
	network := networkAtStart(t, b.Cluster, pod)
	for _, name := range names {
		if i := network.Interface(name); i == nil || len(i.Addresses) == 0 {
			t.Errorf("pod %s was started with %+v, want %q with addresses", pod, network.Interfaces, name)
		}
	}
}

// hasNow fails the test unless the sandbox for which the gate of a claim of the pod
// is open has these interfaces with addresses now.
func (b *agentBench) hasNow(t *testing.T, pod string, names ...string) {
	t.Helper()
	links := b.shell(t, `for gate in $(ls /var/run/cdi/dra.networking-gate-* | grep -E '`+b.claims(t, pod)+`'); do
	ip -br -n "$(basename "$(jq -r '.devices[0].containerEdits.mounts[0].hostPath' "$gate")")" address | awk 'NF > 2 { sub("@.*", "", $1); print $1 }'
done`)
	for _, name := range names {
		if !slices.Contains(strings.Fields(links), name) {
			t.Errorf("pod %s has %q, want %q with an address", pod, strings.Fields(links), name)
		}
	}
}

func (b *agentBench) drop(t *testing.T, pods ...string) {
	t.Helper()
	kubectl(t, b.Cluster, "", append([]string{"delete", "pod", "--timeout=120s"}, pods...)...)
	b.nothingLeft(t)
}

// nothingLeft fails the test unless all virtual functions are back on the host and no
// record and no gate is left.
func (b *agentBench) nothingLeft(t *testing.T) {
	t.Helper()
	if now := b.vfs(t); now != b.home {
		t.Errorf("virtual functions:\n%s\nbefore:\n%s", now, b.home)
	}
	if left := b.records(t); left != b.files {
		t.Errorf("left behind:\n%s\nbefore:\n%s", left, b.files)
	}
	if b.rdma != "" {
		eventually.Holds(t, time.Minute, "the RDMA devices of "+b.node.Name+" are as before (-before +now)", func() string {
			return gocmp.Diff(b.rdma, b.rdmaLinks(t))
		})
	}
}

// records lists what the agent keeps of claims and sandboxes.
func (b *agentBench) records(t *testing.T) string {
	t.Helper()
	return b.shell(t, "ls /var/lib/plumbline/claims /var/run/cdi | grep -E '[.](claim|sandboxes)$|-gate-' || true; ls /var/lib/plumbline | grep '[.]journal$' || true")
}

// get returns a field of a pod.
func (b *agentBench) get(t *testing.T, pod, path string) string {
	t.Helper()
	return kubectl(t, b.Cluster, "", "get", "pod", pod, "-o", "jsonpath={"+path+"}")
}

// until waits for something the API has no wait for.
func until(t *testing.T, what string, limit time.Duration, holds func() bool) {
	t.Helper()
	eventually.True(t, limit, what, holds)
}

// newSandbox ends the process that keeps the pod's namespaces, so that kubelet
// makes a new sandbox. It prepares no claim again for that.
func (b *agentBench) newSandbox(t *testing.T, pod string) {
	t.Helper()
	b.signal(t, "KILL", `labels."io.kubernetes.pod.uid"=="`+b.get(t, pod, ".metadata.uid")+`",labels."io.cri-containerd.kind"==sandbox`)
}

func (b *agentBench) waiting(t *testing.T, pod string) string {
	t.Helper()
	return b.get(t, pod, ".status.containerStatuses[0].state.waiting.reason") + " " + b.get(t, pod, ".status.containerStatuses[0].state.waiting.message")
}

// TestAgent holds the life of claims on a node, on both versions of containerd:
// no container without its network, no virtual function lost, nothing left.
func TestAgent(t *testing.T) {
	for _, containerd := range []string{"2.4", "1.7"} {
		t.Run(containerd, func(t *testing.T) {
			b := newAgentBench(t, containerd)
			t.Run("attach and detach", func(t *testing.T) {
				b.create(t, claimingPod("one", "net-1"))
				b.ready(t, "one")
				b.has(t, "one", "net1")
				b.drop(t, "one")
			})
			t.Run("no claim", b.testNoClaim)
			t.Run("physical networks", b.testPhysicalNetworks)
			t.Run("neighbours", b.testNeighbours)
			t.Run("shared device", b.testSharedDevice)
			t.Run("addresses", b.testAddresses)
			t.Run("functions as shares", b.testFunctionsAsShares)
			t.Run("shares and a reboot", b.testSharesReboot)
			t.Run("user space", b.testUserSpace)
			t.Run("gate", b.testGate)
			t.Run("agent restarted", b.testRestart)
			t.Run("registered again", b.testRegistered)
			t.Run("deleted while the agent is down", b.testDownDelete)
			t.Run("two claims", func(t *testing.T) {
				b.create(t, claimingPod("two", "net-1", "net-2"))
				b.ready(t, "two")
				b.has(t, "two", "net1", "net2")
				b.drop(t, "two")
			})
			t.Run("force delete and use again", b.testForce)
			t.Run("host network", b.testHostNetwork)
			t.Run("daemons restarted", b.testDaemons)
			t.Run("faults", b.testFaults)
			t.Run("reboot", b.testReboot)
			t.Run("user space and a reboot", b.testUserSpaceReboot)
		})
	}
}

// testUserSpace gives a pod a virtual function that it drives by itself. The agent is
// killed meanwhile, and the function is back on the host in the end.
func (b *agentBench) testUserSpace(t *testing.T) {
	b.shell(t, "modprobe vfio-pci")
	address := strings.TrimSpace(b.shell(t, "basename $(readlink /sys/class/net/enp3s0f0v2/device)"))
	kubectl(t, b.Cluster, driven, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=create", "--timeout=60s", "deviceclass/driven-vf")
	b.create(t, claimingPod("driven", "driven"))
	b.ready(t, "driven")
	drives := func(when string) {
		t.Helper()
		if said := kubectl(t, b.Cluster, "", "exec", "driven", "--", "/pod", "drive", address); !strings.Contains(said, "opened "+address) {
			t.Errorf("%s: %s", when, said)
		}
	}
	drives("started")
	if said := b.shell(t, "ip link show enp3s0f0"); !strings.Contains(said, "vlan 9") || !strings.Contains(said, "02:00:00:00:0d:0d") {
		t.Errorf("the physical function does not hold what the step says:\n%s", said)
	}

	b.agent(t, "KILL")
	until(t, "the agent runs again", 120*time.Second, func() bool {
		return strings.TrimSpace(kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "get", "daemonset/plumbline-agent", "-o", "jsonpath={.status.numberUnavailable}")) == ""
	})
	drives("with another agent")
	b.shell(t, "cd /sys/bus/pci/devices/"+address+" && echo "+address+" >driver/unbind && echo >driver_override && echo "+address+" >/sys/bus/pci/drivers_probe")
	until(t, "the driver is bound again", 2*time.Minute, func() bool {
		return strings.HasSuffix(strings.TrimSpace(b.shell(t, "readlink /sys/bus/pci/devices/"+address+"/driver || true")), "/vfio-pci")
	})
	drives("repaired")
	b.drop(t, "driven")
}

// testUserSpaceReboot cuts the power of the node below a pod that drives a function. The
// boot gives that its own driver again, and the kubelet prepares the claim once more.
func (b *agentBench) testUserSpaceReboot(t *testing.T) {
	b.shell(t, "modprobe vfio-pci")
	address := strings.TrimSpace(b.shell(t, "basename $(readlink /sys/class/net/enp3s0f0v2/device)"))
	kubectl(t, b.Cluster, driven, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=create", "--timeout=60s", "deviceclass/driven-vf")
	b.create(t, claimingPod("driven-on", "driven"))
	b.ready(t, "driven-on")
	reboot(t, b.node)
	b.shell(t, "modprobe vfio-pci")
	kubectl(t, b.Cluster, "", "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=240s", "pod/driven-on")
	b.ready(t, "driven-on")
	if said := kubectl(t, b.Cluster, "", "exec", "driven-on", "--", "/pod", "drive", address); !strings.Contains(said, "opened "+address) {
		t.Errorf("after the reboot: %s", said)
	}
	kubectl(t, b.Cluster, "", "delete", "pod", "driven-on", "--timeout=120s")
	b.home = b.returned(t, b.home) // this boot's
	b.nothingLeft(t)
}

const driven = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: driven}
spec:
  steps:
  - name: vf
    type: vfio-pci
    selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f0v2"'}
    config: {vlan: 9, mac: "02:00:00:00:0d:0d"}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: driven, namespace: default}
spec: {spec: {devices: {requests: [{name: vf, exactly: {deviceClassName: driven-vf}}]}}}
`

// bonded is a topology for pods that request two functions of a device plugin: of the card
// whose first function the other topologies take.
const bonded = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: bonded}
spec:
  steps:
  - name: vf0
    type: sriov
    extendedResourceName: openshift.io/sriov_a
    selector: {cel: 'device.driver == "dra.networking" && device.attributes["dra.networking"].pfName == "enp3s0f0"'}
  - name: vf1
    type: sriov
    extendedResourceName: openshift.io/sriov_a
    selector: {cel: 'device.driver == "dra.networking" && device.attributes["dra.networking"].pfName == "enp3s0f0"'}
  - name: bond0
    type: bond
    dependOn: [vf0, vf1]
    config: {name: bond0, mode: active-backup, miimon: 100, addresses: ["192.0.2.201/26"]}
`

// testNoClaim runs pods that request devices in the limits of their containers.
func (b *agentBench) testNoClaim(t *testing.T) {
	b.create(t, askingPod("unclaimed", "deviceclass.resource.kubernetes.io/net-1-vf: 1", "deviceclass.resource.kubernetes.io/net-2-vf: 1"))
	b.ready(t, "unclaimed")
	b.has(t, "unclaimed", "net1", "net2")
	b.drop(t, "unclaimed")

	kubectl(t, b.Cluster, bonded, "apply", "-f", "-")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=60s", "networktopology/bonded")
	b.create(t, askingPod("plugged", "openshift.io/sriov_a: 2"))
	b.ready(t, "plugged")
	b.has(t, "plugged", "bond0")
	b.saysWhy(t, "plugged", `NetworkNotRedundant: topology "bonded": step "bond0": the devices of ["vf0" "vf1"] are virtual functions of one physical function, 0000:01:00.0, and fail together`)
	b.drop(t, "plugged")
	kubectl(t, b.Cluster, "", "delete", "networktopology", "bonded", "--timeout=60s")
}

// testGate makes a new sandbox while the agent hangs: its hook times out, the
// runtime goes on without it, and all that holds the container back is the gate,
// which is still open for the old sandbox.
func (b *agentBench) testGate(t *testing.T) {
	b.create(t, claimingPod("gated", "net-1"))
	b.ready(t, "gated")
	b.agent(t, "STOP")
	b.newSandbox(t, "gated")
	until(t, "the container is refused", 180*time.Second, func() bool {
		return strings.Contains(b.waiting(t, "gated"), "Error") || strings.Contains(b.waiting(t, "gated"), "BackOff")
	})
	t.Logf("refused: %s", b.waiting(t, "gated"))
	if now := b.get(t, "gated", ".status.containerStatuses[0].state.running"); now != "" {
		t.Errorf("the container runs in a sandbox without network: %s", now)
	}
	b.agent(t, "CONT")
	kubectl(t, b.Cluster, "", "wait", "--for=condition=Ready", "--timeout=180s", "pod/gated")
	b.has(t, "gated", "net1")
	b.drop(t, "gated")
}

func (b *agentBench) testRestart(t *testing.T) {
	b.create(t, claimingPod("kept", "net-1"))
	b.ready(t, "kept")
	before := b.shell(t, "cat /var/run/cdi/dra.networking-gate-*")
	b.agent(t, "KILL")
	until(t, "the agent runs again", 120*time.Second, func() bool {
		return strings.TrimSpace(kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "get", "daemonset/plumbline-agent", "-o", "jsonpath={.status.numberUnavailable}")) == ""
	})
	if after := b.shell(t, "cat /var/run/cdi/dra.networking-gate-*"); after != before {
		t.Errorf("gate after the agent's restart:\n%s\nbefore:\n%s", after, before)
	}
	if n := b.get(t, "kept", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("the pod was restarted %s times with the agent", n)
	}
	b.drop(t, "kept")
}

// testRegistered measures how long no agent is registered with the kubelet after one
// has died, and after one has been stopped: what a pod costs a minute that starts then.
func (b *agentBench) testRegistered(t *testing.T) {
	sockets := func() string {
		return b.shell(t, "cd /var/lib/kubelet && ls plugins_registry plugins/dra.networking | grep -c '^dra.*sock$'")
	}
	before := sockets()
	for range 3 {
		for _, signal := range []string{"KILL", "TERM"} {
			b.shell(t, "touch -d '1 minute ago' $(find /var/lib/kubelet/plugins_registry /var/lib/kubelet/plugins/dra.networking -name 'dra*.sock')") // that are young enough to be kept
			b.registeredSince(t, "SIG"+signal, b.clock(t, signalScript(signal, agentFilter)+"\ndate +%s%N"))
		}
	}
	if now := sockets(); now != before {
		t.Errorf("%s sockets, before %s", strings.TrimSpace(now), strings.TrimSpace(before))
	}
}

// clock returns a time that a command on the node prints in nanoseconds.
func (b *agentBench) clock(t *testing.T, command string) time.Time {
	t.Helper()
	nanoseconds, err := strconv.ParseInt(strings.TrimSpace(b.shell(t, command)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, nanoseconds)
}

// registeredSince waits for an agent that is registered after a time of the node's, and
// logs what the time since went into.
func (b *agentBench) registeredSince(t *testing.T, what string, began time.Time) {
	t.Helper()
	var at time.Time
	until(t, "the agent is registered again", 5*time.Minute, func() bool {
		at = b.logged(t, `"registered with the kubelet"`)
		return at.After(began)
	})
	running, connected := b.logged(t, "running"), b.logged(t, "connected")
	t.Logf("%s: registered after %s: its container ran after %s, the runtime was connected %s after that, the kubelet %s", what,
		at.Sub(began).Round(10*time.Millisecond), running.Sub(began).Round(10*time.Millisecond),
		connected.Sub(running).Round(10*time.Millisecond), at.Sub(running).Round(10*time.Millisecond))
}

// logged returns when the agent's process logged a message for the last time, by the
// node's clock; zero when it has not, or is not to be queried.
func (b *agentBench) logged(t *testing.T, message string) (at time.Time) {
	t.Helper()
	said, err := b.Kubectl(t.Context(), nil, "-n", cluster.ProductNamespace, "logs", "daemonset/plumbline-agent")
	if err != nil { // its container is being made
		return time.Time{}
	}
	for line := range strings.Lines(said) {
		if !strings.Contains(line, "msg="+message+" ") {
			continue
		}
		word, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		if at, err = time.Parse(time.RFC3339Nano, word); err != nil {
			t.Errorf("a line of the log: %v", err)
		}
	}
	return at
}

// unregistered fails the test when the kubelet has found no agent for a pod.
func (b *agentBench) unregistered(t *testing.T) {
	t.Helper()
	said := kubectl(t, b.Cluster, "", "get", "events", "--field-selector", "reason=FailedPrepareDynamicResources", "-o", `jsonpath={range .items[*]}{.involvedObject.name} {.message}{"\n"}{end}`)
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "churn-") {
			t.Errorf("not prepared at once: %s", line)
		}
	}
}

func (b *agentBench) testDownDelete(t *testing.T) {
	b.create(t, claimingPod("orphan", "net-1"))
	b.ready(t, "orphan")
	b.place(t, false)
	kubectl(t, b.Cluster, "", "delete", "pod", "orphan", "--wait=false")
	b.create(t, claimingPod("early", "net-2"))
	until(t, "the process of the pod ends", 120*time.Second, func() bool {
		return strings.Contains(b.get(t, "orphan", ".status.containerStatuses[0].state"), "terminated")
	})
	if now := b.get(t, "early", ".status.containerStatuses[0].state.running"); now != "" {
		t.Errorf("a pod with a claim runs without the agent: %s", now)
	}
	b.place(t, true)
	kubectl(t, b.Cluster, "", "wait", "--for=delete", "--timeout=120s", "pod/orphan")
	b.ready(t, "early")
	b.has(t, "early", "net2")
	b.drop(t, "early")
}

func (b *agentBench) testForce(t *testing.T) {
	b.create(t, claimingPod("first", "net-1"))
	b.ready(t, "first")
	kubectl(t, b.Cluster, "", "delete", "pod", "first", "--force", "--grace-period=0")
	b.create(t, claimingPod("second", "net-1"))
	b.ready(t, "second")
	b.has(t, "second", "net1")
	b.drop(t, "second")
}

func (b *agentBench) testHostNetwork(t *testing.T) {
	b.create(t, strings.Replace(claimingPod("bare", "net-1"), "spec:\n", "spec:\n  hostNetwork: true\n", 1))
	until(t, "the pod is refused", 120*time.Second, func() bool {
		return strings.Contains(kubectl(t, b.Cluster, "", "get", "events", "--field-selector", "involvedObject.name=bare"), "hostNetwork")
	})
	if now := b.get(t, "bare", ".status.containerStatuses[0].state.running"); now != "" {
		t.Errorf("it runs: %s", now)
	}
	b.drop(t, "bare")
}

// testDaemons restarts kubelet and containerd below a running pod. After that
// containerd does not notify plugins of the pod's end.
func (b *agentBench) testDaemons(t *testing.T) {
	b.create(t, claimingPod("still", "net-1"))
	b.ready(t, "still")
	for _, daemon := range []cluster.Daemon{cluster.Kubelet, cluster.Containerd} {
		if err := b.node.Kill(t.Context(), daemon); err != nil {
			t.Fatal(err)
		}
		if err := b.node.Start(t.Context(), daemon); err != nil {
			t.Fatal(err)
		}
		// A kubelet that finds no runtime when it starts ends.
		if err := b.node.WaitReady(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	b.ready(t, "still")
	if n := b.get(t, "still", ".status.containerStatuses[0].restartCount"); n != "0" {
		t.Errorf("the pod was restarted %s times with its node's daemons", n)
	}
	b.drop(t, "still")
}

func (b *agentBench) testReboot(t *testing.T) {
	b.create(t, claimingPod("risen", "net-1"))
	b.ready(t, "risen")
	reboot(t, b.node)
	b.registeredSince(t, "reboot, since the kubelet was started", b.clock(t, "date -r /run/node/kubelet +%s%N"))
	kubectl(t, b.Cluster, "", "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=180s", "pod/risen")
	b.ready(t, "risen")
	b.has(t, "risen", "net1")
	kubectl(t, b.Cluster, "", "delete", "pod", "risen", "--timeout=120s")
	b.home = b.returned(t, b.home) // this boot's
	b.nothingLeft(t)
}
