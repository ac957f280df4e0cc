//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/cluster/story"
)

// pooled is a topology whose addresses are from a pool, a VLAN on a bond of two functions,
// and what topologies of multiNIC need.
const pooled = `
apiVersion: networking.dra.io/v1alpha1
kind: AddressPool
metadata: {name: data}
spec: {subnets: [{prefix: 10.100.0.0/24}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: bonded}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - {name: vf0, type: sriov, selector: {cel: 'device.attributes["dra.networking"].pfName == "enp3s0f0"'}, config: {spoofchk: "off", trust: "on"}}
  - {name: vf1, type: sriov, selector: {cel: 'device.attributes["dra.networking"].pfName == "enp3s0f1"'}, config: {spoofchk: "off", trust: "on"}}
  - name: bond0
    type: bond
    dependOn: [vf0, vf1]
    config: {name: bond0, mode: active-backup, miimon: 100, links: [{name: "{{ vf0.interfaceName }}"}, {name: "{{ vf1.interfaceName }}"}]}
  - name: data
    type: vlan
    dependOn: [bond0]
    config: {id: 100, master: "{{ bond0.interfaceName }}", name: data0, ipam: {type: pool, pool: data}}
---
apiVersion: networking.dra.io/v1alpha1
kind: DeviceExposurePolicy
metadata: {name: masters}
spec:
  selector: {cel: 'device.attributes["dra.networking"].ifName in ["enp3s0f0", "enp3s0f1"]'}
  exposure: {allowMultipleAllocations: true, supportedCNIPlugins: [{name: ipvlan}]}
---
apiVersion: networking.dra.io/v1alpha1
kind: AddressPool
metadata: {name: multi-nic}
spec: {subnets: [{prefix: 192.168.0.0/16}], hostBlock: 6, interfaceBlock: 2}
`

// multiNIC are ipvlan links on both physical functions, in a mode.
const multiNIC = `
---
apiVersion: networking.dra.io/v1alpha1
kind: NetworkTopology
metadata: {name: multi-%[1]s}
spec:
  claimTemplate: {namespaces: [default]}
  steps:
  - {name: net1, type: ipvlan, config: {masterNets: [10.1.1.0/24, 10.1.2.0/24], ipam: {type: multi-nic-ipam, pool: multi-nic, hostBlock: 6, interfaceBlock: 2, vlanMode: %[1]s}}}
`

// nodePair is a cluster of two nodes that are wired together: a bench of each.
type nodePair [2]*agentBench

// TestNetworksOfTwoNodes holds what pods of different nodes, each with its own kubelet and
// version of containerd, and without CNI plugins, have in common: they reach one another over
// the network of pods, over a bond of functions, and over ipvlan links, with addresses of
// pools, also when agents were killed and both nodes were rebooted.
func TestNetworksOfTwoNodes(t *testing.T) {
	c := start(t, cluster.Options{PodCIDRs: true})
	var p nodePair
	for i, containerd := range []string{"2.4", "1.7"} {
		options := cluster.NodeOptions{
			Containerd: containerd, NoCNI: true, NRITimeout: 10 * time.Second,
			Kubelet: "\ncrashLoopBackOff: {maxContainerRestartPeriod: 1s}",
			Start:   story.WiredNode(i),
		}
		if i > 0 {
			options.Wired = p[0].node.Name
		}
		p[i] = &agentBench{Cluster: c, node: addNode(t, c, options)}
	}
	p[0].install(t, cluster.Release{}, "podNetwork.enabled=true", "networkQoS.enabled=true")
	for _, b := range p {
		b.home = b.vfs(t)
	}
	began := time.Now()
	p[0].applied(t, story.PodNetwork)
	for _, b := range p {
		if err := b.node.WaitReady(t.Context(), began); err != nil {
			t.Fatal(err)
		}
	}
	p[0].applied(t, pooled+fmt.Sprintf(multiNIC, "l2")+fmt.Sprintf(multiNIC, "l3"))
	kubectl(t, c, "", "wait", "--for=condition=Ready", "--timeout=120s", "networktopology", "--all")
	kubectl(t, c, "", "wait", "--for=create", "--timeout=60s", "resourceclaimtemplate/bonded", "resourceclaimtemplate/multi-l2", "resourceclaimtemplate/multi-l3")

	for i, b := range p {
		b.create(t, servingPod(fmt.Sprintf("pod-%d", i), b.node.Name))
		b.ready(t, fmt.Sprintf("pod-%d", i))
		b.files = b.records(t)
	}
	t.Run("network of pods", p.testPodsReach)
	t.Run("rules on the network of pods", p.testPodNetworkRules)
	t.Run("ports of the host", p.testHostPort)
	t.Run("bond", p.testBond)
	t.Run("destinations of rules", p.testDestinations)
	t.Run("ipvlan l2", func(t *testing.T) { p.testIPVLAN(t, "multi-l2", 0) })
	t.Run("ipvlan l3", func(t *testing.T) { p.testIPVLAN(t, "multi-l3", 2) })
	t.Run("reboot of both", p.testReboot)
	t.Run("nothing is left", p.testNothingLeft)
}

