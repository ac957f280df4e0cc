//go:build cluster

package cluster_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
)

// moving is a cluster with Multus, whose user types the commands of docs/from-multus.md.
type moving struct{ *laptop }

// shop has the networks of a namespace and their workloads. office, named and storage are on an interface of the node that is wired to a
// neighbor, backend is on a bridge that Multus makes, and fast is a virtual function. storage cannot be converted.
const shop = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: office, namespace: shop}
spec: {config: '{"cniVersion": "1.0.0", "type": "macvlan", "master": "up0", "mode": "bridge", "ipam": {"type": "host-local", "subnet": "203.0.113.0/24",
  "rangeStart": "203.0.113.10", "rangeEnd": "203.0.113.99", "gateway": "203.0.113.250", "routes": [{"dst": "10.20.0.0/16"}]}}'}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: backend, namespace: shop}
spec: {config: '{"cniVersion": "1.0.0", "type": "bridge", "bridge": "backend0", "ipam": {"type": "whereabouts", "range": "10.30.0.0/24", "range_end": "10.30.0.99",
  "leader_lease_duration": 60000, "leader_renew_deadline": 40000, "leader_retry_period": 1000}}'}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: named, namespace: shop}
spec: {config: '{"cniVersion": "1.0.0", "name": "named", "plugins": [{"type": "macvlan", "master": "up0", "mode": "bridge", "capabilities": {"ips": true}, "ipam": {"type": "static"}},
  {"type": "tuning", "capabilities": {"mac": true}, "mtu": 1400}]}'}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: fast, namespace: shop}
spec: {config: '{"cniVersion": "1.0.0", "type": "host-device", "device": "enp3s0f0v0", "ipam": {"type": "static", "addresses": [{"address": "10.40.0.9/24"}]}}'}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: storage, namespace: shop}
spec: {config: '{"cniVersion": "1.0.0", "type": "vlan", "master": "up0", "vlanId": 30, "ipam": {"type": "static", "addresses": [{"address": "10.50.0.9/24"}]}}'}
`

// workloads of the namespace: their networks, and whether a pod ends before the next one starts.
var workloads = []struct {
	name, networks string
	recreate       bool
}{
	{"web", "office", false},
	{"news", "office, backend@data0", false},
	{"db", "backend@data0", false},
	{"named", `[{"name": "named", "ips": ["203.0.113.77/24"], "mac": "02:00:00:00:00:77"}]`, true},
	{"fast", "fast", true},
}

// creates applies the networks, and the workloads one by one: started is called after each.
func (m *moving) creates(t *testing.T, started func(workload string)) {
	t.Helper()
	kubectl(t, m.Cluster, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/network-attachment-definitions.k8s.cni.cncf.io")
	kubectl(t, m.Cluster, shop, "apply", "-f", "-")
	for _, w := range workloads {
		strategy := "RollingUpdate"
		if w.recreate {
			strategy = "Recreate"
		}
		kubectl(t, m.Cluster, fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop}
spec:
  progressDeadlineSeconds: 1800
  selector: {matchLabels: {app: %[1]s}}
  strategy: {type: %[2]s}
  template:
    metadata: {labels: {app: %[1]s}, annotations: {k8s.v1.cni.cncf.io/networks: '%[3]s'}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %[4]q, imagePullPolicy: Never}]
`, w.name, strategy, w.networks, cluster.PodImage), "apply", "-f", "-")
		started(w.name)
	}
}

