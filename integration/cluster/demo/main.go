// Command demo shows a cluster of the test bench with kubectl: a node, a pod and its network, a ping, a repair, a limit,
// an edit, and the devices back on the host. make demo-cluster runs it, and it fails when anything it says is not so.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	stay := flag.Bool("stay", false, "leave it up until interrupted")
	containerd := flag.String("containerd", "2.4", "the nodes' containerd: 2.4 or 1.7")
	nodes := flag.Int("nodes", 1, "how many nodes")
	flag.Parse()
	err := run(ctx, os.Stdout, *nodes, *containerd, *stay)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo is a cluster and where to print its progress.
type demo struct {
	*cluster.Cluster
	nodes []*cluster.Node
	out   io.Writer
	began time.Time
}

func run(ctx context.Context, out io.Writer, nodes int, containerd string, stay bool) (err error) {
	began, ready := time.Now(), time.Time{}
	c, err := cluster.Start(ctx, cluster.Options{Log: out, PodCIDRs: true})
	if err != nil {
		return err
	}
	d := demo{Cluster: c, out: out, began: began}
	defer func() {
		if closeErr := c.Close(); err == nil {
			err = closeErr
		}
		if err == nil {
			d.say("everything is removed; the control plane and the nodes took %s to start, builds included",
				ready.Sub(began).Round(time.Second))
		}
	}()
	d.say("a control plane, and %d node(s) in virtual machines with four SR-IOV cards and no CNI plugin", nodes)
	images, err := d.images(ctx)
	if err != nil {
		return err
	}
	ahead := d.ahead(ctx)
	for range nodes {
		n, err := c.AddNode(ctx, cluster.NodeOptions{
			Containerd: containerd, RDMA: true, NoCNI: true, NICs: "quad", Images: images,
			// The machine is emulated: what takes a tenth of a second takes three when its host is busy.
			NRITimeout: 30 * time.Second,
		})
		if err != nil {
			return err
		}
		d.nodes = append(d.nodes, n)
	}
	ready = time.Now()
	if err := errors.Join(<-ahead, d.kubectl(ctx, "", "get", "nodes", "-o", "wide")); err != nil {
		return err
	}
	if err := d.story(ctx); err != nil || !stay {
		return err
	}
	d.say("up until it is interrupted: export KUBECONFIG=%s PATH=%s:$PATH", c.Admin(), c.Programs())
	<-ctx.Done()
	return nil
}

// images are the archives of plumbline and of the GPU vendor's driver.
func (d demo) images(ctx context.Context) ([]string, error) {
	product, err := d.Product(ctx)
	gpu, gpuErr := story.GPUImage(ctx, d.Cluster)
	return []string{product, gpu}, errors.Join(err, gpuErr)
}

// ahead applies while the nodes boot what they run as soon as they are registered.
func (d demo) ahead(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- errors.Join(d.InstallAhead(ctx, "podNetwork.enabled=true", "networkQoS.enabled=true"), story.ApplyGPU(ctx, d.Cluster))
	}()
	return done
}

// story runs from kubectl apply until every VF is back on the host.
func (d demo) story(ctx context.Context) error {
	d.say("plumbline, by its chart, and a stand-in for a GPU vendor's driver; meanwhile a host at the other end of the wires")
	wired := make(chan error, 1)
	go func() { wired <- d.shell(ctx, partner) }()
	if err := errors.Join(d.Installed(ctx), <-wired); err != nil {
		return err
	}
	d.say("the pods' own network; the nodes are Ready with it")
	if err := story.InstallPodNetwork(ctx, d.Cluster, d.nodes...); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "", "get", "nodes"); err != nil {
		return err
	}
	home, err := d.vfs(ctx)
	if err := errors.Join(err, story.InstallGPU(ctx, d.Cluster, d.node())); err != nil {
		return err
	}
	d.say("the platform team's topology, and the DeviceClasses made of it")
	topology := bonded()
	if err := d.kubectl(ctx, topology, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := d.Await(ctx, "deviceclass/ai-bonded-rdma-vf0", "deviceclass/ai-bonded-rdma-vf1"); err != nil {
		return err
	}
	for _, arguments := range [][]string{
		{"wait", "--for=condition=Programmed", "--timeout=60s", "networktopology/ai-bonded-rdma"},
		{"get", "networktopologies"},
		{"get", "deviceclasses"},
		{"get", "resourceslices"},
	} {
		if err := d.kubectl(ctx, "", arguments...); err != nil {
			return err
		}
	}
	d.say("a claim that lacks vf1 is refused")
	lacking := strings.Replace(story.Claim, "ai-bonded-rdma-vf1", "nvidia-gpu-h100", 1)
	refusal := d.kubectl(ctx, lacking, "apply", "-f", "-")
	if refusal == nil || !strings.Contains(refusal.Error(), "Missing: [vf1]") { // as text: kubectl prints it
		return fmt.Errorf("a claim that lacks vf1 was not refused for that: %v", refusal) //nolint:errorlint // nil, as a rule
	}
	_, said, _ := strings.Cut(refusal.Error(), "exit status 1: ") // as text: kubectl prints it
	fmt.Fprintln(d.out, said)
	d.say("the user's claim: a GPU and two VFs below one PCIe root; and the pod")
	if err := d.kubectl(ctx, story.Claim, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, served(), "apply", "-f", "-"); err != nil {
		return err
	}
	for _, arguments := range [][]string{
		{"wait", "--for=condition=Ready", "--timeout=180s", "pod/ai-training"},
		{"wait", "--for=jsonpath={.status.devices[1].networkData.interfaceName}", "--timeout=60s", "resourceclaims", "--all"},
		{"get", "resourceclaims", "-o", `jsonpath={range .items[*].status.devices[*]}{.device}: ` +
			`{.networkData.interfaceName} {.networkData.hardwareAddress} {.conditions[*].reason}{"\n"}{end}`},
		{"get", "events", "--field-selector=involvedObject.name=ai-training"},
	} {
		if err := d.kubectl(ctx, "", arguments...); err != nil {
			return err
		}
	}
	d.say("what the pod sees:")
	if err := d.sees(ctx, story.CheckNetwork); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{d.healthy, d.ping, d.repaired, d.limited} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	if err := d.edited(ctx, topology); err != nil {
		return err
	}
	return d.goHome(ctx, home)
}

