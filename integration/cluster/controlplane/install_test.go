//go:build cluster

package controlplane_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/cluster"
)

// TestCheckInstall runs what helm test runs, with the rights that the chart gives it.
func TestCheckInstall(t *testing.T) {
	b := start(t)
	b.run(t)
	b.register(t)
	b.mustKubectl(t, workloads, "create", "-f", "-")
	if _, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, "plumbline-test", cluster.TokenFor{}); err != nil {
		t.Fatal(err)
	}
	check := func(available string) (string, error) {
		b.mustKubectl(t, "", "-n", cluster.ProductNamespace, "patch", "daemonset/agent", "--subresource=status", "--type=merge",
			"-p", `{"status":{"desiredNumberScheduled":2,"currentNumberScheduled":2,"numberMisscheduled":0,"numberReady":2,"numberAvailable":`+available+`}}`)
		said, err := exec.CommandContext(t.Context(), b.program, "check-install", "--patience", "5s", "--namespace", cluster.ProductNamespace, "--agent", "agent", "--controller", "controller",
			"--kubeconfig", filepath.Join(b.Dir(), cluster.ProductNamespace+"-plumbline-test.kubeconfig")).CombinedOutput()
		return string(said), err
	}
	b.mustKubectl(t, "", "-n", cluster.ProductNamespace, "patch", "deployment/controller", "--subresource=status", "--type=merge", "-p", `{"status":{"replicas":1,"availableReplicas":1,"readyReplicas":1}}`)
	if said, err := check("2"); err != nil || strings.Count(said, "\n") != 3 {
		t.Errorf("an installation that works: %v, %s", err, said)
	}
	if said, err := check("1"); err == nil || !strings.Contains(said, "1 of 2 pods are available") {
		t.Errorf("an agent that is not connected: %v, %s", err, said)
	}
	b.stop(t)
	if said, err := check("2"); err == nil || !strings.Contains(said, "webhook") {
		t.Errorf("a controller that does not run: %v, %s", err, said)
	}
}

const workloads = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: plumbline-system}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: x}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller, namespace: plumbline-system}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: x}]}}
`
