//go:build cluster

package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/inventory/sysfstest"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/claimstatus"
	"github.com/plumbline/plumbline/reconcile/ports"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// agentAccount is the ServiceAccount that the chart gives agents.
const agentAccount = "plumbline-agent"

// rendered returns what some templates of the chart make.
func (b *bench) rendered(t *testing.T, templates ...string) string {
	t.Helper()
	manifest, err := b.Chart(t.Context(), "agent.ovn.enabled=true") // so that all policies are there
	check(t, err)
	var out strings.Builder
	for _, template := range templates {
		found := false
		for document := range strings.SplitSeq(manifest, "\n---\n") {
			if strings.HasPrefix(strings.TrimPrefix(document, "---\n"), "# Source: plumbline/templates/"+template+"\n") {
				found = true
				out.WriteString("\n---\n" + document)
			}
		}
		if !found {
			t.Fatalf("nothing in the chart is made of %s", template)
		}
	}
	return out.String()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bench is a control plane with the agent's rights and the policies, two nodes
// that are names only, and an agent on each.
type bench struct {
	*cluster.Cluster
	admin  kubernetes.Interface
	agents map[string]kubernetes.Interface // by node
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{Cluster: start(t, cluster.Options{}), agents: map[string]kubernetes.Interface{}}
	var err error
	b.admin, err = b.Client()
	check(t, err)
	kubectl(t, b.Cluster, "", "create", "namespace", cluster.ProductNamespace)
	b.apply(t, b.rendered(t, "serviceaccounts.yaml", "agent-rbac.yaml", "policies/slices.yaml", "policies/reports.yaml", "policies/leases.yaml", "policies/claims.yaml", "policies/one-pod.yaml", "policies/pods.yaml"))
	for _, node := range []string{"n1", "n2"} {
		b.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Pod
metadata: {name: agent-%[1]s, namespace: %[3]s}
spec:
  serviceAccountName: plumbline-agent
  nodeName: %[1]s
  containers: [{name: agent, image: %[2]s}]
`, node, cluster.PodImage, cluster.ProductNamespace))
		config, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, agentAccount, cluster.TokenFor{Pod: "agent-" + node})
		check(t, err)
		b.agents[node], err = kubernetes.NewForConfig(config)
		check(t, err)
	}
	return b
}

func (b *bench) apply(t *testing.T, manifest string) {
	t.Helper()
	if out, err := b.Kubectl(t.Context(), strings.NewReader(manifest), "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestEdges holds the rights, the policies, what is published and what is
// reported against a real API server.
func TestEdges(t *testing.T) {
	b := newBench(t)
	// A policy holds some time after it was made only.
	eventually.Holds(t, 30*time.Second, "the policy on slices", func() string {
		err := b.writeSlice(t, b.agents["n1"], "probe", "n2", "n2", claim.Driver)
		if err == nil { // until then it is written, and n2 must have no slice when it is published
			check(t, b.admin.ResourceV1().ResourceSlices().Delete(t.Context(), "probe", metav1.DeleteOptions{}))
		}
		if err == nil || !strings.Contains(err.Error(), "may not write") {
			return fmt.Sprintf("lets through what it must not (%v)", err)
		}
		return ""
	})
	t.Run("slices", b.slices)
	t.Run("reports", b.reports)
	t.Run("leases", b.leases)
	t.Run("publish", b.publish)
	t.Run("fixtures", b.fixtures)
	t.Run("status", b.status)
	t.Run("claims", b.foreignStatus)
	t.Run("maintenance", b.maintenance)
	t.Run("one-pod", b.onePod)
	t.Run("pods", b.networksOfPods)
}

func (b *bench) writeSlice(t *testing.T, who kubernetes.Interface, name, node, pool, driver string) error {
	t.Helper()
	s := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "d"}},
		},
	}
	if node == "" {
		s.Spec.AllNodes = new(true)
	} else {
		s.Spec.NodeName = &node
	}
	_, err := who.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{})
	if err == nil {
		t.Cleanup(func() {
			_ = b.admin.ResourceV1().ResourceSlices().Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	}
	return err
}

// refused wants an error that contains a text, or none when it is empty.
func refused(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: have %v, want an error with %q", what, err, want)
	}
}

func (b *bench) slices(t *testing.T) {
	agent := b.agents["n1"]
	refused(t, "a slice of the own node", b.writeSlice(t, agent, "own", "n1", "n1", claim.Driver), "")
	refused(t, "a slice of another node", b.writeSlice(t, agent, "other", "n2", "n2", claim.Driver), "an agent on node n1 may not write a ResourceSlice of node n2")
	refused(t, "a slice of all nodes", b.writeSlice(t, agent, "all", "", "n1", claim.Driver), "may not write a ResourceSlice of more than one node")
	refused(t, "a slice of another driver", b.writeSlice(t, agent, "gpu", "n1", "n1", "gpu.example.com"), "may not write a ResourceSlice of driver gpu.example.com")
	refused(t, "a slice of another node's pool", b.writeSlice(t, agent, "pool", "n1", "n2", claim.Driver), "an agent on node n1 may not write a ResourceSlice of pool n2")
	refused(t, "another node's slice, by the admin", b.writeSlice(t, b.admin, "theirs", "n2", "n2", claim.Driver), "")

	slices := agent.ResourceV1().ResourceSlices()
	theirs, err := b.admin.ResourceV1().ResourceSlices().Get(t.Context(), "theirs", metav1.GetOptions{})
	check(t, err)
	theirs.Spec.Devices[0].Name = "forged"
	_, err = slices.Update(t.Context(), theirs, metav1.UpdateOptions{})
	refused(t, "an update of another node's slice", err, "may not write a ResourceSlice of node n2")
	_, err = slices.Patch(t.Context(), "theirs", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{})
	refused(t, "a patch of a slice", err, `cannot patch resource "resourceslices"`)
	refused(t, "a deletion of another node's slice", slices.Delete(t.Context(), "theirs", metav1.DeleteOptions{}), "may not write a ResourceSlice of node n2")
	refused(t, "a deletion of the own slice", slices.Delete(t.Context(), "own", metav1.DeleteOptions{}), "")

	config, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, agentAccount, cluster.TokenFor{})
	check(t, err)
	unbound, err := kubernetes.NewForConfig(config)
	check(t, err)
	refused(t, "a token of no pod", b.writeSlice(t, unbound, "unbound", "n1", "n1", claim.Driver), "the token names no node")
}

// reports holds that an agent writes the report of its own node only.
func (b *bench) reports(t *testing.T) {
	crd, err := os.ReadFile("../../chart/plumbline/templates/crds/networking.dra.io_deviceexposurereports.yaml")
	check(t, err)
	b.apply(t, string(crd))
	write := func(bound cluster.TokenFor, node string) error {
		config, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, agentAccount, bound)
		check(t, err)
		client, err := dynamic.NewForConfig(config)
		check(t, err)
		_, err = client.Resource(v1alpha1.ReportResource()).Apply(t.Context(), node, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.ReportKind, "metadata": map[string]any{"name": node}, "devices": int64(1),
		}}, metav1.ApplyOptions{FieldManager: "plumbline-agent", Force: true})
		return err
	}
	agent := cluster.TokenFor{Pod: "agent-n1"}
	eventually.Holds(t, 30*time.Second, "the type is served, and the policy on reports holds", func() string {
		err := write(agent, "n2")
		if err == nil || !strings.Contains(err.Error(), "an agent on node n1 may not write the DeviceExposureReport of node n2") {
			return fmt.Sprint(err)
		}
		return ""
	})
	refused(t, "the report of the own node", write(agent, "n1"), "")
	refused(t, "it once more", write(agent, "n1"), "")
	refused(t, "a token of no pod", write(cluster.TokenFor{}, "n1"), "the token names no node")
}

// leases holds that an agent makes, changes and ends leases of its own node only.
func (b *bench) leases(t *testing.T) {
	crd, err := os.ReadFile("../../chart/plumbline/templates/crds/networking.dra.io_addressleases.yaml")
	check(t, err)
	b.apply(t, string(crd))
	config, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, agentAccount, cluster.TokenFor{Pod: "agent-n1"})
	check(t, err)
	agent, err := dynamic.NewForConfig(config)
	check(t, err)
	lease := func(name, node string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.AddressLeaseKind, "metadata": map[string]any{"name": name},
			"spec": map[string]any{"pool": "p", "block": "192.0.2.1/32", "node": node, "nodeUID": "u"},
		}}
	}
	to := agent.Resource(v1alpha1.AddressLeaseResource())
	const theirs = "an agent on node n1 may not write leases of another node"
	eventually.Holds(t, 30*time.Second, "the type is served, and the policy on leases holds", func() string {
		if _, err := to.Create(t.Context(), lease("x", "n2"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), theirs) {
			return fmt.Sprint(err)
		}
		return ""
	})
	own, err := to.Create(t.Context(), lease("own", "n1"), metav1.CreateOptions{})
	refused(t, "a lease of the own node", err, "")
	check(t, unstructured.SetNestedField(own.Object, "n2", "spec", "node"))
	_, err = to.Update(t.Context(), own, metav1.UpdateOptions{})
	refused(t, "a lease that is given to another node", err, "a lease is of one block and one node")
	write := func(l *unstructured.Unstructured, node, until string) (*unstructured.Unstructured, error) {
		l = l.DeepCopy()
		check(t, unstructured.SetNestedField(l.Object, node, "spec", "node"))
		if unstructured.RemoveNestedField(l.Object, "spec", "keptUntil"); until != "" {
			check(t, unstructured.SetNestedField(l.Object, until, "spec", "keptUntil"))
		}
		return to.Update(t.Context(), l, metav1.UpdateOptions{})
	}
	const until = "2100-01-01T00:00:00Z"
	own, err = to.Get(t.Context(), "own", metav1.GetOptions{})
	check(t, err)
	_, err = write(own, "n2", until)
	refused(t, "a lease that is kept by another node", err, "a lease is of one block and one node")
	kept, err := write(own, v1alpha1.KeptNode, until)
	refused(t, "that the own lease is kept", err, "")
	_, err = write(kept, "n2", "")
	refused(t, "taking a lease over for another node", err, theirs)
	_, err = write(kept, "n1", "")
	refused(t, "taking a lease over", err, "")
	_, err = write(kept, "n1", "")
	refused(t, "taking a lease over that has changed", err, "the object has been modified")
	refused(t, "the end of the own lease", to.Delete(t.Context(), "own", metav1.DeleteOptions{}), "")
	b.apply(t, "apiVersion: networking.dra.io/v1alpha1\nkind: AddressLease\nmetadata: {name: theirs}\nspec: {pool: p, block: 192.0.2.2/32, node: n2, nodeUID: u}\n")
	other, err := to.Get(t.Context(), "theirs", metav1.GetOptions{})
	check(t, err)
	_, err = write(other, v1alpha1.KeptNode, until)
	refused(t, "that another node's lease is kept", err, theirs)
	refused(t, "the end of another node's lease", to.Delete(t.Context(), "theirs", metav1.DeleteOptions{}), theirs)
}

// plugin is the part of a DRA plugin that publishing needs.
type plugin struct {
	mu   sync.Mutex
	errs []error
}

func (*plugin) PrepareResourceClaims(context.Context, []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return nil, errors.New("not here")
}

func (*plugin) UnprepareResourceClaims(context.Context, []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return nil, errors.New("not here")
}

func (*plugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (p *plugin) HandleError(_ context.Context, err error, _ string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs = append(p.errs, err)
}

// errors returns the texts of the errors that the helper has returned.
func (p *plugin) causes() []publish.Explanation {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []publish.Explanation
	for _, err := range p.errs {
		out = append(out, publish.Explain(err))
	}
	return out
}

func (b *bench) helper(t *testing.T, agent, node string, options ...kubeletplugin.Option) (*kubeletplugin.Helper, *plugin) {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // a socket's path is short, a test's directory's is not
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &plugin{}
	h, err := kubeletplugin.Start(t.Context(), p, append([]kubeletplugin.Option{
		kubeletplugin.DriverName(claim.Driver), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(b.agents[agent]),
		kubeletplugin.RegistrarDirectoryPath(dir), kubeletplugin.PluginDataDirectoryPath(dir), kubeletplugin.HealthService(false),
	}, options...)...)
	check(t, err)
	t.Cleanup(h.Stop)
	return h, p
}

// nicTree makes a sysfs with so many cards, each a PCI function with an interface.
func nicTree(t *testing.T, count int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range count {
		addNIC(t, dir, i)
	}
	return dir
}

func nicAddress(i int) string { return fmt.Sprintf("0000:%02x:%02x.0", 1+i/32, i%32) }

func addNIC(t *testing.T, sys string, i int) {
	t.Helper()
	address, ifName := nicAddress(i), fmt.Sprintf("eth%d", i)
	dir := filepath.Join(sys, "devices/pci0000:00", address)
	for file, text := range map[string]string{
		"class": "0x020000", "vendor": "0x1af4", "device": "0x1041", "numa_node": "0",
		"net/" + ifName + "/type": "1", "net/" + ifName + "/mtu": "1500", "net/" + ifName + "/address": "02:00:00:00:00:01",
		"net/" + ifName + "/flags": "0x1002",
	} {
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
		check(t, os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o644))
	}
	for link, target := range map[string]string{
		"bus/pci/devices/" + address: "../../../devices/pci0000:00/" + address,
		"class/net/" + ifName:        "../../devices/pci0000:00/" + address + "/net/" + ifName,
	} {
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(sys, link)), 0o755))
		check(t, os.Symlink(target, filepath.Join(sys, link)))
	}
}

func removeNetdev(t *testing.T, sys string, i int) {
	t.Helper()
	check(t, os.Remove(filepath.Join(sys, fmt.Sprintf("class/net/eth%d", i))))
	check(t, os.RemoveAll(filepath.Join(sys, "devices/pci0000:00", nicAddress(i), "net")))
}

// published returns the devices of a node's pool as the scheduler sees them, and
// how many slices hold them; nothing while the pool is being rewritten.
func (b *bench) published(t *testing.T, node string) (devices map[string]resourceapi.Device, count int) {
	t.Helper()
	list, err := b.admin.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.driver=" + claim.Driver})
	check(t, err)
	own := slices.DeleteFunc(list.Items, func(s resourceapi.ResourceSlice) bool { return s.Spec.Pool.Name != node })
	devices, count = map[string]resourceapi.Device{}, len(own)
	for _, s := range own {
		if s.Spec.Pool.ResourceSliceCount != int64(count) || s.Spec.Pool.Generation != own[0].Spec.Pool.Generation {
			return nil, 0
		}
		for _, d := range s.Spec.Devices {
			devices[d.Name] = d
		}
	}
	return devices, count
}

func (b *bench) publish(t *testing.T) {
	sys, state := nicTree(t, 130), filepath.Join(t.TempDir(), "published.json")
	var mu sync.Mutex
	var inUse []string
	var dirty map[string]string
	changed := make(table.Wake, 1)
	options := publish.Options{
		Wake: changed, NodeName: "n1", Sysfs: os.DirFS(sys), StateFile: state, Log: slog.New(slog.DiscardHandler),
		InUse: func() []string { mu.Lock(); defer mu.Unlock(); return inUse },
		Dirty: func() map[string]string { mu.Lock(); defer mu.Unlock(); return dirty },
		Uplinks: func(context.Context, []inventory.Device) (inventory.Uplinks, error) {
			return inventory.Uplinks{Routes: []string{"eth0"}}, nil
		},
	}
	run := func(p *publish.Publisher, to publish.Slices) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p.Run(ctx, to); err != nil {
				t.Error(err)
			}
		})
		return func() { cancel(); wg.Wait() }
	}
	want := func(what string, devices, slices int, more func(map[string]resourceapi.Device) string) {
		t.Helper()
		eventually.Holds(t, 30*time.Second, what, func() string {
			have, n := b.published(t, "n1")
			if len(have) != devices || n != slices {
				return fmt.Sprintf("%d devices in %d slices, want %d in %d", len(have), n, devices, slices)
			}
			if more == nil {
				return ""
			}
			return more(have)
		})
	}
	const first, second = "pci-0000-01-01-0", "pci-0000-01-02-0" // eth1, eth2

	helper, plug := b.helper(t, "n1", "n1")
	p := publish.New(options)
	stop := run(p, helper)
	want("129 devices besides the uplink", 129, 3, func(have map[string]resourceapi.Device) string {
		a := have[first].Attributes
		if *a["ifName"].StringValue != "eth1" || *a["resource.kubernetes.io/pcieRoot"].StringValue != "pci0000:00" ||
			*a["device.k8s.io/pcieRoot"].StringValue != "pci0000:00" || *a["resource.kubernetes.io/pciBusID"].StringValue != "0000:01:01.0" ||
			*a["numaNode"].IntValue != 0 || *a["type"].StringValue != "nic" {
			return fmt.Sprintf("attributes %v", a)
		}
		return ""
	})

	mu.Lock()
	inUse, dirty = []string{first}, map[string]string{"0000:01:02.0": "for the test"}
	mu.Unlock()
	removeNetdev(t, sys, 1) // into a pod
	removeNetdev(t, sys, 3) // by another program
	changed.Now()
	frozen := func(have map[string]resourceapi.Device) string {
		if name := *have[first].Attributes["ifName"].StringValue; name != "eth1" {
			return fmt.Sprintf("ifName %q of a device in use", name)
		}
		if taints := have[second].Taints; len(taints) != 1 || taints[0].Key != publish.TaintDirty || taints[0].TimeAdded == nil {
			return fmt.Sprintf("taints %v of a dirty device", taints)
		}
		return ""
	}
	want("one in a pod, one dirty, one gone", 128, 2, frozen)
	stop()
	helper.Stop()

	helper, plug2 := b.helper(t, "n1", "n1")
	p = publish.New(options)
	stop = run(p, helper)
	addNIC(t, sys, 130)
	changed.Now()
	want("after a restart, with a new card", 129, 3, frozen)
	for _, e := range append(plug.causes(), plug2.causes()...) {
		if e.Cause != publish.Retried { // as is a write that Stop has cut short
			t.Errorf("error: %+v", e)
		}
	}
	stop()

	// An agent that publishes for another node is refused, with an explanation.
	options.NodeName = "n2"
	options.StateFile = filepath.Join(t.TempDir(), "n2.json")
	helper, plug = b.helper(t, "n1", "n2")
	defer run(publish.New(options), helper)()
	eventually.Holds(t, 30*time.Second, "publishing for another node", func() string {
		causes := plug.causes()
		if i := slices.IndexFunc(causes, func(e publish.Explanation) bool { return e.Cause == publish.Forbidden }); i >= 0 {
			if !strings.Contains(causes[i].Message, "an agent on node n1 may not write a ResourceSlice of node n2") {
				return causes[i].Message
			}
			return ""
		}
		return fmt.Sprintf("%+v", causes)
	})
	if have, _ := b.published(t, "n2"); len(have) != 0 {
		t.Errorf("%d devices of n2 were published", len(have))
	}
	// An object that the API server finds invalid is reported as that.
	helper, plug = b.helper(t, "n2", "n2")
	check(t, helper.PublishResources(t.Context(), resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		"n2": {Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "Not_a_label"}}}}},
	}}))
	eventually.Holds(t, 30*time.Second, "an invalid device", func() string {
		if causes := plug.causes(); len(causes) == 0 || causes[0].Cause != publish.Refused {
			return fmt.Sprintf("%+v", causes)
		}
		return ""
	})
}

// fixtures publishes every machine whose sysfs is known.
func (b *bench) fixtures(t *testing.T) {
	trees, err := filepath.Glob("../../inventory/testdata/tree/*.txtar")
	check(t, err)
	if len(trees) < 5 {
		t.Fatalf("fixtures %v", trees)
	}
	helper, plug := b.helper(t, "n2", "n2")
	for _, tree := range trees {
		sys := sysfstest.Open(t, tree)
		devices, _ := inventory.Discover(sys, inventory.Options{}) // some trees are broken
		why := publish.Why(devices)
		var want []string
		for _, d := range devices {
			if _, withheld := why[d.Name]; !withheld {
				want = append(want, d.Name)
			}
		}
		slices.Sort(want)
		p := publish.New(publish.Options{
			NodeName: "n2", Sysfs: sys, StateFile: filepath.Join(t.TempDir(), "f"), Log: slog.New(slog.DiscardHandler),
			InUse: func() []string { return nil }, PhysicalNetworks: map[string]string{"enp3s0f0": "datacentre"},
			Uplinks: func(context.Context, []inventory.Device) (inventory.Uplinks, error) { return inventory.Uplinks{}, nil },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.Run(ctx, helper) })
		eventually.Holds(t, 30*time.Second, tree, func() string {
			have, _ := b.published(t, "n2")
			if causes := plug.causes(); len(causes) > 0 {
				return fmt.Sprintf("%+v", causes)
			}
			if got := slices.Sorted(maps.Keys(have)); len(want) == 0 || !slices.Equal(got, want) {
				return fmt.Sprintf("published %q, want %q", got, want)
			}
			return ""
		})
		cancel()
		wg.Wait()
	}
}

const aiTopology = "ai-bonded"

// allocate makes a claim in namespace default and allocates it on a node as the
// scheduler would: a GPU and devices for two root steps.
func (b *bench) allocate(t *testing.T, name, node string) *resourceapi.ResourceClaim {
	t.Helper()
	claims := b.admin.ResourceV1().ResourceClaims("default")
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	var results []resourceapi.DeviceRequestAllocationResult
	var configs []resourceapi.DeviceAllocationConfiguration
	for i, request := range []string{"gpu", "vf0", "vf1"} {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "class"}})
		r := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: claim.Driver, Pool: node, Device: fmt.Sprintf("pci-0000-0%d-10-0", i)}
		if request == "gpu" {
			r.Driver, r.Device = "gpu.example.com", "gpu-0"
			// As no map is written: with such keys the API server refuses server-side apply.
			configs = append(configs, resourceapi.DeviceAllocationConfiguration{
				Source: resourceapi.AllocationConfigSourceClass, Requests: []string{request},
				DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: r.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"z":1,"a":2}`)}}},
			})
		} else {
			parameters, err := json.Marshal(claim.Config{NetworkTopologyRef: claim.TopologyRef{Name: aiTopology}, Step: request})
			check(t, err)
			configs = append(configs, resourceapi.DeviceAllocationConfiguration{
				Source: resourceapi.AllocationConfigSourceClass, Requests: []string{request},
				DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: parameters}}},
			})
		}
		results = append(results, r)
	}
	c, err := claims.Create(t.Context(), c, metav1.CreateOptions{})
	check(t, err)
	c.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results, Config: configs},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}}},
	}
	c, err = claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
	check(t, err)
	return c
}

