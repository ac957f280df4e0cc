package draplugin_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/draplugin"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// given simulates the API server and the host.
type given struct {
	*draplugin.Plugin
	t         *testing.T
	store     *claims.Store
	topology  *v1alpha1.NetworkTopology
	claims    map[string]*resourceapi.ResourceClaim
	devices   []inventory.Device
	withdrawn []types.UID
	withdraw  func(uid types.UID) // called first
	prepared  []types.UID         // claims whose devices were prepared
	fails     error               // of that
	results   []topology.StepResult
	// withdrawnDevices are published as withdrawn.
	withdrawnDevices map[string]bool

	mu   sync.Mutex
	cond *sync.Cond
	log  []string // messages about claims
}

// Enabled, Handle, WithAttrs and WithGroup implement slog.Handler: only the log shows which
// claims wait.
func (g *given) Enabled(context.Context, slog.Level) bool { return true }
func (g *given) WithAttrs([]slog.Attr) slog.Handler       { return g }
func (g *given) WithGroup(string) slog.Handler            { return g }
func (g *given) Handle(_ context.Context, r slog.Record) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "claim" {
			g.log = append(g.log, r.Message+" "+a.Value.String())
		}
		return true
	})
	g.cond.Broadcast()
	return nil
}

// logged returns when a message about a claim has been logged.
func (g *given) logged(message, uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !slices.Contains(g.log, message+" ns/claim-"+uid) {
		g.cond.Wait()
	}
}

// Topology implements draplugin.Cluster.
func (g *given) Topology(_ context.Context, name string) (*v1alpha1.NetworkTopology, error) {
	if g.topology == nil || g.topology.Name != name {
		return nil, fault.New(fault.NotReady, errors.New("does not exist"))
	}
	return g.topology, nil
}

// Claim implements draplugin.Cluster.
func (g *given) Claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	return g.claims[name], nil
}

// Beside implements draplugin.Cluster.
func (g *given) Beside(context.Context, *resourceapi.ResourceClaim) ([]string, error) {
	return []string{"0000:0a:00.0"}, nil
}

// Prepare implements draplugin.Keeper.
func (g *given) Prepare(_ context.Context, c *claims.Claim) error {
	for _, t := range c.Topologies {
		if t.Prepared {
			g.prepared = append(g.prepared, c.UID)
		}
	}
	return g.fails
}

// Withdraw implements draplugin.Keeper.
func (g *given) Withdraw(_ context.Context, uid types.UID) error {
	if g.withdraw != nil {
		g.withdraw(uid)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.withdrawn = append(g.withdrawn, uid)
	return g.store.Remove(uid)
}

func newGiven(t *testing.T) *given {
	t.Helper()
	dir := t.TempDir()
	j, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	g := &given{t: t, claims: map[string]*resourceapi.ResourceClaim{}}
	g.cond = sync.NewCond(&g.mu)
	if g.store, err = claims.Open(claims.Options{Dir: filepath.Join(dir, "claims"), Locker: j, BootID: "b"}); err != nil {
		t.Fatal(err)
	}
	g.topology = &v1alpha1.NetworkTopology{
		ObjectMeta: metav1.ObjectMeta{Name: "pair", UID: "t-uid", Generation: 2},
		Spec: v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{
			{Name: "vf0", Type: "sriov", Selector: &v1alpha1.Selector{CEL: `device.attributes["dra.networking"].pfName == "enp3s0f0"`}},
			{Name: "vf1", Type: "sriov"},
		}},
	}
	for _, name := range []string{"0", "1", "2"} {
		g.devices = append(g.devices, inventory.Device{
			ID: "0000:03:10." + name, Name: "pci-0000-03-10-" + name, Kind: inventory.KindVF, Driver: "igbvf",
			PF: &inventory.PF{PCIAddress: "0000:03:00.0", IfName: "enp3s0f0"}, IfName: "enp3s0f0v" + name,
		})
	}
	g.Plugin = draplugin.New(draplugin.Options{
		Store: g.store, Keeper: g, Cluster: g, Contracts: registry,
		Discover:    func() ([]inventory.Device, error) { return g.devices, nil },
		Results:     func(reconcile.SandboxID) []topology.StepResult { return g.results },
		HandleError: func(error, string) {},
		Withdrawn:   func(device string) bool { return g.withdrawnDevices[device] },
		Log:         slog.New(g), Now: time.Now,
	})
	return g
}