// claim creates a pod on each node with a claim of a template.
func (p nodePair) claim(t *testing.T, name, template string) (pods [2]string) {
	t.Helper()
	for i, b := range p {
		pods[i] = fmt.Sprintf("%s-%d", name, i)
		b.create(t, strings.Replace(claimingPod(pods[i], template), "\nspec:", "\nspec:\n  nodeSelector: {kubernetes.io/hostname: "+b.node.Name+"}", 1))
	}
	for i, b := range p {
		b.ready(t, pods[i])
	}
	return pods
}

// address is that of a pod's interface when its container was started last.
func (p nodePair) address(t *testing.T, pod, link string) netip.Prefix {
	t.Helper()
	addresses := addressesAtStart(t, p[0].Cluster, pod, link)
	i := slices.IndexFunc(addresses, func(a netip.Prefix) bool { return a.Addr().Is4() })
	if i < 0 {
		t.Fatalf("pod %s was started with the addresses %v on %s", pod, addresses, link)
	}
	return addresses[i]
}

// meet fails the test unless two pods reach one another over a link with addresses of one
// network.
func (p nodePair) meet(t *testing.T, pods [2]string, link string, network netip.Prefix) {
	t.Helper()
	one, two := p.address(t, pods[0], link), p.address(t, pods[1], link)
	if one == two || one.Masked() != network || two.Masked() != network {
		t.Errorf("on %s the pods have %s and %s, want two of %s", link, one, two, network)
	}
	p[0].pings(t, pods[0], two.Addr().String())
	p[0].pings(t, pods[1], one.Addr().String())
}

func (p nodePair) drop(t *testing.T, pods [2]string) {
	t.Helper()
	kubectl(t, p[0].Cluster, "", append([]string{"delete", "pod", "--timeout=240s"}, pods[:]...)...)
	for _, b := range p {
		b.nothingLeft(t)
	}
}

func (p nodePair) testPodsReach(t *testing.T) {
	one, two := p[0].wired(t, "pod-0"), p[1].wired(t, "pod-1")
	p[0].pings(t, "pod-0", two[0].String(), p[1].node.Address)
	p[1].pings(t, "pod-1", one[0].String(), p[0].node.Address)
	p[0].shell(t, "ping -c 1 -W 5 "+two[0].String())
	p[1].shell(t, "ping -c 1 -W 5 "+one[0].String())
	for pod, from := range map[string][]netip.Addr{"pod-0": two, "pod-1": one} { // without address translation
		other := map[string]string{"pod-0": "pod-1", "pod-1": "pod-0"}[pod]
		said := kubectl(t, p[0].Cluster, "", "exec", pod, "--", "/pod", "get", "http://"+from[0].String()+":8080")
		if want := other + " saw " + p[0].get(t, pod, ".status.podIP"); strings.TrimSpace(said) != want {
			t.Errorf("pod %s was answered %q, want %q", pod, said, want)
		}
	}
}

// onPodNetwork limits what pods send and marks what they send to pods with the label peer, on the network of pods.
const onPodNetwork = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: on-eth0, namespace: default}
spec:
  priority: 5
  egress:
  - {dscp: 10, bandwidth: {rate: 1000, burst: 1000}, classifier: {to: [{ipBlock: {cidr: 0.0.0.0/0}}]}}
  - {dscp: 12, classifier: {to: [{podSelector: {matchLabels: {peer: "yes"}}}]}}
