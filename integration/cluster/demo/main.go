// Command demo shows a cluster of the test bench with kubectl: a node, a pod and
// its network. It is what make demo-cluster runs, and fails when anything it says
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

// demo is a cluster and where to tell about it.
type demo struct {
	*cluster.Cluster
	out io.Writer
}

func run(ctx context.Context, out io.Writer, nodes int, containerd string, stay bool) (err error) {
	began := time.Now()
	c, err := cluster.Start(ctx, cluster.Options{Log: out})
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
	d.say("a control plane, and %d node(s) in virtual machines with two SR-IOV cards", nodes)
	for range nodes {
		if _, err := c.AddNode(ctx, cluster.NodeOptions{Containerd: containerd}); err != nil {
			return err
		}
	}
	if err := d.kubectl(ctx, "", "get", "nodes", "-o", "wide"); err != nil {
		return err
	}
	// The story of plumbline itself stands here: its chart, a topology, a claim.
	if err := d.pod(ctx); err != nil || !stay {
		return err
	}
	d.say("up until it is interrupted: export KUBECONFIG=%s PATH=%s:$PATH", c.Admin(), c.Programs())
	<-ctx.Done()
	return nil
}

const hello = `apiVersion: v1
kind: Pod
metadata: {name: hello}
spec:
  terminationGracePeriodSeconds: 5
  containers: [{name: pod, image: ` + cluster.PodImage + `, imagePullPolicy: Never}]
`

func (d demo) pod(ctx context.Context) error {
	d.say("a pod with nothing but the cluster's network")
	for _, step := range []struct {
		input     string
		arguments []string
	}{
		{hello, []string{"apply", "-f", "-"}},
		{"", []string{"wait", "--for=condition=Ready", "--timeout=300s", "pod/hello"}},
		{"", []string{"get", "pods", "-o", "wide"}},
		{"", []string{"logs", "hello"}},
		{"", []string{"delete", "pod", "hello"}},
	} {
		if err := d.kubectl(ctx, step.input, step.arguments...); err != nil {
			return err
		}
	}
	return nil
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
