//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
	"github.com/plumbline/plumbline/integration/eventually"
)

// TestPodNetwork holds what pods are given on a node that has no CNI plugin but ours, on both
// versions of containerd: every container starts with its whole network, what happens to the
// agent and to the node's daemons does not affect pods that run, and nothing is left.
func TestPodNetwork(t *testing.T) {
	for _, containerd := range []string{"2.4", "1.7"} {
		t.Run(containerd, func(t *testing.T) {
			b := newAgentBenchIn(t, cluster.Options{PodCIDRs: true}, cluster.NodeOptions{Containerd: containerd, NoCNI: true}, thisRelease, "podNetwork.enabled=true")
			if !t.Run("before there is a topology", b.testBeforeTopology) {
				return
			}
			// Two pods stay until the last case.
			b.create(t, servingPod("other", b.node.Name))
			b.ready(t, "other")
			b.files = b.records(t)
			t.Run("reach", b.testReach)
			t.Run("services", b.testServices)
			t.Run("with a claim", b.testNetworkAndClaim)
			t.Run("agent killed", b.testNetworkKilled)
			t.Run("agent away", b.testNetworkAway)
			t.Run("agent replaced", b.testNetworkReplaced)
			t.Run("daemons restarted", b.testNetworkDaemons)
			t.Run("force delete", b.testNetworkForce)
			t.Run("reboot", b.testNetworkReboot)
			t.Run("topology deleted", b.testNetworkDeleted)
		})
	}
}

// servingPod is a pod that the kubelet probes by its address. It is created on a node, past
// the scheduler, which gives nothing to a node that is not Ready.
func servingPod(name, node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 5
  containers:
  - name: pod
    image: %q
    imagePullPolicy: Never
    args: [listen, "8080"]
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 60}
    livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 10, timeoutSeconds: 20, failureThreshold: 30}
`, name, node, cluster.PodImage)
}

// wired fails the test unless the container of a pod was started with its own network: an
// address of each pod CIDR on eth0, those of its status, and default routes. It returns the
// addresses.
func (b *agentBench) wired(t *testing.T, pod string) []netip.Addr {
	t.Helper()
	network := networkAtStart(t, b.Cluster, pod)
	eth0 := network.Interface("eth0")
	if eth0 == nil {
		t.Fatalf("pod %s was started without eth0: %+v", pod, network)
	}
	var out []netip.Addr
	for cidr := range strings.FieldsSeq(kubectl(t, b.Cluster, "", "get", "node", b.node.Name, "-o", "jsonpath={.spec.podCIDRs[*]}")) {
		pods := netip.MustParsePrefix(cidr)
		gateway := pods.Addr().Next()
		before := len(out)
		for _, a := range eth0.Addresses {
			if pods.Contains(a.Addr()) {
				out = append(out, a.Addr())
			}
		}
		routed := slices.ContainsFunc(network.Routes, func(r cluster.PodRoute) bool {
			return r.Interface == "eth0" && r.Gateway == gateway.String() && (r.Destination == "" || strings.HasSuffix(r.Destination, "/0"))
		})
		if len(out) != before+1 || !routed {
			t.Errorf("pod %s was started without an address of %s on eth0, or without a route by %s: %+v", pod, cidr, gateway, network)
		}
	}
	if len(out) != 2 {
		t.Fatalf("pod %s has the addresses %v, want one of each family", pod, out)
	}
	if have := b.get(t, pod, ".status.podIPs[*].ip"); have != fmt.Sprintf("%s %s", out[0], out[1]) {
		t.Errorf("the status of pod %s has %q, the pod %v", pod, have, out)
	}
	return out
}

// networks counts the pods' objects on the node, since names are new each time.
func (b *agentBench) networks(t *testing.T) string {
	t.Helper()
	return b.shell(t, `set +o pipefail # folders and files that are not there yet are empty
