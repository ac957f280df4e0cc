//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/integration/cluster"
)

// The chart is what an API server takes, with every switch both ways.
func TestChart(t *testing.T) {
	c := start(t, cluster.Options{APIServerOnly: true})
	kubectl(t, c, "", "create", "namespace", cluster.ProductNamespace)
	// The operator's types are not ours to bring.
	for _, kind := range []string{"ServiceMonitor", "PrometheusRule"} {
		singular := strings.ToLower(kind)
		kubectl(t, c, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {plural: %[1]ss, singular: %[1]s, kind: %[2]s, listKind: %[2]sList}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, singular, kind), "create", "-f", "-")
		kubectl(t, c, "", "wait", "--for=condition=Established", "crd/"+singular+"s.monitoring.coreos.com")
	}
	for _, values := range [][]string{
		nil,
		{"webhook.enabled=false", "policies.enabled=false", "controller.replicas=1"},
		{"serviceMonitor.enabled=true", "serviceMonitor.labels.release=x", "prometheusRule.enabled=true", "dashboard.enabled=true", "agent.physicalNetworks.enp3s0f0=dc", "agent.metricsAddress=$(HOST_IP):9808"},
	} {
		manifest, err := c.Chart(t.Context(), values...)
		if err != nil {
			t.Fatal(err)
		}
		said := kubectl(t, c, manifest, "apply", "--server-side", "--dry-run=server", "-f", "-")
		for _, want := range []string{"daemonset.apps/plumbline-agent", "deployment.apps/plumbline-controller", "networktopologies.networking.dra.io"} {
			if !strings.Contains(said, want) {
				t.Errorf("values %q: nothing said of %s:\n%s", values, want, said)
			}
		}
	}
	if _, err := c.Chart(t.Context(), "agent.nope=1"); err == nil || !strings.Contains(err.Error(), "nope") {
		t.Errorf("a value that is not there: error %v, want one that names it", err)
	}
}