// TestMultusPage types the commands of docs/from-multus.md that write objects, on an API server without nodes: what Multus and
// whereabouts write of pods is written by the test.
func TestMultusPage(t *testing.T) {
	m := &moving{laptop: &laptop{Cluster: start(t, cluster.Options{}), home: t.TempDir()}}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(m.Dir(), "product", "plumbline"), "./cmd/plumbline")
	build.Dir = m.Checkout()
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if err := m.DeclareMultus(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.creates(t, func(string) {})
	kubectl(t, m.Cluster, "", "apply", "--server-side", "-f", filepath.Join(m.Checkout(), "chart", "plumbline", "templates", "crds"))
	kubectl(t, m.Cluster, `{apiVersion: whereabouts.cni.cncf.io/v1alpha1, kind: IPPool, metadata: {name: 10.30.0.0-24, namespace: kube-system},
  spec: {range: 10.30.0.0/24, allocations: {"1": {id: a, podref: shop/news-1, ifname: data0}, "2": {id: b, podref: shop/db-1, ifname: data0}}}}`, "apply", "-f", "-")
	for workload, status := range map[string]string{
		"web":  `[{"name": "bench", "default": true, "ips": ["10.244.1.2"]}, {"name": "shop/office", "interface": "net1", "ips": ["203.0.113.10"]}]`,
		"news": `[{"name": "shop/office", "interface": "net1", "ips": ["203.0.113.12"]}, {"name": "shop/backend", "interface": "data0", "ips": ["10.30.0.1"]}]`,
		"db":   `[{"name": "shop/backend", "interface": "data0", "ips": ["10.30.0.2"]}]`,
	} {
		eventually.Holds(t, time.Minute, workload+" has a pod", func() string {
			if kubectl(t, m.Cluster, "", "-n", "shop", "get", "pods", "-l", "app="+workload, "-o", "name") == "" {
				return "it has none"
			}
			return ""
		})
		kubectl(t, m.Cluster, "", "-n", "shop", "annotate", "pods", "-l", "app="+workload, "k8s.v1.cni.cncf.io/network-status="+status)
	}
	m.converts(t)
	m.divides(t, []string{"203.0.113.10", "203.0.113.12", "10.30.0.1", "10.30.0.2"})
	apply, _, _ := strings.Cut(m.block(t, "from-multus.md", "\n5. ", "sh"), "\n")
	m.types(t, m.home, apply)
	patch, _, _ := strings.Cut(m.block(t, "from-multus.md", "\n6. ", "sh"), "kubectl -n shop rollout")
	m.goesBack(t, patch)
	for _, w := range workloads {
		m.types(t, m.home, strings.NewReplacer("shop.web", "shop."+w.name, "deployment web", "deployment "+w.name).Replace(patch))
		left := kubectl(t, m.Cluster, "", "-n", "shop", "get", "deployment", w.name, "-o", "jsonpath={.spec.template.metadata.annotations}{.spec.template.spec.containers[0].resources.claims[*].name}")
		if want := map[string]string{"web": "office", "news": "office backend", "db": "backend", "named": "named", "fast": "fast"}[w.name]; left != want {
			t.Errorf("%s is patched to %q, want the claims %q and no annotation", w.name, left, want)
		}
	}
	m.ends(t)
	m.types(t, m.home, m.block(t, "from-multus.md", "\n8. ", "sh"))
}

// goesBack moves web by the commands of the page, and types what it says for the way back: the template is as it was.
func (m *moving) goesBack(t *testing.T, patch string) {
	t.Helper()
	get := func(arguments ...string) string {
		return kubectl(t, m.Cluster, "", append([]string{"-n", "shop", "get"}, arguments...)...)
	}
	was := get("deployment", "web", "-o", "jsonpath={.spec.template}")
	m.types(t, m.home, patch)
	if is := get("deployment", "web", "-o", "jsonpath={.spec.template}"); is == was {
		t.Errorf("the patch has not changed the template: %s", is)
	}
	eventually.Holds(t, time.Minute, "web has a second revision", func() string {
		if sets := strings.Fields(get("replicasets", "-l", "app=web", "-o", "name")); len(sets) != 2 {
			return strings.Join(sets, " ")
		}
		return ""
	})
	m.types(t, m.home, m.wayBack(t))
	if diff := gocmp.Diff(was, get("deployment", "web", "-o", "jsonpath={.spec.template}")); diff != "" {
		t.Errorf("the template of web, whose rollout was undone (-before +now):\n%s", diff)
	}
}

