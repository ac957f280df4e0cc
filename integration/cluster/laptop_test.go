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

// newLaptop starts a cluster whose only node has an uplink but no card, and a registry that the node can pull from.
func newLaptop(t *testing.T) *laptop {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l := &laptop{Cluster: start(t, cluster.Options{}), home: t.TempDir(), registry: "127.0.0.1:" + port + "/net"}
	l.node = addNode(t, l.Cluster, cluster.NodeOptions{
		NICs: "none", Containerd: "1.7", NRITimeout: 10 * time.Second,
		// The registry is on the loopback of the host. containerd uses no TLS for one on its own loopback, so it is there, too.
		Start: `sysctl -qw net.ipv4.conf.all.route_localnet=1
nft -f - <<EOF
table ip registry {
	chain output { type nat hook output priority dstnat; ip daddr 127.0.0.1 tcp dport ` + port + ` dnat to 10.0.2.2; }
	chain postrouting { type nat hook postrouting priority srcnat; ip daddr 10.0.2.2 tcp dport ` + port + ` masquerade; }
}
EOF`,
	})
	l.busybox(t)
	return l
}

// TestNodeWithoutCards types the commands of docs/install.md and docs/start.md: from a release that is built and pushed to a
// registry, over two mistakes, to pods that reach each other by links on the uplink of a node without cards. What is
// replaced in the commands is what the pages leave to the reader: the registry, the uplink and the image of the pod; and
// the machine, being emulated, has more time and one controller only.
func TestNodeWithoutCards(t *testing.T) {
	l := newLaptop(t)
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
		kubectl(t, l.Cluster, "", "wait", "--for=jsonpath={.status.reported}=1/1", "--timeout=180s", "deviceexposurepolicy/uplink")
		if devices := kubectl(t, l.Cluster, "", "get", "deviceexposurepolicy/uplink", "-o", "jsonpath={.status.devices}"); devices != "0" {
			t.Errorf("the policy for a link that the node does not have decides for %s devices", devices)
		}
	})
	t.Run("macvlan and vlan on the uplink", func(t *testing.T) {
		l.pods(t, `"eth0"`, `"mgmt0"`)
	})
}

// administers types commands of docs/install.md.
func (l *laptop) administers(t *testing.T, commands string) {
	t.Helper()
	l.types(t, l.Checkout(), strings.NewReplacer(
		"registry.example.com/net", l.registry,
		"helm install ", "helm install --plain-http --set webhook.timeoutSeconds=30,controller.replicas=1 ",
		"helm test ", "helm test --timeout 10m ",
	).Replace(commands))
}

// runs fails the test unless the agent is of a version.
func (l *laptop) runs(t *testing.T, version string) {
	t.Helper()
	eventually.Holds(t, 2*time.Minute, "the agent is of version "+version, func() string {
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
		"image: busybox,", "image: plumbline.test/busybox:1, imagePullPolicy: Never, env: [{name: PATH, value: /bin}],", "kubectl wait ", "kubectl wait --timeout=300s ")...).Replace(script[1]))
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
		"PATH="+l.Programs()+":"+filepath.Join(l.Checkout(), ".cache", "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		state, _ := l.Kubectl(t.Context(), nil, "get", "events,pods,resourceclaims,networktopologies", "-A")
		t.Fatalf("%v\n%s\nsays\n%s\n%s", err, commands, out, state)
	}
	return string(out)
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
