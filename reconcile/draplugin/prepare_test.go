package draplugin_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/claims"
	"github.com/plumbline/plumbline/reconcile/draplugin"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// given is what the API server and the host would say.
type given struct {
	*draplugin.Plugin
	t         *testing.T
	store     *claims.Store
	topology  *v1alpha1.NetworkTopology
	claims    map[string]*resourceapi.ResourceClaim
	devices   []inventory.Device
	withdrawn []types.UID
	results   []topology.StepResult
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

// Withdraw implements draplugin.Keeper.
func (g *given) Withdraw(_ context.Context, uid types.UID) error {
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
	if g.store, err = claims.Open(claims.Options{Dir: filepath.Join(dir, "claims"), Locker: j, BootID: "b", Now: time.Now}); err != nil {
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
		Discover: func() ([]inventory.Device, error) { return g.devices, nil },
		Results:  func(reconcile.SandboxID) []topology.StepResult { return g.results },
		Changed:  func() {}, HandleError: func(error, string) {},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
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
		g.t.Fatalf("%v, %v: want an entry per claim", out, err)
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

	// From then on it is answered from the record, whatever has become of the rest.
	g.topology, g.devices = nil, nil
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

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		turn func(g *given, rc *resourceapi.ResourceClaim)
		kind fault.Kind
		text string
	}{
		{"seed 8.2", func(_ *given, rc *resourceapi.ResourceClaim) {
			rc.Status.Allocation.Devices.Results = rc.Status.Allocation.Devices.Results[:1]
		}, fault.Invalid, `NetworkTopology "pair" root step "vf1" has no matching device request in ResourceClaim "claim-c1". The ResourceClaim must contain a request named "vf1" with deviceClassName "pair-vf1".`},
		{"two pods", func(_ *given, rc *resourceapi.ResourceClaim) {
			rc.Status.ReservedFor = append(rc.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "q"})
		}, fault.Invalid, "is shared by pods/pod-p1, pods/q"},
		{"a group of pods", func(_ *given, rc *resourceapi.ResourceClaim) {
			rc.Status.ReservedFor[0] = resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g"}
		}, fault.Invalid, `reserved for podgroups "g"`},
		{"no pod", func(_ *given, rc *resourceapi.ResourceClaim) { rc.Status.ReservedFor = nil }, fault.NotReady, "reserved for no pod"},
		{"no topology", func(g *given, _ *resourceapi.ResourceClaim) { g.topology = nil }, fault.NotReady, "does not exist"},
		{"another topology of the name", func(g *given, _ *resourceapi.ResourceClaim) { g.topology.UID = "other" }, fault.Invalid, "deleted and created again"},
		{"a topology that is wrong", func(g *given, _ *resourceapi.ResourceClaim) { g.topology.Spec.Steps[1].Type = "srov" }, fault.Invalid, "srov"},
		{"an edit that chooses another device", func(g *given, _ *resourceapi.ResourceClaim) {
			g.topology.Generation = 3
			g.topology.Spec.Steps[0].Selector.CEL = `device.attributes["dra.networking"].pfName == "enp9s0"`
		}, fault.Invalid, "generation 2 then, 3 now"},
		{"a device that went", func(g *given, _ *resourceapi.ResourceClaim) { g.devices = g.devices[1:] }, fault.NotReady, `device "pci-0000-03-10-0" is not on this node any more`},
		{"the node's uplink", func(g *given, _ *resourceapi.ResourceClaim) { g.devices[0].HostUse = inventory.DefaultRoute }, fault.Conflict, "kept by the node"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGiven(t)
			rc := allocated("c1", "p1", "0", "1")
			c.turn(g, rc)
			g.refused(rc, c.kind, c.text)
		})
	}
}

// TestEdited holds that an edit that still chooses the devices is taken.
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

func TestExclusive(t *testing.T) {
	in := func(g *given, phase claims.Phase) {
		e, _, _ := g.store.Get("c1")
		e.Set(claims.Sandbox{ID: "s", PodUID: "p1", Phase: phase})
		if err := g.store.PutSandboxes(e); err != nil {
			g.t.Fatal(err)
		}
	}
	next := allocated("c2", "p2", "1", "2")
	for _, c := range []struct {
		name   string
		before func(g *given)
		free   bool
	}{
		{"attached", func(g *given) { in(g, claims.Attached) }, false},
		{"stopping", func(g *given) { in(g, claims.Stopping) }, false},
		{"released", func(g *given) { in(g, claims.Released) }, true},
		{"prepared, to be attached", func(g *given) { g.claims["claim-c1"] = allocated("c1", "p1", "0", "1") }, false},
		{"prepared, and its pod gone", func(*given) {}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGiven(t)
			if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
				t.Fatal(err)
			}
			c.before(g)
			if !c.free {
				g.refused(next, fault.Conflict, `device "pci-0000-03-10-1" is held by ResourceClaim "claim-c1" of pod "pod-p1"`)
			} else if _, err := g.prepare(next); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNextPod holds that a claim that outlives its pod is given to the next one
// when the first is out of it.
func TestNextPod(t *testing.T) {
	g := newGiven(t)
	if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
		t.Fatal(err)
	}
	e, _, _ := g.store.Get("c1")
	e.Set(claims.Sandbox{ID: "s", PodUID: "p1", Phase: claims.Attached})
	if err := g.store.PutSandboxes(e); err != nil {
		t.Fatal(err)
	}
	if _, err := g.prepare(allocated("c1", "p2", "0", "1")); fault.Of(err) != fault.Conflict {
		t.Errorf("in two pods: %v", err)
	}
	e.Set(claims.Sandbox{ID: "s", PodUID: "p1", Phase: claims.Released})
	if err := g.store.PutSandboxes(e); err != nil {
		t.Fatal(err)
	}
	if _, err := g.prepare(allocated("c1", "p2", "0", "1")); err != nil {
		t.Error(err)
	}
	if e, _, _ := g.store.Get("c1"); e.Pod.UID != "p2" {
		t.Errorf("recorded for pod %q", e.Pod.UID)
	}
}

// TestOthers holds that a claim without devices of ours is none of our business.
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
