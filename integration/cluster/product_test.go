//go:build cluster

package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/cluster"
)

// An API server accepts the chart, with every switch both ways.
func TestChart(t *testing.T) {
	c := start(t, cluster.Options{APIServerOnly: true})
	kubectl(t, c, "", "create", "namespace", cluster.ProductNamespace)
	// A pod is refused without its account, which a dry run does not make.
	kubectl(t, c, "", "-n", cluster.ProductNamespace, "create", "serviceaccount", "plumbline-test")
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
		{"fullnameOverride=plumbline", "labels.team=net", "logFormat=json", "image.digest=sha256:" + strings.Repeat("0", 64), "agent.extraArgs={--pprof-address=127.0.0.1:6060}", "agent.extraEnv[0].name=A", "agent.extraEnv[0].value=b", "agent.seLinuxOptions.type=spc_t", "agent.podLabels.a=b", "agent.serviceAccountAnnotations.a=b"},
		{"controller.extraArgs={--pprof-address=127.0.0.1:6060}", "controller.extraEnv[0].name=A", "controller.extraEnv[0].value=b", "controller.resources.limits=null", "controller.seLinuxOptions.type=x", "controller.podLabels.a=b", "controller.serviceAccountAnnotations.a=b", "controller.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null"},
		{"podNetwork.enabled=true", "podNetwork.clusterCIDRs={10.244.0.0/16,fd00:244::/48}", "webhook.clientCA=x"},
	} {
		manifest, err := c.Chart(t.Context(), values...)
		if err != nil {
			t.Fatal(err)
		}
		if named := strings.Count(manifest, "\n            - --cluster-cidr="); named != 2*strings.Count(strings.Join(values, " "), "clusterCIDRs") {
			t.Errorf("values %q: %d times --cluster-cidr", values, named)
		}
		said := kubectl(t, c, manifest, "apply", "--server-side", "--dry-run=server", "-f", "-")
		for _, want := range []string{"daemonset.apps/plumbline-agent", "deployment.apps/plumbline-controller", "networktopologies.networking.dra.io"} {
			if !strings.Contains(said, want) {
				t.Errorf("values %q: nothing said of %s:\n%s", values, want, said)
			}
		}
	}
	manifest, err := c.Chart(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checkAgentPod(t, manifest)
	if manifest, err = c.Chart(t.Context(), "podNetwork.enabled=true"); err != nil {
		t.Fatal(err)
	}
	checkWithoutPodNetwork(t, manifest)
	for value, want := range map[string]string{
		"agent.nope=1":                "nope",
		"agent.extraArgs={x}":         "agent/extraArgs/0",
		"image.digest=latest":         "image/digest",
		"podNetwork.clusterCIDRs={x}": "podNetwork/clusterCIDRs/0",
		"serviceMonitor.enabled=true": "which nobody but the node itself can scrape",
		"networkPolicy.enabled=true":  "networkPolicy.apiServer: is empty",
	} {
		if _, err := c.Chart(t.Context(), value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", value, err, want)
		}
	}
}

// checkWithoutPodNetwork holds that the controller stays on a node that is not ready, as all
// are before there is a topology that gives pods their network.
func checkWithoutPodNetwork(t *testing.T, manifest string) {
	t.Helper()
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		o := &appsv1.Deployment{}
		if err := yaml.Unmarshal([]byte(doc), o); err != nil || o.Kind != "Deployment" {
			continue
		}
		pod := &o.Spec.Template.Spec
		c := pod.Containers[0]
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe.HTTPGet.Host != "127.0.0.1" || !slices.Contains(c.Args, "--health-address=127.0.0.1:9479") {
				t.Errorf("the controller answers probes of %q at %q", probe.HTTPGet.Host, c.Args)
			}
		}
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			if !pod.HostNetwork || !slices.ContainsFunc(pod.Tolerations, func(o corev1.Toleration) bool {
				return o.TolerationSeconds == nil && o.Operator == corev1.TolerationOpExists && o.Key == corev1.TaintNodeNotReady && (o.Effect == "" || o.Effect == effect)
			}) {
				t.Errorf("the controller does not tolerate %s of nodes without a network: %+v", effect, pod.Tolerations)
			}
		}
		return
	}
	t.Error("no Deployment in the chart")
}

// checkAgentPod holds what an agent that was taken over has of its node by default: nothing of
// /proc/sys but net, no sockets of other drivers, no capability that only an option needs.
func checkAgentPod(t *testing.T, manifest string) {
	t.Helper()
	agents := 0
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		o := &appsv1.DaemonSet{}
		if err := yaml.Unmarshal([]byte(doc), o); err != nil || o.Kind != "DaemonSet" {
			continue
		}
		agents++
		pod := &o.Spec.Template.Spec
		var paths []string
		for _, v := range pod.Volumes {
			if v.HostPath != nil {
				paths = append(paths, v.HostPath.Path)
			}
		}
		slices.Sort(paths)
		if want := []string{
			"/proc/sys/net", "/var/lib/kubelet/plugins/dra.networking", "/var/lib/kubelet/plugins_registry", "/var/lib/plumbline",
			"/var/run/cdi", "/var/run/netns", "/var/run/nri",
		}; !slices.Equal(paths, want) {
			t.Errorf("the agent has the host's paths %q, want %q", paths, want)
		}
		of := pod.Containers[0].SecurityContext
		if want := []corev1.Capability{"NET_ADMIN", "NET_BROADCAST", "SYS_ADMIN", "DAC_OVERRIDE"}; !slices.Equal(of.Capabilities.Add, want) || !slices.Equal(of.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("capabilities %+v, want %v alone", of.Capabilities, want)
		}
		if of.Privileged != nil && *of.Privileged || pod.HostPID || pod.HostIPC || !*of.ReadOnlyRootFilesystem || len(pod.Containers) != 1 {
			t.Errorf("the agent has more than it needs: %+v", pod)
		}
	}
	if agents != 1 {
		t.Errorf("%d DaemonSets in the chart", agents)
	}
}