// bonded is the topology of the story, whose edits reach pods that run. Its bond needs no partner that speaks LACP.
func bonded() string {
	return strings.NewReplacer(
		"  name: ai-bonded-rdma\nspec:\n", "  name: ai-bonded-rdma\n  labels: {network: ai}\nspec:\n  updatePolicy: InPlace\n",
		"mode: 802.3ad", "mode: active-backup", "        xmitHashPolicy: layer3+4\n", "", "        lacpRate: fast\n", "",
	).Replace(story.Topology)
}

// edit changes the MTU of mgmt0.
func edit(topology string) string { return strings.Replace(topology, "mtu: 1500", "mtu: 1400", 1) }

// served is the pod of the story, which answers on a port. The cluster has no DNS, of which the kubelet would warn.
func served() string {
	return strings.NewReplacer("imagePullPolicy: Never", `imagePullPolicy: Never
      args: [listen, "80"]`, "\nspec:\n", "\nspec:\n  dnsPolicy: Default\n").Replace(story.Pod())
}

// partner makes a host at the other end of the wires, in a network namespace of the node: it sends on both ports, as a
// switch does, and has the VLANs of the pod. A function refuses a VLAN until it has been up for a moment.
const partner = `ip netns add partner
ip -n partner link add bond0 type bond mode broadcast miimon 100
for port in enp4s0f0v0 enp4s0f1v0; do
  ip link set $port netns partner
  ip -n partner link set $port master bond0
done
ip -n partner link set bond0 up
for vlan in 100 200; do
  for n in $(seq 100); do ip -n partner link add link bond0 name vlan$vlan type vlan id $vlan 2>/dev/null && break; sleep 0.2; done
  ip -n partner address add 10.$vlan.0.1/24 dev vlan$vlan
  ip -n partner link set vlan$vlan up
done`

// sees shows the network as the pod sees it.
func (d demo) sees(ctx context.Context, check func(said string) error) error {
	fmt.Fprintln(d.out, "$ kubectl exec ai-training -- /pod show")
	said, err := d.Kubectl(ctx, nil, "exec", "ai-training", "--", "/pod", "show")
	if err != nil {
		return err
	}
	fmt.Fprint(d.out, said)
	return check(said)
}

// healthy holds that until here no Event of the pod is a Warning.
func (d demo) healthy(ctx context.Context) error {
	d.say("no Event is a Warning")
	warnings := []string{"get", "events", "--field-selector=involvedObject.name=ai-training,type=Warning", "-o", "name"}
	said, err := d.Kubectl(ctx, nil, warnings...)
	fmt.Fprintf(d.out, "$ kubectl %s\n%s", strings.Join(warnings, " "), said)
	if err == nil && said != "" {
		err = errors.New("a pod that has its network has Warnings")
	}
	return err
}

func (d demo) ping(ctx context.Context) error {
	d.say("ping over the bond and its VLANs")
	for _, address := range []string{"10.100.0.1", "10.200.0.1"} {
		if err := d.kubectl(ctx, "", "exec", "ai-training", "--", "/pod", "ping", address); err != nil {
			return err
		}
	}
	return nil
}

// repaired takes a port out of the bond, and shows the Event that has how long the repair took.
func (d demo) repaired(ctx context.Context) error {
	d.say("somebody takes a port out of the bond")
	if err := d.shell(ctx, "for n in $(ls /run/netns); do ip -n $n link set net2 nomaster 2>/dev/null || true; done"); err != nil {
		return err
	}
	if err := d.event(ctx, "NetworkRepaired", "repaired in "); err != nil {
		return err
	}
	return d.sees(ctx, story.CheckNetwork)
}

