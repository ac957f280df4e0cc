//go:build cluster && soak

package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// slowDevices is how many devices a pod of TestSlowAttach has, and slowWrite what each
// message takes that changes one: the sixteen together ten seconds and more.
const (
	slowDevices = 16
	slowWrite   = 100 * time.Millisecond
	slowestHook = 4 * time.Second
)

// sixteen is a topology of all virtual functions of four cards, with a claim template.
func sixteen() string {
	var steps, requests strings.Builder
	for i := range slowDevices {
		ifName := fmt.Sprintf("enp%ds0f%dv%d", 3+i/8, i/4%2, i%4)
		fmt.Fprintf(&steps, `
  - name: vf%[1]d
    type: sriov
    selector: {cel: 'device.driver == "dra.networking" && device.attributes["dra.networking"].ifName == "%[2]s"'}
    config: {name: slow%[1]d}
  - {name: tune%[1]d, type: tuning, dependOn: [vf%[1]d], config: {dev: "{{ vf%[1]d.interfaceName }}", addresses: ["192.0.2.%[1]d/32"]}}`, i, ifName)
		fmt.Fprintf(&requests, "%s, ", exactly(fmt.Sprintf("vf%d", i), fmt.Sprintf("sixteen-vf%d", i)))
	}
	return "\napiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: sixteen}\nspec:\n  steps:" + steps.String() +
		"\n---" + claimTemplate("sixteen", strings.TrimSuffix(requests.String(), ", "))
}

// fan is a topology of any virtual function and fifteen links more.
func fan() string {
	var steps strings.Builder
	for i := range slowDevices - 1 {
		fmt.Fprintf(&steps, "\n  - {name: d%[1]d, type: dummy, allowDuplicate: true, config: {name: fan%[1]d, addresses: [198.51.100.%[1]d/32]}}", i)
	}
	return `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: fan}
spec:
  steps:
  - name: vf
    type: sriov
    selector: {cel: 'device.driver == "dra.networking" && device.attributes["dra.networking"].ifName.contains("v")'}
    config: {name: fan}` + steps.String() + "\n---" + claimTemplate("fan", exactly("vf", "fan-vf"))
}

func numbered(name string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", name, i)
	}
	return out
}

