package draplugin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// allocator allocates addresses from 192.0.2.1 on.
type allocator struct {
	taken    []string
	literals string
	inPod    string
	lost     error
	isNew    bool

	gateways []netip.Addr
	routes   []ops.Route
}

func (a *allocator) Take(c addresses.Claim, wants []addresses.Want) (map[addresses.Want]ops.Given, error) {
	out := map[addresses.Want]ops.Given{}
	a.isNew = c.New
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
			Gateways:  a.gateways, Routes: a.routes, Pool: w.Pool,
		}
	}
	return out, nil
}

// lateAllocator allocates no address before a time.
type lateAllocator struct {
	allocator
	from time.Time
}

func (a *lateAllocator) Take(c addresses.Claim, wants []addresses.Want) (map[addresses.Want]ops.Given, error) {
	if time.Now().Before(a.from) {
		return nil, fault.New(fault.NotReady, errors.New("requesting another lease"))
	}
	return a.allocator.Take(c, wants)
}

// TestLateLease holds that a claim waits for a lease almost as long as the kubelet does, which retries more than a minute later, and that
// the kubelet gets the reason before it gives up.
func TestLateLease(t *testing.T) {
	const kubelet = 45 * time.Second // defaultClientCallTimeout of Kubernetes 1.35 to 1.37
	for lease, prepared := range map[time.Duration]bool{38 * time.Second: true, time.Hour: false} {
		inBubble(t, fmt.Sprintf("lease after %s", lease), func(t *testing.T) {
			g := newGiven(t)
			began := time.Now()
			g.Addresses = &lateAllocator{from: began.Add(lease)}
			g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"pool","pool":"blue"}}`)}
			ctx, cancel := context.WithTimeout(t.Context(), kubelet)
			defer cancel()
			out, err := g.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{allocated("c1", "p1", "0", "1")})
			if err == nil {
				err = out["c1"].Err
			}
			if prepared {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "requesting another lease") {
				t.Errorf("the kubelet is told %v", err)
			}
			if early := kubelet - time.Since(began); early < 4*time.Second || early > 6*time.Second {
				t.Errorf("answered %s before the kubelet gives up", early)
			}
		})
	}
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

// TestPoolOfNetwork holds from which pool a step has its address that names none: that of the physical network of its device,
// as long as the claim has its record, whatever the policy becomes. Where there is not one such pool the claim is not prepared.
func TestPoolOfNetwork(t *testing.T) {
	networks := func(of ...string) (out []inventory.PhysicalNetwork) {
		for _, n := range of {
			name, pool, _ := strings.Cut(n, "=")
			out = append(out, inventory.PhysicalNetwork{Name: name, AddressPool: pool})
		}
		return out
	}
	const one = `device.attributes["dra.networking"].physicalNetworkName == "b"`
	for name, c := range map[string]struct {
		networks []inventory.PhysicalNetwork
		selector string
		exposure inventory.Exposure
		pool     string
		kind     fault.Kind
		text     string
	}{
		"one":             {networks: networks("a=tenants"), pool: "tenants"},
		"selected":        {networks: networks("a=tenants", "b=guests"), selector: one, pool: "guests"},
		"several":         {networks: networks("a=tenants", "b=guests"), kind: fault.Invalid, text: `device "pci-0000-03-10-1" is on the physical networks "a" (AddressPool "tenants") and "b" (AddressPool "guests"): name an AddressPool in ipam.pool, or have the selector of the step choose one of the networks, such as device.attributes["dra.networking"].physicalNetworkName == "a"`},
		"several, of one": {networks: networks("a=tenants", "b=tenants"), pool: "tenants"},
		"some with none":  {networks: networks("a=tenants", "b"), kind: fault.Invalid, text: `"a" (AddressPool "tenants") and "b" (no AddressPool)`},
		"selected, none":  {networks: networks("a=tenants", "b"), selector: one, kind: fault.NotReady, text: `no DeviceExposurePolicy names an addressPool of physical network "b"`},
		"no pool":         {networks: networks("a"), kind: fault.NotReady, text: `no DeviceExposurePolicy names an addressPool of physical network "a"`},
		"no label":        {networks: networks("a"), exposure: inventory.Exposure{NoPool: `physical network "a" has none here: the node has no label "rack"`}, kind: fault.NotReady, text: `ipam names no AddressPool, and physical network "a" has none here: the node has no label "rack": add it there`},
		"no network":      {kind: fault.NotReady, text: `no DeviceExposurePolicy names the physical network of device "pci-0000-03-10-1"`},
		"undecided": {
			exposure: inventory.Exposure{Policy: "p", Verdict: inventory.Undecided, Reason: `policy "q" has the same priority 0 and decides otherwise`},
			kind:     fault.NotReady, text: `no DeviceExposurePolicy names the physical network`,
		},
		"not known": {exposure: inventory.Exposure{Verdict: inventory.Undecided}, kind: fault.NotReady, text: "the DeviceExposurePolicies are not known yet"},
	} {
		inBubble(t, name, func(t *testing.T) {
			g := newGiven(t)
			a := &allocator{}
			g.Addresses = a
			g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"pool"}}`)}
			if c.selector != "" {
				g.topology.Spec.Steps[1].Selector = &v1alpha1.Selector{CEL: c.selector}
			}
			g.devices[1].PhysicalNetworks, g.devices[1].Exposure = c.networks, c.exposure
			rc := allocated("c1", "p1", "0", "1")
			if c.pool == "" {
				g.refused(rc, c.kind, c.text)
				return
			}
			if _, err := g.prepare(rc); err != nil {
				t.Fatal(err)
			}
			g.devices[1].PhysicalNetworks = networks("a=edited") // and the claim outlives its pod
			next := allocated("c1", "p2", "0", "1")
			if _, err := g.prepare(next); err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("c1 ns/claim-c1 pair/vf1 %s 0", c.pool)
			if !slices.Equal(a.taken, []string{want, want}) {
				t.Errorf("taken %q, want %q twice", a.taken, want)
			}
			e, _, err := g.store.Get("c1")
			if err != nil || e.Pod.UID != "p2" || e.Topologies[0].Given["vf1"].Pool != c.pool {
				t.Errorf("recorded %+v, %v", e.Claim, err)
			}
		})
	}
}

