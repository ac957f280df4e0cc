//go:build cluster && soak

package cluster_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
)

// TestMultusNode does on a node with Multus and whereabouts what docs/from-multus.md says, from the installation to a pod that starts
// when Multus is gone, for all workloads, and logs how long each step takes.
func TestMultusNode(t *testing.T) {
	began := time.Now()
	step := func(name string) {
		t.Helper()
		t.Logf("%s took %.0f s", name, time.Since(began).Seconds())
		began = time.Now()
	}
	m := newMoving(t)
	links := m.links(t)
	step("the node with Multus")
	var had []string
	old := map[string]string{}
	m.creates(t, func(workload string) { // one at a time: Multus waits a quarter of a second for the API server
		kubectl(t, m.Cluster, "", "-n", "shop", "rollout", "status", "--timeout=1200s", "deployment", workload)
		old[workload] = m.given(t, workload)
		m.keeps(t, workload, false)
		if workload != "named" && workload != "fast" { // which name their addresses themselves
			had = append(had, m.addresses(t, workload)...)
		}
	})
	step("the workloads with Multus")

	if err := m.Install(t.Context(), "networkStatus.enabled=true"); err != nil {
		t.Fatal(err)
	}
	step("1 install")
	m.converts(t)
	step("2 convert")
	m.divides(t, had)
	step("4 divide")
	m.types(t, m.home, patient(m.block(t, "from-multus.md", "\n5. ", "sh")))
	step("5 apply")

	moves, describes, found := strings.Cut(m.block(t, "from-multus.md", "\n6. ", "sh"), "kubectl -n shop describe")
	if !found {
		t.Fatal("the page does not say how to look at a pod that was moved")
	}
	move := func(workload string) {
		t.Helper()
		of := strings.NewReplacer("shop.web", "shop."+workload, "deployment web", "deployment "+workload, "app=web", "app="+workload)
		m.types(t, m.home, of.Replace(moves))
		step("6 move " + workload)
		eventually.Holds(t, 10*time.Minute, workload+" has its network", func() string {
			if said := m.types(t, m.home, of.Replace("kubectl -n shop describe"+describes)); !strings.Contains(said, "NetworkReady") {
				return said
			}
			return ""
		})
		if diff := gocmp.Diff(old[workload], m.given(t, workload)); diff != "" {
			t.Errorf("the network of %s (-with Multus +moved):\n%s", workload, diff)
		}
		m.keeps(t, workload, true)
		m.reaches(t, workload)
		step("looking at " + workload)
	}
	move("web")
	m.types(t, m.home, m.wayBack(t)+"; kubectl -n shop rollout status deployment web")
	step("6 undo web")
	m.keeps(t, "web", false)
	if diff := gocmp.Diff(old["web"], m.given(t, "web")); diff != "" {
		t.Errorf("the network of web, whose rollout was undone (-before +now):\n%s", diff)
	}
	for _, w := range workloads {
		move(w.name)
	}

	m.ends(t)
	step("7 remove the exclusions and definitions")
	shows := func() (all string) {
		for _, w := range workloads {
			all += kubectl(t, m.Cluster, "", "-n", "shop", "exec", m.pod(t, w.name), "--", "/pod", "show")
		}
		return all
	}
	before := shows()
	m.types(t, m.home, m.block(t, "from-multus.md", "\n8. ", "sh"))
	m.shell(t, m.block(t, "from-multus.md", "and, at once, its configuration", "sh"))
	step("8 uninstall Multus")
	if said := m.shell(t, "ls /etc/cni/net.d"); said != "10-bench.conflist\nwhereabouts.d\n" {
		t.Errorf("the configuration of the runtime is now\n%s", said)
	}
	kubectl(t, m.Cluster, "", "-n", "kube-system", "wait", "--for=delete", "--timeout=600s", "pods", "-l", "app=multus")
	if diff := gocmp.Diff(before, shows()); diff != "" {
		t.Errorf("pods that run (-before +after Multus was removed):\n%s", diff)
	}
	kubectl(t, m.Cluster, "", "-n", "shop", "rollout", "restart", "deployment/web", "deployment/named")
	for _, workload := range []string{"web", "named"} {
		kubectl(t, m.Cluster, "", "-n", "shop", "rollout", "status", "deployment", workload)
		if diff := gocmp.Diff(old[workload], m.given(t, workload)); diff != "" {
			t.Errorf("the network of a new pod of %s (-with Multus +without):\n%s", workload, diff)
		}
		m.reaches(t, workload)
		eventually.Holds(t, 5*time.Minute, "plumbline writes network-status of "+workload, func() string {
			if status := m.status(t, workload); len(status) != 1 || !strings.HasPrefix(status[0].Name, "shop/") || status[0].Interface != "net1" {
				return fmt.Sprintf("it is %+v", status)
			}
			return ""
		})
	}
	step("new pods without Multus")
	kubectl(t, m.Cluster, "", "-n", "shop", "delete", "deployments", "--all", "--cascade=foreground", "--timeout=1200s")
	eventually.Holds(t, 10*time.Minute, "the node is as it was, but for the bridge (-before +now)", func() string {
		now := strings.Split(m.links(t), "\n")
		return gocmp.Diff(links, strings.Join(slices.DeleteFunc(now, func(l string) bool { return strings.HasPrefix(l, "backend0 ") }), "\n"))
	})
	step("the end of all pods")
}