count() { echo "$1: $(grep -c . || true)"; }
ls /run/netns | count namespaces
ls /var/lib/plumbline | grep '[.]journal$' | count records
grep -so '"claim":"cni/[^"]*"' /var/lib/plumbline/addresses | sort -u | count owners
ls /var/lib/cni/results 2>/dev/null | count results
ip -o link show type veth | count ports
ip -o link show type bridge | count bridges
for n in $(ls /run/netns); do ip -o -n "$n" address show dev eth0 scope global 2>/dev/null || true; done | awk '{ print $4 }' | count addresses
for n in $(ls /run/netns); do ip -o -n "$n" address show dev eth0 scope global 2>/dev/null || true; done | awk '{ print $4 }' | sort | uniq -d | count doubled
nft -j list ruleset | jq '[.nftables[].set? | select(.table == "plumbline") | .elem // [] | .[]] | length' | sed 's/^/masqueraded: /'`)
}

// leaves waits until pods have of the node what they had before. Addresses that an agent gave
// just before it was killed are given back after five minutes.
func (b *agentBench) leaves(t *testing.T, before string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.shell(t, "ls /var/lib/plumbline /run/netns; cat /var/lib/plumbline/addresses || true; ls -l --time-style=full-iso /var/lib/cni/results || true; ip -br link"))
		}
	})
	eventually.Holds(t, 8*time.Minute, "pods have of the node what they had before (-before +now)", func() string { return cmp.Diff(before, b.networks(t)) })
}

// inside is all of the network of pods that run, with the indexes of interfaces.
func (b *agentBench) inside(t *testing.T, pods ...string) string {
	t.Helper()
	var out strings.Builder
	for _, pod := range pods {
		out.WriteString(b.shell(t, `for n in $(ls /run/netns); do
	if [[ $(ip -o -n "$n" address show dev eth0 2>/dev/null) == *" `+b.get(t, pod, ".status.podIP")+`/"* ]]; then
		ip -o -n "$n" link; ip -o -n "$n" address; ip -n "$n" route; ip -n "$n" -6 route
	fi