// TestNewClaim holds that a claim whose record is lost is not new to the allocator while a sandbox has it: its addresses may be on a link.
func TestNewClaim(t *testing.T) {
	for name, in := range map[string][]claims.Sandbox{"in none": nil, "in one": {{ID: "s", Phase: claims.Attached}}} {
		t.Run(name, func(t *testing.T) {
			g := newGiven(t)
			a := &allocator{}
			g.Addresses = a
			g.topology.Spec.Steps[1].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"pool","pool":"blue"}}`)}
			if err := g.store.PutSandboxes(claims.Entry{Claim: claims.Claim{UID: "c1"}, In: in}); err != nil {
				t.Fatal(err)
			}
			if _, err := g.prepare(allocated("c1", "p1", "0", "1")); err != nil || a.isNew != (in == nil) {
				t.Errorf("new: %t, %v", a.isNew, err)
			}
		})
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
	if want := "pod-p1 [{pair vf1 192.0.2.9 } {pair vf1 2001:db8::9 }]"; a.literals != want {
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

// leases are those of an API server without other nodes, for a real allocator.
type leases struct {
	pools  []v1alpha1.AddressPool
	leases map[string]*v1alpha1.AddressLease
	writes int
}

func (l *leases) NodeUID(context.Context) (string, error) { return "uid", nil }
func (l *leases) Pools() ([]v1alpha1.AddressPool, error)  { return l.pools, nil }
func (l *leases) Wakes(table.Wake) func()                 { return nil }
func (l *leases) Own() (out []v1alpha1.AddressLease, err error) {
	for _, name := range slices.Sorted(maps.Keys(l.leases)) {
		out = append(out, *l.leases[name].DeepCopy())
	}
	return out, nil
}

func (l *leases) Get(_ context.Context, name string) (*v1alpha1.AddressLease, error) {
	return l.leases[name].DeepCopy(), nil
}

func (l *leases) Taken(context.Context, string) (map[string]bool, error) {
	out := map[string]bool{}
	for name := range l.leases {
		out[name] = true
	}
	return out, nil
}

func (l *leases) KeptFor(context.Context, string, string) ([]v1alpha1.AddressLease, error) {
	return nil, nil
}

func (l *leases) Create(ctx context.Context, o *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error) {
	o.UID = types.UID("uid-" + o.Name)
	return l.Update(ctx, o)
}

func (l *leases) Update(_ context.Context, o *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error) {
	l.writes++
	o.ResourceVersion = fmt.Sprint(l.writes)
	l.leases[o.Name] = o.DeepCopy()
	return o, nil
}

func (l *leases) Delete(_ context.Context, o *v1alpha1.AddressLease) error {
	delete(l.leases, o.Name)
	return nil
}

// TestPoolsOfTwoNetworks holds with a real allocator that two steps of one claim have addresses of the pools of their networks;
// that a claim which was not recorded, as the agent ended before, has those of its networks of later, and nothing is left of
// the first; and that a pool which the policy names and which does not exist is named with its network.
func TestPoolsOfTwoNetworks(t *testing.T) {
	inBubble(t, "claims", func(t *testing.T) {
		g := newGiven(t)
		l := &leases{leases: map[string]*v1alpha1.AddressLease{}}
		for name, prefix := range map[string]string{"tenants": "192.0.2.0/24", "guests": "198.51.100.0/24"} {
			o := v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: prefix}}}}
			o.Name, o.Finalizers = name, []string{v1alpha1.AddressPoolFinalizer}
			l.pools = append(l.pools, o)
		}
		file := filepath.Join(t.TempDir(), "addresses")
		var now atomic.Pointer[addresses.Allocator]
		open := func() *addresses.Allocator {
			a, err := addresses.Open(addresses.Options{
				Leases: l, NodeName: "n", File: file, Recorded: func() []addresspool.Grant { return nil },
				Ended: func(context.Context, addresspool.Grant) (bool, error) { return false, nil },
				Log:   slog.New(slog.DiscardHandler), Now: time.Now,
			})
			if err != nil {
				t.Fatal(err)
			}
			g.Addresses = a
			now.Store(a)
			return a
		}
		a := open()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { // as the agent does
			for ctx.Err() == nil {
				if err := now.Load().Pass(ctx); err != nil {
					t.Log(err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		}()
		for i, pool := range []string{"tenants", "guests"} {
			g.topology.Spec.Steps[i].Config = &runtime.RawExtension{Raw: []byte(`{"ipam":{"type":"pool"}}`)}
			g.devices[i].PhysicalNetworks = []inventory.PhysicalNetwork{{Name: "of-" + pool, AddressPool: pool}}
		}
		rc := allocated("c1", "p1", "0", "1")
		g.fails = errors.New("the agent ends")
		if _, err := g.prepare(rc); err == nil {
			t.Fatal("prepared")
		}
		if grants, err := a.Grants(); err != nil || len(grants) != 2 {
			t.Fatalf("allocated %v, %v", grants, err)
		}
		g.fails = nil
		if err := g.store.Remove("c1"); err != nil {
			t.Fatal(err)
		}
		a = open()
		g.devices[1].PhysicalNetworks[0].AddressPool = "none"
		g.refused(rc, fault.NotReady, `step "vf1": there is no AddressPool "none", which a DeviceExposurePolicy names for physical network "of-guests"`)
		g.devices[1].PhysicalNetworks[0].AddressPool = "tenants"
		if _, err := g.prepare(rc); err != nil {
			t.Fatal(err)
		}
		e, _, err := g.store.Get("c1")
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, step := range []string{"vf0", "vf1"} {
			given := e.Topologies[0].Given[step]
			if given.Pool != "tenants" || len(given.Addresses) != 1 || !strings.HasPrefix(given.Addresses[0].String(), "192.0.2.") {
				t.Errorf("step %s is given %+v", step, given)
			}
			seen[fmt.Sprint(given.Addresses)] = true
		}
		if grants, err := a.Grants(); err != nil || len(grants) != 2 || len(seen) != 2 {
			t.Errorf("the claim has %v, and the allocator has given %v, %v", seen, grants, err)
		}
	})
}