// transcript is a log that is read while it is written.
type transcript struct {
	mu  sync.Mutex
	log bytes.Buffer
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(p)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.String()
}

func (b *bench) reporter(t *testing.T, node string) (r *claimstatus.Reporter, log *transcript, stop func()) {
	t.Helper()
	log = &transcript{}
	r = claimstatus.New(claimstatus.Options{Client: b.agents[node], NodeName: node, Log: slog.New(slog.NewTextHandler(log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) })
	return r, log, func() { cancel(); wg.Wait() }
}

func (b *bench) status(t *testing.T) {
	c := b.allocate(t, "net", "n1")
	pod, err := b.admin.CoreV1().Pods(cluster.ProductNamespace).Get(t.Context(), "agent-n1", metav1.GetOptions{})
	check(t, err)
	who := claims.Claim{Namespace: c.Namespace, Name: c.Name, UID: c.UID, Pod: claims.Pod{Name: pod.Name, UID: pod.UID}}
	// The GPU's driver has its own entry, and writes it the other way.
	api := b.admin.ResourceV1().ResourceClaims(c.Namespace)
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0", Data: &runtime.RawExtension{Raw: []byte(`{"temperature":40}`)}}}
	_, err = api.UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
	check(t, err)

	device := func(i int) (resourceapi.AllocatedDeviceStatus, string) {
		t.Helper()
		c, err := api.Get(t.Context(), c.Name, metav1.GetOptions{})
		check(t, err)
		if len(c.Status.Devices) != 3 || c.Status.Devices[0].Driver != "gpu.example.com" || c.Status.Devices[0].Data == nil {
			return resourceapi.AllocatedDeviceStatus{}, fmt.Sprintf("entries %+v", c.Status.Devices)
		}
		return c.Status.Devices[i], ""
	}
	want := func(what, ready, inSync, iface, data string) metav1.Time {
		t.Helper()
		var at metav1.Time
		eventually.Holds(t, 30*time.Second, what, func() string {
			for i := 1; i <= 2; i++ {
				d, wrong := device(i)
				if wrong != "" {
					return wrong
				}
				have := []string{"", "", "", string(d.Data.Raw)}
				if c := meta.FindStatusCondition(d.Conditions, claimstatus.Ready); c != nil {
					have[0], at = string(c.Status)+" "+c.Reason, c.LastTransitionTime
				}
				if c := meta.FindStatusCondition(d.Conditions, claimstatus.InSync); c != nil {
					have[1] = string(c.Status) + " " + c.Reason
				}
				if d.NetworkData != nil {
					have[2] = fmt.Sprintf("%s %s %v", d.NetworkData.InterfaceName, d.NetworkData.HardwareAddress, d.NetworkData.IPs)
				}
				name := strings.Replace(iface, "#", fmt.Sprint(i), 1)
				if have[0] != ready || have[1] != inSync || have[2] != name || !strings.Contains(have[3], data) {
					return fmt.Sprintf("%q", have)
				}
			}
			return ""
		})
		return at
	}

	r, log, stop := b.reporter(t, "n1")
	r.Failed(who, aiTopology, &ops.StepError{Topology: aiTopology, Step: "bond0", Err: fault.New(fault.Unsupported, errors.New("no bonding"))})
	want("failed", "False Unsupported", "Unknown Unsupported", "", `"step":"bond0"`)
	iface := func(name, mac string) topology.Interface {
		return topology.Interface{Name: name, MAC: mac, Sandbox: "/run/netns/p"}
	}
	steps := []topology.StepResult{
		{Name: "vf0", Type: "sriov", Result: topology.Result{Interfaces: []topology.Interface{iface("net1", "02:00:00:00:00:01")}}},
		{Name: "vf1", Type: "sriov", Result: topology.Result{Interfaces: []topology.Interface{iface("net2", "02:00:00:00:00:01")}}},
		{Name: "bond0", Type: "bond", Result: topology.Result{Interfaces: []topology.Interface{iface("net1", ""), iface("net2", ""), iface("bond0", "02:00:00:00:00:01")}}},
		{Name: "tune", Type: "tuning", Result: topology.Result{
			Interfaces: []topology.Interface{iface("net1", ""), iface("net2", ""), iface("bond0", "02:00:00:00:00:01")},
			IPs:        []topology.IP{{Address: "2001:DB8::0:5/64", Interface: new(0)}, {Address: "2001:db8::5/64", Interface: new(1)}, {Address: "10.0.0.5/24", Interface: new(2)}},
		}},
	}
	r.Attached(who, aiTopology, steps)
	since := want("attached", "True NetworkReady", "True InSync", "net# 02:00:00:00:00:01 [2001:db8::5/64]", `"name":"bond0"`)
	links := func(what, first, second string) {
		t.Helper()
		eventually.Holds(t, 30*time.Second, what, func() string {
			said, err := b.Kubectl(t.Context(), nil, "-n", c.Namespace, "get", "resourceclaim", c.Name,
				"-o", `jsonpath={range .status.devices[?(@.driver=="dra.networking")]}{.conditions[?(@.type=="LinkUp")].status} {.conditions[?(@.type=="LinkUp")].reason};{end}`)
			check(t, err)
			if said != first+";"+second+";" {
				return said
			}
			return ""
		})
	}
	watched := ports.Report{
		Topology: &topology.Topology{Name: aiTopology, Steps: []topology.Step{{Name: "vf0"}, {Name: "vf1"}, {Name: "bond0", DependOn: []string{"vf0", "vf1"}}}},
		Ports:    []ports.Port{{Step: "bond0", Name: "bond0", Kind: "bond"}, {Step: "vf0", Name: "net1", Device: "a"}, {Step: "vf1", Name: "net2", Device: "b"}},
		Verdicts: slices.Repeat([]ports.Verdict{{Status: ports.Up, Reason: ports.Carrier}}, 3), Before: make([]ports.Verdict, 3),
	}
	r.Links(who, watched)
	links("both ports are up", "True Carrier", "True Carrier")
	watched.Before, watched.Verdicts = watched.Verdicts, slices.Clone(watched.Verdicts)
	watched.Verdicts[2] = ports.Verdict{Status: ports.Down, Reason: ports.NoCarrier}
	watched.Outcome = ports.Weigh(watched.Topology, watched.Ports, watched.Verdicts)
	r.Links(who, watched)
	links("one is down", "True Carrier", "False NoCarrier")
	stop()

	// Another agent knows nothing of what the first one wrote, and keeps it.
	drift := []reconcile.Drift{{Step: "bond0", Action: netstate.Update, Object: netstate.Key{Kind: "link", ID: "bond0"}, Field: "mtu", Want: 9000, Have: 1500}}
	r, log2, stop := b.reporter(t, "n1")
	r.Drifted(who, aiTopology, drift)
	if at := want("drifted", "True NetworkReady", "False Drifted", "net# 02:00:00:00:00:01 [2001:db8::5/64]", `"name":"bond0"`); !at.Equal(&since) {
		t.Errorf("Ready did not change, but its time did: from %s to %s", since, at)
	}
	r.Repaired(who, aiTopology, steps, 12*time.Millisecond)
	if at := want("repaired", "True NetworkReady", "True InSync", "net# 02:00:00:00:00:01 [2001:db8::5/64]", `"name":"bond0"`); !at.Equal(&since) {
		t.Errorf("Ready did not change, but its time did: from %s to %s", since, at)
	}
	for range 30 { // another writer
		r.Drifted(who, aiTopology, drift)
		r.Repaired(who, aiTopology, steps, 12*time.Millisecond)
	}
	stale := who
	stale.UID = "00000000-0000-0000-0000-000000000000"
	r.Failed(stale, aiTopology, errors.New("of an earlier claim of the same name"))
	want("still", "True NetworkReady", "True InSync", "net# 02:00:00:00:00:01 [2001:db8::5/64]", `"name":"bond0"`)

	links("what other reports say is beside it", "True Carrier", "False NoCarrier")
	b.events(t, who)
	r.Detached(who)
	links("the devices are back", " ", " ")
	want("detached", "False Detached", "Unknown Detached", "", `"topology":"`+aiTopology+`"`)
	eventually.Holds(t, 30*time.Second, "the queue", func() string {
		if n, dropped := r.Waiting(); n != 0 || dropped != 0 {
			return fmt.Sprintf("%d wait, %d dropped", n, dropped)
		}
		return ""
	})
	stop()
	if log.String()+log2.String() != "" {
		t.Errorf("logged:\n%s%s", log, log2)
	}

	// The agent of another node has no business here.
	r, log, stop = b.reporter(t, "n2")
	r.Attached(who, aiTopology, steps)
	eventually.Holds(t, 30*time.Second, "a report from another node", func() string {
		if n, _ := r.Waiting(); n == 0 {
			return "not refused yet"
		}
		return ""
	})
	eventually.Holds(t, 30*time.Second, "the API server's answer to another node's agent", func() string {
		if said := log.String(); !strings.Contains(said, "forbidden") {
			return "logged: " + said
		}
		return ""
	})
	stop()
	want("after it", "False Detached", "Unknown Detached", "", "")
}

// events wants the Events of status on the pod and on the claim.
func (b *bench) events(t *testing.T, who claims.Claim) {
	t.Helper()
	for _, of := range []claims.Pod{who.Pod, {Name: who.Name, UID: who.UID}} {
		eventually.Holds(t, 30*time.Second, "events of "+of.Name, func() string {
			list, err := b.admin.CoreV1().Events(who.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(of.UID)})
			check(t, err)
			have := map[string]string{}
			for _, e := range list.Items {
				if e.Source.Component == "plumbline" {
					have[e.Reason] = e.Type + " " + e.Message
				}
			}
			for reason, message := range map[string]string{
				"NetworkFailed":   `Warning topology "ai-bonded": step "bond0": no bonding`,
				"NetworkReady":    `Normal topology "ai-bonded": 4 steps done, interfaces net1, net2, bond0`,
				"NetworkDrift":    `Warning topology "ai-bonded": step "bond0": link bond0: mtu is 1500, not 9000`,
				"NetworkRepaired": `Normal topology "ai-bonded": repaired in 12 ms`,
				"NetworkLinkDown": `Warning topology "ai-bonded" step "vf1": link "net2" has no carrier; links built on it continue without it`,
			} {
				if have[reason] != message {
					return fmt.Sprintf("%s %q, want %q", reason, have[reason], message)
				}
			}
			if len(list.Items) > 7 {
				return fmt.Sprintf("%d events", len(list.Items))
			}
			return ""
		})
	}
}

