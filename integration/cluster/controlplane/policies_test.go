//go:build cluster

package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/inventory/publish"
	"github.com/plumbline/plumbline/inventory/sysfstest"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/exposure/follower"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// machine is a node with the two igb cards of the fixture, and what of its agent
// publishes devices, with the agent's own rights.
type machine struct {
	*bench
	name  string
	state string
	tree  fs.FS                     // instead of the fixture
	nets  map[string][]netip.Prefix // of the addresses of each interface
	// written are the agent's writes of slices to the API server.
	written struct{ requests, bytes atomic.Int64 }
	scans   atomic.Int64
	mu      sync.Mutex
	inUse   []string
	dirty   map[string]string
	stop    func()
	pub     *publish.Publisher
	to      *sliceWriter  // of pub
	changed table.Changes // of what pub reads
}

func (m *machine) start(t *testing.T) {
	t.Helper()
	config, err := m.ServiceAccount(t.Context(), cluster.ProductNamespace, "plumbline-agent", cluster.TokenFor{})
	if err != nil {
		t.Fatal(err)
	}
	config.Wrap(m.count)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	policies := follower.New(follower.Options{
		Kube: kube, Dynamic: dyn, NodeName: m.name, Log: log, Spread: 100 * time.Millisecond, Changed: m.changed.Changed,
	})
	if m.tree == nil {
		m.tree = sysfstest.Open(t, "../../../inventory/testdata/tree/igb.txtar")
	}
	m.pub = publish.New(publish.Options{
		NodeName: m.name, Sysfs: m.tree, Policies: policies, Log: log, Wake: table.Woken(&m.changed),
		Uplinks: func(context.Context, []inventory.Device) (inventory.Uplinks, error) {
			return inventory.Uplinks{Networks: m.nets}, nil
		},
		InUse: func() []string {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.scans.Add(1)
			return m.inUse
		},
		Dirty: func() map[string]string {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.dirty
		},
		StateFile: filepath.Join(m.state, "published.json"), Settle: 10 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	to := &sliceWriter{node: m.name, kube: kube, failed: func(err error) { m.pub.Handle(err) }}
	m.to = to
	var wg sync.WaitGroup
	wg.Go(func() { policies.Run(ctx) })
	wg.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-policies.Ready():
		}
		if err := m.pub.Run(ctx, to); err != nil {
			t.Error(err)
		}
	})
	m.stop = func() { cancel(); wg.Wait(); to.stop() }
}

// count counts what is written of slices.
func (m *machine) count(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/resourceslices") {
			m.written.requests.Add(1)
			m.written.bytes.Add(r.ContentLength)
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// sliceWriter does with resources what the kubelet helper does.
type sliceWriter struct {
	node      string
	kube      kubernetes.Interface
	failed    func(error)
	published atomic.Bool
	*resourceslice.Controller
}

func (w *sliceWriter) PublishResources(ctx context.Context, r resourceslice.DriverResources) (err error) {
	w.published.Store(true)
	if w.Controller != nil {
		w.Update(&r)
		return nil
	}
	w.Controller, err = resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: inventory.Driver, KubeClient: w.kube, Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: w.node}, Resources: &r,
		ErrorHandler: func(_ context.Context, err error, _ string) { w.failed(err) },
	})
	return err
}

func (w *sliceWriter) stop() {
	if w.Controller != nil {
		w.Stop()
	}
}

func (m *machine) use(names ...string) {
	m.mu.Lock()
	m.inUse = names
	m.mu.Unlock()
	m.changed.Changed()
}

// offered waits until the node's slices have these devices, each as NAME or, with a
// physical network, NAME@NETWORK.
func (m *machine) offered(t *testing.T, when string, want ...string) {
	t.Helper()
	m.eventually(t, when, func() error {
		have, err := m.devices(t)
		if err == nil && !slices.Equal(have, want) {
			err = fmt.Errorf("offered %q, want %q", have, want)
		}
		return err
	})
}

func (m *machine) devices(t *testing.T) ([]string, error) {
	var list resourceapi.ResourceSliceList
	if err := m.List(t.Context(), &list); err != nil {
		return nil, err
	}
	have := []string{}
	for _, s := range list.Items {
		if s.Spec.Driver != inventory.Driver || s.Spec.Pool.Name != m.name {
			continue
		}
		for _, d := range s.Spec.Devices {
			name := strings.TrimPrefix(d.Name, "pci-0000-")
			if network := *d.Attributes[inventory.AttrPhysicalNetwork].StringValue; network != "" {
				name += "@" + network
			}
			have = append(have, name)
		}
	}
	slices.Sort(have)
	return have, nil
}

