package addresses_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// server simulates the leases of an API server. That of a cluster's tests is a real one; this one refuses what the
// real one refuses seldom.
type server struct {
	pools  []v1alpha1.AddressPool
	leases map[string]*v1alpha1.AddressLease
	writes int
	// unlisted are leases that were created since all were listed, and created is how many were tried.
	unlisted bool
	created  int
	refuse   func(l *v1alpha1.AddressLease) error // of updates
	reading  func(name string)                    // before a lease is read
	// late delays deletions: each gets no answer, and is done when the test calls it.
	late    bool
	delayed []func()
	random  func(below uint64) uint64 // of agents
}

func newServer(pools ...v1alpha1.AddressPool) *server {
	return &server{pools: pools, leases: map[string]*v1alpha1.AddressLease{}}
}

// kept is a pool of single addresses that are kept for an hour.
func kept(name, subnet string) v1alpha1.AddressPool {
	p := v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{
		Subnets: []v1alpha1.AddressSubnet{{Prefix: subnet}}, QuarantineSeconds: new(int32(0)), ReclaimAfter: "1h",
	}}
	p.Name, p.Finalizers = name, []string{v1alpha1.AddressPoolFinalizer}
	return p
}

// put adds a lease, as another process has written it.
func (s *server) put(pool, block string, spec v1alpha1.AddressLeaseSpec) *v1alpha1.AddressLease {
	l := &v1alpha1.AddressLease{Spec: spec}
	l.Spec.Pool, l.Spec.Block = pool, block
	l.Name = addresspool.LeaseName(pool, netip.MustParsePrefix(block))
	s.write(l)
	return l
}

func (s *server) write(l *v1alpha1.AddressLease) *v1alpha1.AddressLease {
	s.writes++
	if l.ResourceVersion = fmt.Sprint(s.writes); l.UID == "" {
		l.UID = types.UID("uid-" + l.ResourceVersion)
	}
	s.leases[l.Name] = l.DeepCopy()
	return l
}

var leaseResource = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "addressleases"}

// client is the server as an agent of a node has it.
type client struct {
	*server
	node string
}

func (c client) NodeUID(context.Context) (string, error) { return "uid-of-" + c.node, nil }
func (c client) Pools() ([]v1alpha1.AddressPool, error)  { return c.pools, nil }
func (c client) Wakes(table.Wake) func()                 { return nil }
func (c client) Own() (out []v1alpha1.AddressLease, err error) {
	return c.list(func(l *v1alpha1.AddressLease) bool { return l.Spec.Node == c.node }), nil
}

func (c client) list(is func(*v1alpha1.AddressLease) bool) (out []v1alpha1.AddressLease) {
	for _, name := range slices.Sorted(maps.Keys(c.leases)) {
		if l := c.leases[name]; is(l) {
			out = append(out, *l.DeepCopy())
		}
	}
	return out
}

func (c client) Get(_ context.Context, name string) (*v1alpha1.AddressLease, error) {
	if c.reading != nil {
		c.reading(name)
	}
	return c.leases[name].DeepCopy(), nil
}

func (c client) Taken(_ context.Context, pool string) (map[string]bool, error) {
	out := map[string]bool{}
	for name, l := range c.leases {
		if l.Spec.Pool == pool && !c.unlisted {
			out[name] = true
		}
	}
	return out, nil
}

func (c client) KeptFor(_ context.Context, pool, identity string) ([]v1alpha1.AddressLease, error) {
	return c.list(func(l *v1alpha1.AddressLease) bool { return l.Spec.Pool == pool && l.Spec.For == identity }), nil
}

func (c client) Create(_ context.Context, l *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error) {
	if c.created++; c.leases[l.Name] != nil {
		return nil, apierrors.NewAlreadyExists(leaseResource, l.Name)
	}
	return c.write(l.DeepCopy()), nil
}

func (c client) Update(_ context.Context, l *v1alpha1.AddressLease) (*v1alpha1.AddressLease, error) {
	switch now := c.leases[l.Name]; {
	case now == nil:
		return nil, apierrors.NewNotFound(leaseResource, l.Name)
	case now.ResourceVersion != l.ResourceVersion:
		return nil, apierrors.NewConflict(leaseResource, l.Name, nil)
	}
	if c.refuse != nil {
		if err := c.refuse(l); err != nil {
			return nil, err
		}
	}
	if equality.Semantic.DeepEqual(c.leases[l.Name], l) {
		return l.DeepCopy(), nil // as the real one: nothing is written
	}
	return c.write(l.DeepCopy()), nil
}

func (c client) Delete(_ context.Context, l *v1alpha1.AddressLease) error {
	end := func() {
		if now := c.leases[l.Name]; now != nil && now.UID == l.UID && now.ResourceVersion == l.ResourceVersion {
			delete(c.leases, l.Name)
		}
	}
	if c.late {
		c.delayed = append(c.delayed, end)
		return context.DeadlineExceeded
	}
	end()
	return nil
}

// agent is that of a node, with a clock.
type agent struct {
	*addresses.Allocator
	*testing.T
	now      *time.Time
	recorded func() []addresspool.Grant
}

// agent starts one with what is in a file.
func (s *server) agent(t *testing.T, node, file string, now *time.Time) *agent {
	t.Helper()
	a := &agent{T: t, now: now, recorded: func() []addresspool.Grant { return nil }}
	var err error
	if a.Allocator, err = addresses.Open(addresses.Options{
		Leases: client{s, node}, NodeName: node, File: file,
		Recorded: func() []addresspool.Grant { return a.recorded() },
		Ended:    func(context.Context, addresspool.Grant) (bool, error) { return false, nil },
		Log:      slog.New(slog.DiscardHandler), Now: func() time.Time { return *now },
		Sync: func(*os.File) error { return nil }, Random: s.random,
	}); err != nil {
		t.Fatal(err)
	}
	return a
}

func fileOf(t *testing.T) string { return filepath.Join(t.TempDir(), "addresses") }

// take is one try to prepare a claim of a pod with an address of a pool. Each claim is another pod's.
func (a *agent) take(claim types.UID, pod, pool string) (string, error) {
	return a.takeIn(claim, pod, "pod-of-"+claim, pool)
}

func (a *agent) takeIn(claim types.UID, pod string, uid types.UID, pool string) (string, error) {
	w := addresses.Want{Topology: "t", Step: "s", Pool: pool}
	got, err := a.Take(addresses.Claim{UID: claim, Namespace: "ns", Name: string(claim), Pod: pod, PodUID: uid, InPod: "net"}, []addresses.Want{w})
	if err != nil {
		return "", err
	}
	return got[w].Addresses[0].Addr().String(), nil
}

// has tries until a claim has an address.
func (a *agent) has(claim types.UID, pod, pool string) string {
	a.Helper()
	for range 5 {
		_ = a.Pass(a.Context()) // what it could not do is not the claim's
		if got, err := a.take(claim, pod, pool); err == nil {
			return got
		}
	}
	_, err := a.take(claim, pod, pool)
	a.Fatalf("pod %s has no address: %v", pod, err)
	return ""
}

func (a *agent) pass() {
	a.Helper()
	if err := a.Pass(a.Context()); err != nil {
		a.Fatal(err)
	}
}

func (a *agent) giveBack(claim types.UID) {
	a.Helper()
	if err := a.GiveBack(claim); err != nil {
		a.Fatal(err)
	}
}