// foreignStatus holds what an agent cannot do to a claim on its own node, whatever
// rights it has: those that the API server also requires are granted here.
func (b *bench) foreignStatus(t *testing.T) {
	b.apply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: more}
rules:
  - {apiGroups: [resource.k8s.io], resources: [resourceclaims/binding], verbs: [update, patch]}
  - {apiGroups: [resource.k8s.io], resources: [resourceclaims/driver], resourceNames: [gpu.example.com], verbs: ["associated-node:update", "arbitrary-node:update"]}
  - {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [update, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: more}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: more}
subjects: [{kind: ServiceAccount, name: plumbline-agent, namespace: `+cluster.ProductNamespace+`}]
`)
	defer func() {
		_, err := b.Kubectl(t.Context(), nil, "delete", "clusterrole/more", "clusterrolebinding/more")
		check(t, err)
	}()
	c := b.allocate(t, "victim", "n1")
	claims := b.admin.ResourceV1().ResourceClaims(c.Namespace)
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0", Data: &runtime.RawExtension{Raw: []byte(`{"temperature":40}`)}}}
	_, err := claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
	check(t, err)
	agent := b.agents["n1"].ResourceV1().ResourceClaims(c.Namespace)
	for _, tt := range []struct {
		what   string
		change func(*resourceapi.ResourceClaim)
		want   string
	}{
		{"its own device", func(c *resourceapi.ResourceClaim) {
			for _, r := range c.Status.Allocation.Devices.Results {
				if r.Driver == claim.Driver {
					c.Status.Devices = append(c.Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device})
					return
				}
			}
		}, ""},
		{"the allocation", func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation, c.Status.ReservedFor, c.Status.Devices = nil, nil, nil
		}, "may not change the allocation"},
		{"the reservation", func(c *resourceapi.ResourceClaim) {
			c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "thief", UID: "thief"}}
		}, "may not change for whom"},
		{"another driver's device", func(c *resourceapi.ResourceClaim) {
			c.Status.Devices[0].Data = &runtime.RawExtension{Raw: []byte(`{"temperature":90}`)}
		}, "may not change what another driver reports"},
	} {
		eventually.Holds(t, 30*time.Second, tt.what, func() string { // rights hold some time after they were given only
			c, err := claims.Get(t.Context(), c.Name, metav1.GetOptions{})
			check(t, err)
			tt.change(c)
			_, err = agent.UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				return fmt.Sprintf("answered with %v, want %q", err, tt.want)
			}
			return ""
		})
	}
	refused(t, "its deletion", agent.Delete(t.Context(), c.Name, metav1.DeleteOptions{}), "an agent may not create, change or delete a ResourceClaim")
}

// onePod lets two pods share a claim: by hand, and as the scheduler would.
func (b *bench) onePod(t *testing.T) {
	c := b.allocate(t, "shared", "n1")
	claims := b.admin.ResourceV1().ResourceClaims("default")
	reserve := func(names ...string) error {
		c, err := claims.Get(t.Context(), c.Name, metav1.GetOptions{})
		check(t, err)
		c.Status.ReservedFor = nil
		for _, name := range names {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: types.UID(name)})
		}
		_, err = claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
		return err
	}
	refused(t, "two at once", reserve("a", "b"), "ResourceClaim shared has network devices, which are in one pod at a time, and a has them")
	// The controller of claims soon finds that there is no such pod.
	refused(t, "one", reserve("a"), "")

	b.apply(t, `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nic}