// scanned returns when a scan that began after this call has been published.
func (m *machine) scanned(t *testing.T) {
	t.Helper()
	before := m.scans.Load()
	m.eventually(t, "three scans more", func() error { // one may be under way, and the last not yet published
		m.changed.Changed()
		if m.scans.Load() < before+3 {
			return errors.New("not yet")
		}
		return nil
	})
}

// ofPF is a selector of a PF of the fixture, and of its functions.
func ofPF(name string) string {
	return fmt.Sprintf(`'device.attributes["dra.networking"].pfName == "%s" || device.attributes["dra.networking"].ifName == "%s"'`, name, name)
}

func policy(name, spec string) string {
	return "apiVersion: networking.dra.io/v1alpha1\nkind: DeviceExposurePolicy\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
}

// verdict waits for the condition Ready of a policy.
func (b *bench) verdict(t *testing.T, name, reason, words string) *v1alpha1.DeviceExposurePolicy {
	t.Helper()
	o := &v1alpha1.DeviceExposurePolicy{}
	b.eventually(t, fmt.Sprintf("policy %q is %s: %s", name, reason, words), func() error {
		if err := b.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, words) || c.ObservedGeneration != o.Generation {
			return fmt.Errorf("status %+v", o.Status)
		}
		return nil
	})
	return o
}

