package draplugin_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// allocator allocates addresses from 192.0.2.1 on.
type allocator struct {
	taken    []string
	literals string
	inPod    string
	lost     error

	gateways []netip.Addr
	routes   []ops.Route
}

func (a *allocator) Take(c addresses.Claim, wants []addresses.Want) (map[addresses.Want]ops.Given, error) {
	out := map[addresses.Want]ops.Given{}
	a.inPod = string(c.PodUID) + " " + c.InPod
	a.literals = fmt.Sprintf("%s %v", c.Pod, c.Literals)
	for _, w := range wants {
		taken := fmt.Sprintf("%s %s/%s %s/%s %s %d", c.UID, c.Namespace, c.Name, w.Topology, w.Step, w.Pool, w.Interface)
		if w.Local != nil {
			taken += fmt.Sprint(" ", w.Local.Size(true))
		}
		a.taken = append(a.taken, taken)
		out[w] = ops.Given{
			Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", len(a.taken)))},
			Gateways:  a.gateways, Routes: a.routes,
		}
	}
	return out, nil
}

func (a *allocator) Lost(types.UID) error { return a.lost }

// TestPool holds that a claim gets addresses once, that its record has them and the version
// with addresses, and that a claim whose addresses may belong to another node is not
// prepared.
func TestPool(t *testing.T) {
	g := newGiven(t)
	a := &allocator{
		gateways: []netip.Addr{netip.MustParseAddr("192.0.2.254")}, routes: []ops.Route{{Destination: "10.0.0.0/8", Gateway: "192.0.2.254"}},
	}
	g.Addresses = a
	g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"pool","pool":"blue","interface":2}}`)}
	rc := allocated("c1", "p1", "0", "1")
	for range 2 {
		if _, err := g.prepare(rc); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"c1 ns/claim-c1 pair/vf1 blue 2"}; !slices.Equal(a.taken, want) {
		t.Errorf("taken %q, want %q", a.taken, want)
	}
	e, _, err := g.store.Get("c1")
	if err != nil {
		t.Fatal(err)
	}
	if given := e.Topologies[0].Given; len(given) != 1 || fmt.Sprint(given["vf1"].Addresses) != "[192.0.2.1/24]" {
		t.Errorf("recorded %v", given)
	}
	sandboxes, err := e.Sandboxes("s", "/run/netns/s")
	if err != nil {
		t.Fatal(err)
	}
	if given := sandboxes[0].Given["vf1"]; fmt.Sprint(given.Addresses) != "[192.0.2.1/24]" || given.Device != "0000:03:10.1" ||
		fmt.Sprint(given.Gateways) != "[192.0.2.254]" || len(given.Routes) != 1 || given.Routes[0].Destination != "10.0.0.0/8" {
		t.Errorf("the sandbox is given %+v", given)
	}
	a.lost = fault.New(fault.Conflict, errors.New("another node may have it"))
	if _, err := g.prepare(rc); fault.Of(err) != fault.Conflict {
		t.Errorf("an address that is lost: %v", err)
	}
}

// TestInPod holds by which name of a claim in its pod an address is kept: who creates a claim can write what no pod
// has, and what no lease can contain.
func TestInPod(t *testing.T) {
	for annotation, want := range map[string]string{
		"": "claim-c1", "net": "net", strings.Repeat("a", 63): strings.Repeat("a", 63),
		strings.Repeat("a", 64): "claim-c1", strings.Repeat("a", 2000): "claim-c1", "a/b": "claim-c1", "Net": "claim-c1",
	} {
		g := newGiven(t)
		a := &allocator{}
		g.Addresses = a
		g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"pool","pool":"blue"}}`)}
		rc := allocated("c1", "p1", "0", "1")
		if annotation != "" {
			rc.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: annotation}
		}
		if _, err := g.prepare(rc); err != nil || a.inPod != "p1 "+want {
			t.Errorf("annotated %q, the claim is %q in its pod, want %q: %v", annotation, a.inPod, want, err)
		}
	}
}

// TestLocalPool holds that ranges of a node reach the allocator as they are read, and that
// those which admission would have refused are refused here too.
func TestLocalPool(t *testing.T) {
	g := newGiven(t)
	a := &allocator{}
	g.Addresses = a
	g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"host-local","subnet":"192.0.2.0/24","rangeStart":"192.0.2.5"}}`)}
	if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"c1 ns/claim-c1 pair/vf1 (host-local) 0 250"}; !slices.Equal(a.taken, want) {
		t.Errorf("taken %q, want %q", a.taken, want)
	}
	g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"host-local","subnet":"192.0.2.5/24"}}`)}
	if _, err := g.prepare(allocated("c2", "p2", "2", "3")); fault.Of(err) != fault.Invalid {
		t.Errorf("ranges that cannot be read: %v", err)
	}
}

