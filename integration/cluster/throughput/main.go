package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "throughput:", err)
		os.Exit(1)
	}
}

//go:embed networks.yaml
var networks string

// networksOfPods are the interfaces of networks.yaml by their topologies.
var networksOfPods = [][2]string{{"flat", "flat-0"}, {"routed", "routed-0"}, {"bonded", "data0"}}

const (
	limit = 90 * time.Minute // for all: a quarter of it is enough on two idle processors
	port  = "8080"           // where hosts and pods listen
	// program is the one of test pods, on the nodes.
	program = "/run/pod"
)

// tables of the host with routes that the agent restores: see docs/from-multi-nic-cni.md and
// docs/primary.md.
var tables = []struct{ name, table string }{
	{"to pods over ipvlan l3", "28780"},
	{"to the pod CIDR of the other node", "28781"},
}

// path is one way from one node to the other.
type path struct {
	name      string
	addresses [2]string // of its ends
	pods      bool      // between pods, not hosts
	rates     []float64 // bytes per second
	ratios    []float64 // to the first path in the same round
}

type bench struct {
	*cluster.Cluster
	nodes [2]*cluster.Node
	out   io.Writer
}

func run(ctx context.Context, out io.Writer) (err error) {
	n := flag.Int("n", 20, "`rounds`")
	lasts := flag.Duration("lasts", 3*time.Second, "`duration` of one measurement")
	deletions := flag.Int("deletions", 20, "`times` that routes are deleted on each node")
	containerd := flag.String("containerd", "2.4", "`version` of containerd, 2.4 or 1.7")
	flag.Parse()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s", limit))
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Log: os.Stderr, PodCIDRs: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	b := &bench{Cluster: c, out: out}
	paths, err := b.prepare(ctx, *containerd)
	if err != nil {
		return err
	}
	if err := b.measure(ctx, paths, *n, *lasts); err != nil {
		return err
	}
	b.table(paths)
	return b.restored(ctx, *deletions)
}

// prepare brings up two nodes and a pod on each, and returns the paths between them.
func (b *bench) prepare(ctx context.Context, containerd string) ([]*path, error) {
	for i := range b.nodes {
		options := cluster.NodeOptions{Containerd: containerd, NoCNI: true, NRITimeout: 10 * time.Second, Start: story.WiredNode(i)}
		if i > 0 {
			options.Wired = b.nodes[0].Name
		}
		var err error
		if b.nodes[i], err = b.AddNode(ctx, options); err != nil {
			return nil, err
		}
		if _, err := b.nodes[i].Shell(ctx,
			fmt.Sprintf("cp %s %s; setsid %[2]s listen %s >/dev/null 2>&1 &", b.PodProgram(), program, port)); err != nil {
			return nil, err
		}
	}
	if err := b.Install(ctx, "podNetwork.enabled=true"); err != nil {
		return nil, err
	}
	began := time.Now()
	own := strings.Replace(story.PodNetwork, "bridge: cni0", "bridge: cni0\n        mtu: 9000", 1)
	if _, err := b.Kubectl(ctx, strings.NewReader(own+"---\n"+networks), "apply", "-f", "-"); err != nil {
		return nil, err
	}
	for _, node := range b.nodes {
		if err := node.WaitReady(ctx, began); err != nil {
			return nil, err
		}
	}
	paths := []*path{
		{name: "hosts, first card", addresses: [2]string{story.WiredAddress(0, 0), story.WiredAddress(1, 0)}},
		{name: "hosts, second card", addresses: [2]string{story.WiredAddress(0, 1), story.WiredAddress(1, 1)}},
		{name: "pods, own network (`role: primary`), first card", pods: true},
		{name: "pods, ipvlan l2, first card", pods: true},
		{name: "pods, ipvlan l3, second card", pods: true},
		{name: "pods, VLAN on a bond of virtual functions", pods: true},
	}
	for i := range b.nodes {
		if err := b.pod(ctx, i); err != nil {
			return nil, err
		}
	}
	for i := range b.nodes {
		network, err := b.PodNetwork(ctx, pod(i))
		if err != nil {
			return nil, err
		}
		for j, link := range []string{"eth0", networksOfPods[0][1], networksOfPods[1][1], networksOfPods[2][1]} {
			has := network.Interface(link)
			if has == nil || len(has.Addresses) == 0 || has.MTU != 9000 {
				return nil,
					fmt.Errorf("pod %q was started with %+v, want %q with an address and an MTU of 9000", pod(i), network.Interfaces, link)
			}
			paths[2+j].addresses[i] = has.Addresses[0].Addr().String()
		}
	}
	return paths, nil
}

func pod(number int) string { return "pod-" + strconv.Itoa(number) }

