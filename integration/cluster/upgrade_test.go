//go:build cluster

package cluster_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/reconcile/frame"
)

// upgradedFrom is the commit that TestUpgrade upgrades from, and rolls back to: the one that changed the version of records last,
// and the first release once there is one (docs/adr/0081).
const upgradedFrom = "30713bf6c62dfd48fac39dfe665b195544e35852"

// TestUpgrade holds that pods keep their network, and that others get theirs, while
// plumbline is upgraded from an earlier commit, rolled while a record is of a version that
// the agent does not know, and rolled back; and that no record is set aside and no virtual
// function is lost. Packets of a pod that a NetworkQoS covers are marked all the while, and a pod with the RDMA device of a function
// opens it, and no other. (The earlier commit has no step type rxe.)
//
// The later version of the second part is simulated: a line that it would have written is added
// to the record of a pod.
func TestUpgrade(t *testing.T) {
	var before cluster.Release
	options := cluster.NodeOptions{RDMA: true, Packages: []string{"rdma"}, Start: "modprobe -a ib_uverbs rdma_ucm"}
	b := newAgentBenchOf(t, options, func(ctx context.Context, c *cluster.Cluster) (_ cluster.Release, err error) {
		before, err = c.Release(ctx, upgradedFrom)
		return before, err
	}, withRules)
	b.applied(t, fmt.Sprintf(rulesKept, 46))
	kubectl(t, b.Cluster, fmt.Sprintf(oneVF, "net-3", "enp3s0f0v2", "192.0.2.193/26", "net3"), "apply", "-f", "-")
	kubectl(t, b.Cluster, verbsKept+claimTemplate("verbs", exactly("ib", "verbs-ib")), "apply", "-f", "-")
	check(t, b.Await(t.Context(), "deviceclass/net-3-vf", "deviceclass/verbs-ib"))
	u := &upgrade{agentBench: b, kept: map[string]string{}}
	u.keep(t, claimingPod("old-1", "net-1"), "old-1", "net1")
	u.keep(t, claimingPod("old-3", "net-3"), "old-3", "net3")
	u.keep(t, verbsPod(verbs, b.node.Name, "verbs"), verbs, "eth0")
	u.send(t, "old-3", "net3", "192.0.2.194")

	t.Log("upgrade")
	u.roll(t, func(ctx context.Context) error { return b.InstallRelease(ctx, cluster.Release{}, withRules) })
	u.runs(t, ":dev")
	u.edit(t, 10)

	t.Log("a record of a later version")
	log, added := u.later(t, "old-1")
	u.roll(t, u.restart)
	u.leftAlone(t, "old-1", log, added)

	t.Log("rollback")
	u.keep(t, claimingPod("new-1", "net-1"), "new-1", "net1")
	u.back = true
	u.roll(t, func(ctx context.Context) error { return b.InstallRelease(ctx, before, withRules) })
	u.runs(t, ":"+upgradedFrom)
	u.edit(t, 12)
	for pod := range u.kept {
		u.unwatch(t, pod)
	}
	b.drop(t, "new-1", "old-3", verbs)
}

// verbsKept is the topology of the pod verbs, whose function stays on the host.
const verbsKept = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: verbs}
spec:
  steps:
  - {name: ib, type: rdma, selector: {cel: 'device.attributes["dra.networking"].ifName == "enp3s0f1v0"'}}
---`

// verbs is the pod with an RDMA device.
const verbs = "old-verbs"

// opens fails the test unless the pod verbs opens its RDMA device, and has no other.
func (u *upgrade) opens(t *testing.T) {
	t.Helper()
	const device = "rocep3s0f1v0"
	if said, err := u.agentBench.runs(t, verbs, "ibv_devinfo -d "+device); err != nil || !strings.Contains(said, "transport:") {
		t.Errorf("pod %s and its RDMA device: %v\n%s", verbs, err, said)
	}
	if files := strings.Fields(kubectl(t, u.Cluster, "", "exec", verbs, "--", "/usr/bin/ls", "/dev/infiniband")); len(files) != 2 {
		t.Errorf("pod %s has the files %v of RDMA devices, want one uverbs and rdma_cm", verbs, files)
	}
}

const withRules = "networkQoS.enabled=true"

// rulesKept marks what pods send over topology net-3.
const rulesKept = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: kept, namespace: default}
spec:
  priority: 10
  netAttachRefs: [{kind: NetworkTopology, name: net-3}]
  egress: [{dscp: %d, classifier: {to: [{ipBlock: {cidr: 192.0.2.0/24}}]}}]
`