done`))
		out.WriteString(b.get(t, pod, ".status.containerStatuses[0].containerID") + " restarted " + b.get(t, pod, ".status.containerStatuses[0].restartCount"))
	}
	return out.String()
}

// untouched fails the test unless pods that run have what they had before.
func (b *agentBench) untouched(t *testing.T, before string, pods ...string) {
	t.Helper()
	if now := b.inside(t, pods...); now != before {
		t.Errorf("pods that run have:\n%s\nbefore:\n%s", now, before)
	}
	for _, pod := range pods {
		b.pings(t, pod, b.node.Address)
	}
}

// pings fails the test unless a pod has an answer from each address.
func (b *agentBench) pings(t *testing.T, pod string, addresses ...string) {
	t.Helper()
	for _, a := range addresses {
		if said := kubectl(t, b.Cluster, "", "exec", pod, "--", "/pod", "ping", a); !strings.Contains(said, "answer from "+a) {
			t.Errorf("ping from pod %s to %s: %q", pod, a, said)
		}
	}
}

// installed lists what is in the folders of CNI.
func (b *agentBench) installed(t *testing.T) string {
	t.Helper()
	return strings.Join(strings.Fields(b.shell(t, "ls -A /opt/cni/bin; ls -A /etc/cni/net.d")), " ")
}

const allInstalled = "loopback plumbline 10-plumbline.conflist"

func (b *agentBench) nodeReady(t *testing.T) (status, message string) {
	t.Helper()
	said := kubectl(t, b.Cluster, "", "get", "node", b.node.Name, "-o", `jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.message}{end}`)
	status, message, _ = strings.Cut(said, " ")
	return status, message
}

func (b *agentBench) testBeforeTopology(t *testing.T) {
	if have := b.installed(t); have != "" {
		t.Errorf("before there is a topology, the folders of CNI have %q", have)
	}
	if status, message := b.nodeReady(t); status != "False" || !strings.Contains(message, "cni") {
		t.Errorf("the node is Ready: %s: %s", status, message)
	}
	b.create(t, servingPod("early", b.node.Name))
	b.saysWhy(t, "early", "network is not ready")
	empty := b.networks(t)
	t.Logf("\n%s", empty)

	began := time.Now()
	b.applied(t, story.PodNetwork)
	if err := b.node.WaitReady(t.Context(), began); err != nil {
		t.Fatal(err)
	}
	t.Logf("node Ready %s after its topology", time.Since(began).Round(10*time.Millisecond))
	if have := b.installed(t); have != allInstalled {
		t.Errorf("the folders of CNI have %q", have)
	}
	b.ready(t, "early")
	t.Logf("%v", b.wired(t, "early"))
	t.Logf("\n%s", b.networks(t))
}

// testReach sends packets between pods, host and API server, in both directions. That pods
// are Ready says that the kubelet reaches them.
func (b *agentBench) testReach(t *testing.T) {
	early, other := b.wired(t, "early"), b.wired(t, "other")
	for i := range early {
		gateway := netip.PrefixFrom(early[i], map[bool]int{true: 24, false: 64}[early[i].Is4()]).Masked().Addr().Next()
		b.pings(t, "early", other[i].String(), gateway.String())
		b.pings(t, "other", early[i].String())
		b.shell(t, "ping -c 1 -W 5 "+early[i].String())
	}
	b.pings(t, "early", b.node.Address)
	if said := kubectl(t, b.Cluster, "", "exec", "early", "--", "/pod", "version"); !strings.Contains(said, cluster.Version()) {
		t.Errorf("the service of the API server answers a pod %q", said)
	}
	if said := kubectl(t, b.Cluster, "", "get", "--raw", "/api/v1/namespaces/default/pods/other:8080/proxy/"); !strings.Contains(said, other[0].String()) {
		t.Errorf("the pod answers the API server %q", said)
	}
	for _, pod := range []string{"early", "other"} {
		if n := b.get(t, pod, ".status.containerStatuses[0].restartCount"); n != "0" {
			t.Errorf("pod %s was restarted %s times", pod, n)
		}
	}
}

// services are one with a cluster IP and a port of the nodes, whose only endpoint is the pod
// "other", and the endpoint of "kubernetes". Without that, kube-proxy would reject what is sent to
// the API server: this bench's API server writes no endpoints.
const services = `
apiVersion: v1
kind: Service
metadata: {name: other, namespace: default}
spec: {type: NodePort, selector: {app: other}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [10.0.2.2]}]
ports: [{name: https, port: %s}]
`

// testServices has kube-proxy, in its mode nftables, lead connections to a pod.
func (b *agentBench) testServices(t *testing.T) {
	early, other := b.wired(t, "early"), b.wired(t, "other")
	gateway := netip.PrefixFrom(other[0], 24).Masked().Addr().Next()
	_, port, _ := strings.Cut(b.Address(), ":")
	b.applied(t, fmt.Sprintf(services, port))
	kubectl(t, b.Cluster, "", "label", "pod", "other", "app=other")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if t.Failed() {
			said, err := b.node.Shell(ctx, "tail -n 40 "+b.node.Dir()+"/kube-proxy.log; nft list ruleset; conntrack -L 2>/dev/null || true")
			t.Logf("kube-proxy (%v):\n%s", err, said)
		}
		_, err := b.Kubectl(ctx, nil, "delete", "service/other", "endpointslice/kubernetes")
		if err := errors.Join(err, b.node.Stop(ctx, cluster.KubeProxy)); err != nil {
			t.Error(err)
		}
		// As a node of kubeadm has it, but only for this case.
		if _, err := b.node.Shell(ctx, "nft delete table ip kube-proxy; nft delete table ip6 kube-proxy 2>/dev/null || true; modprobe -r br_netfilter"); err != nil {
			t.Error(err)
		}
	})
	b.shell(t, "[[ $(sysctl -n net.bridge.bridge-nf-call-iptables) = 1 ]]") // loaded by the agent
	if err := b.node.Start(t.Context(), cluster.KubeProxy); err != nil {
		t.Fatal(err)
	}
	service := kubectl(t, b.Cluster, "", "get", "service", "other", "-o", "jsonpath={.spec.clusterIP} {.spec.ports[0].nodePort}")
	clusterIP, nodePort, _ := strings.Cut(service, " ")
	until(t, "kube-proxy has the endpoint of the service", 3*time.Minute, func() bool {
		return strings.Contains(b.shell(t, "nft list table ip kube-proxy 2>/dev/null || true"), "dnat to "+other[0].String()+":8080")
	})

	fromHost := func(url string) string { return b.fetch(t, url) }
	fromPod := func(pod string) func(string) string {
		return func(url string) string {
			return kubectl(t, b.Cluster, "", "exec", pod, "--", "/pod", "get", "http://"+url)
		}
	}
	for _, one := range []struct {
		name, url string
		get       func(string) string
		seen      netip.Addr // as the client, by the pod
	}{
		{"pod to cluster IP", clusterIP + ":80", fromPod("early"), early[0]},
		{"pod to itself", clusterIP + ":80", fromPod("other"), gateway},
		{"host to cluster IP", clusterIP + ":80", fromHost, gateway},
		{"pod to port of the node", b.node.Address + ":" + nodePort, fromPod("early"), gateway},
		{"host to port of the node", b.node.Address + ":" + nodePort, fromHost, gateway},
	} {
		t.Run(one.name, func(t *testing.T) {
			if said, want := strings.TrimSpace(one.get(one.url)), "other saw "+one.seen.String(); said != want {
				t.Errorf("%s answers %q, want %q", one.url, said, want)
			}
		})
	}
	if said := kubectl(t, b.Cluster, "", "exec", "early", "--", "/pod", "version"); !strings.Contains(said, cluster.Version()) {
		t.Errorf("the service of the API server answers a pod %q", said)
	}
}

// fetch has the host ask a serving pod at HOST:PORT, and returns "HOSTNAME saw ADDRESS".
func (b *agentBench) fetch(t *testing.T, url string) string {
	t.Helper()
	host, port, _ := strings.Cut(url, ":")
	return b.shell(t, fmt.Sprintf(`exec 3<>/dev/tcp/%s/%s; printf 'GET / HTTP/1.0\r\n\r\n' >&3