// policies is the life of policies on a node, with slices on a real API server.
func (b *bench) policies(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "igb", Labels: map[string]string{"pool": "a"}}}
	if err := b.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	m := &machine{bench: b, name: "igb", state: t.TempDir()}
	m.start(t)
	defer func() { m.stop() }()
	all := []string{"01-10-0", "02-10-0", "02-10-2", "02-10-4", "02-10-6"}
	m.offered(t, "without policies", all...)

	// The functions have the network of their PF.
	b.mustKubectl(t, policy("physnet2", "{selector: {cel: "+ofPF("enp3s0f0")+"}, physicalNetworks: [{name: physnet2, vlan: 102}]}"), "create", "--validate=strict", "-f", "-")
	b.mustKubectl(t, policy("physnet3", "{nodeSelector: {pool: b}, selector: {cel: "+ofPF("enp3s0f1")+"}, physicalNetworks: [{name: physnet3, vlan: 103}]}"), "create", "--validate=strict", "-f", "-")
	m.offered(t, "with a network", "01-10-0@physnet2", "02-10-0", "02-10-2", "02-10-4", "02-10-6")
	b.verdict(t, "physnet2", "Succeeded", "decides for 5 devices on 1 node; 1 offered")
	b.verdict(t, "physnet3", "Succeeded", "decides for 0 devices on 0 nodes")
	b.mustKubectl(t, "", "label", "node", "igb", "pool=b", "--overwrite")
	m.offered(t, "with the label of the other pool", "01-10-0@physnet2", "02-10-0@physnet3", "02-10-2@physnet3", "02-10-4@physnet3", "02-10-6@physnet3")
	o := b.verdict(t, "physnet3", "Succeeded", "decides for 5 devices on 1 node; 4 offered")
	if s := o.Status; s.Devices != 5 || s.Offered != 4 || s.Nodes != 1 || s.Reported != "1/1" {
		t.Errorf("status %+v", s)
	}
	if table := b.mustKubectl(t, "", "get", "devpol", "physnet3"); !strings.Contains(table, "OFFERED") || !strings.Contains(table, "True") {
		t.Errorf("kubectl get:\n%s", table)
	}
	if text := b.mustKubectl(t, "", "describe", "devpol", "physnet3"); !strings.Contains(text, "decides for 5 devices on 1 node; 4 offered") {
		t.Errorf("kubectl describe:\n%s", text)
	}
	b.still(t, o)

	// A pod's device is not withdrawn from under it, whatever becomes of the policy.
	m.use("pci-0000-02-10-2")
	b.mustKubectl(t, policy("none", "{priority: 10, action: withhold, selector: {cel: "+ofPF("enp3s0f1")+"}}"), "create", "--validate=strict", "-f", "-")
	m.offered(t, "withheld, but for the one in use", "01-10-0@physnet2", "02-10-2@physnet3")
	b.verdict(t, "none", "Succeeded", "decides for 5 devices on 1 node; 1 offered")
	b.mustKubectl(t, "", "delete", "devpol", "physnet3")
	m.use()
	m.offered(t, "released", "01-10-0@physnet2")

	// An edit that cannot be read changes nothing of what is offered: the agent need not
	// have been there before, either.
	for _, c := range []struct{ what, selector string }{
		{"does not compile", `device.`},
		{"is too costly", `device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, device.attributes.all(d, a != b + c + d))))`},
		{"fails", `device.attributes["example.com"].rail == "1"`},
	} {
		b.mustKubectl(t, "", "patch", "devpol", "none", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"selector":{"cel":%q}}}`, c.selector))
		b.eventually(t, "the node has read the edit", func() error {
			if o := b.verdict(t, "none", "Invalid", ""); o.Status.Reported != "1/1" {
				return fmt.Errorf("status %+v", o.Status)
			}
			return nil
		})
		m.stop() // all that it publishes is published then
		m.offered(t, "with an expression that "+c.what, "01-10-0@physnet2")
		m.start(t)
		b.eventually(t, "published after a restart", func() error {
			if !m.to.published.Load() {
				return errors.New("nothing yet")
			}
			return nil
		})
		m.offered(t, "with an expression that "+c.what+", started again", "01-10-0@physnet2")
	}
	b.verdict(t, "none", "Invalid", `no such key: rail`)
	b.mustKubectl(t, "", "delete", "devpol", "none")
	m.offered(t, "without the policy", "01-10-0@physnet2", "02-10-0", "02-10-2", "02-10-4", "02-10-6")

	// A tie changes nothing, and each names the other.
	b.mustKubectl(t, policy("tie", "{action: withhold, selector: {cel: "+ofPF("enp3s0f0")+"}}"), "create", "--validate=strict", "-f", "-")
	b.verdict(t, "tie", "Conflict", `"tie" and "physnet2" have the same priority 0 and decide differently: 5 devices on 1 node stay as they were`)
	b.verdict(t, "physnet2", "Conflict", `"physnet2" and "tie" have the same priority`)
	m.offered(t, "with a tie", "01-10-0@physnet2", "02-10-0", "02-10-2", "02-10-4", "02-10-6")
	b.mustKubectl(t, "", "delete", "devpol", "tie")
	b.verdict(t, "physnet2", "Succeeded", "decides for 5 devices")

	// A pool that does not exist is named, with its network, until there is one.
	b.mustKubectl(t, "", "patch", "devpol", "physnet2", "--type=merge", "-p", `{"spec":{"physicalNetworks":[{"name":"physnet2","vlan":102,"addressPool":"of-physnet2"}]}}`)
	b.verdict(t, "physnet2", "NotReady", `there is no AddressPool "of-physnet2", of physical network "physnet2"`)
	b.mustKubectl(t, addressPool("of-physnet2", "{subnets: [{prefix: 203.0.113.0/24}]}"), "create", "--validate=strict", "-f", "-")
	b.verdict(t, "physnet2", "Succeeded", "decides for 5 devices")
	b.mustKubectl(t, "", "delete", "addresspool", "of-physnet2", "--wait=false")
	b.verdict(t, "physnet2", "NotReady", `"of-physnet2"`)

	b.mustKubectl(t, "", "delete", "devpol", "physnet2")

	// The published policy shares an uplink.
	seed := publishedPolicy(t)
	b.mustKubectl(t, seed, "create", "--validate=strict", "-f", "-")
	b.verdict(t, "localnet-uplink", "Succeeded", "decides for 1 device on 1 node; 1 offered")
	m.offered(t, "with the published policy", "01-00-0-localnet@localnet1", "01-10-0@localnet1", "02-10-0", "02-10-2", "02-10-4", "02-10-6")
	b.mustKubectl(t, "", "delete", "devpol", "--all")

	// Devices that another driver publishes on this node are withheld, and those that it publishes on
	// another is not.
	m.offered(t, "without policies again", all...)
	theirs := otherSlice("igb", "0000:02:10.0")
	for _, s := range []*resourceapi.ResourceSlice{theirs, otherSlice("elsewhere", "0000:02:10.2")} {
		if err := b.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	m.offered(t, "beside another driver", "01-10-0", "02-10-2", "02-10-4", "02-10-6")
	b.eventually(t, "the reason", func() error {
		for _, w := range m.pub.Withheld() {
			if w.Name == "pci-0000-02-10-0" && strings.HasPrefix(w.Reason, `driver "k8s.ovn.org" publishes it on this node, too`) {
				return nil
			}
		}
		return fmt.Errorf("withheld %v", m.pub.Withheld())
	})
	b.mustKubectl(t, policy("beside", "{exposure: {besideDrivers: [k8s.ovn.org], additionalAttributes: {example.com/rail: '3'}}}"), "create", "--validate=strict", "-f", "-")
	m.offered(t, "beside another driver that is named", all...)
	b.mustKubectl(t, "", "delete", "devpol", "beside")
	m.offered(t, "beside another driver again", "01-10-0", "02-10-2", "02-10-4", "02-10-6")
	if err := b.Delete(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	m.offered(t, "without another driver", all...)

	report := &v1alpha1.DeviceExposureReport{}
	if err := b.Get(t.Context(), client.ObjectKey{Name: "igb"}, report); err != nil {
		t.Fatal(err)
	}
	if o := report.OwnerReferences; report.Devices != 10 || len(o) != 1 || o[0].UID != node.UID {
		t.Errorf("report %+v", report)
	}
	m.stop()
	m.stop = func() {}
	b.mustKubectl(t, "", "delete", "node", "igb")
}

// publishedPolicy is the policy of the documentation, for an interface of the fixture.
func publishedPolicy(t *testing.T) string {
	t.Helper()
	for _, f := range archive(t, "../../../topology/exposure/testdata/decide/shared-pf.txtar") {
		if f.Name == "policies.yaml" {
			return string(f.Data)
		}
	}
	t.Fatal("no policy")
	return ""
}

func otherSlice(node, address string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "theirs-" + node}}
	s.Spec = resourceapi.ResourceSliceSpec{
		Driver: "k8s.ovn.org", NodeName: new(node), Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "x", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/pciBusID": {StringValue: new(address)},
		}}},
	}
	return s
}

// refusedPolicies has one sentence for each policy that admission refuses.
func (b *bench) refusedPolicies(t *testing.T) {
	for spec, want := range map[string]string{
		`{selector: {cel: device.}}`: `DeviceExposurePolicy "p": spec.selector.cel: 1:8: Syntax error: no viable alternative at input '.'`,
		`{selector: {cel: 'device.attributes["dra.networking"].pfname == "x"'}}`:                  `DeviceExposurePolicy "p": spec.selector.cel: no device has an attribute "pfname", and reading a missing attribute is an error, did you mean "pfName"?`,
		`{exposure: {additionalAttributes: {dra.networking/type: pf}}}`:                           `DeviceExposurePolicy "p": spec.exposure.additionalAttributes["dra.networking/type"]: the domain "dra.networking" is reserved for plumbline, and a policy can set only dra.networking/physicalNetworkName in it: use a domain of your own, as in example.com/type`,
		`{exposure: {additionalAttributes: {example.com/rail: ` + strings.Repeat("x", 65) + `}}}`: `DeviceExposurePolicy "p": spec.exposure.additionalAttributes["example.com/rail"]: the value has 65 bytes, an attribute takes 64`,
		`{exposure: {deviceNameSuffix: -x}}`:                                                      `DeviceExposurePolicy "p": spec.exposure.deviceNameSuffix: is for shared devices: set allowMultipleAllocations: true, or remove it`,
	} {
		b.says(t, policy("p", spec), want)
	}
	for spec, want := range map[string]string{
		`{action: withhold, exposure: {besideDrivers: [x]}}`: "exposure is of action expose: remove it, or change the action",
		`{action: hide}`: `Unsupported value: "hide": supported values: "expose", "withhold"`,
		`{physicalNetworks: [{name: a, vlan: 4095}]}`: "should be less than or equal to 4094",
		`{exposure: {allowMultipleAllocation: true}}`: `unknown field "spec.exposure.allowMultipleAllocation"`,
		`{physicalNetworks: [{name: a}, {name: a}]}`:  "Duplicate value",
	} {
		if said := b.refused(t, policy("p", spec)); !strings.Contains(said, want) {
			t.Errorf("%s: said\n%s\nwant %s", spec, said, want)
		}
	}
	b.mustKubectl(t, policy("first", "{priority: 7}"), "create", "-f", "-")
	_, err := b.Kubectl(t.Context(), strings.NewReader(policy("second", "{priority: 7}")), "create", "--dry-run=server", "--warnings-as-errors", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), `Warning: DeviceExposurePolicy "first" also has priority 7`) {
		t.Errorf("said: %v", err)
	}
	b.mustKubectl(t, "", "delete", "devpol", "first")
}