// upgrade is a bench whose product is replaced.
type upgrade struct {
	*agentBench
	kept    map[string]string // by pod: the state of its link when it was ready
	started int
	sender  string // the pod that sends
	packets int    // how many of them the filter has marked
	// back is set in a rollback: the agents that are replaced have no right to leases then, so
	// that a new pod waits.
	back bool
}

// keep starts a pod that runs on, and watches its links from then on.
func (u *upgrade) keep(t *testing.T, manifest, pod, link string) {
	t.Helper()
	u.create(t, manifest)
	u.ready(t, pod)
	u.has(t, pod, link)
	u.shell(t, "setsid ip -n "+u.netns(t, pod)+" monitor link address </dev/null >/tmp/watch-"+pod+" 2>&1 & echo $! >/tmp/watch-"+pod+".pid")
	u.kept[pod] = u.network(t, pod)
}

// send has a pod send packets to an address of its link from now on, and watches for one without a mark.
func (u *upgrade) send(t *testing.T, pod, link, to string) {
	t.Helper()
	u.sender = pod
	u.shell(t, fmt.Sprintf(`ns=%[1]s dev=%[2]s to=%[3]s pod=%[4]s
ip -n "$ns" neighbor replace "$to" lladdr 02:00:00:00:00:99 dev "$dev" nud permanent
setsid ip netns exec "$ns" tcpdump -p -l -n -v -Q out -i "$dev" "udp dst port 9 and dst host $to and ip[1] & 0xfc = 0" </dev/null >/tmp/unmarked-$pod 2>/tmp/unmarked-$pod.says &
echo $! >>/tmp/watch-$pod.pid
for ((n = 0; n < 300; n++)); do if grep -q listening /tmp/unmarked-$pod.says; then break; fi; sleep 0.1; done
grep -q listening /tmp/unmarked-$pod.says
setsid ip netns exec "$ns" perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Proto => "udp", PeerAddr => "'$to':9"); while (1) { $s->send("x"); select(undef, undef, undef, 0.05) }' </dev/null >/dev/null 2>&1 &
echo $! >>/tmp/watch-$pod.pid`, u.netns(t, pod), link, to, pod))
	u.count(t)
}

// count fails the test unless the filters of the pod that sends mark each of its packets, and count on.
func (u *upgrade) count(t *testing.T) {
	t.Helper()
	before := u.packets
	until(t, "the filter counts on", time.Minute, func() bool {
		if _, err := fmt.Sscan(u.shell(t, "tc -s -n "+u.netns(t, u.sender)+" filter show dev net3 egress | awk '$1 == \"Sent\" && $4 > n { n = $4 } END { print n + 0 }'"), &u.packets); err != nil {
			t.Fatal(err)
		}
		if u.packets < before {
			t.Errorf("the filter has marked %d packets, before %d: it is another", u.packets, before)
			before = u.packets
		}
		return u.packets > before
	})
	t.Logf("%d packets marked", u.packets)
	if said := u.shell(t, "cat /tmp/unmarked-"+u.sender); said != "" {
		t.Errorf("packets without a mark:\n%s", said)
	}
}

// edit has the agent that runs now change the rule.
func (u *upgrade) edit(t *testing.T, dscp int) {
	t.Helper()
	u.applied(t, fmt.Sprintf(rulesKept, dscp))
	u.marked(t, "default/"+u.sender, "net3", map[string]string{"192.0.2.194": fmt.Sprintf("tos 0x%x", dscp<<2)})
	u.packets = 0 // it is another filter
	u.count(t)
}