timeout 20 cat <&3 | tr -d '\r' | awk -F '[ :"]+' '/^Client:/ { client = $2 } /hostname/ { print $3 " saw " client }'`, host, port))
}

func (b *agentBench) testNetworkAndClaim(t *testing.T) {
	before := b.networks(t)
	b.create(t, claimingPod("both", "net-1"))
	b.ready(t, "both")
	b.has(t, "both", "eth0", "net1")
	b.pings(t, "both", b.wired(t, "early")[0].String())
	b.drop(t, "both")
	b.leaves(t, before)
}

// killAgentWhen kills the agent as soon as a command on the node succeeds; if the last one killed
// has no successor yet, as soon as it has.
func (b *agentBench) killAgentWhen(t *testing.T, holds string) {
	t.Helper()
	b.shell(t, "end=$((SECONDS + 180)); until "+holds+" && {\n"+signalScript("KILL", agentFilter)+"\n}; do ((SECONDS < end)); sleep 0.02; done")
}

const (
	namespacesOfPods = `$(ls /run/netns | wc -l)`
	recordsOfPods    = `$(ls /var/lib/plumbline | grep -c '[.]journal$')`
)

// testNetworkKilled kills the agent while pods start, and while they end: after so many of
// their namespaces or records were made, and after so many are gone.
func (b *agentBench) testNetworkKilled(t *testing.T) {
	before, kept := b.networks(t), b.inside(t, "early", "other")
	const running, pods = 2, 3
	for round := range 4 {
		var names []string
		for i := range pods {
			names = append(names, fmt.Sprintf("killed-%d-%d", round, i))
			b.create(t, servingPod(names[i], b.node.Name))
		}
		of := namespacesOfPods
		if round%2 == 1 {
			of = recordsOfPods
		}
		b.killAgentWhen(t, fmt.Sprintf("((%s >= %d))", of, running+1+round%pods))
		for _, name := range names {
			b.ready(t, name)
			b.wired(t, name)
		}
		kubectl(t, b.Cluster, "", append([]string{"delete", "pod", "--wait=false"}, names...)...)
		b.killAgentWhen(t, fmt.Sprintf("((%s < %d))", of, running+pods-round%pods))
		kubectl(t, b.Cluster, "", append([]string{"wait", "--for=delete", "--timeout=240s"}, resourcesOf(names)...)...)
		b.agentRuns(t)
	}
	b.leaves(t, before)
	b.untouched(t, kept, "early", "other")
}

func resourcesOf(pods []string) []string {
	var out []string
	for _, p := range pods {
		out = append(out, "pod/"+p)
	}
	return out
}

// agentRuns waits for the node's agent.
func (b *agentBench) agentRuns(t *testing.T) {
	t.Helper()
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "rollout", "status", "--timeout=240s", "daemonset/plumbline-agent")
}

// testNetworkAway has one pod start and one end while there is no agent.
func (b *agentBench) testNetworkAway(t *testing.T) {
	before, kept := b.networks(t), b.inside(t, "early", "other")
	b.create(t, servingPod("leaves", b.node.Name))
	b.ready(t, "leaves")
	b.place(t, false)
	b.untouched(t, kept, "early", "other")
	kubectl(t, b.Cluster, "", "delete", "pod", "leaves", "--wait=false")
	b.create(t, servingPod("comes", b.node.Name))
	b.saysWhy(t, "comes", "the agent of plumbline does not run on this node")
	if now := b.get(t, "comes", ".status.containerStatuses[0].state.running"); now != "" {
		t.Errorf("it runs without an agent: %s", now)
	}
	b.place(t, true)
	b.ready(t, "comes")
	b.wired(t, "comes")
	kubectl(t, b.Cluster, "", "wait", "--for=delete", "--timeout=240s", "pod/leaves")
	kubectl(t, b.Cluster, "", "delete", "pod", "comes", "--timeout=120s")
	b.leaves(t, before)
	b.untouched(t, kept, "early", "other")
}

// testNetworkReplaced has pods start and end while another agent takes over from the one that
// runs, as in an update. No start fails for that.
func (b *agentBench) testNetworkReplaced(t *testing.T) {
	before, kept := b.networks(t), b.inside(t, "early", "other")
	kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "rollout", "restart", "daemonset/plumbline-agent")
	var names []string
	for i := 0; ; i++ {
		name := fmt.Sprintf("replaced-%d", i)
		names = append(names, name)
		b.create(t, servingPod(name, b.node.Name))
		b.ready(t, name)
		b.wired(t, name)
		kubectl(t, b.Cluster, "", "delete", "pod", name, "--timeout=120s")
		state := kubectl(t, b.Cluster, "", "-n", cluster.ProductNamespace, "get", "daemonset/plumbline-agent", "-o", "jsonpath={.metadata.generation} {.status.observedGeneration} {.status.updatedNumberScheduled} {.status.numberAvailable} {.status.currentNumberScheduled}")
		if f := strings.Fields(state); len(f) == 5 && f[0] == f[1] && f[2] == "1" && f[3] == "1" && f[4] == "1" && i > 0 {
			break
		}
		if i == 100 {
			t.Fatalf("the agent is not replaced: %s", state)
		}
	}
	t.Logf("%d pods meanwhile", len(names))
	b.agentRuns(t)
	for _, name := range names {
		if said := kubectl(t, b.Cluster, "", "get", "events", "--field-selector", "reason=FailedCreatePodSandBox,involvedObject.name="+name, "-o", "jsonpath={.items[*].message}"); said != "" {
			t.Errorf("pod %s: %s", name, said)
		}
	}
	b.leaves(t, before)
	b.untouched(t, kept, "early", "other")
}

// testNetworkDaemons kills kubelet and containerd below pods that run.
func (b *agentBench) testNetworkDaemons(t *testing.T) {
	before, kept := b.networks(t), b.inside(t, "early", "other")
	for _, daemon := range []cluster.Daemon{cluster.Kubelet, cluster.Containerd} {
		if err := b.node.Kill(t.Context(), daemon); err != nil {
			t.Fatal(err)
		}
		if err := b.node.Start(t.Context(), daemon); err != nil {
			t.Fatal(err)
		}
		if daemon == cluster.Kubelet {
			if err := b.node.WaitReady(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		b.create(t, servingPod("after", b.node.Name))
		b.ready(t, "after")
		b.wired(t, "after")
		kubectl(t, b.Cluster, "", "delete", "pod", "after", "--timeout=120s")
		b.leaves(t, before)
	}
	b.untouched(t, kept, "early", "other")
}

func (b *agentBench) testNetworkForce(t *testing.T) {
	before := b.networks(t)
	b.create(t, servingPod("forced", b.node.Name))
	b.ready(t, "forced")
	first := b.wired(t, "forced")
	kubectl(t, b.Cluster, "", "delete", "pod", "forced", "--force", "--grace-period=0")
	b.create(t, servingPod("forced", b.node.Name)) // of the same name, while the first one ends
	b.ready(t, "forced")
	if second := b.wired(t, "forced"); slices.Contains(second, first[0]) || slices.Contains(second, first[1]) {
		t.Errorf("the next pod has %v at once, of which the first had %v", second, first)
	}
	// One that is deleted before it runs.
	b.create(t, servingPod("brief", b.node.Name))
	b.shell(t, "end=$((SECONDS + 180)); until (("+namespacesOfPods+" >= 4)); do ((SECONDS < end)); sleep 0.02; done")
	kubectl(t, b.Cluster, "", "delete", "pod", "brief", "--force", "--grace-period=0")
	kubectl(t, b.Cluster, "", "delete", "pod", "forced", "--timeout=120s")
	b.leaves(t, before)
}

// testNetworkReboot cuts the node's power below pods that run. The files of CNI are there
// when the runtime starts, the agent is not.
func (b *agentBench) testNetworkReboot(t *testing.T) {
	before := b.networks(t)
	began := time.Now()
	reboot(t, b.node)
	if have := b.installed(t); have != allInstalled {
		t.Errorf("after the reboot, the folders of CNI have %q", have)
	}
	if err := b.node.WaitReady(t.Context(), began); err != nil {
		t.Fatal(err)
	}
	var all []netip.Addr
	for _, pod := range []string{"early", "other"} {
		kubectl(t, b.Cluster, "", "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=240s", "pod/"+pod)
		b.ready(t, pod)
		for _, a := range b.wired(t, pod) {
			if slices.Contains(all, a) {
				t.Errorf("two pods have %s", a)
			}
			all = append(all, a)
		}
	}
	b.pings(t, "early", all[2].String(), all[3].String(), b.node.Address)
	b.leaves(t, before)
	b.home = b.returned(t, b.home)
}

// testNetworkDeleted deletes the topology below pods that run: they keep their network, new
// ones wait, and with the last one all that was installed goes.
func (b *agentBench) testNetworkDeleted(t *testing.T) {
	kept := b.inside(t, "early", "other")
	kubectl(t, b.Cluster, "", "delete", "networktopology", "pods", "--timeout=60s")
	b.create(t, servingPod("tardy", b.node.Name))
	b.saysWhy(t, "tardy", "no NetworkTopology of role")
	b.untouched(t, kept, "early", "other")
	if have := b.installed(t); have != allInstalled {
		t.Errorf("while pods have the network, the folders of CNI have %q", have)
	}
	kubectl(t, b.Cluster, "", "delete", "pod", "tardy", "early", "other", "--timeout=240s")
	until(t, "the node is not Ready", 5*time.Minute, func() bool {
		status, _ := b.nodeReady(t)
		return status == "False" && b.installed(t) == ""
	})
	b.leaves(t, `namespaces: 0
records: 0
owners: 0
results: 0
ports: 0
bridges: 0
addresses: 0
doubled: 0
masqueraded: 0
`)
	if left := b.shell(t, "nft list tables; ls /run/plumbline-cni"); strings.Contains(left, "inet plumbline") {
		t.Errorf("left on the node: %s", left)
	}
	b.files = ""
	b.nothingLeft(t)
}