`

// testPodNetworkRules has pods of both nodes marked and limited on eth0: those that run, one that starts, and what they send to one another.
func (p nodePair) testPodNetworkRules(t *testing.T) {
	here, there := p[0], p[1]
	here.applied(t, onPodNetwork)
	one, two := here.wired(t, "pod-0"), there.wired(t, "pod-1")
	for i, b := range p {
		other := [...]netip.Addr{two[0], one[0]}[i] // what a pod sends to itself passes no interface
		b.marked(t, fmt.Sprintf("default/pod-%d", i), "eth0", map[string]string{"8.8.8.8": "tos 0x28", other.String(): "tos 0x28"})
		b.limited(t, fmt.Sprintf("default/pod-%d", i), "eth0", 1e6, 1e6)
		name := fmt.Sprintf("late-%d", i)
		b.create(t, servingPod(name, b.node.Name))
		b.ready(t, name)
		if n := startedWith(t, b, name, "eth0"); n == 0 {
			t.Errorf("on %s the container of %s has started without filters", b.node.Name, name)
		}
		kubectl(t, b.Cluster, "", "delete", "pod", name, "--timeout=120s")
	}
	until(t, "the status counts the pods of both nodes", 3*time.Minute, func() bool {
		return kubectl(t, here.Cluster, "", "get", "networkqos", "on-eth0", "-o", `jsonpath={.status.status}: {range .status.backends[*]}{.backend} {.pods} {.inPlace} {.nodes}{end}`) == "NetworkQoS Destinations applied: tc 2 2 2"
	})
	kubectl(t, here.Cluster, "", "label", "pod", "pod-0", "pod-1", "peer=yes")
	here.marked(t, "default/pod-0", "eth0", map[string]string{two[0].String(): "tos 0x30", two[1].String(): "class 0x30", "8.8.8.8": "tos 0x28"})
	there.marked(t, "default/pod-1", "eth0", map[string]string{one[0].String(): "tos 0x30", one[1].String(): "class 0x30", "8.8.8.8": "tos 0x28"})
	for i, to := range []netip.Addr{two[0], one[0]} {
		if got := p.arrives(t, i, to); got != "tos 0x30" {
			t.Errorf("what pod-%d sends reaches the pod of the other node with %q", i, got)
		}
	}
	kubectl(t, here.Cluster, "", "label", "pod", "pod-0", "pod-1", "peer-")
	here.marked(t, "default/pod-0", "eth0", map[string]string{two[0].String(): "tos 0x28"})
	kubectl(t, here.Cluster, "", "delete", "networkqos", "on-eth0")
	for i, b := range p {
		b.marked(t, fmt.Sprintf("default/pod-%d", i), "eth0", map[string]string{"8.8.8.8": "tos 0x0"})
	}
}

// arrives sends packets from the pod of a node to an address of that of the other, and returns the mark of the first that arrives there.
func (p nodePair) arrives(t *testing.T, from int, to netip.Addr) string {
	t.Helper()
	sender, receiver := p[from], p[1-from]
	const file = "/tmp/arrived"
	receiver.shell(t, fmt.Sprintf(`setsid timeout 120 ip netns exec %[1]s tcpdump -p -l -n -v -c 1 -Q in -i eth0 "udp dst port 9 and dst host %[2]s" </dev/null >%[3]s 2>%[3]s.says &