// unwatch ends what keep began: it would keep the namespace when the pod has ended.
func (u *upgrade) unwatch(t *testing.T, pod string) {
	t.Helper()
	u.shell(t, "kill $(cat /tmp/watch-"+pod+".pid)")
	delete(u.kept, pod)
}

// netns returns the name of the namespace for which the gate of the pod's claim is open.
func (u *upgrade) netns(t *testing.T, pod string) string {
	t.Helper()
	return strings.TrimSpace(u.shell(t, `basename "$(jq -r '.devices[0].containerEdits.mounts[0].hostPath' "$(ls /var/run/cdi/dra.networking-gate-* | grep -E '`+u.claims(t, pod)+`')")"`))
}

// network has the pod's links, addresses and routes, with interface indexes and
// hardware addresses.
func (u *upgrade) network(t *testing.T, pod string) string {
	t.Helper()
	ns := u.netns(t, pod)
	return u.shell(t, "ip -d -o -n "+ns+" link; ip -o -n "+ns+" address | sed 's/valid_lft.*//'; ip -n "+ns+" route; ip -n "+ns+" -6 route")
}

// journal returns the path of the engine's log of a pod. A device that stays on the host has a log of its preparation, too.
func (u *upgrade) journal(t *testing.T, pod string) string {
	t.Helper()
	return strings.TrimSpace(u.shell(t, `ls /var/lib/plumbline/*.journal | grep -E '`+u.claims(t, pod)+`' | grep -v /prepared`))
}

// unchanged fails the test unless the pods that were kept have had no change since.
func (u *upgrade) unchanged(t *testing.T) {
	t.Helper()
	for pod, before := range u.kept {
		if now := u.network(t, pod); now != before {
			t.Errorf("network of pod %s:\n%s\nbefore:\n%s", pod, now, before)
		}
		if said := u.shell(t, "for pid in $(cat /tmp/watch-"+pod+".pid); do kill -0 $pid; done; cat /tmp/watch-"+pod); said != "" {
			t.Errorf("links of pod %s were changed:\n%s", pod, said)
		}
		if n := u.get(t, pod, ".status.containerStatuses[0].restartCount"); n != "0" {
			t.Errorf("pod %s was restarted %s times", pod, n)
		}
	}
	u.count(t)
	u.opens(t)
	if aside := u.shell(t, "ls /var/lib/plumbline /var/lib/plumbline/claims | grep damaged || true"); aside != "" {
		t.Errorf("set aside:\n%s", aside)
	}
}

// roll replaces the agent while pods come and go, and makes one more round after that.
func (u *upgrade) roll(t *testing.T, replace func(context.Context) error) {
	t.Helper()
	logs := map[string]string{}
	for pod := range u.kept {
		logs[pod] = u.shell(t, "cat "+u.journal(t, pod))
	}
	old := u.agents(t)
	replaced := make(chan error, 1)
	go func() { replaced <- replace(t.Context()) }()
	first := u.started
	for rolled, last := false, false; !last; {
		last = rolled
		select {
		case err := <-replaced:
			if err != nil {
				t.Fatal(err)
			}
			rolled = true
		default:
		}
		u.started++
		name := fmt.Sprintf("churn-%d", u.started)
		u.create(t, claimingPod(name, "net-2"))
		u.ready(t, name)
		u.startedOnceWith(t, name, "net2")
		kubectl(t, u.Cluster, "", "delete", "pod", "--timeout=300s", name)
		if u.started > first+60 {
			t.Fatalf("the update does not end: agents %s, before %s", u.agents(t), old)
		}
	}
	if now := u.agents(t); now == old {
		t.Errorf("the agent is %s still", old)
	}
	t.Logf("%d pods meanwhile", u.started-first)
	u.unchanged(t)
	if !u.back {
		u.unregistered(t)
	}
	for pod, before := range logs {
		if now := u.shell(t, "cat "+u.journal(t, pod)); !strings.HasPrefix(now, strings.TrimSpace(before)) {
			t.Errorf("the log of pod %s is another:\n%s\nbefore:\n%s", pod, now, before)
		}
	}
}