// newMoving starts a cluster whose node has a card, a wired interface, Multus and whereabouts.
func newMoving(t *testing.T) *moving {
	t.Helper()
	m := &moving{laptop: &laptop{Cluster: start(t, cluster.Options{}), home: t.TempDir()}}
	m.node = addNode(t, m.Cluster, cluster.NodeOptions{VFs: 1, NRITimeout: 10 * time.Second, Start: wire})
	archive, whereabouts, err := m.Multus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.node.Import(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	if err := m.DeclareMultus(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What its DaemonSet does.
	token := kubectl(t, m.Cluster, "", "-n", "kube-system", "create", "token", "whereabouts", "--duration=24h")
	m.shell(t, fmt.Sprintf(`install -m 755 '%s' /usr/lib/cni/whereabouts
mkdir -p /etc/cni/net.d/whereabouts.d
cat >/etc/cni/net.d/whereabouts.d/whereabouts.conf <<EOF
{"datastore": "kubernetes", "kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}}
EOF
cat >/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig <<EOF
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://10.96.0.1:443", certificate-authority: '%s'}}]
users: [{name: whereabouts, user: {token: '%s'}}]
contexts: [{name: local, context: {cluster: local, user: whereabouts, namespace: kube-system}}]
current-context: local
EOF`, whereabouts, filepath.Join(m.Dir(), "ca.crt"), strings.TrimSpace(token)))
	kubectl(t, m.Cluster, "", "-n", "kube-system", "rollout", "status", "--timeout=1200s", "daemonset/kube-multus-ds")
	eventually.True(t, 5*time.Minute, "the runtime calls Multus", func() bool { return strings.Contains(m.shell(t, "ls /etc/cni/net.d"), "00-multus.conf") })
	return m
}

// pod is the only one of a workload. It waits until the one before is gone.
func (m *moving) pod(t *testing.T, workload string) string {
	t.Helper()
	var pods []string
	eventually.Holds(t, 10*time.Minute, workload+" has one pod", func() string {
		if pods = strings.Fields(kubectl(t, m.Cluster, "", "-n", "shop", "get", "pods", "-l", "app="+workload, "-o", "name")); len(pods) != 1 {
			return strings.Join(pods, " ")
		}
		return ""
	})
	return pods[0]
}

// networkStatus is an entry of the annotation network-status.
type networkStatus struct {
	Name, Interface string
	IPs             []string
	Default         bool
}

// status is the annotation network-status of a workload's pod.
func (m *moving) status(t *testing.T, workload string) (status []networkStatus) {
	t.Helper()
	text := kubectl(t, m.Cluster, "", "-n", "shop", "get", m.pod(t, workload), "-o", `jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}`)
	if err := json.Unmarshal([]byte(text), &status); text != "" && err != nil {
		t.Fatalf("network-status of %s: %v: %s", workload, err, text)
	}
	return status
}

// network is that with which the container of a workload's pod was started.
func (m *moving) network(t *testing.T, workload string) (n cluster.PodNetwork) {
	t.Helper()
	if err := json.Unmarshal([]byte(kubectl(t, m.Cluster, "", "-n", "shop", "logs", m.pod(t, workload))), &n); err != nil {
		t.Fatalf("network of %s: %v", workload, err)
	}
	return n
}

// addresses are those of a workload's pod, but for the cluster's own network.
func (m *moving) addresses(t *testing.T, workload string) (out []string) {
	t.Helper()
	for _, i := range m.network(t, workload).Interfaces {
		for _, a := range i.Addresses {
			if i.Name != "lo" && i.Name != "eth0" && !a.Addr().IsLinkLocalUnicast() {
				out = append(out, a.Addr().String())
			}
		}
	}
	return out
}

// given describes the network of a workload's pod without what each pod has of its own.
func (m *moving) given(t *testing.T, workload string) string {
	t.Helper()
	var out []string
	n := m.network(t, workload)
	for _, i := range n.Interfaces {
		line := fmt.Sprintf("%s %s mtu %d", i.Name, i.Kind, i.MTU)
		if workload == "named" && i.Name == "net1" {
			line += " " + i.MAC
		}
		for _, a := range i.Addresses {
			switch {
			case a.Addr().IsLinkLocalUnicast():
			case workload == "named" && i.Name == "net1" || workload == "fast" && i.Name == "net1":
				line += " " + a.String()
			default:
				line += " " + a.Masked().String()
			}
		}
		out = append(out, line)
	}
	for _, r := range n.Routes {
		if !strings.HasPrefix(r.Destination, "fe80") {
			out = append(out, fmt.Sprintf("%s via %s dev %s", r.Destination, r.Gateway, r.Interface))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// keeps fails the test unless the addresses of a workload's pod are of the part of a range that is Multus', or of the pool's if the
// workload was moved, and unless network-status has those of Multus.
func (m *moving) keeps(t *testing.T, workload string, moved bool) {
	t.Helper()
	have := m.addresses(t, workload)
	for _, a := range have {
		if last := netip.MustParseAddr(a).AsSlice()[3]; a != "203.0.113.77" && a != "10.40.0.9" && moved != (last >= 50) {
			t.Errorf("%s has %s; moved: %v", workload, a, moved)
		}
	}
	var said, want []string
	if !moved {
		want = have
	}
	for _, s := range m.status(t, workload) {
		if !s.Default {
			said = append(said, s.IPs...)
		}
	}
	if diff := gocmp.Diff(want, said); diff != "" {
		t.Errorf("%s (-addresses +those in network-status, beside that of the cluster's network):\n%s", workload, diff)
	}
}

// reaches fails the test unless a workload reaches the neighbor and the others, of Multus or moved, on the same networks.
func (m *moving) reaches(t *testing.T, workload string) {
	t.Helper()
	others := []string{"203.0.113.250"}
	for _, w := range workloads {
		if w.name != workload {
			others = append(others, m.addresses(t, w.name)...)
		}
	}
	pod := m.pod(t, workload)
	for _, own := range m.addresses(t, workload) {
		for _, other := range others {
			if !netip.PrefixFrom(netip.MustParseAddr(own), 24).Contains(netip.MustParseAddr(other)) {
				continue
			}
			eventually.Succeeds(t, 2*time.Minute, workload+" reaches "+other, func() error {
				_, err := m.Kubectl(t.Context(), nil, "-n", "shop", "exec", pod, "--", "/pod", "ping", other)
				return err
			})
		}
	}
}

// patient are commands of a page that wait as long as an emulated machine needs.
func patient(commands string) string {
	return strings.ReplaceAll(commands, "kubectl wait ", "kubectl wait --timeout=600s ")
}