for ((n = 0; n < 300; n++)); do if grep -q listening %[3]s.says; then exit; fi; sleep 0.1; done; exit 1`,
		receiver.netnsOf(t, fmt.Sprintf("default/pod-%d", 1-from)), to, file))
	var mark string
	until(t, "a packet arrives", time.Minute, func() bool {
		sender.shell(t, fmt.Sprintf("ip netns exec %s bash -c 'echo >/dev/udp/%s/9' || true", sender.netnsOf(t, fmt.Sprintf("default/pod-%d", from)), to))
		mark = strings.TrimSpace(receiver.shell(t, `grep -oE 'tos 0x[0-9a-f]+' `+file+` | head -n 1 || true`))
		return mark != ""
	})
	return mark
}

// testHostPort asks a pod by a port of its node: from there, from the other node, and from
// the pods of both.
func (p nodePair) testHostPort(t *testing.T) {
	here, there := p[0], p[1]
	there.create(t, strings.Replace(servingPod("ported", there.node.Name), `"8080"]`, `"8080"]
    ports: [{containerPort: 8080, hostPort: 18080}]`, 1))
	there.ready(t, "ported")
	ported := there.wired(t, "ported")
	gateway := netip.PrefixFrom(ported[0], 24).Masked().Addr().Next()
	url := there.node.Address + ":18080"
	fromPod := func(pod string) string {
		return kubectl(t, here.Cluster, "", "exec", pod, "--", "/pod", "get", "http://"+url)
	}
	for _, one := range []struct{ from, said, seen string }{
		{"the other node", here.fetch(t, url), here.node.Address},
		{"the node", there.fetch(t, url), there.node.Address},
		{"a pod of the other node", fromPod("pod-0"), here.node.Address},
		{"a pod of the node", fromPod("pod-1"), gateway.String()},
		{"the pod itself", fromPod("ported"), gateway.String()},
	} {
		if want := "ported saw " + one.seen; strings.TrimSpace(one.said) != want {
			t.Errorf("%s is answered %q, want %q", one.from, one.said, want)
		}
	}
	there.create(t, strings.Replace(servingPod("second", there.node.Name), `"8080"]`, `"8080"]
    ports: [{containerPort: 8080, hostPort: 18080}]`, 1))
	until(t, "the kubelet refuses a second pod with the port", time.Minute, func() bool { return there.get(t, "second", ".status.phase") == "Failed" })
	kubectl(t, there.Cluster, "", "delete", "pod", "ported", "second", "--timeout=120s")
	if left := there.shell(t, "nft list tables | grep plumbline-ports || true"); left != "" {
		t.Errorf("after the pod the node has %s", left)
	}
}

func (p nodePair) testBond(t *testing.T) {
	pods := p.claim(t, "bonded", "bonded")
	p.meet(t, pods, "data0", netip.MustParsePrefix("10.100.0.0/24"))
	for i, b := range p {
		b.hasNow(t, pods[i], "data0")
		if said := b.shell(t, `for n in $(ls /run/netns); do ip -d -n "$n" link show data0 2>/dev/null || true; done`); !strings.Contains(said, "data0@bond0") || !strings.Contains(said, "id 100") {
			t.Errorf("%s is no VLAN on the bond: %s", pods[i], said)
		}
	}
	p.drop(t, pods)
}

// testDestinations has a pod of one node marked for what it sends to pods of the other: those that get
// a label, those that start with it, until they end.
func (p nodePair) testDestinations(t *testing.T) {
	here, there := p[0], p[1]
	pods := p.claim(t, "peers", "bonded")
	here.applied(t, fmt.Sprintf(toPeers, "bonded"))
	marked := func(what string, to ...netip.Prefix) {
		t.Helper()
		began := time.Now()
		until(t, what, time.Minute, func() bool {
			said := strings.Fields(here.shell(t, `for n in $(ls /run/netns); do tc -j -n $n filter show dev data0 egress 2>/dev/null | jq -r '.[] | .options.keys.dst_ip // empty' || true; done`))
			slices.Sort(said)
			want := []string{}
			for _, a := range to {
				want = append(want, a.Addr().String())
			}
			slices.Sort(want)
			return slices.Equal(said, want)
		})
		t.Logf("%s: within %s", what, time.Since(began).Round(10*time.Millisecond))
	}
	kubectl(t, here.Cluster, "", "label", "pod", pods[1], "peer=yes")
	first := p.address(t, pods[1], "data0")
	marked("a pod of the other node has the label", first)

	there.create(t, strings.NewReplacer("namespace: default}", "namespace: default, labels: {peer: \"yes\"}}", "\nspec:", "\nspec:\n  nodeSelector: {kubernetes.io/hostname: "+there.node.Name+"}").Replace(claimingPod("later", "bonded")))
	there.ready(t, "later")
	marked("another has started", first, p.address(t, "later", "data0"))
	kubectl(t, there.Cluster, "", "delete", "pod", "later", "--timeout=240s")
	marked("it has ended", first)
	kubectl(t, here.Cluster, "", "label", "pod", pods[1], "peer-")
	marked("none has the label")
	kubectl(t, here.Cluster, "", "delete", "networkqos", "to-peers")
	p.drop(t, pods)
}

// routes are those to addresses of other nodes' pods over named networks.
const routes = "{ ip -4 route show table 28780 2>/dev/null || true; } | wc -l" // without the table it fails

// testIPVLAN has pods with a link on each of two networks, in a mode that needs some routes of
// the host, or none.
func (p nodePair) testIPVLAN(t *testing.T, topology string, want int) {
	pods := p.claim(t, topology, topology)
	meet := func() {
		t.Helper()
		for i := range 2 {
			p.meet(t, pods, fmt.Sprintf("net1-%d", i), netip.MustParsePrefix(fmt.Sprintf("192.168.%d.0/18", 64*i)))
		}
	}
	meet()
	for _, b := range p {
		if n := strings.TrimSpace(b.shell(t, routes)); n != strconv.Itoa(want) {
			t.Errorf("%s has %s routes, want %d", b.node.Name, n, want)
		}
		if want > 0 {
			t.Logf("%s: deleted routes are back after %s", b.node.Name, strings.TrimSpace(b.shell(t, "cp "+b.PodProgram()+" /run/pod; /run/pod restored 28780")))
		}
		b.agent(t, "KILL")
	}
	meet()
	p[0].agentRuns(t)
	meet()
	p.drop(t, pods)
	for _, b := range p {
		until(t, "the routes are gone with the last pod", time.Minute, func() bool { return strings.TrimSpace(b.shell(t, routes)) == "0" })
	}
}

// cutPower cuts the power of both nodes at once, and waits until they are ready again.
func (p nodePair) cutPower(t *testing.T) {
	t.Helper()
	began := time.Now()
	var group sync.WaitGroup
	for _, b := range p {
		b.shell(t, "sync /var/lib/cni/results/* /var/lib/cni/results")
		group.Go(func() {
			if err := b.node.Reboot(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, b := range p {
		if err := b.node.WaitReady(t.Context(), began); err != nil {
			t.Fatal(err)
		}
	}
}

// testReboot cuts the power of both nodes at once below pods that stay.
func (p nodePair) testReboot(t *testing.T) {
	bonded := p.claim(t, "bonded", "bonded")
	routed := p.claim(t, "routed", "multi-l3")
	had := p.addresses(t, bonded, routed)
	p.cutPower(t)
	for _, pods := range [][2]string{{"pod-0", "pod-1"}, bonded, routed} {
		for i, b := range p {
			kubectl(t, b.Cluster, "", "wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=300s", "pod/"+pods[i])
			b.ready(t, pods[i])
		}
	}
	p.testPodsReach(t)
	if have := p.addresses(t, bonded, routed); !slices.Equal(have, had) {
		t.Errorf("after the reboot the pods have %v, before %v", have, had)
	}
	p.meet(t, bonded, "data0", netip.MustParsePrefix("10.100.0.0/24"))
	p.meet(t, routed, "net1-0", netip.MustParsePrefix("192.168.0.0/18"))
	p.meet(t, routed, "net1-1", netip.MustParsePrefix("192.168.64.0/18"))
	kubectl(t, p[0].Cluster, "", append([]string{"delete", "pod", "--timeout=240s"}, slices.Concat(routed[:], bonded[:])...)...)
	for i, b := range p {
		// Functions have new addresses since the boot, and the records of pods other names.
		names := func(functions string) (out []string) {
			for line := range strings.Lines(functions) {
				out = append(out, strings.Fields(line)[0])
			}
			return out
		}
		if now := names(b.vfs(t)); !slices.Equal(now, names(b.home)) {
			t.Errorf("%s has the functions %v, before %v", b.node.Name, now, names(b.home))
		}
		if left := strings.Fields(b.records(t)); len(left) != 1 || !strings.HasPrefix(left[0], "cni") {
			t.Errorf("%s has the records %v, want that of pod-%d", b.node.Name, left, i)
		}
	}
}

func (p nodePair) addresses(t *testing.T, bonded, routed [2]string) (out []netip.Prefix) {
	t.Helper()
	for i := range p {
		out = append(out, p.address(t, bonded[i], "data0"), p.address(t, routed[i], "net1-0"), p.address(t, routed[i], "net1-1"))
	}
	return out
}

// testNothingLeft deletes everything.
func (p nodePair) testNothingLeft(t *testing.T) {
	for _, b := range p {
		if n := strings.TrimSpace(b.shell(t, "{ ip -4 route show table 28781 2>/dev/null || true; } | wc -l")); n != "1" {
			t.Errorf("%s has %s routes to the pods of another node", b.node.Name, n)
		}
	}
	kubectl(t, p[0].Cluster, "", "delete", "pod", "pod-0", "pod-1", "--timeout=120s")
	kubectl(t, p[0].Cluster, "", "delete", "networktopology", "--all", "--timeout=120s")
	until(t, "no address is used", 2*time.Minute, func() bool {
		return strings.TrimSpace(strings.NewReplacer("0", "", " ", "").Replace(kubectl(t, p[0].Cluster, "", "get", "addresspools", "-o", "jsonpath={.items[*].status.used}"))) == ""
	})
	kubectl(t, p[0].Cluster, "", "delete", "addresspool", "--all", "--timeout=120s")
	for _, b := range p {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
		defer cancel()
		if said, err := b.node.Shell(ctx, `until [[ -z $(ip rule | grep proto.112; ip -4 route show table all proto 112; nft list tables | grep plumbline; ip -br link show type veth; ls -A /etc/cni/net.d) ]]; do sleep 0.5; done`); err != nil {
			t.Errorf("%s: %v: %s: %s", b.node.Name, err, said, b.shell(t, "ip rule; ip route show table all; nft list ruleset; ip -br link; ls -A /etc/cni/net.d"))
		}
	}
}
