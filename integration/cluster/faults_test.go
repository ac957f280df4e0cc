//go:build cluster

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
)

// wide is the flagship's shape: what takes longest to attach.
const wide = `
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: wide}
spec:
  steps:
  - name: vf0
    type: sriov
    selector: {cel: 'device.driver == "dra.networking" && device.attributes["dra.networking"].ifName == "enp3s0f0v2"'}
    config: {name: wide0, spoofchk: "off", trust: "on"}
  - name: vf1
    type: sriov
    selector: {cel: 'device.driver == "dra.networking" && device.attributes["dra.networking"].ifName == "enp3s0f1v0"'}
    config: {name: wide1, spoofchk: "off", trust: "on"}
  - name: bond0
    type: bond
    dependOn: [vf0, vf1]
    config: {name: bond0, mode: active-backup, miimon: 100, links: [{name: "{{ vf0.interfaceName }}"}, {name: "{{ vf1.interfaceName }}"}]}
  - name: data-vlan
    type: vlan
    dependOn: [bond0]
    config: {id: 100, master: "{{ bond0.interfaceName }}", name: data0}
  - name: mgmt-vlan
    type: vlan
    dependOn: [bond0]
    config: {id: 200, master: "{{ bond0.interfaceName }}", name: mgmt0}
  - name: tune-data
    type: tuning
    dependOn: [data-vlan]
    config: {dev: "{{ data-vlan.interfaceName }}", mtu: 9000, addresses: ["10.100.0.5/24"], routes: [{destination: "10.100.0.0/16", gateway: "10.100.0.1"}]}
  - name: tune-mgmt
    type: tuning
    dependOn: [mgmt-vlan]
    config: {dev: "{{ mgmt-vlan.interfaceName }}", addresses: ["10.200.0.5/24"]}
`

func claimTemplate(name, requests string) string {
	return fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s, namespace: default}
spec: {spec: {devices: {requests: [%s]}}}
`, name, requests)
}

func exactly(request, class string) string {
	return fmt.Sprintf("{name: %s, exactly: {deviceClassName: %s}}", request, class)
}

// testFaults injects faults beside a pod that none of them may affect.
func (b *agentBench) testFaults(t *testing.T) {
	kubectl(t, b.Cluster, wide+"---"+fmt.Sprintf(oneVF, "net-3", "enp3s0f1v1", "198.51.100.1/24", "net3")+"---"+
		claimTemplate("wide", exactly("vf0", "wide-vf0")+", "+exactly("vf1", "wide-vf1")), "apply", "-f", "-")
	if err := b.Await(t.Context(), "deviceclass/wide-vf0", "deviceclass/wide-vf1", "deviceclass/net-3-vf"); err != nil {
		t.Fatal(err)
	}
	b.create(t, claimingPod("bystander", "net-1"))
	b.ready(t, "bystander")
	home, files := b.home, b.files
	b.home, b.files = b.vfs(t), b.records(t)
	defer func() { b.home, b.files = home, files }()
	before := b.traces(t, "bystander")

	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"killed while it prepares", func(t *testing.T) { b.testStruck(t, "preparing", "KILL") }},
		{"killed before the hook", func(t *testing.T) { b.testStruck(t, "sandbox", "KILL") }},
		{"killed in the hook", func(t *testing.T) { b.testStruck(t, "applying", "KILL") }},
		{"killed after the hook", func(t *testing.T) { b.testStruck(t, "open", "KILL") }},
		{"hook timed out", func(t *testing.T) { b.testStruck(t, "sandbox", "STOP") }},
		{"rolling update", b.testRollingUpdate},
		{"late stop of an old sandbox", b.testLateStop},
		{"shared claim", b.testShared},
		{"alternatives", b.testAlternatives},
		{"one of two unprepared", b.testUnprepareOne},
		{"no webhook", b.testNoWebhook},
		{"device gone", b.testDeviceGone},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t)
			b.hasNow(t, "bystander", "net1")
			if now := b.traces(t, "bystander"); now != before {
				t.Errorf("the pod that has nothing to do with it:\n%s\nbefore:\n%s", now, before)
				before = now
			}
		})
	}
	b.home, b.files = home, files
	b.home = b.returned(t, home)
	b.drop(t, "bystander")
}

// returned is home with the addresses that functions have been given since: those of a
// card whose functions were removed and recreated are new.
func (b *agentBench) returned(t *testing.T, home string) string {
	t.Helper()
	var out strings.Builder
	now := b.vfs(t)
	for line := range strings.Lines(home) {
		name, _, _ := strings.Cut(line, " ")
		for other := range strings.Lines(now) {
			if strings.HasPrefix(other, name+" ") {
				line = other
			}
		}
		out.WriteString(line)
	}
	return out.String()
}

// traces change when a pod is modified: its containers and
// restarts, and the files that are kept of its claims. Up to half a minute after the pod was
// attached the agent writes that into their records, which is waited for.
func (b *agentBench) traces(t *testing.T, pod string) string {
	t.Helper()
	uid := b.get(t, pod, ".metadata.uid")
	until(t, "the records of its claims say that "+pod+" was attached", time.Minute, func() bool {
		return strings.TrimSpace(b.shell(t, `grep -L '"attached":' $(grep -rlE '`+b.claims(t, pod)+`' /var/lib/plumbline --include='*.claim') || true`)) == ""
	})
	return "restarts: " + b.get(t, pod, ".status.containerStatuses[0].restartCount") + "\n" + b.shell(t, `