// pod creates a pod on a node, with all networks, and waits until it is Ready.
func (b *bench) pod(ctx context.Context, number int) error {
	var claims, uses []string
	for _, n := range networksOfPods {
		if err := b.Await(ctx, "resourceclaimtemplate/"+n[0]); err != nil {
			return err
		}
		claims = append(claims, fmt.Sprintf("{name: %s, resourceClaimTemplateName: %[1]s}", n[0]))
		uses = append(uses, fmt.Sprintf("{name: %s}", n[0]))
	}
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 1
  resourceClaims: [%s]
  containers:
  - name: pod
    image: %q
    imagePullPolicy: Never
    args: [listen, %q]
    readinessProbe: {httpGet: {port: %[5]s}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 60}
    resources: {claims: [%[6]s]}
`, pod(number), b.nodes[number].Name, strings.Join(claims, ", "), cluster.PodImage, port, strings.Join(uses, ", "))
	if _, err := b.Kubectl(ctx, strings.NewReader(manifest), "create", "-f", "-"); err != nil {
		return err
	}
	if _, err := b.Kubectl(ctx, nil, "wait", "--for=condition=Ready", "--timeout=300s", "pod/"+pod(number)); err != nil {
		said, _ := b.Kubectl(context.WithoutCancel(ctx), nil, "describe", "pod", pod(number))
		return fmt.Errorf("%w\n%s", err, said)
	}
	return nil
}

// ask runs a verb of the test pod's program at one end of a path, with a URL of the other end.
func (b *bench) ask(ctx context.Context, p *path, from int, verb, place string, arguments ...string) (string, error) {
	arguments = append([]string{verb, "http://" + p.addresses[1-from] + ":" + port + place}, arguments...)
	var said string
	var err error
	if p.pods {
		said, err = b.Kubectl(ctx, nil, append([]string{"exec", pod(from), "--", "/pod"}, arguments...)...)
	} else {
		said, err = b.nodes[from].Exec(ctx, program, arguments...)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.name, err)
	}
	return strings.TrimSpace(said), nil
}

// measure runs over all paths alternately, in one direction and in the other.
func (b *bench) measure(ctx context.Context, paths []*path, rounds int, lasts time.Duration) error {
	for _, p := range paths {
		for from := range b.nodes {
			server := pod(1 - from)
			if !p.pods {
				server = b.nodes[1-from].Name
			}
			said, err := b.ask(ctx, p, from, "get", "/")
			if err != nil {
				return err
			}
			if want := server + " saw " + p.addresses[from]; said != want {
				return fmt.Errorf("%s: %q, want %q, without address translation", p.name, said, want)
			}
		}
	}
	for round := range rounds + 1 {
		rates := make([]float64, len(paths))
		for i := range paths {
			i = (round + i) % len(paths) // or one would always follow the same
			said, err := b.ask(ctx, paths[i], round%2, "receive", "/zeros", lasts.String())
			if err != nil {
				return err
			}
			if rates[i], err = strconv.ParseFloat(said, 64); err != nil {
				return fmt.Errorf("%s: %w", paths[i].name, err)
			}
			fmt.Fprintf(os.Stderr, "%d %s: %.1f MB/s\n", round, paths[i].name, rates[i]/1e6)
		}
		if round == 0 { // it fills caches
			continue
		}
		for i, p := range paths {
			p.rates = append(p.rates, rates[i])
			p.ratios = append(p.ratios, rates[i]/rates[0])
		}
	}
	return nil
}

// quantiles returns the smallest, the median and the largest of numbers.
func quantiles(of []float64) (smallest, median, largest float64) {
	of = slices.Sorted(slices.Values(of))
	return of[0], (of[(len(of)-1)/2] + of[len(of)/2]) / 2, of[len(of)-1]
}

func (b *bench) table(paths []*path) {
	fmt.Fprintf(b.out, "\nBytes received from the other node, n=%d:\n\n| | median, MB/s | × hosts, first card | smallest | largest |\n"+
		"|---|---|---|---|---|\n", len(paths[0].rates))
	for _, p := range paths {
		_, rate, _ := quantiles(p.rates)
		smallest, median, largest := quantiles(p.ratios)
		fmt.Fprintf(b.out, "| %s | %.1f | %.2f | %.2f | %.2f |\n", p.name, rate/1e6, median, smallest, largest)
	}
}

// restored deletes routes on each node, at any time after they were restored before.
func (b *bench) restored(ctx context.Context, times int) error {
	fmt.Fprintf(b.out,
		"\nRoutes of the host that were deleted, until all are back:\n\n| | median, ms | smallest | largest | n |\n|---|---|---|---|---|\n")
	for _, t := range tables {
		var took []float64
		for i := range 2 * times {
			said, err := b.nodes[i%2].Exec(ctx, program, "restored", t.table)
			if err != nil {
				return err
			}
			d, err := time.ParseDuration(strings.TrimSpace(said))
			if err != nil {
				return fmt.Errorf("routes %s: %w", t.name, err)
			}
			took = append(took, 1e3*d.Seconds())
			fmt.Fprintf(os.Stderr, "%d routes %s: %s\n", i, t.name, d)
			select {
			case <-time.After(rand.N(2 * time.Second)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		smallest, median, largest := quantiles(took)
		fmt.Fprintf(b.out, "| %s | %.0f | %.0f | %.0f | %d |\n", t.name, median, smallest, largest, len(took))
	}
	return nil
}
