//go:build cluster

package monitoring_test

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/dashboard"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/integration/prometheus"
)

var picture = flag.String("picture", "", "a file to draw the dashboard to")

//go:embed testdata/objects.yaml
var objects string

// bench is a cluster with the product on a node, and a Prometheus that scrapes it.
type bench struct {
	*cluster.Cluster
	node   *cluster.Node
	server *prometheus.Server
	began  time.Time
}

const scrapeEvery = 2 * time.Second

func newBench(t *testing.T) *bench {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Log: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &bench{Cluster: c}
	// How quick hooks are is tested elsewhere, and the machine is emulated.
	if b.node, err = c.AddNode(t.Context(), cluster.NodeOptions{NRITimeout: 30 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if err := c.Install(t.Context(), "agent.metricsAddress=$(HOST_IP):9808"); err != nil {
		t.Fatal(err)
	}
	b.server, err = prometheus.Start(t.Context(), programs(t), t.TempDir(), b.config(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.server.Close)
	b.until(t, "the agent is scraped", func() bool { return b.has(t, "plumbline_loop_running == 1") })
	b.began = time.Now()
	return b
}

// config configures Prometheus for the agent as the operator would, and lets it authenticate by
// the API server's proxy, which is the way to a node from here. Debian's Prometheus
// cannot discover pods by itself.
func (b *bench) config(t *testing.T) string {
	t.Helper()
	files, admin := t.TempDir(), b.Config()
	for name, content := range map[string][]byte{"ca": b.CA(), "cert": admin.CertData, "key": admin.KeyData} {
		if err := os.WriteFile(filepath.Join(files, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	pod := strings.TrimSpace(b.kubectl(t, "", "-n", cluster.ProductNamespace, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "jsonpath={.items[0].metadata.name}"))
	config, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": scrapeEvery.String(), "scrape_timeout": scrapeEvery.String(), "evaluation_interval": "2s"},
		"rule_files": []string{rules},
		"scrape_configs": []map[string]any{{
			"job_name": "plumbline-agent-metrics", "scheme": "https",
			"metrics_path": "/api/v1/namespaces/" + cluster.ProductNamespace + "/pods/" + pod + ":9808/proxy/metrics",
			"tls_config":   map[string]any{"ca_file": filepath.Join(files, "ca"), "cert_file": filepath.Join(files, "cert"), "key_file": filepath.Join(files, "key")},
			"static_configs": []map[string]any{{
				"targets": []string{b.Address()}, "labels": map[string]string{"__meta_kubernetes_pod_node_name": b.node.Name},
			}},
			"relabel_configs": b.relabelings(t),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(config)
}

// relabelings are those of the chart's ServiceMonitor.
func (b *bench) relabelings(t *testing.T) []map[string]any {
	t.Helper()
	manifest, err := b.Chart(t.Context(), "serviceMonitor.enabled=true", "agent.metricsAddress=$(HOST_IP):9808")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		var monitor struct {
			Kind string
			Spec struct {
				Endpoints []struct {
					Port        string
					Relabelings []struct {
						SourceLabels []string
						TargetLabel  string
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(document), &monitor); err != nil || monitor.Kind != "ServiceMonitor" {
			continue
		}
		for _, e := range monitor.Spec.Endpoints {
			if e.Port != "agent" {
				continue
			}
			var out []map[string]any
			for _, r := range e.Relabelings {
				out = append(out, map[string]any{"source_labels": r.SourceLabels, "target_label": r.TargetLabel})
			}
			return out
		}
	}
	t.Fatal("the chart has no ServiceMonitor for the agent")
	return nil
}

func (b *bench) kubectl(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	said, err := b.Kubectl(t.Context(), strings.NewReader(input), arguments...)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		events, _ := b.Kubectl(ctx, nil, "get", "events", "-A")
		logs, _ := b.Kubectl(ctx, nil, "-n", cluster.ProductNamespace, "logs", "--tail=60", "daemonset/plumbline-agent")
		t.Fatalf("%v\n%s\n%s", err, events, logs)
	}
	return said
}

func (b *bench) shell(t *testing.T, script string) string {
	t.Helper()
	said, err := b.node.Shell(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(said)
}

// until waits for what only Prometheus knows.
func (b *bench) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventually.Holds(t, 2*time.Minute, what, func() string {
		if holds() {
			return ""
		}
		targets, err := b.server.Targets(t.Context())
		return fmt.Sprintf("targets %+v (%v)", targets, err)
	})
}

func (b *bench) has(t *testing.T, expr string) bool {
	t.Helper()
	all, err := b.server.Query(t.Context(), expr)
	if err != nil {
		t.Fatal(err)
	}
	return len(all) > 0
}

// netns finds the namespace of the pod that has an address, as ip names it.
func (b *bench) netns(t *testing.T, address string) string {
	t.Helper()
	name := b.shell(t, "for n in $(ls /run/netns); do if ip -n $n -4 -o address | grep -qF ' "+address+"/'; then echo $n; fi; done")
	if name == "" {
		t.Fatalf("no namespace has %s", address)
	}
	return name
}

// TestDashboard makes on a node what the dashboard is there to show, and asks all
// that the dashboard and the rules ask.
func TestDashboard(t *testing.T) {
	raw, err := os.ReadFile(checkout + "/chart/plumbline/dashboards/plumbline.json")
	if err != nil {
		t.Fatal(err)
	}
	board, err := dashboard.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	b.runScenario(t)
	answers := dashboard.Answers{
		From: b.began, To: time.Now(), Step: scrapeEvery, Of: map[int][][]prometheus.Series{},
		Note: "Drawn from the answers of a real Prometheus to the dashboard's own queries. One emulated node: topologies ai (repaired) and audit (observed), drift made by hand, contention, a pod whose network fails.",
	}
	values := map[string]string{"node": ".*", "topology": ".*", "__rate_interval": "20s"}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			expr, err := dashboard.Fill(target.Expr, values)
			if err != nil {
				t.Fatal(err)
			}
			all, err := b.server.Range(t.Context(), expr, answers.From, answers.To, answers.Step)
			if err != nil {
				t.Errorf("panel %q: %v", p.Title, err)
			}
			answers.Of[p.ID] = append(answers.Of[p.ID], all)
			most := math.Inf(-1)
			for _, s := range all {
				for _, point := range s.Points {
					most = max(most, point.Value) // NaN is no value and no maximum
				}
			}
			switch {
			case math.IsInf(most, -1):
				t.Errorf("panel %q: no data for %s", p.Title, expr)
			case most <= 0 && !slices.Contains(allIsWell, p.Title):
				t.Errorf("panel %q: nothing but 0 for %s", p.Title, expr)
			}
		}
	}
	if *picture != "" {
		if err := os.WriteFile(*picture, []byte(dashboard.Draw(board, answers)), 0o644); err != nil {
			t.Error(err)
		}
	}
	b.rules(t)
	b.ends(t)
}

// allIsWell are the panels that show 0 where all is well, and nothing is done here
// to change that.
var allIsWell = []string{"Pods failed", "Runtimes lost", "Kubelets lost", "Damaged files", "Work that waits", "Errors and drops"}

// runScenario makes pods, drift, drift that is only observed, a pod whose network
// fails, and contention, in that order.
func (b *bench) runScenario(t *testing.T) {
	t.Helper()
	b.kubectl(t, objects, "apply", "-f", "-")
	if err := b.Await(t.Context(), "deviceclass/ai-vf", "deviceclass/audit-vf", "deviceclass/broken-vf"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ai", "audit"} {
		b.kubectl(t, fmt.Sprintf(pod, name), "apply", "-f", "-")
	}
	b.kubectl(t, "", "wait", "--for=condition=Ready", "--timeout=300s", "pod/ai", "pod/audit")
	ai, audit := b.netns(t, "192.0.2.65"), b.netns(t, "192.0.2.129")
	b.kubectl(t, fmt.Sprintf(pod, "broken"), "apply", "-f", "-")
	b.shell(t, fmt.Sprintf("ip -n %s link set net1 mtu 1400", audit))
	b.shell(t, fmt.Sprintf(`
		for i in 1 2 3 4 5; do
			ip -n %[1]s link set data0 down; sleep 1
			ip -n %[1]s address delete 192.0.2.65/28 dev data0; sleep 2
			ip -n %[1]s link set net1 mtu 1400; sleep 1
			if ((i == 3)); then ip -n %[1]s link delete data0; sleep 1; fi
		done`, ai))
	b.until(t, "the pod without a network is reported", func() bool {
		return b.has(t, `plumbline_hook_duration_seconds_count{hook="RunPodSandbox",outcome!="Success"}`)
	})
	b.shell(t, fmt.Sprintf("for i in $(seq 60); do ip -n %s link set data0 mtu 1280; sleep 0.25; done", ai))
	b.until(t, "the contention is reported", func() bool { return b.has(t, `max_over_time(plumbline_fighting_fields[2m]) > 0`) })
	b.until(t, "the contention is over", func() bool { return !b.has(t, `plumbline_fighting_fields`) })
}

const pod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: net, resourceClaimTemplateName: %[1]s}]
  containers:
  - name: pod
    image: ` + cluster.PodImage + `
    imagePullPolicy: Never
    resources: {claims: [{name: net}]}
`

// passing are alerts with a cause here that ends by itself: a virtual function has no carrier
// while its driver takes another MTU.
var passing = []string{"PlumblinePortDown", "PlumblineNetworkLost"}

// rules checks that Prometheus could evaluate every rule, and that those alerts are
// raised, if only to wait, that have a cause here and no others.
func (b *bench) rules(t *testing.T) {
	t.Helper()
	rules, err := b.server.Rules(t.Context())
	if err != nil || len(rules) == 0 {
		t.Fatalf("rules %v: %v", rules, err)
	}
	raised := map[string]bool{}
	for _, r := range rules {
		if r.Health != "ok" {
			t.Errorf("rule %q is %q: %s", r.Name, r.Health, r.Error)
		}
		expr := r.Name
		if r.Type == "alerting" {
			expr = fmt.Sprintf("ALERTS{alertname=%q}", r.Name)
			if slices.Contains(passing, r.Name) {
				expr = fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing"}`, r.Name)
			}
		}
		all, err := b.server.Range(t.Context(), expr, b.began, time.Now(), scrapeEvery)
		if err != nil {
			t.Fatal(err)
		}
		if r.Type == "alerting" {
			raised[r.Name] = len(all) > 0
		} else if len(all) == 0 {
			t.Errorf("rule %q has recorded nothing", r.Name)
		}
	}
	for name, want := range map[string]bool{
		"PlumblineNetworkDrifted": true, "PlumblineFighting": true,
		"PlumblineRuntimeLost": false, "PlumblineKubeletLost": false, "PlumblineDriftUnwatched": false, "PlumblineJournalDamaged": false, "PlumblineOtherVersion": false, "PlumblineRepairsLate": false,
		"PlumblinePortDown": false, "PlumblineRDMASilent": false, "PlumblineRDMARetransmits": false, "PlumblinePauseStorm": false, "PlumblineNetworkLost": false,
	} {
		if raised[name] != want {
			t.Errorf("alert %s was raised: %t, want %t", name, raised[name], want)
		}
	}
}

// ends deletes all pods: nothing is said of their networks any more.
func (b *bench) ends(t *testing.T) {
	t.Helper()
	b.kubectl(t, "", "delete", "pods", "--all", "--timeout=120s")
	b.until(t, "no sandbox is counted", func() bool {
		return !b.has(t, "plumbline_sandboxes > 0 or plumbline_drift_fields or plumbline_fighting_fields")
	})
}
