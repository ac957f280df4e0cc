//go:build cluster

package cluster_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// testObjectsOfTheEnhancement applies the objects of OKEP-4380 verbatim, in its order, on a node without CNI plugins: the pods of its
// stories send packets with the marks that it says, and no faster than it says. The pod paying of namespace default runs.
func (b *agentBench) testObjectsOfTheEnhancement(t *testing.T) {
	object := func(file string) string {
		text, err := os.ReadFile("../../qos/testdata/okep-4380/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	user := func(name string) string {
		return strings.Replace(servingPod(name, b.node.Name), "namespace: default}", "namespace: games, labels: {user-type: "+name+"}}", 1)
	}
	inGames := func(manifest string) string {
		return strings.ReplaceAll(manifest, "namespace: default", "namespace: games")
	}
	applied := func(namespace, name string) {
		t.Helper()
		until(t, "the column Status of "+name, 3*time.Minute, func() bool { // a node reports at most every 30 s
			header, row, _ := strings.Cut(kubectl(t, b.Cluster, "", "-n", namespace, "get", "networkqos", name), "\n")
			at := strings.Index(header, "STATUS")
			return at > 0 && len(row) > at && strings.HasPrefix(row[at:], "NetworkQoS Destinations applied")
		})
	}

	kubectl(t, b.Cluster, "", "create", "namespace", "games")
	b.applied(t, object("paid-and-free.yaml"))
	kubectl(t, b.Cluster, user("paid")+"---"+user("free"), "create", "-f", "-")
	kubectl(t, b.Cluster, "", "-n", "games", "wait", "--for=condition=Ready", "--timeout=300s", "pod/paid", "pod/free")
	b.marked(t, "games/paid", "eth0", map[string]string{"8.8.8.8": "tos 0x50", "10.1.2.3": "tos 0x0", "172.16.5.5": "tos 0x0", "192.168.3.3": "tos 0x0"})
	b.marked(t, "games/free", "eth0", map[string]string{"8.8.8.8": "tos 0x2c", "10.1.2.3": "tos 0x0"})
	applied("games", "qos-external-paid")
	applied("games", "qos-external-free")

	b.applied(t, object("bandwidth.yaml"))
	until(t, "the limit of the object", time.Minute, func() bool {
		return strings.Contains(b.shell(t, "tc -n "+b.netnsOf(t, "games/free")+" filter show dev eth0 egress"), "rate 1Gbit")
	})
	b.marked(t, "games/free", "eth0", map[string]string{"8.8.8.8": "tos 0x2c"})
	// The text of the story has 1 Mbit/s and a burst of 1 Mbit.
	b.applied(t, strings.ReplaceAll(object("bandwidth.yaml"), "1000000", "1000"))
	until(t, "the limit of the story", time.Minute, func() bool {
		return strings.Contains(b.shell(t, "tc -n "+b.netnsOf(t, "games/free")+" filter show dev eth0 egress"), "rate 1Mbit")
	})
	b.limited(t, "games/free", "eth0", 1e6, 1e6)

	kubectl(t, b.Cluster, "", "-n", "games", "delete", "networkqos", "--all")
	kubectl(t, b.Cluster, "", "annotate", "networktopology", "net-1", "networking.dra.io/net-attach-def=default/ovn-storage")
	b.applied(t, object("secondary.yaml"))
	_, template, _ := strings.Cut(fmt.Sprintf(oneVF, "net-1", "", "", ""), "---")
	b.applied(t, inGames(template))
	kubectl(t, b.Cluster, inGames(claimingPod("storage", "net-1")), "create", "-f", "-")
	kubectl(t, b.Cluster, "", "-n", "games", "wait", "--for=condition=Ready", "--timeout=300s", "pod/storage")
	b.shell(t, "ip -n "+b.netnsOf(t, "games/storage")+" neighbor replace 192.0.2.66 lladdr 02:00:00:00:00:99 dev net1 nud permanent")
	b.marked(t, "games/storage", "net1", map[string]string{"192.0.2.66": "tos 0x2c"})
	b.marked(t, "games/storage", "eth0", map[string]string{"8.8.8.8": "tos 0x0"})
	b.marked(t, "games/free", "eth0", map[string]string{"8.8.8.8": "tos 0x0"})
	applied("games", "qos-external-free")

	b.applied(t, object("ipv6.yaml"))
	b.marked(t, "default/paying", "eth0", map[string]string{"2001:db8:85a3::8a2e:370:7330": "class 0xc0", "2001:db8:85a3::8a2e:370:7340": "", "8.8.8.8": "tos 0x0"})
	applied("default", "default")
	kubectl(t, b.Cluster, "", "-n", "default", "delete", "networkqos", "default")
	kubectl(t, b.Cluster, "", "-n", "games", "delete", "networkqos", "--all")
	b.testStaticPod(t, user("static"))
	kubectl(t, b.Cluster, "", "delete", "namespace", "games", "--wait=false")
}

// staticPods is where the kubelet looks for static pods.
const staticPods = "/etc/kubernetes/manifests"

// testStaticPod has a pod that the kubelet starts from a file: its object in the API server comes after it, with another UID.
func (b *agentBench) testStaticPod(t *testing.T, manifest string) {
	b.applied(t, fmt.Sprintf(marksOf, "user-type: static", 44, "ipBlock: {cidr: 0.0.0.0/0}"))
	b.static(t, "static", manifest)
	name := "static-" + b.node.Name
	until(t, "the static pod is known", 3*time.Minute, func() bool {
		return kubectl(t, b.Cluster, "", "-n", "games", "get", "pod", "--ignore-not-found", name) != ""
	})
	kubectl(t, b.Cluster, "", "-n", "games", "wait", "--for=condition=Ready", "--timeout=300s", "pod/"+name)
	if n := b.mark(t, "games/"+name, "eth0", "8.8.8.8"); n != "tos 0xb0" {
		t.Errorf("a static pod sends %q", n)
	}
	kubectl(t, b.Cluster, "", "-n", "games", "delete", "networkqos", "q")
	b.shell(t, "rm "+staticPods+"/static.yaml")
}

// static has the kubelet start a pod from a file.
func (b *agentBench) static(t *testing.T, name, manifest string) {
	t.Helper()
	b.shell(t, "mkdir -p "+staticPods+"; cat >"+staticPods+"/"+name+".yaml <<'EOF'\n"+manifest+"EOF")
}

// marksOf marks what the pods of namespace games with a label send to a destination.
const marksOf = `
apiVersion: k8s.ovn.org/v1alpha1
kind: NetworkQoS
metadata: {name: q, namespace: games}
spec:
  priority: 7
  podSelector: {matchLabels: {%s}}
  egress: [{dscp: %d, classifier: {to: [{%s}]}}]
`

// netnsOf returns the network namespace of a pod of the node, named as NAMESPACE/NAME.
func (b *agentBench) netnsOf(t *testing.T, pod string) string {
	t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	address := kubectl(t, b.Cluster, "", "-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.podIP}")
	return strings.TrimSpace(b.shell(t, `for n in $(ls /run/netns); do
	if [[ $(ip -o -n "$n" address show dev eth0 2>/dev/null) == *" `+address+`/"* ]]; then echo "$n"; fi
done`))
}

// marked waits until a pod's packets have these marks when they have left an interface, by destination.
func (b *agentBench) marked(t *testing.T, pod, dev string, want map[string]string) {
	t.Helper()
	for to, mark := range want {
		until(t, fmt.Sprintf("%s to %s has %s", pod, to, mark), time.Minute, func() bool { return b.mark(t, pod, dev, to) == mark })
	}
}

// mark returns what a packet to an address has when it has left an interface of a pod, in the words of tcpdump.
func (b *agentBench) mark(t *testing.T, pod, dev, to string) string {
	t.Helper()
	return strings.TrimSpace(b.shell(t, fmt.Sprintf(`ns=%s dev=%s to=%s
timeout 40 ip netns exec "$ns" tcpdump -p -l -n -v -c 1 -Q out -i "$dev" "udp dst port 9 and dst host $to" >/tmp/mark 2>/tmp/mark.says &
for ((n = 0; n < 300; n++)); do
	kill -0 $! 2>/dev/null || break
	if grep -q listening /tmp/mark.says; then ip netns exec "$ns" bash -c "echo >/dev/udp/$to/9" || true; fi
	sleep 0.1
done
wait $! || { cat /tmp/mark.says >&2; exit 1; }
grep -oE '(tos|class) 0x[0-9a-f]+' /tmp/mark | head -n 1 || true`, b.netnsOf(t, pod), dev, to)))
}

// limited fails the test unless of 22 Mbit, which a pod sends at once, no more passes than a limit of rate, in bit/s, and burst, in bits,
// allows in the time that was measured, and no less than the burst.
func (b *agentBench) limited(t *testing.T, pod, dev string, rate, burst float64) {
	t.Helper()
	var bytes, nanos float64
	said := b.shell(t, fmt.Sprintf(`ns=%s sent="/sys/class/net/%s/statistics/tx_bytes"
ip netns exec "$ns" bash -c 'began=$(date +%%s%%N) before=$(cat "$1")
perl -MIO::Socket::INET -e '\''$s = IO::Socket::INET->new(Proto => "udp", PeerAddr => "8.8.8.8:9"); $s->send("x" x 1400) for 1..2000'\''
after=$(cat "$1"); echo $((after - before)) $(($(date +%%s%%N) - began))' - "$sent"`, b.netnsOf(t, pod), dev))
	if _, err := fmt.Sscan(said, &bytes, &nanos); err != nil {
		t.Fatalf("%q: %v", said, err)
	}
	const frame = 1500 * 8
	most := rate*nanos/1e9 + burst + frame
	t.Logf("%.0f bits passed in %.0f ms, at most %.0f may", bytes*8, nanos/1e6, most)
	if bytes*8 > most || bytes*8 < burst/2 {
		t.Errorf("%.0f bits passed in %.0f ms, want from %.0f to %.0f", bytes*8, nanos/1e6, burst/2, most)
	}
}