// TestSlowAttach holds, on a node, that a network that takes longer than the runtime's
// hook is attached in the background: for one pod and for ten at once, with the agent
// killed and a pod deleted meanwhile.
func TestSlowAttach(t *testing.T) {
	b := newAgentBenchOf(t, cluster.NodeOptions{NICs: "quad", NRITimeout: slowestHook}, func(ctx context.Context, c *cluster.Cluster) (cluster.Release, error) {
		return c.Variant(ctx, "soak")
	})
	kubectl(t, b.Cluster, sixteen()+"---"+fan(), "apply", "-f", "-")
	if err := b.Await(t.Context(), "deviceclass/sixteen-vf0", "deviceclass/sixteen-vf15", "deviceclass/fan-vf"); err != nil {
		t.Fatal(err)
	}
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "set", "env", "daemonset/plumbline-agent", "PLUMBLINE_WRITE_DELAY="+slowWrite.String())
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "rollout", "status", "--timeout=300s", "daemonset/plumbline-agent")

	t.Run("sixteen devices", func(t *testing.T) {
		b.create(t, claimingPod("sixteen", "sixteen"))
		b.ready(t, "sixteen")
		b.startedOnceWith(t, "sixteen", numbered("slow", slowDevices)...)
		if took := b.attachTook(t, "sixteen"); took < 10*time.Second {
			t.Errorf("attached in %s, want more than 10 s", took)
		}
		if said := kubectl(t, b.Cluster, "", "get", "events", "--field-selector", "involvedObject.name=sixteen"); !strings.Contains(said, "NetworkAttaching") || strings.Contains(said, "NetworkFailed") {
			t.Errorf("events:\n%s", said)
		}
		b.drop(t, "sixteen")
	})
	t.Run("agent killed", func(t *testing.T) {
		b.create(t, claimingPod("killed", "sixteen"))
		b.attachedInBackground(t, "killed")
		b.agent(t, "KILL")
		b.ready(t, "killed")
		b.startedWith(t, "killed", numbered("slow", slowDevices)...)
		b.drop(t, "killed")
	})
	t.Run("kubelet and runtime killed", func(t *testing.T) {
		b.create(t, claimingPod("kept", "sixteen"))
		b.attachedInBackground(t, "kept")
		for _, do := range []func() error{
			func() error { return b.node.Kill(t.Context(), cluster.Kubelet) },
			func() error { return b.node.Kill(t.Context(), cluster.Containerd) },
			func() error { return b.node.Start(t.Context(), cluster.Containerd) },
			func() error { return b.node.Start(t.Context(), cluster.Kubelet) },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
		b.ready(t, "kept")
		b.startedOnceWith(t, "kept", numbered("slow", slowDevices)...)
		b.drop(t, "kept")
	})
	t.Run("pod deleted", func(t *testing.T) {
		b.create(t, claimingPod("deleted", "sixteen"))
		b.attachedInBackground(t, "deleted")
		b.drop(t, "deleted")
	})
	t.Run("ten pods", func(t *testing.T) {
		pods := numbered("fan-", 10)
		for _, pod := range pods {
			b.create(t, claimingPod(pod, "fan"))
		}
		b.attachedInBackground(t, pods...)
		b.agent(t, "KILL")
		deleted := b.attachedInBackground(t, pods...)
		kubectl(t, b.Cluster, "", "delete", "pod", "--wait=false", deleted)
		pods = slices.DeleteFunc(pods, func(pod string) bool { return pod == deleted })
		for _, pod := range pods {
			b.ready(t, pod)
			b.startedWith(t, pod, numbered("fan", slowDevices-1)...)
		}
		kubectl(t, b.Cluster, "", "wait", "--for=delete", "--timeout=180s", "pod/"+deleted)
		b.drop(t, pods...)
	})
}

// attachedInBackground waits until the agent that runs attaches one of these pods in the background, and
// returns which.
func (b *agentBench) attachedInBackground(t *testing.T, pods ...string) (pod string) {
	t.Helper()
	until(t, "a pod is attached in the background", 5*time.Minute, func() bool {
		said, err := b.Kubectl(t.Context(), nil, "-n", cluster.ProductNamespace, "logs", "daemonset/plumbline-agent")
		if err != nil { // its container is being made
			return false
		}
		for line := range strings.Lines(said) {
			if !strings.Contains(line, `msg="attaching in the background"`) {
				continue
			}
			if i := slices.IndexFunc(pods, func(pod string) bool { return strings.Contains(line, "pod=default/"+pod+" ") }); i >= 0 {
				pod = pods[i]
				return true
			}
		}
		return false
	})
	return pod
}

// startedWith fails the test unless the container that runs had these interfaces from
// its start, and none before it ran. While no agent is there to refuse one, the runtime
// makes it and then fails to start it, for the mount that the closed gate gives it.
func (b *agentBench) startedWith(t *testing.T, pod string, names ...string) {
	t.Helper()
	if why := b.get(t, pod, ".status.containerStatuses[0].lastState.terminated.reason"); why != "" && why != "StartError" {
		t.Errorf("pod %s had a container before that ended by %q", pod, why)
	}
	b.has(t, pod, names...)
}

// attachTook is how long the agent that runs has taken to attach the claim of a pod.
func (b *agentBench) attachTook(t *testing.T, pod string) (took time.Duration) {
	t.Helper()
	for line := range strings.Lines(kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "logs", "daemonset/plumbline-agent")) {
		if !strings.Contains(line, "msg=attached ") || !strings.Contains(line, " pod="+pod+" ") {
			continue
		}
		t.Log(strings.TrimSpace(line))
		_, word, _ := strings.Cut(strings.TrimSpace(line), " took=")
		var err error
		if took, err = time.ParseDuration(word); err != nil {
			t.Errorf("a line of the log: %v", err)
		}
	}
	return took
}