// limit is a NetworkQoS on the pods of the topology.
const limit = `apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: limit, namespace: default}
spec:
  priority: 20
  networkSelectors:
    - networkSelectionType: NetworkTopologies
      networkTopologySelector: {networkSelector: {matchLabels: {network: ai}}}
  egress:
    - dscp: 8
      bandwidth: {rate: 2000, burst: 600} # kbit/s
      classifier: {to: [{ipBlock: {cidr: 10.100.0.0/16}}]}
`

// limited measures what the pod sends before and with a NetworkQoS.
func (d demo) limited(ctx context.Context) error {
	d.say("the throughput from the pod to the host at the other end, in kbit/s")
	before, err := d.rate(ctx)
	if err != nil {
		return err
	}
	if err := d.kubectl(ctx, limit, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := d.event(ctx, "NetworkQoSApplied", ""); err != nil {
		return err
	}
	with, err := d.rate(ctx)
	if err != nil {
		return err
	}
	if with > 4000 || before < 2*with { // the first burst counts, too
		return fmt.Errorf("%d kbit/s without the limit of 2000, and %d with it", before, with)
	}
	return d.kubectl(ctx, "", "delete", "networkqos", "limit")
}

// rate receives from the pod for three seconds.
func (d demo) rate(ctx context.Context) (kbit int, err error) {
	const command = "{ timeout 3 ip netns exec partner busybox wget -q -O - http://10.100.0.5/zeros || true; }" +
		" | wc -c | awk '{ print int($1 * 8 / 3 / 1000) }'"
	said, err := d.node().Shell(ctx, command)
	fmt.Fprintf(d.out, "%s$ %s\n%s", d.node().Name, command, said)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(said))
}

// edited changes the topology, and shows the change in the pod, which goes on.
func (d demo) edited(ctx context.Context, topology string) error {
	d.say("an edit, mgmt0 with an MTU of 1400, reaches the running pod")
	if err := d.kubectl(ctx, edit(topology), "apply", "-f", "-"); err != nil {
		return err
	}
	if err := d.event(ctx, "NetworkUpdated", "from generation 1 to 2"); err != nil {
		return err
	}
	err := d.sees(ctx, func(said string) error {
		var network cluster.PodNetwork
		if err := json.Unmarshal([]byte(said), &network); err != nil {
			return err
		}
		if mgmt := network.Interface("mgmt0"); mgmt == nil || mgmt.MTU != 1400 {
			return fmt.Errorf("mgmt0 is %+v, want an MTU of 1400", mgmt)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.kubectl(ctx, "", "get", "pod", "ai-training") // not restarted
}

// event waits for an Event of the pod, and shows it.
func (d demo) event(ctx context.Context, reason, text string) error {
	arguments := []string{
		"get", "events", "--field-selector=involvedObject.name=ai-training,reason=" + reason,
		"-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`,
	}
	fmt.Fprintf(d.out, "$ kubectl %s\n", strings.Join(arguments, " "))
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		said, err := d.Kubectl(ctx, nil, arguments...)
		if err == nil && said != "" && strings.Contains(said, text) {
			fmt.Fprint(d.out, said)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no Event %s with %q, but %q: %w", reason, text, said, cmp.Or(err, ctx.Err()))
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// goHome deletes the pod and the topology, and shows every VF where it was.
func (d demo) goHome(ctx context.Context, home string) error {
	d.say("the pod is deleted, and the devices are on the host as they were")
	if err := d.kubectl(ctx, "", "delete", "pod", "ai-training", "--timeout=120s"); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "%s$ %s\n", d.node().Name, listVFs)
	now, err := d.vfs(ctx)
	if err != nil {
		return err
	}
	fmt.Fprint(d.out, now)
	if now != home {
		return fmt.Errorf("VFs now:\n%s\nbefore:\n%s", now, home)
	}
	return d.kubectl(ctx, "", "delete", "networktopology", "ai-bonded-rdma", "--timeout=60s")
}

// node is the last one, which has the GPU.
func (d demo) node() *cluster.Node { return d.nodes[len(d.nodes)-1] }

// vfs lists the names and MACs of the node's VFs.
func (d demo) vfs(ctx context.Context) (string, error) {
	return d.node().Shell(ctx, listVFs)
}

const listVFs = "ip -br link | awk '/v[0-9]/ { print $1, $3 }' | sort"

// shell shows a command on the node, and its output.
func (d demo) shell(ctx context.Context, command string) error {
	fmt.Fprintf(d.out, "%s$ %s\n", d.node().Name, command)
	said, err := d.node().Shell(ctx, command)
	fmt.Fprint(d.out, said)
	return err
}

func (d demo) say(format string, arguments ...any) {
	fmt.Fprintf(d.out, "\n# %d s: "+format+"\n", append([]any{int(time.Since(d.began).Seconds())}, arguments...)...)
}

// kubectl shows what it does, and what that says.
func (d demo) kubectl(ctx context.Context, input string, arguments ...string) error {
	fmt.Fprintf(d.out, "$ kubectl %s\n", strings.Join(arguments, " "))
	if input != "" {
		fmt.Fprintf(d.out, "%s\n", strings.TrimSpace(input))
	}
	output, err := d.Kubectl(ctx, strings.NewReader(input), arguments...)
	fmt.Fprint(d.out, output)
	return err
}
