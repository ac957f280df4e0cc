//go:build cluster

package monitoring_test

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestNames: each Service for metrics has the pods of one component, with the port of that component, and the rules name what the
// chart is installed as.
func TestNames(t *testing.T) {
	for override, name := range map[string]string{"": "plumbline", "net": "net"} {
		manifest := rendered(t, "fullnameOverride="+override)
		ports := map[string]string{}
		for document := range strings.SplitSeq(manifest, "\n---\n") {
			var service corev1.Service
			if err := yaml.Unmarshal([]byte(document), &service); err != nil || service.Kind != "Service" || service.Labels["plumbline.dev/metrics"] != "true" {
				continue
			}
			component := service.Spec.Selector["app.kubernetes.io/component"]
			for _, port := range service.Spec.Ports {
				ports[service.Name] += fmt.Sprintf("%s of %s at %d;", port.Name, component, port.Port)
			}
		}
		want := map[string]string{name + "-agent-metrics": "agent of agent at 9808;", name + "-controller-metrics": "controller of controller at 9478;"}
		if !maps.Equal(ports, want) {
			t.Errorf("name %s: the Services for metrics have %q, want %q", name, ports, want)
		}
		for _, want := range []string{`up{job="` + name + `-agent-metrics"}`, `{daemonset="` + name + `-agent"}`} {
			if !strings.Contains(manifest, want) {
				t.Errorf("name %s: no rule has %s", name, want)
			}
		}
	}
}

// rendered is the chart with all that is for Prometheus.
func rendered(t *testing.T, values string) string {
	t.Helper()
	helm, err := filepath.Abs(filepath.Join(checkout, ".cache", "bin", "helm"))
	if err != nil {
		t.Fatal(err)
	}
	run := func(program string, arguments ...string) string {
		command := exec.CommandContext(t.Context(), program, arguments...)
		command.Dir = checkout
		var complaint strings.Builder
		command.Stderr = &complaint
		said, err := command.Output()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", program, arguments, err, complaint.String())
		}
		return string(said)
	}
	run("make", helm)
	return run(helm, "template", "plumbline", "chart/plumbline", "--kube-version", "1.35.0",
		"--set", "serviceMonitor.enabled=true,prometheusRule.enabled=true,agent.metricsAddress=$(HOST_IP):9808,"+values)
}
