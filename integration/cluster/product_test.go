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
		{"networkPolicy.enabled=true", "networkPolicy.apiServer[0].ipBlock.cidr=192.0.2.0/28", "agent.resources.limits=null"},
		{"networkQoS.enabled=true", "networkQoS.crd=false"},
		{"networkQoS.enabled=true"},
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
	for value, want := range map[string]string{
		"agent.nope=1":                "nope",
		"serviceMonitor.enabled=true": "which nobody but the node itself can scrape",
		"networkPolicy.enabled=true":  "networkPolicy.apiServer: is empty",
	} {
		if _, err := c.Chart(t.Context(), value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", value, err, want)
		}
	}
}