// wayBack is the command of the page that undoes the rollout of web.
func (m *moving) wayBack(t *testing.T) string {
	t.Helper()
	undo := regexp.MustCompile("To go back, [^`]*`(.*?)`").FindStringSubmatch(m.page(t, "from-multus.md"))
	if undo == nil {
		t.Fatal("the page does not say how to go back")
	}
	return undo[1]
}

// converts types step 2: what cannot be converted is said, and the administrator does without it.
func (m *moving) converts(t *testing.T) {
	t.Helper()
	commands := m.block(t, "from-multus.md", "\n2. ", "sh")
	first, _, _ := strings.Cut(commands, "\n")
	said := m.types(t, m.home, "! "+first)
	if !strings.Contains(said, `NetworkAttachmentDefinition "shop/storage": spec.config.master: a VLAN on "up0"`) {
		t.Errorf("nothing is said of the network that cannot be converted:\n%s", said)
	}
	kubectl(t, m.Cluster, "", "-n", "shop", "delete", "network-attachment-definition", "storage")
	t.Logf("the notes:\n%s", m.types(t, m.home, commands))
}

// divides does step 4: the addresses that pods have are excluded, and those that Multus is left with.
func (m *moving) divides(t *testing.T, had []string) {
	t.Helper()
	file := filepath.Join(m.home, "converted.yaml")
	converted, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(converted)
	for _, ip := range had {
		if !excludes(text, netip.MustParseAddr(ip)) {
			t.Errorf("%s, which a pod has, is not excluded:\n%s", ip, text)
		}
	}
	for pool, kept := range map[string]string{"office": "203.0.113.10-203.0.113.49", "backend": "10.30.0.1-10.30.0.49"} {
		head := "  name: " + pool + "\nspec:\n  exclude:\n"
		if !strings.Contains(text, head) {
			t.Fatalf("AddressPool %q has no exclusions:\n%s", pool, text)
		}
		text = strings.Replace(text, head, head+"  - "+kept+"\n", 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	of := strings.Split(shop, "---\n")
	kubectl(t, m.Cluster, strings.NewReplacer(`"203.0.113.99"`, `"203.0.113.49"`, `"10.30.0.99"`, `"10.30.0.49"`).Replace(of[1]+"---\n"+of[2]), "apply", "-f", "-")
}

// exclusion is an address, or the first and last one of a range, in a list.
var exclusion = regexp.MustCompile(`(?m)^  - ([0-9.]+)(?:-([0-9.]+))?$`)

// excludes reports whether AddressPools in YAML exclude an address.
func excludes(text string, ip netip.Addr) bool {
	for _, m := range exclusion.FindAllStringSubmatch(text, -1) {
		first, last := netip.MustParseAddr(m[1]), netip.MustParseAddr(cmp.Or(m[2], m[1]))
		if !ip.Less(first) && !last.Less(ip) {
			return true
		}
	}
	return false
}

// ends types step 7: of the exclusions that of an address which a pod names is left, and the topologies are as they were.
func (m *moving) ends(t *testing.T) {
	t.Helper()
	const topologies = "jsonpath={range .items[*]}{.metadata.name} {.metadata.generation}{\"\\n\"}{end}"
	was := kubectl(t, m.Cluster, "", "get", "networktopologies", "-o", topologies)
	m.types(t, m.home, m.block(t, "from-multus.md", "\n7. ", "sh"))
	if diff := gocmp.Diff(was, kubectl(t, m.Cluster, "", "get", "networktopologies", "-o", topologies)); diff != "" {
		t.Errorf("topologies and their generations (-before +after step 7):\n%s", diff)
	}
	if pool := kubectl(t, m.Cluster, "", "get", "addresspool", "office", "-o", "jsonpath={.spec.exclude} {.spec.subnets[0].first}"); pool != `["203.0.113.77"] 203.0.113.10` {
		t.Errorf("the pool is %s", pool)
	}
}
