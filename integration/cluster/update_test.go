//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// edited is a topology of one virtual function with a VLAN on it.
const edited = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: %[1]s}
spec:
  updatePolicy: %[2]s
  steps:
  - name: vf
    type: sriov
    selector: {cel: 'device.driver == "dra.networking" && device.attributes["dra.networking"].ifName == "%[3]s"'}
    config: {vlan: 0}
  - {name: data, type: vlan, allowDuplicate: true, dependOn: [vf], config: {id: %[4]d, name: data-%[1]s, addresses: [198.51.100.7/24]}}
  - {name: tune, type: tuning, dependOn: [data], config: {mtu: %[5]d}}
`

const editedTemplate = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %[1]s, namespace: default}
spec: {spec: {devices: {requests: [{name: vf, exactly: {deviceClassName: %[1]s-vf}}]}}}
`

// TestUpdate holds that an edit reaches a pod that runs, where the topology says
// so, and that one which fails leaves the pod what it had, on both versions of
// containerd.
func TestUpdate(t *testing.T) {
	for _, containerd := range []string{"2.4", "1.7"} {
		t.Run(containerd, func(t *testing.T) { testUpdate(t, newAgentBench(t, containerd)) })
	}
}

func testUpdate(t *testing.T, b *agentBench) {
	t.Helper()
	live := func(id, mtu int) string { return fmt.Sprintf(edited, "live", "InPlace", "enp3s0f0v0", id, mtu) }
	still := func(id, mtu int) string { return fmt.Sprintf(edited, "still", "Immutable", "enp3s0f0v1", id, mtu) }
	for name, manifest := range map[string]string{"live": live(100, 1400), "still": still(100, 1400)} {
		kubectl(t, b.Cluster, manifest+"---"+fmt.Sprintf(editedTemplate, name), "apply", "-f", "-")
		kubectl(t, b.Cluster, "", "wait", "--for=create", "--timeout=60s", "deviceclass/"+name+"-vf")
		b.create(t, claimingPod(name, name))
	}
	b.ready(t, "live")
	b.ready(t, "still")
	links := func() string {
		t.Helper()
		return b.shell(t, `for n in $(ls /run/netns); do ip -n $n -d -o link show 2>/dev/null | sed -nE 's/^[0-9]+: (data-[a-z]+)@.* mtu ([0-9]+) .*vlan .* id ([0-9]+) .*/\1 \3 \2/p'; done | sort`)
	}
	// A card keeps its index on its way through the host to another sandbox, so
	// that the sandbox belongs to where it is.
	places := func() string {
		t.Helper()
		return b.shell(t, `for n in $(ls /run/netns); do ip -n $n -o link show net1 2>/dev/null | sed "s/:.*//; s/^/$n /" || true; done`)
	}
	topology := func(name, path string) string {
		t.Helper()
		return strings.TrimSpace(kubectl(t, b.Cluster, "", "get", "networktopology", name, "-o", "jsonpath={"+path+"}"))
	}
	updated := func(reason, counts string) {
		t.Helper()
		until(t, "the rollout: "+reason, 5*time.Minute, func() bool {
			generation := topology("live", ".metadata.generation")
			return topology("live", `.status.conditions[?(@.type=="Updated")].observedGeneration`) == generation &&
				topology("live", `.status.conditions[?(@.type=="Updated")].reason`) == reason && topology("live", ".status.updated") == counts
		})
	}
	has := func(want string) {
		t.Helper()
		if have := strings.Join(strings.Fields(links()), " "); have != want {
			t.Errorf("links %q, want %q", have, want)
		}
		for _, pod := range []string{"live", "still"} {
			if n := b.get(t, pod, ".status.containerStatuses[0].restartCount"); n != "0" {
				t.Errorf("pod %s was restarted %s times", pod, n)
			}
		}
	}
	event := func(reason, words string) {
		t.Helper()
		until(t, "the Event "+reason, 30*time.Second, func() bool {
			return strings.Contains(kubectl(t, b.Cluster, "", "get", "events", "--field-selector", "involvedObject.name=live,reason="+reason, "-o", "jsonpath={.items[*].message}"), words)
		})
	}
	updated("Complete", "1/1")
	has("data-live 100 1400 data-still 100 1400")
	cards := places()

	t.Run("in place", func(t *testing.T) {
		began := time.Now()
		kubectl(t, b.Cluster, live(101, 1300)+"---"+still(101, 1300), "apply", "-f", "-")
		updated("Complete", "1/1")
		t.Logf("in the pod, and told, after %s", time.Since(began).Round(10*time.Millisecond))
		has("data-live 101 1300 data-still 100 1400")
		if now := places(); now != cards {
			t.Errorf("the cards were moved: %q, before %q", now, cards)
		}
		event("NetworkUpdated", "from generation 1 to 2")
		t.Log("\n" + kubectl(t, b.Cluster, "", "get", "networktopology"))
		if have := topology("still", ".status.podsByGeneration") + " " + topology("still", ".status.updated"); have != "1:1 0/1" {
			t.Errorf("the topology that does not change in place says %q", have)
		}
	})
	t.Run("that fails", func(t *testing.T) {
		kubectl(t, b.Cluster, live(102, 12000), "apply", "-f", "-") // more than the card takes
		updated("Failed", "0/1")
		has("data-live 101 1300 data-still 100 1400")
		why := topology("live", `.status.conditions[?(@.type=="Updated")].message`)
		t.Log(why)
		if !strings.Contains(why, `node "`+b.node.Name+`"`) || strings.Contains(why, `"live"`) || strings.Contains(why, "mtu") {
			t.Errorf("the condition says %q", why)
		}
		if ready := kubectl(t, b.Cluster, "", "get", "resourceclaims", "-o", `jsonpath={.items[*].status.devices[*].conditions[?(@.type=="Ready")].status}`); ready != "True True" {
			t.Errorf("conditions Ready: %q, want \"True True\"", ready)
		}
		event("NetworkUpdateFailed", "keeps generation 2")
		event("NetworkUpdateFailed", "mtu")
	})
	t.Run("held back", func(t *testing.T) {
		kubectl(t, b.Cluster, live(103, 1200)+"  - {name: second, type: sriov}\n", "apply", "-f", "-")
		updated("HeldBack", "0/1")
		has("data-live 101 1300 data-still 100 1400")
		event("NetworkHeldBack", `step "second"`)
	})
	t.Run("with the agent killed", func(t *testing.T) {
		kubectl(t, b.Cluster, live(104, 1250), "apply", "-f", "-")
		b.agent(t, "KILL")
		updated("Complete", "1/1")
		has("data-live 104 1250 data-still 100 1400")
	})
	t.Run("a new sandbox has it too", func(t *testing.T) {
		b.newSandbox(t, "live")
		// The agent was killed just now. A kubelet that finds none tries again at the pod's
		// next resync, 60 to 90 s later.
		until(t, "a new sandbox", 5*time.Minute, func() bool {
			return strings.Join(strings.Fields(links()), " ") == "data-live 104 1250 data-still 100 1400" && places() != cards
		})
	})
	b.drop(t, "live", "still")
}
