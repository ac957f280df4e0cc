//go:build cluster && soak

package conformance_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/conformance"
	"github.com/plumbline/plumbline/integration/cluster/story"
)

//go:embed dns.yaml
var dns string

// expected are specs that do not pass, each with the reason, as docs/status.md says.
var expected = map[string]string{}

// limit is what all specs together may take.
const limit = 3 * time.Hour

// TestConformance runs Kubernetes' own conformance tests of networks, and of DRA, on two nodes without CNI plugins, with CoreDNS and
// kube-proxy.
// The environment variable PLUMBLINE_SPECS chooses those whose name it matches.
func TestConformance(t *testing.T) {
	focus, err := regexp.Compile(`(\[sig-network\]|\[sig-node\] \[DRA\]) .*(` + os.Getenv("PLUMBLINE_SPECS") + `).*\[Conformance\]`)
	if err != nil {
		t.Fatalf("PLUMBLINE_SPECS: %v", err)
	}
	c, err := cluster.Start(t.Context(), cluster.Options{
		Log: os.Stderr, PodCIDRs: true,
		// One of the specs looks for the API server's own endpoints.
		APIServer: []string{"--endpoint-reconciler-type=lease"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	parts, err := c.Conformance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var specs []string
	for _, spec := range parts.Specs {
		if name := conformance.Name(spec); focus.MatchString(name) {
			specs = append(specs, name)
		}
	}
	if len(specs) == 0 {
		t.Fatalf("no conformance test matches %q", focus)
	}
	install(t, c, newNodes(t, c, parts.Images))

	results, err := run(t, c, parts.Program, focus)
	fails := maps.Clone(expected)
	maps.DeleteFunc(fails, func(name, _ string) bool { return !focus.MatchString(name) })
	problems := conformance.Judge(specs, results, fails)
	for _, problem := range problems {
		t.Error(problem)
	}
	if err != nil && len(problems) == 0 && len(fails) == 0 {
		t.Errorf("all %d specs pass, and the program fails: %v", len(specs), err)
	}
	t.Logf("%d specs, %d problems", len(specs), len(problems))
}

// newNodes boots two wired nodes without CNI plugins.
func newNodes(t *testing.T, c *cluster.Cluster, images string) (nodes []*cluster.Node) {
	t.Helper()
	for i, containerd := range []string{"2.4", "1.7"} {
		options := cluster.NodeOptions{
			Containerd: containerd, NoCNI: true, CPUs: 1,
			NRITimeout: 10 * time.Second, // the machine is emulated
			Kubelet:    "clusterDomain: cluster.local\nclusterDNS: [10.96.0.10]",
			Start:      story.WiredNode(i),
		}
		if i > 0 {
			options.Wired = nodes[0].Name
		}
		n, err := c.AddNode(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Import(t.Context(), images); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// install gives the nodes the network of pods, Services and DNS.
func install(t *testing.T, c *cluster.Cluster, nodes []*cluster.Node) {
	t.Helper()
	if err := c.Install(t.Context(), "podNetwork.enabled=true"); err != nil {
		t.Fatal(err)
	}
	ready, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := story.InstallPodNetwork(ready, c, nodes...); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if err := n.Start(t.Context(), cluster.KubeProxy); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Apply(t.Context(), dns); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kubectl(t.Context(), nil, "-n", "kube-system", "rollout", "status", "--timeout=540s", "deployment/coredns"); err != nil {
		logs, _ := c.Kubectl(t.Context(), nil, "-n", "kube-system", "logs", "--tail=20", "deployment/coredns")
		t.Fatalf("%v\n%s", err, logs)
	}
}

// run runs the specs. All that they print is in e2e.log of the cluster's folder, while they run.
func run(t *testing.T, c *cluster.Cluster, program string, focus fmt.Stringer) (results []conformance.Result, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit+5*time.Minute) // it ends at the limit, with results
	defer cancel()
	log, err := os.Create(filepath.Join(c.Dir(), "e2e.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	report := filepath.Join(c.Dir(), "e2e.json")
	command := exec.CommandContext(ctx, program, "-kubeconfig="+c.Admin(), "-kubectl-path="+filepath.Join(c.Programs(), "kubectl"),
		"-provider=skeleton", "-num-nodes=2", "-system-pods-startup-timeout=5m", "-ginkgo.json-report="+report,
		"-ginkgo.v", "-ginkgo.no-color", "-ginkgo.timeout="+limit.String(), "-ginkgo.focus="+focus.String())
	command.Stdout, command.Stderr = log, log
	t.Logf("the specs print to %s", log.Name())
	ended := command.Run()
	content, err := os.ReadFile(report)
	if err != nil {
		return nil, errors.Join(ended, err)
	}
	if results, err = conformance.ParseResults(content); err != nil {
		return nil, errors.Join(ended, err)
	}
	for _, r := range results {
		t.Logf("%s after %d s: %s %s", r.State, r.Seconds, r.Name, r.Failure)
	}
	return results, ended
}