// TestLiterals holds which addresses of a claim are reserved: those that are written in the
// config of a step, unless the step allows others to have them, or any pod may.
func TestLiterals(t *testing.T) {
	g := newGiven(t)
	a := &allocator{}
	g.Addresses = a
	g.topology.Spec.Steps[0].Config = &runtime.RawExtension{Raw: []byte(`{"addresses":["192.0.2.53/32"]}`)}
	g.topology.Spec.Steps[0].AllowDuplicate = true
	g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"addresses":["192.0.2.9/24","fe80::9/64"],"ipam":{"type":"static","addresses":[{"address":"2001:db8::9/64"}]}}`)}
	if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil {
		t.Fatal(err)
	}
	if want := "pod-p1 [{pair vf1 192.0.2.9} {pair vf1 2001:db8::9}]"; a.literals != want {
		t.Errorf("reserved %s, want %s", a.literals, want)
	}
}

// TestMultiNIC holds that one step with two networks is prepared as two: each with the share
// of the device of its network, and with an address of its part of the pool that has the
// topology's name; and that another mode on such a device is refused.
func TestMultiNIC(t *testing.T) {
	inBubble(t, "two networks", func(t *testing.T) {
		g := newGiven(t)
		a := &allocator{}
		g.Addresses = a
		config := func(mode string) *runtime.RawExtension {
			return &runtime.RawExtension{Raw: []byte(`{"masterNets":["10.0.1.0/24","10.0.2.0/24"],"ipam":{"type":"multi-nic-ipam","hostBlock":6,"interfaceBlock":2,"vlanMode":"` + mode + `"}}`)}
		}
		g.topology.Spec.Steps = []v1alpha1.Step{{Name: "vf", Type: "ipvlan", Config: config("l3")}}
		for i := range 2 {
			g.devices[i].Exposure = inventory.Exposure{Policy: "p", Verdict: inventory.Exposed, Sharing: &inventory.Sharing{Suffix: "-x", By: []string{"ipvlan"}}}
			g.devices[i].Networks = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i + 1), 0}), 24)}
		}
		shares := func(uid, pod types.UID) *resourceapi.ResourceClaim {
			rc := allocated(uid, pod, "0-x", "1-x")
			for i := range rc.Status.Allocation.Devices.Results {
				rc.Status.Allocation.Devices.Results[i].ShareID = new(types.UID(fmt.Sprint(uid, i)))
				raw := &rc.Status.Allocation.Devices.Config[i].Opaque.Parameters.Raw
				*raw = []byte(strings.Replace(string(*raw), `"step":"vf`, `"step":"vf-`, 1))
			}
			g.claims[rc.Name] = rc
			return rc
		}
		for _, uid := range []types.UID{"c1", "c2"} {
			if _, err := g.prepare(shares(uid, "p"+uid)); err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{
			"c1 ns/claim-c1 pair/vf-0 pair 0", "c1 ns/claim-c1 pair/vf-1 pair 1",
			"c2 ns/claim-c2 pair/vf-0 pair 0", "c2 ns/claim-c2 pair/vf-1 pair 1",
		}; !slices.Equal(a.taken, want) {
			t.Errorf("taken %q, want %q", a.taken, want)
		}
		e, _, err := g.store.Get("c2")
		if err != nil {
			t.Fatal(err)
		}
		sandboxes, err := e.Sandboxes("s", "/run/netns/s")
		if err != nil {
			t.Fatal(err)
		}
		for step, want := range map[string]string{"vf-0": "0000:03:10.0 [192.0.2.3/24]", "vf-1": "0000:03:10.1 [192.0.2.4/24]"} {
			if given := sandboxes[0].Given[step]; fmt.Sprint(given.Device, " ", given.Addresses) != want {
				t.Errorf("step %s is given %+v, want %s", step, given, want)
			}
		}
		g.topology.Spec.Steps[0].Config = config("l2")
		g.refused(shares("c3", "p3"), fault.Conflict, "carries ipvlan links of mode l3 and flag bridge of another pod, and this one would have ipvlan links of mode l2")
	})
}
