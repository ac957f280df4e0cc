// Command demo shows a cluster of the test bench with kubectl: a node, a pod and
// its network. make demo-cluster runs it, and it fails when anything it says
// is not so.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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
}

func run(ctx context.Context, out io.Writer, nodes int, containerd string, stay bool) (err error) {
	began := time.Now()
	c, err := cluster.Start(ctx, cluster.Options{Log: out, PodCIDRs: true})
	if err != nil {
		return err
	}
	d := demo{Cluster: c, out: out}
	defer func() {
		if closeErr := c.Close(); err == nil {
			err = closeErr
		}
		if err == nil {
			d.say("all gone after %d s", int(time.Since(began).Seconds()))
		}
	}()
	d.say("a control plane, and %d node(s) in virtual machines with two SR-IOV cards and no CNI plugin", nodes)
	for range nodes {
		n, err := c.AddNode(ctx, cluster.NodeOptions{Containerd: containerd, RDMA: true, NoCNI: true})
		if err != nil {
			return err
		}
		d.nodes = append(d.nodes, n)
	}
	if err := d.kubectl(ctx, "", "get", "nodes", "-o", "wide"); err != nil {
		return err
	}
	if err := d.story(ctx); err != nil || !stay {
		return err
	}
	d.say("up until it is interrupted: export KUBECONFIG=%s PATH=%s:$PATH", c.Admin(), c.Programs())
	<-ctx.Done()
	return nil
}

// story runs from kubectl apply until every VF is back on the host.
func (d demo) story(ctx context.Context) error {
	d.say("plumbline, by its chart")
	if err := d.Install(ctx, "podNetwork.enabled=true"); err != nil {
		return err
	}
	d.say("the pods' own network; the nodes are Ready with it")
	if err := story.InstallPodNetwork(ctx, d.Cluster, d.nodes...); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "", "get", "nodes"); err != nil {
		return err
	}
	d.say("a stand-in for a GPU vendor's driver")
	if err := story.InstallGPU(ctx, d.Cluster, d.node()); err != nil {
		return err
	}
	home, err := d.vfs(ctx)
	if err != nil {
		return err
	}
	d.say("the platform team's topology, and the DeviceClasses made of it")
	if err := d.kubectl(ctx, story.Topology, "apply", "-f", "-"); err != nil {
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
	fmt.Fprintln(d.out, refusal)
	d.say("the user's claim: a GPU and two VFs below one PCIe root; and the pod")
	if err := d.kubectl(ctx, story.Claim, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, story.Pod(), "apply", "-f", "-"); err != nil {
		return err
	}
	for _, arguments := range [][]string{
		{"wait", "--for=condition=Ready", "--timeout=180s", "pod/ai-training"},
		{"wait", "--for=jsonpath={.status.devices[1].networkData.interfaceName}", "--timeout=60s", "resourceclaims", "--all"},
		{"get", "resourceclaims", "-o", `jsonpath={range .items[*].status.devices[*]}{.device}: {.networkData.interfaceName} {.networkData.hardwareAddress} {.conditions[*].reason}{"\n"}{end}`},
		{"get", "events", "--field-selector=involvedObject.name=ai-training"},
	} {
		if err := d.kubectl(ctx, "", arguments...); err != nil {
			return err
		}
	}
	said, err := story.Said(ctx, d.Cluster)
	if err != nil {
		return err
	}
	d.say("what the pod sees:")
	fmt.Fprint(d.out, said)
	if err := story.CheckNetwork(said); err != nil {
		return err
	}
	return d.goHome(ctx, home)
}

// goHome deletes the pod and the topology, and shows every VF where it was.
func (d demo) goHome(ctx context.Context, home string) error {
	d.say("the pod is deleted, and the VFs are back on the host")
	if err := d.kubectl(ctx, "", "delete", "pod", "ai-training", "--timeout=120s"); err != nil {
		return err
	}
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
	return d.node().Shell(ctx, "ip -br link | awk '/v[0-9]/ { print $1, $3 }' | sort")
}

func (d demo) say(format string, arguments ...any) {
	fmt.Fprintf(d.out, "\n# "+format+"\n", arguments...)
}

// kubectl shows what it does, and what that says.
func (d demo) kubectl(ctx context.Context, input string, arguments ...string) error {
	fmt.Fprintf(d.out, "$ kubectl %s\n", strings.Join(arguments, " "))
	output, err := d.Kubectl(ctx, strings.NewReader(input), arguments...)
	fmt.Fprint(d.out, output)
	return err
}