spec:
  selectors: [{cel: {expression: 'device.driver == "dra.networking"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n2-nics}
spec:
  driver: dra.networking
  nodeName: n2
  pool: {name: onepod, generation: 1, resourceSliceCount: 1}
  devices: [{name: a}, {name: b}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: common, namespace: default}
spec:
  devices:
    requests: [{name: nic, exactly: {deviceClassName: nic}}]
`)
	b.apply(t, `
apiVersion: v1
kind: Node
metadata: {name: n2}
`)
	status := []byte(`{"status":{"capacity":{"cpu":"4","memory":"4Gi","pods":"10"},"allocatable":{"cpu":"4","memory":"4Gi","pods":"10"},"conditions":[{"type":"Ready","status":"True","reason":"Test","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	for _, name := range []string{"one", "two"} {
		b.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  tolerations: [{operator: Exists}]
  resourceClaims: [{name: nic, resourceClaimName: common}]
  containers: [{name: pod, image: %s, resources: {claims: [{name: nic}]}}]
`, name, cluster.PodImage))
		if name == "two" {
			break
		}
		eventually.Holds(t, 30*time.Second, "the first pod", func() string {
			// A node without a lease is soon considered lost.
			_, err := b.admin.CoreV1().Nodes().Patch(t.Context(), "n2", types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
			check(t, err)
			p, err := b.admin.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			check(t, err)
			if p.Spec.NodeName != "n2" {
				return fmt.Sprintf("%+v", p.Status.Conditions)
			}
			return ""
		})
	}
	eventually.Holds(t, 30*time.Second, "the second pod", func() string {
		p, err := b.admin.CoreV1().Pods("default").Get(t.Context(), "two", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return err.Error()
		}
		check(t, err)
		if p.Spec.NodeName != "" {
			t.Fatalf("it is on node %q, with a device that another pod has", p.Spec.NodeName)
		}
		list, err := b.admin.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=two"})
		check(t, err)
		for _, e := range list.Items {
			if strings.Contains(e.Message, "ResourceClaim common has network devices, which are in one pod at a time, and one has them: give each pod a claim of its own, by a ResourceClaimTemplate") {
				return ""
			}
		}
		return fmt.Sprintf("no event says why: %+v", list.Items)
	})
}

// networksOfPods holds that the annotation from which ovn-kubernetes takes the addresses of a pod is written by
// ovn-kubernetes alone, through the status of a pod, on pods with claims or with extended resources, which may get claims.
func (b *bench) networksOfPods(t *testing.T) {
	const annotation, message = "k8s.ovn.org/pod-networks", "may only be written by ovn-kubernetes"
	pods := b.admin.CoreV1().Pods("default")
	pod := func(name, networks string, claims ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: cluster.PodImage}}}}
		if networks != "" {
			p.Annotations = map[string]string{annotation: networks}
		}
		for _, c := range claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
		}
		return p
	}
	create := func(p *corev1.Pod) error {
		_, err := pods.Create(t.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	eventually.Holds(t, 30*time.Second, "the policy on pods", func() string {
		if err := create(pod("written", "{}", "net")); err == nil || !strings.Contains(err.Error(), message) {
			return fmt.Sprintf("lets through what it must not (%v)", err)
		}
		return ""
	})
	refused(t, "a pod without a claim", create(pod("unclaimed", "{}")), "")
	for where, in := range map[string]func(*corev1.PodSpec) *corev1.Container{
		"a container": func(s *corev1.PodSpec) *corev1.Container { return &s.Containers[0] },
		"an init container": func(s *corev1.PodSpec) *corev1.Container {
			s.InitContainers = []corev1.Container{{Name: "i", Image: cluster.PodImage}}
			return &s.InitContainers[0]
		},
	} {
		for name, message := range map[corev1.ResourceName]string{
			"deviceclass.resource.kubernetes.io/blue-net": message, "example.com/fast-net": message, corev1.ResourceMemory: "", "hugepages-2Mi": "",
		} {
			one := resource.MustParse("2Mi")
			if strings.Contains(string(name), "/") {
				one = resource.MustParse("1")
			}
			p := pod("extended", "{}")
			in(&p.Spec).Resources.Limits = corev1.ResourceList{name: one, corev1.ResourceCPU: resource.MustParse("1")}
			refused(t, where+" with "+string(name), create(p), message)
		}
	}
	_, err := pods.Create(t.Context(), pod("plugged", "", "net"), metav1.CreateOptions{})
	refused(t, "a pod without the annotation", err, "")
	patch := func(value, key string, subresources ...string) error {
		_, err := pods.Patch(t.Context(), "plugged", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, key, value), metav1.PatchOptions{}, subresources...)
		return err
	}
	refused(t, "a user writes it", patch(`"{}"`, annotation), message)
	refused(t, "ovn-kubernetes writes it", patch(`"{}"`, annotation, "status"), "")
	refused(t, "a user changes it", patch(`"{\"a\":{}}"`, annotation), message)
	refused(t, "a user removes it", patch("null", annotation), message)
	refused(t, "a user writes another one", patch(`"x"`, "example.com/note"), "")
}