// allocated is a claim of a pod with a device for each of both steps.
func allocated(uid types.UID, pod types.UID, devices ...string) *resourceapi.ResourceClaim {
	rc := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-" + string(uid), UID: uid}}
	rc.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-" + string(pod), UID: pod}}
	rc.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range devices {
		step := []string{"vf0", "vf1"}[i]
		a := &rc.Status.Allocation.Devices
		a.Results = append(a.Results, resourceapi.DeviceRequestAllocationResult{Request: "r-" + step, Driver: claim.Driver, Pool: "n", Device: "pci-0000-03-10-" + d})
		a.Config = append(a.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClass, Requests: []string{"r-" + step},
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"networkTopologyRef":{"name":"pair","uid":"t-uid","generation":2},"step":"` + step + `"}`)},
			}},
		})
	}
	return rc
}

func (g *given) prepare(rc *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	g.t.Helper()
	out, err := g.PrepareResourceClaims(g.t.Context(), []*resourceapi.ResourceClaim{rc})
	if err != nil || len(out) != 1 {
		g.t.Errorf("%v, %v: want an entry per claim", out, err)
	}
	return out[rc.UID].Devices, out[rc.UID].Err
}

func (g *given) refused(rc *resourceapi.ResourceClaim, kind fault.Kind, text string) {
	g.t.Helper()
	_, err := g.prepare(rc)
	if err == nil || fault.Of(err) != kind || !strings.Contains(err.Error(), text) {
		g.t.Errorf("error %v of kind %s, want %s and %q", err, fault.Of(err), kind, text)
	}
	if _, known, _ := g.store.Get(rc.UID); known {
		g.t.Error("refused, and recorded")
	}
	for _, secret := range []string{"claim-c1", "pod-p1"} { // of another tenant
		if rc.UID != "c1" && strings.Contains(err.Error(), secret) {
			g.t.Errorf("the error reveals %s: %v", secret, err)
		}
	}
}

func TestPrepare(t *testing.T) {
	g := newGiven(t)
	rc := allocated("c1", "p1", "0", "1")
	first, err := g.prepare(rc)
	if err != nil || len(first) != 2 {
		t.Fatal(first, err)
	}
	for i, d := range first {
		if d.Requests[0] != []string{"r-vf0", "r-vf1"}[i] || d.PoolName != "n" || d.CDIDeviceIDs[0] != "dra.networking/gate=c1" {
			t.Errorf("device %+v", d)
		}
		if a := d.Metadata.Attributes["type"]; a.StringValue == nil || *a.StringValue != "vf" || d.Metadata.NetworkData != nil {
			t.Errorf("metadata %+v", d.Metadata)
		}
	}

	// From then on it is answered from the record alone, also while the claim is being
	// attached.
	g.topology, g.devices = nil, nil
	unlock, err := g.store.Lock(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	e, _, _ := g.store.Get("c1")
	e.Set(claims.Sandbox{ID: "s", PodUID: "p1", Phase: claims.Attached})
	if err := g.store.PutSandboxes(e); err != nil {
		t.Fatal(err)
	}
	g.results = []topology.StepResult{{Name: "vf0", Result: topology.Result{
		Interfaces: []topology.Interface{{Name: "net1", MAC: "02:00:00:00:00:01"}}, IPs: []topology.IP{{Address: "192.0.2.7/24", Interface: new(int)}},
	}}}
	again, err := g.prepare(rc)
	if err != nil || len(again) != 2 {
		t.Fatal(again, err)
	}
	if n := again[0].Metadata.NetworkData; n == nil || n.InterfaceName != "net1" || len(n.IPs) != 1 || n.IPs[0] != "192.0.2.7/24" {
		t.Errorf("network data %+v", n)
	}
	out, err := g.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: "c1"}, {UID: "unknown"}})
	if err != nil || len(out) != 2 || out["c1"] != nil || out["unknown"] != nil {
		t.Errorf("unprepare: %v, %v", out, err)
	}
}

// patience is how long a claim waits for temporary conditions.
const patience = 40 * time.Second

// inBubble runs a test with a fake clock (synctest).
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(g *given, rc *resourceapi.ResourceClaim)
		kind   fault.Kind
		text   string
		// waits is how long it takes: it waits for temporary conditions to end.
		waits time.Duration
	}{
		{"with config", func(_ *given, rc *resourceapi.ResourceClaim) {
			rc.Status.Allocation.Devices.Results = rc.Status.Allocation.Devices.Results[:1]
		}, fault.Invalid, `NetworkTopology "pair" root step "vf1" has no matching device request in ResourceClaim "claim-c1". The ResourceClaim must contain a request named "vf1" with deviceClassName "pair-vf1".`, 0},
		{"two pods", func(_ *given, rc *resourceapi.ResourceClaim) {
			rc.Status.ReservedFor = append(rc.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "q"})
		}, fault.Invalid, "is shared by pods/pod-p1, pods/q", 0},
		{"a group of pods", func(_ *given, rc *resourceapi.ResourceClaim) {
			rc.Status.ReservedFor[0] = resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g"}
		}, fault.Invalid, `reserved for podgroups "g"`, 0},
		{"no pod", func(_ *given, rc *resourceapi.ResourceClaim) { rc.Status.ReservedFor = nil }, fault.NotReady, "not reserved for a pod", 0},
		{"no topology", func(g *given, _ *resourceapi.ResourceClaim) { g.topology = nil }, fault.NotReady, "does not exist", 0},
		{"another topology of the name", func(g *given, _ *resourceapi.ResourceClaim) { g.topology.UID = "other" }, fault.Invalid, "deleted and created again", 0},
		{"a topology that is wrong", func(g *given, _ *resourceapi.ResourceClaim) { g.topology.Spec.Steps[1].Type = "srov" }, fault.Invalid, "srov", 0},
		{"an edit that chooses another device", func(g *given, _ *resourceapi.ResourceClaim) {
			g.topology.Generation = 3
			g.topology.Spec.Steps[0].Selector.CEL = `device.attributes["dra.networking"].pfName == "enp9s0"`
		}, fault.Invalid, "generation 2 then, 3 now", 0},
		{"a device that went", func(g *given, _ *resourceapi.ResourceClaim) { g.devices = g.devices[1:] }, fault.NotReady, `device "pci-0000-03-10-0" is not on this node any more`, patience},
		{"the node's uplink", func(g *given, _ *resourceapi.ResourceClaim) { g.devices[0].HostUse = inventory.DefaultRoute }, fault.Conflict, "used by the node itself", 0},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			g := newGiven(t)
			rc := allocated("c1", "p1", "0", "1")
			c.change(g, rc)
			begun := time.Now()
			g.refused(rc, c.kind, c.text)
			if took := time.Since(begun); took != c.waits {
				t.Errorf("refused after %s, want %s", took, c.waits)
			}
		})
	}
}

// TestTopologiesOfOnePod: a claim is refused if its topology makes an interface of a name that one of another claim of
// the pod makes, before anything is recorded of it. Other pods have the name, too.
func TestTopologiesOfOnePod(t *testing.T) {
	g := newGiven(t)
	first := allocated("c1", "p1", "0", "1")
	g.claims[first.Name] = first
	if _, err := g.prepare(first); err != nil {
		t.Fatal(err)
	}
	tail := g.topology.DeepCopy()
	tail.Name, tail.UID, tail.Spec.Steps = "tail", "t-uid-2", []v1alpha1.Step{{Name: "vf0", Type: "sriov"}}
	g.topology = tail
	of := func(uid, pod types.UID) *resourceapi.ResourceClaim {
		rc := allocated(uid, pod, "2")
		p := &rc.Status.Allocation.Devices.Config[0].Opaque.Parameters
		p.Raw = []byte(strings.NewReplacer(`"pair"`, `"tail"`, "t-uid", "t-uid-2").Replace(string(p.Raw)))
		return rc
	}
	begun := time.Now()
	g.refused(of("c2", "p1"), fault.Invalid, `NetworkTopology "tail", step "vf0": makes an interface "net1", as step "vf0" of NetworkTopology "pair" does in the same pod: set another ifName`)
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("refused after %s, although waiting does not help", took)
	}
	if _, err := g.prepare(of("c3", "p2")); err != nil {
		t.Errorf("in another pod: %v", err)
	}
	if err := g.store.Remove("c3"); err != nil {
		t.Fatal(err)
	}
	// A function of a userspace driver makes no interface.
	vf := &g.devices[2]
	kernel := *vf
	vf.Driver, vf.IfName = "vfio-pci", ""
	if _, err := g.prepare(of("c4", "p1")); err != nil {
		t.Errorf("for a userspace driver: %v", err)
	}
	if err := g.store.Remove("c4"); err != nil {
		t.Fatal(err)
	}
	*vf = kernel
	g.in(first.UID, "p1", claims.Attached)
	g.refused(of("c2", "p1"), fault.Invalid, "in the same pod")
	g.in(first.UID, "p1", claims.Released)
	if _, err := g.prepare(of("c5", "p1")); err != nil {
		t.Errorf("beside a claim that is released: %v", err)
	}
	if err := g.store.Remove("c5"); err != nil {
		t.Fatal(err)
	}
	if err := g.store.PutSandboxes(claims.Entry{Claim: claims.Claim{UID: first.UID}}); err != nil { // in none yet, as before
		t.Fatal(err)
	}
	tail.Spec.Steps[0].Config = &runtime.RawExtension{Raw: []byte(`{"ifName": "tail0"}`)}
	if _, err := g.prepare(of("c2", "p1")); err != nil {
		t.Errorf("with another name: %v", err)
	}
	// A recorded claim is not refused, whatever its other claims are by now.
	tail.Spec.Steps[0].Config = nil
	if _, err := g.prepare(of("c2", "p1")); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := g.store.Remove("c2"); err != nil {
		t.Fatal(err)
	}
	// The record of a claim that no longer exists conflicts with none.
	delete(g.claims, first.Name)
	if _, err := g.prepare(of("c2", "p1")); err != nil || !slices.Equal(g.withdrawn, []types.UID{"c1"}) {
		t.Errorf("beside a claim that no longer exists: %v, withdrawn %s", err, g.withdrawn)
	}
}

// TestEdited holds that an edit that still chooses the devices is accepted.
func TestEdited(t *testing.T) {
	g := newGiven(t)
	g.topology.Generation = 3
	if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
		t.Error(err)
	}
	if e, _, _ := g.store.Get("c1"); e.Topologies[0].Object.Generation != 3 {
		t.Errorf("pinned generation %d", e.Topologies[0].Object.Generation)
	}
}

// TestOneOfSeveralNetworks holds that of the networks behind a PF the pod is in the one by
// which the step's selector chose the function, and in none if it names none.
func TestOneOfSeveralNetworks(t *testing.T) {
	for selector, want := range map[string]struct {
		network string
		vlan    uint16
	}{
		`device.attributes["dra.networking"].physicalNetworkName == "physnet3"`:                            {"physnet3", 103},
		`"physnet4" in device.attributes["dra.networking"].physicalNetworks.split(",")`:                    {"physnet4", 104},
		`!("physnet3" in device.attributes["dra.networking"].physicalNetworks.split(","))`:                 {"physnet4", 104},
		`device.attributes["dra.networking"].physicalNetworks.split(",").exists(n, n.startsWith("phys"))`:  {"physnet3,physnet4", 0},
		`device.attributes["dra.networking"].pfName == "enp3s0f0"`:                                         {"physnet3,physnet4", 0},
		`device.attributes["dra.networking"].physicalNetworks == "physnet3,physnet4"`:                      {"physnet3,physnet4", 0},
		`device.attributes["dra.networking"].physicalNetworks.split(",")[1] == "physnet4"`:                 {"physnet3,physnet4", 0},
		`device.attributes["dra.networking"].physicalNetworks.split(",").exists_one(n, n == "physnet4")`:   {"physnet4", 104},
		`device.driver == "dra.networking" && device.attributes["dra.networking"].?none.orValue("") == ""`: {"physnet3,physnet4", 0},
		``: {"physnet3,physnet4", 0},
	} {
		g := newGiven(t)
		for i := range g.devices {
			g.devices[i].LinkType = inventory.Ethernet
			g.devices[i].PhysicalNetwork = "physnet3"
			g.devices[i].PhysicalNetworks = []inventory.PhysicalNetwork{{Name: "physnet3", VLAN: 103}, {Name: "physnet4", VLAN: 104}}
		}
		g.topology.Spec.Steps[0].Selector = &v1alpha1.Selector{CEL: selector}
		if selector == "" {
			g.topology.Spec.Steps[0].Selector = nil
		}
		if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
			t.Errorf("%s: %v", selector, err)
			continue
		}
		e, _, _ := g.store.Get("c1")
		d := e.Topologies[0].Devices[0]
		if network := inventory.JoinNetworks(d.Host); network != want.network || d.Given().VLAN != want.vlan {
			t.Errorf("%s: network %q, VLAN %d, want %+v", selector, network, d.Given().VLAN, want)
		}
	}
}

// in sets the phase of a claim in a sandbox.
func (g *given) in(uid, pod types.UID, phase claims.Phase) {
	g.t.Helper()
	e, _, _ := g.store.Get(uid)
	e.Set(claims.Sandbox{ID: "s", PodUID: pod, Phase: phase})
	if err := g.store.PutSandboxes(e); err != nil {
		g.t.Error(err)
	}
}

func TestExclusive(t *testing.T) {
	next := allocated("c2", "p2", "1", "2")
	for _, c := range []struct {
		name   string
		before func(g *given)
		free   bool
		typ    string // of the second step; "" is sriov
	}{
		{"attached", func(g *given) { g.in("c1", "p1", claims.Attached) }, false, ""},
		{"stopping", func(g *given) { g.in("c1", "p1", claims.Stopping) }, false, ""},
		{"released", func(g *given) { g.in("c1", "p1", claims.Released) }, true, ""},
		{"released, with a driver bound", func(g *given) {
			g.claims["claim-c1"] = allocated("c1", "p1", "0", "1")
			g.in("c1", "p1", claims.Released)
		}, false, "vfio-pci"},
		{"prepared, to be attached", func(g *given) { g.claims["claim-c1"] = allocated("c1", "p1", "0", "1") }, false, ""},
		{"prepared, and its pod gone", func(*given) {}, true, ""},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			g := newGiven(t)
			g.topology.Spec.Steps[1].Type = cmp.Or(c.typ, "sriov")
			if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
				t.Fatal(err)
			}
			c.before(g)
			if !c.free {
				g.refused(next, fault.Conflict, `device "pci-0000-03-10-1" is still in use by another pod`)
			} else if _, err := g.prepare(next); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOtherVersion holds that a claim whose record another version has written is not
// decided again, that its devices are given to no other claim, and that claims for
// other devices are not affected.
func TestOtherVersion(t *testing.T) {
	g := newGiven(t)
	claim := allocated("c1", "p1", "0", "1")
	if _, err := g.prepare(claim); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(g.store.Dir, "c1.claim")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	later := append([]byte("9"), data[len(frame.Version):]...)
	if err := os.WriteFile(path, later, 0o600); err != nil {
		t.Fatal(err)
	}
	g.refused(claim, fault.Conflict, `record of claim "c1": written by another version of plumbline and left alone (version "9" is unknown)`)
	g.refused(allocated("c2", "p2", "1", "2"), fault.Conflict, `device "pci-0000-03-10-1" is held by another ResourceClaim: its record was written by another version`)
	g.topology.Spec.Steps = g.topology.Spec.Steps[:1]
	alone := allocated("c3", "p3", "2")
	if _, err := g.prepare(alone); err != nil {
		t.Errorf("a claim for another device: %v", err)
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, later) {
		t.Errorf("the record is another: %v\n%s", err, have)
	}
	if len(g.withdrawn) > 0 {
		t.Errorf("withdrawn: %q", g.withdrawn)
	}
}

// slowCluster is a cluster whose API server takes long for a topology.
type slowCluster struct{ draplugin.Cluster }

func (c slowCluster) Topology(ctx context.Context, name string) (*v1alpha1.NetworkTopology, error) {
	time.Sleep(patience + time.Second)
	return c.Cluster.Topology(ctx, name)
}

// TestOverloaded holds that a claim whose time is over in the first try is not said to have a wrong topology.
func TestOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGiven(t)
		g.Cluster = slowCluster{g}
		g.refused(allocated("c1", "p1", "0", "1"), fault.NotReady, "this node or the API server is overloaded; retrying: ")
	})
}

// TestNextPod holds that a claim that outlives its pod is prepared for the next one when it
// is detached from the first.
func TestNextPod(t *testing.T) { synctest.Test(t, testNextPod) }

func testNextPod(t *testing.T) {
	g := newGiven(t)
	if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
		t.Fatal(err)
	}
	g.in("c1", "p1", claims.Attached)
	if _, err := g.prepare(allocated("c1", "p2", "0", "1")); fault.Of(err) != fault.Conflict {
		t.Errorf("in two pods: %v", err)
	}
	time.AfterFunc(10*time.Second, func() { g.in("c1", "p1", claims.Released) })
	begun := time.Now()
	if _, err := g.prepare(allocated("c1", "p2", "0", "1")); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took < 10*time.Second || took > 11*time.Second {
		t.Errorf("prepared after %s", took)
	}
	if e, _, _ := g.store.Get("c1"); e.Pod.UID != "p2" {
		t.Errorf("recorded for pod %q", e.Pod.UID)
	}
}

// TestReallocated holds that a claim that was reallocated while the node was down gets the
// devices of its allocation, not those of its record.
func TestReallocated(t *testing.T) {
	for _, c := range []struct {
		name     string
		topology types.UID
		devices  []string
		pod      types.UID
		kept     bool
	}{
		{"the same", "t-uid", []string{"0", "1"}, "p2", true},
		{"another device", "t-uid", []string{"2", "1"}, "p2", false},
		{"the devices exchanged", "t-uid", []string{"1", "0"}, "p2", false},
		{"another topology of the name", "t-uid-2", []string{"0", "1"}, "p2", false},
		{"another device for the same pod", "t-uid", []string{"2", "1"}, "p1", false},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			g := newGiven(t)
			if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
				t.Fatal(err)
			}
			g.topology.UID, g.topology.Generation = c.topology, 3
			rc := allocated("c1", c.pod, c.devices...)
			for i := range rc.Status.Allocation.Devices.Config {
				p := &rc.Status.Allocation.Devices.Config[i].Opaque.Parameters
				p.Raw = []byte(strings.ReplaceAll(string(p.Raw), `"t-uid"`, `"`+string(c.topology)+`"`))
			}
			devices, err := g.prepare(rc)
			if err != nil {
				t.Fatal(err)
			}
			for i, d := range devices {
				if want := "pci-0000-03-10-" + c.devices[i]; d.DeviceName != want {
					t.Errorf("kubelet receives %s, want %s", d.DeviceName, want)
				}
			}
			e, _, _ := g.store.Get("c1")
			generation := int64(3)
			if c.kept {
				generation = 2
			}
			if o := e.Topologies[0].Object; e.Pod.UID != c.pod || o.UID != c.topology || o.Generation != generation {
				t.Errorf("recorded for pod %q: topology %q, generation %d", e.Pod.UID, o.UID, o.Generation)
			}
			if released := slices.Contains(g.withdrawn, "c1"); released == c.kept {
				t.Errorf("what the record was of: released %t", released)
			}
		})
	}
}

// TestReallocatedWaits holds that what the earlier allocation has in a sandbox is
// released before the new one is recorded.
func TestReallocatedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGiven(t)
		if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
			t.Fatal(err)
		}
		g.in("c1", "p1", claims.Stopping)
		time.AfterFunc(5*time.Second, func() { g.in("c1", "p1", claims.Released) })
		begun := time.Now()
		if devices, err := g.prepare(allocated("c1", "p2", "2", "1")); err != nil || devices[0].DeviceName != "pci-0000-03-10-2" {
			t.Errorf("%+v, %v", devices, err)
		}
		if took := time.Since(begun); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("prepared after %s", took)
		}
	})
}

// TestAtOnce holds that of claims that are prepared at the same time no two get the
// same device.
func TestAtOnce(t *testing.T) { synctest.Test(t, testAtOnce) }

func testAtOnce(t *testing.T) {
	g := newGiven(t)
	pods := []types.UID{"a", "b", "c", "d", "e", "f"}
	for _, uid := range pods { // all of them exist, so that none counts as lost
		g.claims["claim-"+string(uid)] = allocated(uid, uid, "0", "1")
	}
	var wg sync.WaitGroup
	errs := make([]error, len(pods))
	for i, uid := range pods {
		wg.Go(func() { _, errs[i] = g.prepare(allocated(uid, uid, "0", "1")) })
	}
	wg.Wait()
	prepared := 0
	for _, err := range errs {
		switch {
		case err == nil:
			prepared++
		case fault.Of(err) != fault.Conflict:
			t.Error(err)
		}
	}
	if entries, errs := g.store.List(); prepared != 1 || len(entries) != 1 || len(errs) > 0 {
		t.Errorf("%d claims are prepared, %d recorded: %v", prepared, len(entries), errs)
	}
}

// TestOthers holds that a claim without devices of ours is ignored.
func TestOthers(t *testing.T) {
	g := newGiven(t)
	rc := allocated("c1", "p1", "0", "1")
	for i := range rc.Status.Allocation.Devices.Results {
		rc.Status.Allocation.Devices.Results[i].Driver = "gpu.example.com"
	}
	if devices, err := g.prepare(rc); err != nil || len(devices) != 0 {
		t.Errorf("%v, %v", devices, err)
	}
	if entries, _ := g.store.List(); len(entries) != 0 {
		t.Errorf("recorded: %v", entries)
	}
}

// TestPrepareDevices: what needs no sandbox is prepared before the kubelet is answered,
// and again as long as the claim is in no sandbox: a boot undoes it.
func TestPrepareDevices(t *testing.T) {
	g := newGiven(t)
	plain := allocated("plain", "q", "0", "2")
	if _, err := g.prepare(plain); len(g.prepared) != 0 {
		t.Errorf("without device nodes: %v, prepared %v", err, g.prepared)
	}
	if err := g.store.Remove("plain"); err != nil {
		t.Fatal(err)
	}
	g.topology.Spec.Steps[1].Type = "vfio-pci"
	g.topology.Spec.Steps = append(g.topology.Spec.Steps, v1alpha1.Step{Name: "verbs", Type: "rdma", DependOn: []string{"vf0"}}) // is not prepared
	rc := allocated("a", "p", "0", "1")
	g.fails = fault.New(fault.Unsupported, errors.New("not loaded"))
	if _, err := g.prepare(rc); fault.Of(err) != fault.Unsupported {
		t.Errorf("a driver that is not loaded: %v", err)
	}
	g.fails = nil
	for range 2 {
		if _, err := g.prepare(rc); err != nil {
			t.Fatal(err)
		}
	}
	if len(g.prepared) != 3 {
		t.Errorf("prepared %v, want thrice", g.prepared)
	}
	e, _, err := g.store.Get("a")
	if err != nil {
		t.Fatal(err)
	}
	e.Set(claims.Sandbox{ID: "s", PodUID: "p", Phase: claims.Attached})
	if err := g.store.PutSandboxes(e); err != nil {
		t.Fatal(err)
	}
	g.results = []topology.StepResult{{Name: "vf1", Result: topology.Result{Devices: &topology.Devices{IOMMUGroup: "42", DeviceNodes: []string{"/dev/vfio/42", "/dev/vfio/vfio"}}}}}
	devices, err := g.prepare(rc)
	if err != nil || len(g.prepared) != 3 {
		t.Errorf("in a sandbox: %v, prepared %v", err, g.prepared)
	}
	for name, want := range map[string]string{"iommuGroup": "42", "deviceNode": "/dev/vfio/42"} {
		if a := devices[1].Metadata.Attributes[name]; a.StringValue == nil || *a.StringValue != want {
			t.Errorf("metadata: %s is %+v, want %q", name, a, want)
		}
		if _, there := devices[0].Metadata.Attributes[name]; there {
			t.Errorf("metadata: a device with an interface has %s", name)
		}
	}
	g.results = []topology.StepResult{{Name: "vf0", Result: topology.Result{Devices: &topology.Devices{RDMADevice: "mlx5_2", DeviceNodes: []string{"/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"}}}}}
	if devices, err = g.prepare(rc); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"rdmaDevice": "mlx5_2", "deviceNode": "/dev/infiniband/uverbs2"} {
		if a := devices[0].Metadata.Attributes[name]; a.StringValue == nil || *a.StringValue != want {
			t.Errorf("metadata: %s is %+v, want %q", name, a, want)
		}
	}

	of := e.Topologies[0].Devices[0].Host.PCIAddress()
	g.results = []topology.StepResult{{Name: "vf0"}, {Name: "verbs", Result: topology.Result{Devices: &topology.Devices{PCIAddress: of, RDMADevice: "mlx5_3"}}}}
	if devices, err = g.prepare(rc); err != nil {
		t.Fatal(err)
	}
	if a := devices[0].Metadata.Attributes["rdmaDevice"]; a.StringValue == nil || *a.StringValue != "mlx5_3" {
		t.Errorf("metadata: the RDMA device of a derived step is %+v", a)
	}

	part, err := e.Preparation(&e.Topologies[0], &e.Topologies[0].Object, g.Contracts)
	if err != nil || part.Netns != "" || !part.ID.Origin().Prepared || len(part.Topology.Steps) != 1 || part.Topology.Steps[0].Name != "vf1" || len(part.Given) != 1 || part.Prepared != "" {
		t.Errorf("preparation: %v, %+v", err, part)
	}
	whole, err := e.Sandboxes("s", "/netns")
	if err != nil || whole[0].Prepared != part.ID || len(whole[0].Given) != 2 {
		t.Errorf("sandboxes: %v, %+v", err, whole)
	}
}

// lockThen calls a function when the decision about devices is locked.
type lockThen struct {
	claims.Locker
	then func()
}

func (l lockThen) Lock(ctx context.Context, name reconcile.SandboxID) (func(), error) {
	unlock, err := l.Locker.Lock(ctx, name)
	if name == "claims" {
		l.then()
	}
	return unlock, err
}

// TestGivenUpLast holds that nothing is recorded once the kubelet has given up, up to the last moment: it may have
// unprepared the claim, and would not again.
func TestGivenUpLast(t *testing.T) {
	g := newGiven(t)
	ctx, cancel := context.WithCancel(t.Context())
	g.store.Locker = lockThen{g.store.Locker, cancel}
	rc := allocated("c1", "p1", "0", "1")
	if out, err := g.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{rc}); err != nil || out["c1"].Err == nil {
		t.Errorf("%+v, %v", out, err)
	}
	if _, known, err := g.store.Get("c1"); known || err != nil {
		t.Errorf("recorded: %t, %v", known, err)
	}
}
