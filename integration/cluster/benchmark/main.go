package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
}

// settle is how long the node is left alone after a pod is gone, to sweep up.
const settle = 4 * time.Second

// contender is one way for a pod to get its network.
type contender struct {
	name  string
	claim string // name of the ResourceClaimTemplate; "" for none
	took  []time.Duration
}

// field are the contenders that run while one driver, or none, is on the node: an
// agent weighs on all pods of its node, so that each has the node to itself.
type field struct {
	agent      string // namespace and name of its DaemonSet; "" for none
	pods       string // selects that one's pods
	contenders []*contender
}

type bench struct {
	*cluster.Cluster
	client       kubernetes.Interface
	node         *cluster.Node
	out          io.Writer
	hook, engine map[string][]time.Duration // by topology, as the agent logged it
}

const (
	agent        = cluster.ProductNamespace + "/plumbline-agent"
	dranetDaemon = "kube-system/dranet"
)

func run(ctx context.Context, out io.Writer) (err error) {
	n := flag.Int("n", 20, "`pods` of each kind")
	turns := flag.Int("turns", 2, "`times` each driver has the node")
	dranet := flag.String("dranet", "", "static `binary` of DRANET")
	containerd := flag.String("containerd", "2.4", "`version` of containerd, 2.4 or 1.7")
	flag.Parse()
	c, err := cluster.Start(ctx, cluster.Options{Log: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	b := &bench{Cluster: c, out: out, hook: map[string][]time.Duration{}, engine: map[string][]time.Duration{}}
	if b.client, err = c.Client(); err != nil {
		return err
	}
	if b.node, err = c.AddNode(ctx, cluster.NodeOptions{Containerd: *containerd}); err != nil {
		return err
	}
	if err := c.Install(ctx, "agent.logLevel=debug"); err != nil { // it then logs every hook
		return err
	}
	if err := b.topologies(ctx); err != nil {
		return err
	}
	fields := []field{
		{contenders: []*contender{{name: "no agent, no claim"}}},
		{agent: agent, pods: "app.kubernetes.io/component=agent", contenders: []*contender{
			{name: "plumbline, no claim"},
			{name: "plumbline, 1 step", claim: "one"},
			{name: "plumbline, 3 steps", claim: "three"},
			{name: "plumbline, 7 steps", claim: "seven"},
		}},
	}
	if *dranet != "" {
		if err := b.installDRANET(ctx, *dranet); err != nil {
			return err
		}
		fields = append(fields, field{
			agent: dranetDaemon, pods: "app=dranet",
			contenders: []*contender{{name: "DRANET, no claim"}, {name: "DRANET, 1 VF", claim: "dranet-vf"}},
		})
	}
	if err := b.isolate(ctx, fields, ""); err != nil {
		return err
	}
	for turn := range *turns {
		for i := range fields {
			f := fields[(turn+i)%len(fields)]
			if err := b.isolate(ctx, fields, f.agent); err != nil {
				return err
			}
			if err := b.measure(ctx, f, *n / *turns); err != nil {
				return err
			}
			if f.agent != agent {
				continue
			}
			if err := b.read(ctx); err != nil {
				return err
			}
		}
	}
	b.table(fields)
	return b.hooks()
}

// isolate takes every agent off the node but one, and waits until that is so.
func (b *bench) isolate(ctx context.Context, fields []field, one string) error {
	for _, f := range fields {
		if f.agent == "" {
			continue
		}
		namespace, name, _ := strings.Cut(f.agent, "/")
		selector := `{"nobody": "here"}`
		if f.agent == one {
			selector = "null"
		}
		patch := fmt.Sprintf(`{"spec": {"template": {"spec": {"nodeSelector": %s}}}}`, selector)
		for _, arguments := range [][]string{
			{"patch", "daemonset", name, "--type=merge", "-p", patch},
			{"rollout", "status", "--timeout=180s", "daemonset/" + name},
		} {
			if _, err := b.Kubectl(ctx, nil, append([]string{"-n", namespace}, arguments...)...); err != nil {
				return err
			}
		}
		if f.agent == one {
			continue
		}
		if _, err := b.Kubectl(ctx, nil, "-n", namespace, "wait", "--for=delete", "--timeout=180s", "pod", "-l", f.pods); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the contenders of a field alternately.
func (b *bench) measure(ctx context.Context, f field, rounds int) error {
	for round := range rounds + 1 {
		for i := range f.contenders {
			c := f.contenders[(round+i)%len(f.contenders)] // or one would always follow the same
			took, err := b.pod(ctx, fmt.Sprintf("pod-%d", round), c.claim)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Fprintf(os.Stderr, "%d %s: %s\n", round, c.name, took.Round(time.Millisecond))
			if round > 0 { // the first warms caches
				c.took = append(c.took, took)
			}
			select {
			case <-time.After(settle):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// topologies makes the topologies and a claim template for each.
func (b *bench) topologies(ctx context.Context) error {
	for name, roots := range map[string][]string{"one": {"vf0"}, "three": {"vf0"}, "seven": {"vf0", "vf1"}} {
		manifest, err := os.ReadFile(filepath.Join("integration", "cluster", "benchmark", name+".yaml"))
		if err != nil {
			return err
		}
		if _, err := b.Kubectl(ctx, strings.NewReader(string(manifest)), "apply", "-f", "-"); err != nil {
			return err
		}
		var requests []string
		for _, root := range roots {
			class := name + "-" + root
			if err := b.Await(ctx, "deviceclass/"+class); err != nil {
				return err
			}
			requests = append(requests, fmt.Sprintf("{name: %s, exactly: {deviceClassName: %s}}", root, class))
		}
		if err := b.template(ctx, name, strings.Join(requests, ", ")); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) template(ctx context.Context, name, requests string) error {
	manifest := fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s, namespace: default}
spec: {spec: {devices: {requests: [%s]}}}
`, name, requests)
	_, err := b.Kubectl(ctx, strings.NewReader(manifest), "apply", "-f", "-")
	return err
}

// pod creates a pod, waits until it is Ready, deletes it and waits until it is gone.
// The time is that from before the creation to the watch event of Ready.
func (b *bench) pod(ctx context.Context, name, claim string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers:                    []corev1.Container{{Name: "pod", Image: cluster.PodImage, ImagePullPolicy: corev1.PullNever}},
		},
	}
	if claim != "" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "net", ResourceClaimTemplateName: &claim}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "net"}}
	}
	pods := b.client.CoreV1().Pods("default")
	notices, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return 0, err
	}
	defer notices.Stop()
	began := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	if err := until(notices, ready); err != nil {
		said, _ := b.Kubectl(context.WithoutCancel(ctx), nil, "describe", "pod", name)
		return 0, fmt.Errorf("pod %q: %w\n%s", name, err, said)
	}
	took := time.Since(began)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	return took, until(notices, func(e watch.Event) bool { return e.Type == watch.Deleted })
}

func ready(e watch.Event) bool {
	pod, ok := e.Object.(*corev1.Pod)
	return ok && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func until(notices watch.Interface, is func(watch.Event) bool) error {
	for e := range notices.ResultChan() {
		if is(e) {
			return nil
		}
	}
	return errors.New("what was waited for did not come")
}

// installDRANET installs DRANET and offers one VF of the second card by it.
func (b *bench) installDRANET(ctx context.Context, program string) error {
	archive := filepath.Join(b.Dir(), "dranet.tar")
	err := image.WriteFile(archive, image.Image{
		Names: []string{"plumbline.test/dranet:1"}, Files: map[string]string{"/dranet": program}, Entrypoint: []string{"/dranet"},
	})
	if err != nil {
		return err
	}
	if err := b.node.Import(ctx, archive); err != nil {
		return err
	}
	address, err := b.node.Shell(ctx, "basename $(readlink /sys/class/net/*f1v3/device /sys/class/net/*f1v3/device | head -n 1)")
	if err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join("integration", "cluster", "benchmark", "dranet.yaml"))
	if err != nil {
		return err
	}
	text := strings.ReplaceAll(string(manifest), "ADDRESS", strings.TrimSpace(address))
	if _, err := b.Kubectl(ctx, strings.NewReader(text), "apply", "-f", "-"); err != nil {
		return err
	}
	return b.template(ctx, "dranet-vf", "{name: vf, exactly: {deviceClassName: dranet-vf}}")
}

func median(took []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(took))[len(took)/2]
}

func (b *bench) table(fields []field) {
	first := fields[0].contenders[0]
	base := median(first.took)
	fmt.Fprintf(b.out,
		"\nPod created to Ready, n=%d:\n\n| | median, s | largest, s | median × no agent |\n|---|---|---|---|\n", len(first.took))
	for _, f := range fields {
		for _, c := range f.contenders {
			m := median(c.took)
			fmt.Fprintf(b.out, "| %s | %.2f | %.2f | %.2f |\n", c.name, m.Seconds(), slices.Max(c.took).Seconds(), float64(m)/float64(base))
		}
	}
}

// What the agent logs of each topology it attaches, and of each hook.
var (
	attached = regexp.MustCompile(`msg=attached sandbox="?([^ "/]+)/[^ "/]+/([^ "]+)"? .*took=([^ ]+)`)
	hooked   = regexp.MustCompile(`msg=hook hook=RunPodSandbox sandbox=([^ ]+) took=([^ ]+)`)
)

// read notes from the agent's log how long it held each sandbox up, by topology,
// and how much of that was the engine's.
func (b *bench) read(ctx context.Context) error {
	namespace, name, _ := strings.Cut(agent, "/")
	log, err := b.Kubectl(ctx, nil, "-n", namespace, "logs", "--tail=-1", "daemonset/"+name)
	if err != nil {
		return err
	}
	topology := map[string]string{} // of a sandbox
	for lines := bufio.NewScanner(strings.NewReader(log)); lines.Scan(); {
		if m := attached.FindStringSubmatch(lines.Text()); m != nil {
			topology[m[1]] = m[2]
			if err := note(b.engine, m[2], m[3]); err != nil {
				return err
			}
		}
		if m := hooked.FindStringSubmatch(lines.Text()); m != nil {
			if err := note(b.hook, topology[m[1]], m[2]); err != nil {
				return err
			}
		}
	}
	return nil
}

// hooks prints what was read.
func (b *bench) hooks() error {
	fmt.Fprint(b.out,
		"\nRunPodSandbox hook of ours:\n\n| | median, ms | largest, ms | of that the engine, median, ms | n |\n|---|---|---|---|---|\n")
	for _, row := range [][2]string{{"no claim", ""}, {"1 step", "one"}, {"3 steps", "three"}, {"7 steps", "seven"}} {
		of, in := b.hook[row[1]], b.engine[row[1]]
		if len(of) == 0 || row[1] != "" && len(in) == 0 {
			return fmt.Errorf("the agent's log says nothing of %s", row[0])
		}
		part := "–"
		if len(in) > 0 {
			part = fmt.Sprintf("%.1f", 1e3*median(in).Seconds())
		}
		fmt.Fprintf(b.out, "| %s | %.1f | %.1f | %s | %d |\n", row[0], 1e3*median(of).Seconds(), 1e3*slices.Max(of).Seconds(), part,
			len(of))
	}
	return nil
}

func note(in map[string][]time.Duration, name, took string) error {
	d, err := time.ParseDuration(took)
	if err != nil {
		return fmt.Errorf("log of the agent: %w", err)
	}
	in[name] = append(in[name], d)
	return nil
}