ctr -n k8s.io containers ls -q 'labels."io.kubernetes.pod.uid"==`+uid+`' | sort
stat -c '%n %i %s %y' $(grep -rlE '`+uid+`|`+b.claims(t, pod)+`' /var/lib/plumbline /var/run/cdi --include='*.journal' --include='*.claim' --include='*.sandboxes' --include='*-gate-*') | sort`)
}

// claims returns the UIDs of the claims a pod has, as alternatives of a regular
// expression.
func (b *agentBench) claims(t *testing.T, pod string) string {
	t.Helper()
	uids := kubectl(t, b.Cluster, "", "get", "resourceclaims", "-o", `jsonpath={range .items[*]}{.status.reservedFor[0].name} {.metadata.uid}{"\n"}{end}`)
	var out []string
	for line := range strings.Lines(uids) {
		if of, uid, _ := strings.Cut(strings.TrimSpace(line), " "); of == pod {
			out = append(out, uid)
		}
	}
	return strings.Join(out, "|")
}

// trapScript stops or kills the agent as soon as an attachment has reached a given
// point, faster than is possible from outside of the machine.
const trapScript = `shopt -s nullglob
cd /var/lib/plumbline
agent=$(pgrep -o -f '^/plumbline agent ')
# follow FOLDER has changed wait for the next change in it (inotify): looking again and again would take a machine with one
# processor from everything else.
follow() {
	mkdir -p "$1"
	exec {changes}< <(exec perl -e '$| = 1; $fd = syscall(253); syscall(254, $fd, $ARGV[0], 0x182) >= 0 or die $!;
open $in, "<&=", $fd; do { print "\n" } while sysread $in, $_, 65536' "$1")
	follower=$!
	changed
}
changed() { read -ru "$changes"; }
more() {
	local before files
	follow "${1%/*}"
	files=($1) before=${#files[@]}
	echo >/run/trap.armed
	until files=($1); ((${#files[@]} > before)); do changed; done
}
# applying finds out whether a new journal is at its changes (found=struck) or has
# them behind it (found=late).
applying() {
	local file log
	for file in *.journal; do
		[[ -z ${old[$file]-} ]] || continue
		IFS= read -rd '' log <"$file"
		[[ $log == *'"phase":"'* ]] || continue
		found=late
		[[ ${log##*'"phase":"'} != Applying* ]] || found=struck
		return 0
	done
	return 1
}
found=struck
case $1 in
preparing) more 'claims/*.claim' ;;
sandbox) more '/var/run/netns/cni-*' ;;
applying)
	declare -A old=()
	follow .
	for file in *.journal; do old[$file]=old; done
	echo >/run/trap.armed
	until applying; do changed; done
	;;
open) more '/var/run/cdi/dra.networking-gate-*.json' ;;
esac
kill -STOP "$agent"
[[ $1 != applying ]] || applying
kill -"$2" "$agent"
kill "$follower"
echo "$found" >/run/trap
`

// trap prepares to send the agent a signal when an attachment has come so far:
// preparing, sandbox (that is there, but without network yet), applying, open.
func (b *agentBench) trap(t *testing.T, when, signal string) {
	t.Helper()
	b.shell(t, `rm -f /run/trap /run/trap.armed
mkfifo /run/trap
cat >/run/trap.sh <<'END'
`+trapScript+`END
setsid chrt -f 1 bash /run/trap.sh `+when+` `+signal+` >/run/trap.log 2>&1 </dev/null &
until [[ -e /run/trap.armed ]]; do sleep 0.02; done`)
}

// sprung waits for the trap, which writes into a pipe; false when it was too late.
func (b *agentBench) sprung(t *testing.T) bool {
	t.Helper()
	said := b.shell(t, `if read -rt 240 found <>/run/trap; then echo "$found"; else echo "not sprung: $(cat /run/trap.log)"; fi`)
	switch strings.TrimSpace(said) {
	case "struck":
		return true
	case "late":
		return false
	}
	t.Fatalf("trap: %s", said)
	return false
}

// testStruck makes a pod and strikes the agent on the way.
func (b *agentBench) testStruck(t *testing.T, when, signal string) {
	b.strike(t, when, signal, claimingPod("struck", "wide"), func() { b.startedOnceWith(t, "struck", "data0", "mgmt0") })
}

// strike creates the pod "struck", sends the agent a signal on the way, and checks the pod once it is ready.
func (b *agentBench) strike(t *testing.T, when, signal, pod string, check func()) {
	t.Helper()
	for try := 1; ; try++ {
		b.trap(t, when, signal)
		b.create(t, pod)
		hit := b.sprung(t)
		if signal == "STOP" {
			until(t, "the container is refused", 180*time.Second, func() bool {
				return strings.Contains(b.waiting(t, "struck"), "CreateContainerError")
			})
			t.Logf("refused: %s", b.waiting(t, "struck"))
			if now := b.get(t, "struck", ".status.containerStatuses[0].state.running"); now != "" {
				t.Errorf("the container runs in a sandbox without network: %s", now)
			}
			b.agent(t, "CONT")
		}
		b.ready(t, "struck")
		check()
		b.drop(t, "struck")
		if hit || t.Failed() {
			return
		}
		if try == 6 {
			t.Fatalf("the agent was never caught %s", when)
		}
	}
}

// startedOnceWith fails the test unless the container that runs is the first that does, and
// had these interfaces from its start. Containers whose start was refused at the gate never ran.
func (b *agentBench) startedOnceWith(t *testing.T, pod string, names ...string) {
	t.Helper()
	if n := b.get(t, pod, ".status.containerStatuses[0].restartCount"); n != "0" {
		switch reason := b.get(t, pod, ".status.containerStatuses[0].lastState.terminated.reason"); reason {
		case "StartError":
			t.Logf("pod %s: %s starts were refused", pod, n)
		default:
			t.Errorf("pod %s was restarted %s times, the last time for %q", pod, n, reason)
		}
	}
	b.has(t, pod, names...)
}

// testRollingUpdate replaces the agent while pods come and go.
func (b *agentBench) testRollingUpdate(t *testing.T) {
	agents := func() string {
		return kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "jsonpath={.items[*].metadata.name}")
	}
	old := agents()
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "patch", "daemonset/plumbline-agent", "-p",
		fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"plumbline.test/update":"%d"}}}}}`, time.Now().Unix()))
	rolled, started := false, 0
	for last := false; !last; {
		last = rolled // one more round after the update
		var pods []string
		for _, template := range []string{"", "net-2", "wide"} {
			name := fmt.Sprintf("churn-%d", started)
			started++
			pods = append(pods, name)
			if template == "" {
				b.create(t, claimingPod(name))
			} else {
				b.create(t, claimingPod(name, template))
			}
		}
		for _, name := range pods {
			b.ready(t, name)
		}
		b.startedOnceWith(t, pods[0], "eth0")
		b.startedOnceWith(t, pods[1], "net2")
		b.startedOnceWith(t, pods[2], "data0", "mgmt0")
		kubectl(t, b.Cluster, "", append([]string{"delete", "pod", "--timeout=120s"}, pods...)...)
		rolled = agents() != old && !strings.Contains(agents(), " ")
		if started > 60 {
			t.Fatalf("the update does not end: agents %s, before %s", agents(), old)
		}
	}
	retried := kubectl(t, b.Cluster, "", "get", "events", "--field-selector", "reason=FailedCreatePodSandBox", "-o", "jsonpath={range .items[*]}{.involvedObject.name} {.message}{\"\\n\"}{end}")
	for line := range strings.Lines(retried) {
		if strings.HasPrefix(line, "churn-") {
			t.Logf("tried again: %s", line)
		}
	}
	t.Logf("%d pods", started)
	b.unregistered(t)
	b.nothingLeft(t)
}

// testLateStop stops and removes the old sandbox of a pod that has long had a new
// one, as the kubelet does when it collects what is left over.
func (b *agentBench) testLateStop(t *testing.T) {
	b.create(t, claimingPod("renewed", "net-2"))
	b.ready(t, "renewed")
	old := strings.TrimSpace(b.sandboxes(t, "renewed"))
	b.newSandbox(t, "renewed")
	until(t, "the pod has another sandbox", 180*time.Second, func() bool { return b.get(t, "renewed", ".status.containerStatuses[0].restartCount") == "1" })
	b.ready(t, "renewed")
	b.has(t, "renewed", "net2")
	runtime := b.ask(t, "/run/containerd/containerd.sock")
	for _, verb := range []string{"StopPodSandbox", "RemovePodSandbox"} {
		// Both requests are a message whose first field is the ID, as a StringValue is.
		if err := runtime.Invoke(t.Context(), "/runtime.v1.RuntimeService/"+verb, wrapperspb.String(old), &emptypb.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	if left := b.sandboxes(t, "renewed"); strings.Contains(left, old) {
		t.Errorf("the old sandbox %s is not removed: %s", old, left)
	}
	b.hasNow(t, "renewed", "net2")
	if n := b.get(t, "renewed", ".status.containerStatuses[0].restartCount"); n != "1" {
		t.Errorf("restarts: %s, want the one of the new sandbox", n)
	}
	if open := b.shell(t, "cat /var/run/cdi/dra.networking-gate-*"); !strings.Contains(open, strings.TrimSpace(b.sandboxes(t, "renewed"))) {
		t.Errorf("the gate is not open for the new sandbox %s: %s", b.sandboxes(t, "renewed"), open)
	}
	b.drop(t, "renewed")
}

// ask connects to a gRPC server of the node by its socket.
func (b *agentBench) ask(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///socket", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return b.node.Dial(ctx, "unix:"+socket) }))
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// sandboxes returns the runtime's sandboxes of a pod.
func (b *agentBench) sandboxes(t *testing.T, pod string) string {
	t.Helper()
	return b.shell(t, `ctr -n k8s.io containers ls -q 'labels."io.kubernetes.pod.uid"==`+b.get(t, pod, ".metadata.uid")+`,labels."io.cri-containerd.kind"==sandbox'`)
}

// without deletes an object for the rest of the test.
func (b *agentBench) without(t *testing.T, object string) {
	t.Helper()
	var saved map[string]any
	check(t, json.Unmarshal([]byte(kubectl(t, b.Cluster, "", "get", object, "-o", "json")), &saved))
	kept := map[string]any{}
	for _, key := range []string{"name", "labels"} {
		kept[key] = saved["metadata"].(map[string]any)[key]
	}
	saved["metadata"] = kept
	delete(saved, "status")
	manifest, err := json.Marshal(saved)
	check(t, err)
	kubectl(t, b.Cluster, "", "delete", object)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if _, err := b.Kubectl(ctx, strings.NewReader(string(manifest)), "create", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
}

// testShared lets two pods share a claim, past the policy that keeps the second
// one from the node.
func (b *agentBench) testShared(t *testing.T) {
	b.without(t, "validatingadmissionpolicybinding/plumbline-one-pod")
	kubectl(t, b.Cluster, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared, namespace: default}
spec: {devices: {requests: [`+exactly("vf", "net-2-vf")+`]}}
`, "create", "-f", "-")
	sharing := func(name string) string {
		return strings.Replace(claimingPod(name, "shared"), "resourceClaimTemplateName", "resourceClaimName", 1)
	}
	b.create(t, sharing("owner"))
	b.ready(t, "owner")
	traces := b.traces(t, "owner")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		_, _ = b.Kubectl(ctx, nil, "delete", "pod/guest", "resourceclaim/shared", "--ignore-not-found", "--wait=false")
	})
	// The API server needs a moment to forget the policy.
	until(t, "the second pod is on the node", 120*time.Second, func() bool {
		if _, err := b.Kubectl(t.Context(), strings.NewReader(sharing("guest")), "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // a pod that is not scheduled sends no notification
		if b.get(t, "guest", ".spec.nodeName") != "" {
			return true
		}
		kubectl(t, b.Cluster, "", "delete", "pod", "guest")
		return false
	})
	b.saysWhy(t, "guest", "a device is in one pod at a time")
	if now := b.get(t, "guest", ".status.containerStatuses[0].state.running"); now != "" {
		t.Errorf("it runs: %s", now)
	}
	b.hasNow(t, "owner", "net2")
	kubectl(t, b.Cluster, "", "delete", "pod", "guest", "--timeout=120s")
	b.hasNow(t, "owner", "net2")
	if now := b.traces(t, "owner"); now != traces {
		t.Errorf("the pod that had the claim first:\n%s\nbefore:\n%s", now, traces)
	}
	b.drop(t, "owner")
	kubectl(t, b.Cluster, "", "delete", "resourceclaim", "shared", "--timeout=60s")
}

// saysWhy waits for an event of the pod that has this text.
func (b *agentBench) saysWhy(t *testing.T, pod, text string) {
	t.Helper()
	eventually.Holds(t, 3*time.Minute, fmt.Sprintf("an event of pod %s says %q", pod, text), func() string {
		said := kubectl(t, b.Cluster, "", "get", "events", "--field-selector", "involvedObject.name="+pod, "-o", "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}")
		for line := range strings.Lines(said) {
			if strings.Contains(line, text) {
				t.Logf("event: %s", line)
				return ""
			}
		}
		return said
	})
}

// testAlternatives has a request with subrequests, the first of which no device
// fits.
func (b *agentBench) testAlternatives(t *testing.T) {
	kubectl(t, b.Cluster, claimTemplate("either", `{name: vf, firstAvailable: [
  {name: best, deviceClassName: net-2-vf, selectors: [{cel: {expression: 'device.attributes["dra.networking"].ifName == "none"'}}]},
  {name: good, deviceClassName: net-2-vf}]}`), "create", "-f", "-")
	b.create(t, claimingPod("choosy", "either"))
	b.ready(t, "choosy")
	b.startedOnceWith(t, "choosy", "net2")
	if request := kubectl(t, b.Cluster, "", "get", "resourceclaims", "-o", "jsonpath={.items[*].status.allocation.devices.results[*].request}"); !strings.Contains(request, "vf/good") {
		t.Errorf("allocated for %q, want vf/good", request)
	}
	b.drop(t, "choosy")
	kubectl(t, b.Cluster, "", "delete", "resourceclaimtemplate", "either")
}

// testUnprepareOne ends one of two claims of a running pod, as the kubelet does.
func (b *agentBench) testUnprepareOne(t *testing.T) {
	b.create(t, claimingPod("both", "net-2", "wide"))
	b.ready(t, "both")
	b.startedOnceWith(t, "both", "net2", "data0")
	var claims struct {
		Items []struct {
			Metadata struct{ Name, UID string }
		}
	}
	check(t, json.Unmarshal([]byte(kubectl(t, b.Cluster, "", "get", "resourceclaims", "-o", "json")), &claims))
	var one, other *drapb.Claim
	for _, c := range claims.Items {
		claim := &drapb.Claim{Namespace: "default", Name: c.Metadata.Name, Uid: c.Metadata.UID}
		switch {
		case strings.HasPrefix(claim.Name, "both-net-2"):
			one = claim
		case strings.HasPrefix(claim.Name, "both-wide"):
			other = claim
		}
	}
	if one == nil || other == nil {
		t.Fatalf("claims of the pod: %+v", claims)
	}
	socket := strings.TrimSpace(b.shell(t, "ls -t /var/lib/kubelet/plugins/dra.networking/*.sock | head -n 1"))
	said, err := drapb.NewDRAPluginClient(b.ask(t, socket)).NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{one}})
	if err != nil || said.GetClaims()[one.GetUid()].GetError() != "" {
		t.Fatalf("unprepare: %v, %v", said, err)
	}
	if now := b.vfs(t); !strings.Contains(now, "enp3s0f0v1") || strings.Contains(now, "enp3s0f0v2") {
		t.Errorf("the function of the claim that ended is to be at home, those of the other are not:\n%s", now)
	}
	b.hasNow(t, "both", "data0", "mgmt0")
	if gates := b.shell(t, "ls /var/run/cdi"); strings.Contains(gates, "gate-"+one.GetUid()) || !strings.Contains(gates, "gate-"+other.GetUid()) {
		t.Errorf("gates: %s", gates)
	}
	b.drop(t, "both")
}

// testNoWebhook has a claim that lacks a device: refused by the webhook, and by
// the node when the webhook was not called.
func (b *agentBench) testNoWebhook(t *testing.T) {
	lacking := claimTemplate("lacking", exactly("vf0", "wide-vf0"))
	_, err := b.Kubectl(t.Context(), strings.NewReader(lacking), "create", "-f", "-")
	if want := "Missing: [vf1]"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("with the webhook: %v, want %q", err, want)
	}
	b.without(t, "validatingwebhookconfiguration/plumbline-requests")
	until(t, "nobody asks the webhook", 60*time.Second, func() bool {
		_, err = b.Kubectl(t.Context(), strings.NewReader(lacking), "create", "-f", "-")
		return err == nil
	})
	b.create(t, claimingPod("lacking", "lacking"))
	b.saysWhy(t, "lacking", `NetworkTopology "wide" root step "vf1" has no matching device request in ResourceClaim "lacking-lacking-`)
	b.saysWhy(t, "lacking", `The ResourceClaim must contain a request named "vf1" with deviceClassName "wide-vf1".`)
	if phase := b.get(t, "lacking", ".status.phase"); phase != "Pending" {
		t.Errorf("the pod is %s, want it Pending", phase)
	}
	b.drop(t, "lacking")
	kubectl(t, b.Cluster, "", "delete", "resourceclaimtemplate", "lacking")
}

// testDeviceGone removes the functions of a card while a claim that was given one
// waits to be prepared, and makes them again.
func (b *agentBench) testDeviceGone(t *testing.T) {
	if err := b.node.Stop(t.Context(), cluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	b.create(t, claimingPod("late", "net-3"))
	until(t, "the claim is allocated", 120*time.Second, func() bool { return b.get(t, "late", ".spec.nodeName") != "" })
	b.shell(t, "echo 0 >/sys/class/net/enp3s0f1/device/sriov_numvfs")
	if err := b.node.Start(t.Context(), cluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	b.saysWhy(t, "late", "is not on this node any more")
	if now := b.get(t, "late", ".status.containerStatuses[0].state.running"); now != "" {
		t.Errorf("it runs: %s", now)
	}
	if got := b.shell(t, `device=$(readlink -f /sys/class/net/enp3s0f1/device)
echo 0 >"$device/sriov_drivers_autoprobe"
echo 4 >"$device/sriov_numvfs"
echo 1 >"$device/sriov_drivers_autoprobe"
for vf in 0 1 2 3; do
	address=$(readlink "$device/virtfn$vf")
	echo "${address##*/}" >/sys/bus/pci/drivers_probe
	links=("$device/virtfn$vf"/net/*)
	ip link set "${links[0]##*/}" name "enp3s0f1v$vf"
done
echo /sys/class/net/enp3s0f1v*`); len(strings.Fields(got)) != 4 {
		t.Fatalf("functions: %s", got)
	}
	b.home = b.returned(t, b.home)
	b.ready(t, "late")
	b.startedOnceWith(t, "late", "net3")
	b.drop(t, "late")
}