func (u *upgrade) agents(t *testing.T) string {
	t.Helper()
	return kubectl(t, u.Cluster, "", "-n", cluster.ProductNamespace, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "jsonpath={.items[*].metadata.name}")
}

// runs fails the test unless the agent is of this image.
func (u *upgrade) runs(t *testing.T, tag string) {
	t.Helper()
	if image := kubectl(t, u.Cluster, "", "-n", cluster.ProductNamespace, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "jsonpath={.items[*].spec.containers[*].image}"); !strings.HasSuffix(image, tag) {
		t.Errorf("the agent's image is %s, want %s", image, tag)
	}
}

// restart replaces the agent by one of the same release.
func (u *upgrade) restart(ctx context.Context) error {
	if _, err := u.Kubectl(ctx, nil, "-n", cluster.ProductNamespace, "rollout", "restart", "daemonset/plumbline-agent"); err != nil {
		return err
	}
	_, err := u.Kubectl(ctx, nil, "-n", cluster.ProductNamespace, "rollout", "status", "--timeout=540s", "daemonset/plumbline-agent")
	return err
}

// later adds to the log of a pod a change of an object that this version does not know, and
// returns the path of the log and the length of what was added.
func (u *upgrade) later(t *testing.T, pod string) (log string, added int) {
	t.Helper()
	line, err := frame.Encode(map[string]any{"intend": []any{map[string]any{"step": "qos", "type": "of-a-later-version", "after": map[string]any{"link": "net1"}}}})
	if err != nil {
		t.Fatal(err)
	}
	log = u.journal(t, pod)
	u.shell(t, "base64 -d <<<"+base64.StdEncoding.EncodeToString(line)+" >>'"+log+"'")
	return log, len(line)
}

// leftAlone ends a pod whose log is of a later version. The agent must say so once, and
// leave the log alone, until the later version is back, which is played by a log without
// what was added.
func (u *upgrade) leftAlone(t *testing.T, pod, log string, added int) {
	t.Helper()
	said := u.agentLog(t)
	if n := strings.Count(said, `msg="record of another version"`); n != 1 || !strings.Contains(said, "of-a-later-version") {
		t.Errorf("the agent has reported it %d times, want once:\n%s", n, said)
	}
	sum := u.shell(t, "sha256sum '"+log+"'")
	claim := u.claims(t, pod)
	u.unwatch(t, pod)
	kubectl(t, u.Cluster, "", "delete", "pod", pod, "--wait=false")
	until(t, "the release is refused", 2*time.Minute, func() bool {
		return strings.Count(u.agentLog(t), "of-a-later-version") > strings.Count(said, "of-a-later-version") && strings.Contains(u.get(t, pod, ".status.containerStatuses[0].state"), "terminated")
	})
	if left := u.shell(t, "ls /var/lib/plumbline/claims | grep -E '"+claim+"' || true"); !strings.Contains(left, ".claim") {
		t.Errorf("the claim was forgotten: %q", left)
	}
	if now := u.shell(t, "sha256sum '"+log+"'"); now != sum {
		t.Errorf("the log is another: %s, before %s", now, sum)
	}
	u.shell(t, fmt.Sprintf("truncate -s -%d '%s'", added, log))
	kubectl(t, u.Cluster, "", "wait", "--for=delete", "--timeout=180s", "pod/"+pod)
	if left := u.shell(t, "ls /var/lib/plumbline/claims /var/lib/plumbline | grep -E '"+claim+"' || true"); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// agentLog is the agent's log since it was started.
func (u *upgrade) agentLog(t *testing.T) string {
	t.Helper()
	return kubectl(t, u.Cluster, "", "-n", cluster.ProductNamespace, "logs", "daemonset/plumbline-agent")
}
