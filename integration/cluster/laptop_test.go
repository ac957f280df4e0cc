//go:build cluster

package cluster_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/integration/image"
)

// laptop is a node without cards, and what the pages have a user type.
type laptop struct {
	*cluster.Cluster
	node     *cluster.Node
	home     string // the folder in which the user types
	registry string // what replaces the registry of the pages
}

// wire makes an interface of a node, up0, that is wired to a neighbor.
const wire = `ip netns add neighbor
ip link add up0 type veth peer name far0 netns neighbor
ip link set up0 up
ip -n neighbor link set far0 up
ip -n neighbor address add 203.0.113.250/24 dev far0`

// newLaptop starts a cluster whose only node has its uplink, and one more interface that is wired to a neighbor, but no
// card; and a registry that the node can pull from.
func newLaptop(t *testing.T) *laptop {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var options cluster.Options
	var kubelet string
	if strings.HasPrefix(cluster.Version(), "v1.35.") { // which does not share devices by default, as docs/install.md says
		gate := []string{"--feature-gates=DRAConsumableCapacity=true"}
		options = cluster.Options{APIServer: gate, ControllerManager: gate, Scheduler: gate}
		kubelet = "featureGates: {DRAConsumableCapacity: true}"
	}
	l := &laptop{Cluster: start(t, options), home: t.TempDir(), registry: "127.0.0.1:" + port + "/net"}
	l.node = addNode(t, l.Cluster, cluster.NodeOptions{
		NICs: "none", Containerd: "1.7", NRITimeout: 10 * time.Second, Kubelet: kubelet,
		// The registry is on the loopback of the host. containerd uses no TLS for one on its own loopback, so it is there, too.
		Start: `sysctl -qw net.ipv4.conf.all.route_localnet=1
nft -f - <<EOF
table ip registry {
	chain output { type nat hook output priority dstnat; ip daddr 127.0.0.1 tcp dport ` + port + ` dnat to 10.0.2.2; }
	chain postrouting { type nat hook postrouting priority srcnat; ip daddr 10.0.2.2 tcp dport ` + port + ` masquerade; }
}
EOF
` + wire,
	})
	l.busybox(t)
	// The user types in a clone, which is not to be written to by a test.
	if err := os.Symlink(filepath.Join(l.Checkout(), "docs"), filepath.Join(l.home, "docs")); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestNodeWithoutCards types the commands of docs/install.md and docs/start.md: from a release that is built and pushed to a
// registry, over a mistake, to pods that reach each other by links on the uplink of a node without cards; an upgrade and
// a rollback below these pods, and the uninstallation. The test replaces in the commands what the pages leave to the
// reader: the registry, the uplink and the image of the pod; and the machine, being emulated, has more time and one controller only.
func TestNodeWithoutCards(t *testing.T) {
	l := newLaptop(t)
	before := l.links(t)
	began := time.Now()
	l.administers(t, l.block(t, "install.md", "", "sh"))
	t.Logf("built, pushed and installed after %s", time.Since(began).Round(time.Second))
	l.runs(t, "0.1.0")

	t.Run("a type is misspelt", func(t *testing.T) {
		l.saves(t, "type: macvlan", "type: macvlna")
		if _, err := l.Kubectl(t.Context(), nil, "apply", "-f", filepath.Join(l.home, "first.yaml")); err == nil || !strings.Contains(err.Error(), `"macvlan"`) {
			t.Errorf("want an error with the type that is meant, have %v", err)
		}
	})
	t.Run("the name of the uplink is forgotten", func(t *testing.T) {
		l.saves(t)
		kubectl(t, l.Cluster, "", "apply", "-f", filepath.Join(l.home, "first.yaml"))
		// What the page has one look at.
		kubectl(t, l.Cluster, "", "wait", "--for=jsonpath={.status.reported}=1/1", "--timeout=600s", "deviceexposurepolicy/uplink")
		if devices := kubectl(t, l.Cluster, "", "get", "deviceexposurepolicy/uplink", "-o", "jsonpath={.status.devices}"); devices != "0" {
			t.Errorf("the policy for a link that the node does not have decides for %s devices", devices)
		}
	})
	t.Run("macvlan and vlan on the uplink", func(t *testing.T) {
		l.pods(t, onUplink...)
	})
	t.Run("ipvlan on a wired interface, a bridge, a bond", func(t *testing.T) {
		l.pods(t, onWire...)
		kubectl(t, l.Cluster, "", "exec", "three", "--", "ping", "-c", "3", "203.0.113.250")
		links := kubectl(t, l.Cluster, "", "exec", "three", "--", "ip", "link")
		for _, want := range []string{"lan0", "bond0"} {
			if !strings.Contains(links, want) {
				t.Errorf("pod three has no %s:\n%s", want, links)
			}
		}
	})
	upgrade, rollback, found := strings.Cut(l.block(t, "install.md", "\n## Upgrade and roll back\n", "sh"), "helm rollback")
	if !found {
		t.Error("install.md has no rollback after the upgrade")
	}
	t.Run("upgraded", func(t *testing.T) { l.replaced(t, upgrade, "0.1.1", "five") })
	t.Run("rolled back", func(t *testing.T) {
		l.replaced(t, "helm rollback"+rollback+"\nkubectl -n plumbline-system rollout status ds/plumbline-agent", "0.1.0", "six")
	})
	t.Run("uninstalled", func(t *testing.T) {
		kubectl(t, l.Cluster, "", "delete", "pod", "three", "four", "five", "six", "--ignore-not-found", "--timeout=600s")
		l.saves(t, onWire...)
		kubectl(t, l.Cluster, "", "delete", "-f", filepath.Join(l.home, "first.yaml"), "--timeout=600s")
		l.saves(t, onUplink...)
		l.types(t, l.home, l.block(t, "start.md", "\n## Remove it\n", "sh"))
		eventually.Holds(t, 10*time.Minute, "the node is as it was (-before +now)", func() string { return cmp.Diff(before, l.links(t)) })
		eventually.Holds(t, 10*time.Minute, "nothing is left", func() string { return l.left(t) })
	})
}

// What is replaced in the objects and commands of docs/start.md: the uplink; and for the pods three and four all but the pods'
// own network, which is on an interface that answers.
var (
	onUplink = []string{`"eth0"`, `"mgmt0"`}
	onWire   = []string{
		`"eth0"`, `"up0"`, "name: uplink", "name: wired", "198.51.100.0/24", "203.0.113.0/24",
		"{name: first}", "{name: wired}", "pool: first", "pool: wired", "networktopology/first", "networktopology/wired", "resourceClaimTemplateName: first", "resourceClaimTemplateName: wired",
		"type: macvlan, config: {name: net1,", "type: ipvlan, config: {name: net1, master: up0,",
		"- {name: tagged, type: vlan, dependOn: [net], config: {name: net1.7, id: 7}}", `- {name: port, type: dummy, config: {name: d2}}
    - {name: lan, type: bridge, dependOn: [port], config: {bridge: lan0}}
    - {name: a, type: dummy, config: {name: d0}}
    - {name: b, type: dummy, config: {name: d1}}
    - {name: both, type: bond, dependOn: [a, b], config: {name: bond0, mode: active-backup, miimon: 100}}`,
		" one two;", " three four;", "pod/one pod/two", "pod/three pod/four", "exec one", "exec three", "exec two", "exec four",
	}
)

// administers types commands of docs/install.md.
func (l *laptop) administers(t *testing.T, commands string) {
	t.Helper()
	l.types(t, l.Checkout(), strings.NewReplacer(
		"registry.example.com/net", l.registry,
		"helm install ", "helm install --plain-http --set webhook.timeoutSeconds=30,controller.replicas=1 ",
		"helm upgrade ", "helm upgrade --plain-http ",
		"helm test ", "helm test --timeout 10m ",
	).Replace(commands))
}

// runs fails the test unless the agent is of a version.
func (l *laptop) runs(t *testing.T, version string) {
	t.Helper()
	eventually.Holds(t, 10*time.Minute, "the agent is of version "+version, func() string {
		images := strings.Fields(kubectl(t, l.Cluster, "", "-n", cluster.ProductNamespace, "get", "pods", "-l", "app.kubernetes.io/component=agent", "-o", "jsonpath={.items[*].spec.containers[0].image}"))
		if len(images) != 1 || !strings.HasPrefix(images[0], l.registry+"/plumbline:") || !strings.Contains(images[0], version) {
			return "its images: " + strings.Join(images, " ")
		}
		return ""
	})
	if said := kubectl(t, l.Cluster, "", "-n", cluster.ProductNamespace, "logs", "daemonset/plumbline-agent"); !strings.Contains(said, "version=v"+version) {
		t.Errorf("the agent of version %s says:\n%s", version, said)
	}
}

// replaced puts another version in the place of the one that runs. Pods keep their network, and another pod is given one.
func (l *laptop) replaced(t *testing.T, commands, version, pod string) {
	t.Helper()
	inside := func(pod string) string {
		return kubectl(t, l.Cluster, "", "exec", pod, "--", "ip", "address", "show", "scope", "global") +
			kubectl(t, l.Cluster, "", "get", "pod", pod, "-o", "jsonpath=restarted {.status.containerStatuses[0].restartCount} times")
	}
	before := map[string]string{"one": inside("one"), "three": inside("three")}
	began := time.Now()
	l.administers(t, commands)
	t.Logf("version %s runs after %s", version, time.Since(began).Round(time.Second))
	l.runs(t, version)
	for pod, b := range before {
		if diff := cmp.Diff(b, inside(pod)); diff != "" {
			t.Errorf("pod %s (-before +now):\n%s", pod, diff)
		}
	}
	kubectl(t, l.Cluster, strings.NewReplacer("POD", pod, "TOPOLOGY", "wired").Replace(busyboxPod), "apply", "-f", "-")
	kubectl(t, l.Cluster, "", "wait", "--for=condition=Ready", "--timeout=600s", "pod/"+pod)
	kubectl(t, l.Cluster, "", "exec", pod, "--", "ping", "-c", "3", "203.0.113.250")
}

// busyboxPod is the pod of docs/start.md, of a topology.
const busyboxPod = `apiVersion: v1
kind: Pod
metadata: {name: POD}
spec:
  resourceClaims: [{name: network, resourceClaimTemplateName: TOPOLOGY}]
  containers:
    - {name: main, image: plumbline.test/busybox:1, imagePullPolicy: Never, env: [{name: PATH, value: /bin}], command: [sleep, infinity], resources: {claims: [{name: network}]}}
`

// saves writes the manifests of docs/start.md to first.yaml, with some words of them replaced.
func (l *laptop) saves(t *testing.T, words ...string) {
	t.Helper()
	page := l.block(t, "start.md", "\n## On a laptop cluster\n", "yaml")
	if err := os.WriteFile(filepath.Join(l.home, "first.yaml"), []byte(strings.NewReplacer(words...).Replace(page)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// pods types what docs/start.md has for two pods, of which one pings the other.
func (l *laptop) pods(t *testing.T, words ...string) {
	t.Helper()
	l.saves(t, words...)
	_, page, _ := strings.Cut(l.page(t, "start.md"), "\n## On a laptop cluster\n")
	_, page, found := strings.Cut(page, "```yaml\n")
	script := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(page)
	if !found || script == nil {
		t.Fatal("start.md has no commands after its manifests")
	}
	said := l.types(t, l.home, strings.NewReplacer(append(words,
		"image: busybox,", "image: plumbline.test/busybox:1, imagePullPolicy: Never, env: [{name: PATH, value: /bin}],", "kubectl wait ", "kubectl wait --timeout=600s ")...).Replace(script[1]))
	if !strings.Contains(said, "3 packets received") {
		t.Errorf("a pod does not reach the other:\n%s", said)
	}
}

func (l *laptop) page(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(l.Checkout(), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// block is the first block of code in a language that a page has after a heading.
func (l *laptop) block(t *testing.T, page, heading, language string) string {
	t.Helper()
	_, after, found := strings.Cut(l.page(t, page), heading)
	m := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindStringSubmatch(after)
	if !found || m == nil {
		t.Fatalf("%s has no block of %s after %q", page, language, heading)
	}
	return m[1]
}

// types runs commands as the administrator, with kubectl and helm, and returns what they print.
func (l *laptop) types(t *testing.T, folder, commands string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Admin(), "HELM_CACHE_HOME="+l.home+"/helm", "HELM_CONFIG_HOME="+l.home+"/helm", "HELM_DATA_HOME="+l.home+"/helm",
		"RELEASE_DIR="+l.home+"/release", // and not over a release of the developer's
		"PATH="+l.Programs()+":"+filepath.Join(l.Dir(), "product")+":"+filepath.Join(l.Checkout(), ".cache", "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		state, _ := l.Kubectl(t.Context(), nil, "get", "events,pods,resourceclaims,networktopologies", "-A")
		t.Fatalf("%v\n%s\nsays\n%s\n%s", err, commands, out, state)
	}
	return string(out)
}

// links are the interfaces of the node, without those of the cluster's pod network, and the addresses of the uplink.
func (l *laptop) links(t *testing.T) string {
	t.Helper()
	return l.shell(t, `ip -o link | sed -E 's/^[0-9]+: ([^:@]+).* mtu ([0-9]+).* state ([A-Z]+).*/\1 \2 \3/' | grep -v '^veth' | sort; ip -o -4 address show dev mgmt0 | awk '{ print $4 }'`)
}

// left lists the remains of an uninstalled release on node and cluster, apart from those that docs/start.md names.
func (l *laptop) left(t *testing.T) string {
	t.Helper()
	return l.shell(t, `shopt -s nullglob extglob
for f in /var/run/cdi/dra.networking!(*-shared.json) /var/lib/kubelet/plugins_registry/*dra.networking* /var/lib/plumbline/*.journal /var/lib/plumbline/claims/*; do echo "$f"; done
nft list tables | grep plumbline || true`) +
		kubectl(t, l.Cluster, "", "get", "resourceslices", "--field-selector=spec.driver=dra.networking", "-o", "name") +
		kubectl(t, l.Cluster, "", "get", "-A", "deviceclasses,resourceclaimtemplates,resourceclaims,networktopologies,addresspools,addressleases,deviceexposurepolicies,deviceexposurereports", "-o", "name") +
		kubectl(t, l.Cluster, "", "get", "-A", "-l", "app.kubernetes.io/name=plumbline", "-o", "name",
			"pods,services,serviceaccounts,configmaps,secrets,clusterroles,clusterrolebindings,roles,rolebindings,validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings")
}

func (l *laptop) shell(t *testing.T, script string) string {
	t.Helper()
	said, err := l.node.Shell(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// busybox loads an image with the programs that the page has its pods run.
func (l *laptop) busybox(t *testing.T) {
	t.Helper()
	machine, err := exec.CommandContext(t.Context(), filepath.Join(l.Checkout(), "integration", "machine", "root"), "cluster").Output()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(strings.TrimSpace(string(machine)), "root", "usr", "bin", "busybox")
	archive := filepath.Join(l.home, "busybox.tar")
	if err := image.WriteFile(archive, image.Image{
		Names: []string{"plumbline.test/busybox:1"}, Files: map[string]string{"/bin/sleep": program, "/bin/ip": program, "/bin/ping": program}, Entrypoint: []string{"/bin/sleep"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := l.node.Import(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
}
