//go:build cluster

package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/integration/cluster"
	"github.com/plumbline/plumbline/reconcile/pod/addresses"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestAddressPools is the life of pools and leases on a real API server, with the
// controller and with what of two nodes' agents leases addresses.
func TestAddressPools(t *testing.T) {
	b := start(t)
	b.run(t, append([]string{"--lease-grace", "3s"}, shortLived...)...)
	b.register(t)
	for _, part := range []struct {
		name string
		test func(*testing.T)
	}{
		{"pools are refused", b.refusedPools},
		{"addresses of Services", b.serviceAddresses},
		{"two nodes share a pool", b.sharedPool},
		{"a node follows its leases", b.followedLeases},
		{"nodes of multi-nic-cni", b.hostBlocks},
		{"a node dies at each write", b.dyingNode},
		{"a node is gone, and returns", b.returningNode},
		{"literal addresses", b.literals},
		{"each write of a literal address fails", b.literalFaults},
		{"addresses that are kept", b.keptAddresses},
		{"subnets of OVN", b.subnetsOfOVN},
	} {
		t.Run(part.name, part.test)
	}
}

// subnetsOfOVN is the life of the pool of a network's subnets: the controller makes it, a second topology of the network joins it, and
// one with other subnets gets no addresses; an edit waits for the addresses that are used; and the pool ends with the last topology and
// the last address.
func (b *bench) subnetsOfOVN(t *testing.T) {
	node := b.lessee(t, "ovn-1")
	name := (&topology.OVN{Topology: topology.OVNLayer2, Name: "tenant-blue"}).Pool()
	manifest := func(topology, keys string) string {
		return "apiVersion: networking.dra.io/v1alpha1\nkind: NetworkTopology\nmetadata: {name: " + topology + "}\nspec: {steps: [{name: net1, type: ovn-k8s-cni-overlay, selector: {cel: 'true'}, config: {topology: layer2, name: tenant-blue, " + keys + "}}]}\n"
	}
	pool := func(what string, is func(o *v1alpha1.AddressPool) bool) {
		t.Helper()
		b.eventually(t, "the pool: "+what, func() error {
			_ = node.Pass(t.Context()) // as its agent does
			o := &v1alpha1.AddressPool{}
			if err := b.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
				return err
			}
			if !is(o) {
				return fmt.Errorf("%v %+v used %d, deleted %v", o.Labels, o.Spec, o.Status.Used, o.DeletionTimestamp)
			}
			return nil
		})
	}
	programmed := func(topology, want string) {
		t.Helper()
		b.eventually(t, topology+" says "+want, func() error {
			_ = node.Pass(t.Context())
			c := meta.FindStatusCondition(b.topology(t, topology).Status.Conditions, v1alpha1.ConditionProgrammed)
			if c == nil || (want == "") != (c.Status == metav1.ConditionTrue) || !strings.Contains(c.Message, want) {
				return fmt.Errorf("it says %+v", c)
			}
			return nil
		})
	}
	within := func(a netip.Prefix, subnet string) {
		t.Helper()
		if !netip.MustParsePrefix(subnet).Contains(a.Addr()) {
			t.Errorf("the address is %s, and not of %s", a, subnet)
		}
	}
	b.mustKubectl(t, manifest("blue-1", "subnets: 10.71.0.0/24"), "create", "--validate=strict", "-f", "-")
	pool("made", func(o *v1alpha1.AddressPool) bool {
		return slices.Contains(o.Finalizers, v1alpha1.AddressPoolFinalizer) && o.Labels[v1alpha1.LabelSubnets] == name
	})
	b.mustKubectl(t, "", "patch", "addresspool", name, "--type=merge", "-p", `{"spec":{"quarantineSeconds":0}}`)
	within(node.take(t, name, "c1"), "10.71.0.0/24")
	b.mustKubectl(t, manifest("blue-2", "subnets: 10.71.0.0/24, excludeSubnets: 10.71.0.0/28"), "create", "--validate=strict", "-f", "-")
	pool("joined", func(o *v1alpha1.AddressPool) bool {
		return slices.Equal(o.Spec.Exclude, []string{"10.71.0.0/28"})
	})
	b.mustKubectl(t, manifest("blue-3", "subnets: 10.71.0.0/23"), "create", "--validate=strict", "-f", "-")
	programmed("blue-3", `has 10.71.0.0/24, and the step says 10.71.0.0/23: the network is also in NetworkTopology "blue-1", "blue-2": write`)
	b.mustKubectl(t, "", "delete", "networktopology", "blue-3", "blue-2", "--wait=false")
	pool("left", func(o *v1alpha1.AddressPool) bool { return o.Status.Used == 1 })

	b.mustKubectl(t, manifest("blue-1", "subnets: 10.72.0.0/24"), "apply", "-f", "-")
	programmed("blue-1", "it is recreated once no pod has an address from it")
	node.giveBack(t, "c1")
	pool("recreated", func(o *v1alpha1.AddressPool) bool { return o.Spec.Subnets[0].Prefix == "10.72.0.0/24" })
	programmed("blue-1", "")
	b.mustKubectl(t, "", "patch", "addresspool", name, "--type=merge", "-p", `{"spec":{"quarantineSeconds":0}}`)
	within(node.take(t, name, "c2"), "10.72.0.0/24")

	pool("used", func(o *v1alpha1.AddressPool) bool { return o.Status.Used == 1 })
	b.mustKubectl(t, "", "delete", "networktopology", "blue-1")
	pool("stays with its addresses", func(o *v1alpha1.AddressPool) bool { return o.DeletionTimestamp.IsZero() })
	node.giveBack(t, "c2")
	b.eventually(t, "the pool has ended", func() error {
		_ = node.Pass(t.Context())
		err := b.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.AddressPool{})
		if err == nil {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}

func addressPool(name, spec string) string {
	return "apiVersion: networking.dra.io/v1alpha1\nkind: AddressPool\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
}

func (b *bench) refusedPools(t *testing.T) {
	for spec, want := range map[string]string{
		`{subnets: [{prefix: 192.168.5.0/16}]}`:                                  `AddressPool "p": spec.subnets[0].prefix: "192.168.5.0/16" has bits set behind its prefix length: write "192.168.0.0/16"`,
		`{subnets: [{prefix: 192.168.0.0/24}], hostBlock: 6, interfaceBlock: 1}`: `AddressPool "p": spec.subnets[0].prefix: "192.168.0.0/24" leaves no addresses when it is divided by 1 bits for interfaces and 6 for nodes: blocks would be of length /31, at most /30 is possible`,
	} {
		b.says(t, addressPool("p", spec), want)
	}
	for spec, want := range map[string]string{
		`{subnets: [{prefix: 192.0.2.0/24}], interfaceBlock: 1}`:          "interfaceBlock needs hostBlock",
		`{subnets: [{prefix: 192.0.2.0/24}], hostBlock: 1, blockSize: 2}`: "blockSize follows from hostBlock",
		`{subnets: []}`: "should have at least 1 items",
	} {
		if said := b.refused(t, addressPool("p", spec)); !strings.Contains(said, want) {
			t.Errorf("%s: said\n%s\nwant %s", spec, said, want)
		}
	}
	b.mustKubectl(t, addressPool("first", "{subnets: [{prefix: 198.51.100.0/24}]}"), "create", "--validate=strict", "-f", "-")
	b.eventually(t, "the webhook knows the first pool", func() error {
		_, err := b.Kubectl(t.Context(), strings.NewReader(addressPool("second", "{subnets: [{prefix: 198.51.100.128/25}]}")), "create", "--dry-run=server", "--warnings-as-errors", "-f", "-")
		if want := `Warning: AddressPool "second" shares addresses with "first" (198.51.100.128/25 and 198.51.100.0/24)`; err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("said: %w", err)
		}
		return nil
	})
	for patch, want := range map[string]string{
		`{"spec":{"subnets":[{"prefix":"198.51.100.0/25"}]}}`: "subnets cannot be changed",
		`{"spec":{"blockSize":4}}`:                            "how the pool is divided cannot be changed",
	} {
		if _, err := b.Kubectl(t.Context(), nil, "patch", "addresspool", "first", "--type=merge", "-p", patch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", patch, err, want)
		}
	}
	b.mustKubectl(t, "", "patch", "addresspool", "first", "--type=merge", "-p", `{"spec":{"exclude":["198.51.100.0/28"]}}`)
	b.mustKubectl(t, "", "delete", "addresspool", "first")
}

// serviceAddresses holds that a pool with addresses of Services says so.
func (b *bench) serviceAddresses(t *testing.T) {
	var of networkingv1.ServiceCIDR
	if err := b.Get(t.Context(), client.ObjectKey{Name: "kubernetes"}, &of); err != nil {
		t.Fatal(err)
	}
	b.mustKubectl(t, addressPool("served", "{subnets: [{prefix: "+of.Spec.CIDRs[0]+"}]}"), "create", "--validate=strict", "-f", "-")
	want := of.Spec.CIDRs[0] + " and " + of.Spec.CIDRs[0] + " of Services share addresses"
	b.eventually(t, "the pool says that Services have its addresses", func() error {
		var o v1alpha1.AddressPool
		if err := b.Get(t.Context(), client.ObjectKey{Name: "served"}, &o); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionOverlap); c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, want) {
			return fmt.Errorf("it says %+v", c)
		}
		return nil
	})
	b.mustKubectl(t, "", "delete", "addresspool", "served")
}

// lessee is the part of a node's agent that leases addresses, with the agent's rights.
type lessee struct {
	*bench
	name    string
	file    string
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	client  *addresses.Client
	*addresses.Allocator
	had      map[string]netip.Prefix // by claim
	recorded func() []addresspool.Grant
	fault    writeFault
}

// writeFault has one write to the API server fail, before it is sent or so that its answer is
// lost.
type writeFault struct {
	in      atomic.Int64 // writes until then; 0 or less for none
	answer  atomic.Bool
	creates atomic.Bool // no other writes count
}

var errWriteFault = errors.New("the connection is lost")

func (f *writeFault) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet || f.creates.Load() && r.Method != http.MethodPost || f.in.Add(-1) != 0 {
			return next.RoundTrip(r)
		}
		if f.answer.Load() {
			if answer, err := next.RoundTrip(r); err == nil {
				_ = answer.Body.Close()
			}
		}
		return nil, errWriteFault
	})
}

func (b *bench) lessee(t *testing.T, name string) *lessee {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := b.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	config, err := b.ServiceAccount(t.Context(), cluster.ProductNamespace, "plumbline-agent", cluster.TokenFor{})
	if err != nil {
		t.Fatal(err)
	}
	n := &lessee{bench: b, name: name, recorded: func() []addresspool.Grant { return nil }, file: filepath.Join(t.TempDir(), "addresses"), had: map[string]netip.Prefix{}}
	config.Wrap(n.fault.wrap)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	n.kube, n.dynamic, n.client = kube, dyn, addresses.NewClient(kube, dyn, name, time.Now)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.client.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	n.boot(t, nil)
	return n
}

// boot starts the agent, with what its file says.
func (n *lessee) boot(t *testing.T, sync func(*os.File) error) {
	t.Helper()
	if sync == nil {
		sync = func(*os.File) error { return nil }
	}
	var err error
	n.Allocator, err = addresses.Open(addresses.Options{
		Leases: n.client, NodeName: n.name, File: n.file, Sync: sync,
		Recorded: func() []addresspool.Grant { return n.recorded() },
		Ended:    func(context.Context, addresspool.Grant) (bool, error) { return false, nil },
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ask takes an address once, after a pass if there is none.
func (n *lessee) ask(ctx context.Context, pool, claim string) (netip.Prefix, error) {
	w := addresses.Want{Topology: "t", Step: "s", Pool: pool}
	of := addresses.Claim{UID: types.UID(n.name + claim), Namespace: "default", Name: claim}
	got, err := n.Take(of, []addresses.Want{w})
	if fault.Of(err) == fault.NotReady {
		if err := n.Pass(ctx); err != nil {
			return netip.Prefix{}, err
		}
		got, err = n.Take(of, []addresses.Want{w})
	}
	if err != nil || len(got[w].Addresses) == 0 {
		return netip.Prefix{}, err
	}
	return got[w].Addresses[0], nil
}

// take takes an address for a claim that keeps it.
func (n *lessee) take(t *testing.T, pool, claim string) netip.Prefix {
	t.Helper()
	var got netip.Prefix
	n.eventually(t, "an address for "+claim+" on "+n.name, func() (err error) {
		got, err = n.ask(t.Context(), pool, claim)
		return err
	})
	if had, again := n.had[claim]; again && had != got {
		t.Errorf("%s of %s had %s and gets %s", claim, n.name, had, got)
	}
	n.had[claim] = got
	return got
}

func (n *lessee) giveBack(t *testing.T, claim string) {
	t.Helper()
	if err := n.GiveBack(types.UID(n.name + claim)); err != nil {
		t.Fatal(err)
	}
	delete(n.had, claim)
}

// follows waits until a node has been told of the leases that it has on the API server, and of no others.
func (n *lessee) follows(t *testing.T, c *addresses.Client) (names []string) {
	t.Helper()
	n.eventually(t, fmt.Sprintf("node %s knows its leases", n.name), func() error {
		var all v1alpha1.AddressLeaseList
		if err := n.List(t.Context(), &all, client.MatchingFields{"spec.node": n.name}); err != nil {
			return err
		}
		own, err := c.Own()
		if err != nil {
			return err
		}
		var have, known []string
		for _, l := range all.Items {
			have = append(have, l.Name+" "+l.ResourceVersion)
		}
		names = nil
		for _, l := range own {
			known, names = append(known, l.Name+" "+l.ResourceVersion), append(names, l.Name)
		}
		slices.Sort(have)
		slices.Sort(known)
		if !slices.Equal(have, known) {
			return fmt.Errorf("it has %q and knows of %q", have, known)
		}
		return nil
	})
	return names
}

// followedLeases holds that a node learns what happens to its leases, also by other writers, with few and with
// many, and after a restart.
func (b *bench) followedLeases(t *testing.T) {
	b.mustKubectl(t, addressPool("followed", "{subnets: [{prefix: 203.0.113.0/26}], blockSize: 1, quarantineSeconds: 0}"), "create", "--validate=strict", "-f", "-")
	one, two := b.lessee(t, "following"), b.lessee(t, "other")
	leaseOf := func(n *lessee, claim string) string {
		a := n.had[claim].Addr()
		return addresspool.LeaseName("followed", netip.PrefixFrom(a, a.BitLen()))
	}
	for _, n := range []*lessee{one, two} {
		for i := range 3 {
			n.take(t, "followed", fmt.Sprint(i))
		}
	}
	deleted := func(claim string) {
		t.Helper()
		gone := leaseOf(one, claim)
		b.mustKubectl(t, "", "delete", "addresslease", gone)
		if names := one.follows(t, one.client); slices.Contains(names, gone) {
			t.Errorf("lease %q is known after it was deleted", gone)
		}
		if err := one.Pass(t.Context()); err != nil {
			t.Error(err)
		}
		one.giveBack(t, claim)
		one.take(t, "followed", claim+" again")
		one.follows(t, one.client)
	}
	one.follows(t, one.client)
	deleted("1")
	// An answer is lost: the node learns of the lease that it has all the same.
	had := len(one.follows(t, one.client))
	one.fault.answer.Store(true)
	one.fault.creates.Store(true)
	for i := int64(1); len(one.follows(t, one.client)) == had; i++ { // the first blocks may be those of the other node
		if i == 10 {
			t.Fatal("no lease is written")
		}
		one.fault.in.Store(i)
		if _, err := one.ask(t.Context(), "followed", "lost"); err != nil && !errors.Is(err, errWriteFault) {
			t.Error(err)
		}
	}
	if one.fault.in.Load() > 0 {
		t.Error("no answer was lost")
	}
	for i := 3; i < 25; i++ {
		one.take(t, "followed", fmt.Sprint(i))
	}
	if n := len(one.follows(t, one.client)); n < 25 {
		t.Errorf("%d leases for 25 addresses", n)
	}
	deleted("7")
	for name, n := range map[string]*lessee{"many": one, "few": two} {
		again := addresses.NewClient(n.kube, n.dynamic, n.name, time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); again.Run(ctx) }()
		n.follows(t, again)
		cancel()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Errorf("%s: it does not end", name)
		}
	}
	different(t, one, two)
	for _, n := range []*lessee{one, two} {
		for claim := range n.had {
			n.giveBack(t, claim)
		}
	}
	b.ended(t, "followed", one, two)
	for _, n := range []*lessee{one, two} {
		if names := n.follows(t, n.client); len(names) > 0 {
			t.Errorf("node %s has %q", n.name, names)
		}
	}
}

// different fails if two claims have one address.
func different(t *testing.T, nodes ...*lessee) {
	t.Helper()
	seen := map[netip.Addr]string{}
	for _, n := range nodes {
		for claim, a := range n.had {
			if other, twice := seen[a.Addr()]; twice {
				t.Errorf("%s is given to %s of %s, and to %s", a, claim, n.name, other)
			}
			seen[a.Addr()] = claim + " of " + n.name
		}
	}
}

// pool waits for a pool's status.
func (b *bench) pool(t *testing.T, name, want string) {
	t.Helper()
	b.eventually(t, fmt.Sprintf("pool %q is %s", name, want), func() error {
		var o v1alpha1.AddressPool
		if err := b.Get(t.Context(), client.ObjectKey{Name: name}, &o); err != nil {
			return err
		}
		have := fmt.Sprintf("%d/%d on %d", o.Status.Leased, o.Status.Size, o.Status.Nodes)
		for _, c := range []string{v1alpha1.ConditionOverlap, v1alpha1.ConditionExhausted} {
			if meta.IsStatusConditionTrue(o.Status.Conditions, c) {
				have += " " + c
			}
		}
		if have != want {
			return fmt.Errorf("it is %s", have)
		}
		return nil
	})
}

// ended deletes a pool, and waits until it is gone: its nodes end their leases.
func (b *bench) ended(t *testing.T, pool string, nodes ...*lessee) {
	t.Helper()
	b.mustKubectl(t, "", "delete", "addresspool", pool, "--wait=false")
	b.eventually(t, "pool "+pool+" is gone", func() error {
		for _, n := range nodes {
			if err := n.Pass(t.Context()); err != nil {
				return err
			}
		}
		err := b.Get(t.Context(), client.ObjectKey{Name: pool}, &v1alpha1.AddressPool{})
		if err == nil {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}

func (b *bench) sharedPool(t *testing.T) {
	b.mustKubectl(t, addressPool("blue", "{subnets: [{prefix: 192.0.2.0/29, gateway: 192.0.2.1}], quarantineSeconds: 0}"), "create", "--validate=strict", "-f", "-")
	one, two := b.lessee(t, "one"), b.lessee(t, "two")
	for i := range 2 {
		one.take(t, "blue", fmt.Sprint(i))
		two.take(t, "blue", fmt.Sprint(i))
	}
	one.take(t, "blue", "2")
	different(t, one, two)
	b.pool(t, "blue", "5/5 on 2 Exhausted")
	if got, err := two.ask(t.Context(), "blue", "2"); err == nil || !strings.Contains(err.Error(), "all blocks are leased") {
		t.Errorf("from a full pool: %v, %v", got, err)
	}
	one.boot(t, nil)
	one.take(t, "blue", "1") // the same as before
	one.giveBack(t, "0")
	b.eventually(t, "the address that the one gave back is the other's", func() error {
		if err := one.Pass(t.Context()); err != nil {
			return err
		}
		_, err := two.ask(t.Context(), "blue", "2")
		return err
	})
	two.take(t, "blue", "2")
	different(t, one, two)

	// The pool stays while an address of it is used.
	b.mustKubectl(t, "", "delete", "addresspool", "blue", "--wait=false")
	for _, n := range []*lessee{one, two} {
		for claim := range n.had {
			n.giveBack(t, claim)
		}
	}
	b.ended(t, "blue", one, two)
	b.mustKubectl(t, "", "delete", "node", "one", "two")
}

func (b *bench) hostBlocks(t *testing.T) {
	b.mustKubectl(t, addressPool("multinic", "{subnets: [{prefix: 192.168.0.0/16}], hostBlock: 6, interfaceBlock: 2, quarantineSeconds: 0}"), "create", "--validate=strict", "-f", "-")
	one, two := b.lessee(t, "host1"), b.lessee(t, "host2")
	if a, c := one.take(t, "multinic", "a"), two.take(t, "multinic", "a"); a.String() != "192.168.0.1/18" || c.String() != "192.168.1.1/18" {
		t.Errorf("given %s and %s", a, c)
	}
	b.pool(t, "multinic", "2032/65024 on 2")

	// A node publishes where it is, and another one hears of it, also when it is nowhere any more.
	hosts := []v1alpha1.HostAddress{{Interface: 1, Network: "10.0.2.0/24", Address: "10.0.2.1"}}
	heard := &hostroutes.Client{Dynamic: two.dynamic, Listed: two.client.Pools}
	heard.Follow(t.Context(), []string{"multinic"}, func() {})
	for _, published := range [][]v1alpha1.HostAddress{hosts, nil} {
		one.HostAddresses = func(string) ([]v1alpha1.HostAddress, bool) { return published, true }
		b.eventually(t, "the addresses of a host are known", func() error {
			if err := one.Pass(t.Context()); err != nil {
				return err
			}
			leases, known := heard.Of("multinic")
			for _, l := range leases {
				if l.Spec.Node == "host1" && l.Spec.Block == "192.168.0.0/24" && slices.Equal(l.Spec.HostAddresses, published) {
					return nil
				}
			}
			return fmt.Errorf("known %t: %+v", known, leases)
		})
	}
	heard.Follow(t.Context(), nil, nil)
	one.giveBack(t, "a")
	two.giveBack(t, "a")
	b.ended(t, "multinic", one, two)
	b.mustKubectl(t, "", "delete", "node", "host1", "host2")
}

var errDied = errors.New("died")

// dyingNode kills a node before and after each write of its file, beside another that
// takes from the same pool.
func (b *bench) dyingNode(t *testing.T) {
	b.mustKubectl(t, addressPool("red", "{subnets: [{prefix: 192.0.2.0/27}], quarantineSeconds: 0}"), "create", "--validate=strict", "-f", "-")
	one, two := b.lessee(t, "dying"), b.lessee(t, "living")
	for at := range 8 {
		writes := 0
		one.boot(t, func(f *os.File) error {
			if writes++; writes > at {
				return errDied // all later ones fail too: the process is dead
			}
			return nil
		})
		for i := range 2 {
			claim := fmt.Sprint(at, "-", i)
			if got, err := one.ask(t.Context(), "red", claim); err == nil && got.IsValid() {
				one.had[claim] = got
			}
			_ = one.Pass(t.Context())
			if i == 0 && one.GiveBack(types.UID(one.name+claim)) == nil {
				delete(one.had, claim)
			}
		}
		one.boot(t, nil)
		// Before it has read the pools, it lets what is given back rest for a minute.
		b.eventually(t, "the node that died is back", func() error { return one.Pass(t.Context()) })
		two.take(t, "red", fmt.Sprint(at))
		for claim := range one.had {
			one.take(t, "red", claim)
		}
		different(t, one, two)
		for claim := range one.had {
			one.giveBack(t, claim)
		}
		// What was taken for a claim and not answered is the claim's: its end ends that.
		for i := range 2 {
			one.giveBack(t, fmt.Sprint(at, "-", i))
		}
	}
	for claim := range two.had {
		two.giveBack(t, claim)
	}
	b.ended(t, "red", one, two) // nothing is lost
	b.mustKubectl(t, "", "delete", "node", "dying", "living")
}

func (b *bench) returningNode(t *testing.T) {
	b.mustKubectl(t, addressPool("green", "{subnets: [{prefix: 192.0.2.0/30}], quarantineSeconds: 0}"), "create", "--validate=strict", "-f", "-")
	one, two := b.lessee(t, "leaving"), b.lessee(t, "staying")
	had := one.take(t, "green", "a")
	other := two.take(t, "green", "a")
	b.mustKubectl(t, "", "delete", "node", "leaving")
	// It is not given before the lease has ended, and then it is.
	b.eventually(t, "the address of the node that left", func() error {
		got, err := two.ask(t.Context(), "green", "b")
		if err == nil && got != had {
			t.Errorf("the node that stays has %s and gets %s, where %s was the other's", other, got, had)
		}
		return err
	})
	// It returns under its name, as another object, and its claim with it.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "leaving"}}
	if err := b.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	one.boot(t, nil)
	b.eventually(t, "the node that returns notices", func() error {
		if _, err := one.ask(t.Context(), "green", "a"); err == nil {
			t.Error("an address that another node has is given once more")
		}
		if err := one.Pass(t.Context()); err != nil && !strings.Contains(err.Error(), "all blocks are leased") {
			return err
		}
		err := one.Lost(types.UID("leavinga"))
		if err == nil || !strings.Contains(err.Error(), "delete the pod") {
			return fmt.Errorf("lost: %w", err)
		}
		return nil
	})
	one.giveBack(t, "a")
	two.giveBack(t, "a")
	if err := two.GiveBack("stayingb"); err != nil {
		t.Fatal(err)
	}
	b.ended(t, "green", one, two)
	b.mustKubectl(t, "", "delete", "node", "leaving", "staying")
}

// has prepares a pod of the namespace with these literal addresses and MAC addresses: once, and once more after
// a pass if it has to wait.
func (n *lessee) has(ctx context.Context, namespace, pod string, literals ...string) error {
	of := addresses.Claim{UID: types.UID(n.name + pod), Namespace: namespace, Name: "claim-" + pod, Pod: pod}
	for _, text := range literals {
		l := addresses.Literal{Topology: "t", Step: "s"}
		if mac, err := net.ParseMAC(text); err == nil {
			l.Address = addresspool.OfMAC(mac)
		} else {
			l.Address = netip.MustParseAddr(text)
		}
		of.Literals = append(of.Literals, l)
	}
	_, err := n.Take(of, nil)
	if err == nil {
		return nil
	}
	if err := n.Pass(ctx); err != nil {
		return err
	}
	_, err = n.Take(of, nil)
	return err
}

// literals holds that a literal address is one pod's at a time on all nodes, that the error
// names both, that it is free after the definite end, and that pods which had one address
// before both keep it.
func (b *bench) literals(t *testing.T) {
	one, two := b.lessee(t, "literal-one"), b.lessee(t, "literal-two")
	has := func(n *lessee, pod string, literals ...string) {
		t.Helper()
		b.eventually(t, pod+" has its addresses", func() error { return n.has(t.Context(), "default", pod, literals...) })
	}
	const x, y, z = "192.0.2.9", "192.0.2.10", "2001:db8::9"
	has(one, "a", z, x)
	for name, want := range map[string]string{"192.0.2.9.literal": "default/a", "2001-0db8-0000-0000-0000-0000-0000-0009.literal": "default/a"} {
		var l v1alpha1.AddressLease
		if err := b.Get(t.Context(), client.ObjectKey{Name: name}, &l); err != nil || l.Spec.For != want || l.Spec.Node != "literal-one" {
			t.Errorf("lease %q: %+v, %v", name, l.Spec, err)
		}
	}
	refused := func(n *lessee, namespace, pod, want string) {
		t.Helper()
		b.eventually(t, pod+" is refused", func() error {
			err := n.has(t.Context(), namespace, pod, x, y)
			if fault.Of(err) != fault.Conflict || !errors.Is(err, addresses.ErrInUse) {
				return fmt.Errorf("said: %w", err)
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("said %v, want %s", err, want)
			}
			return nil
		})
	}
	who := `step "s" of NetworkTopology "t": pod "%s" would have address 192.0.2.9, which %s has: only one pod can have it at a time`
	refused(two, "default", "b", fmt.Sprintf(who, "b", `pod "a" on node "literal-one"`))
	refused(two, "tenant", "c", fmt.Sprintf(who, "c", "a pod of another namespace"))
	if err := b.Get(t.Context(), client.ObjectKey{Name: "192.0.2.10.literal"}, &v1alpha1.AddressLease{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("who waits for one address holds the next: %v", err)
	}

	// It keeps its addresses when its agent starts again, and the other's pod has them when its
	// claim has ended.
	one.boot(t, nil)
	has(one, "a", z, x)

	// So it is with a MAC address that a claim sets.
	const mac = "02:00:5e:00:00:09"
	has(one, "m", mac)
	one.boot(t, nil)
	has(one, "m", mac)
	b.eventually(t, "the MAC address of another pod is refused", func() error {
		err := two.has(t.Context(), "default", "n", mac)
		if want := `step "s" of NetworkTopology "t": pod "n" would have MAC address 02:00:5e:00:00:09, which pod "m" on node "literal-one" has`; fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("said: %w, want %s", err, want)
		}
		return nil
	})
	if err := one.GiveBack("literal-onem"); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "pod n has what pod m had", func() error {
		return errors.Join(one.Pass(t.Context()), two.has(t.Context(), "default", "n", mac))
	})
	if err := two.GiveBack("literal-twon"); err != nil {
		t.Fatal(err)
	}

	if err := one.GiveBack("literal-onea"); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "pod b has what pod a had", func() error {
		if err := one.Pass(t.Context()); err != nil {
			return err
		}
		if err := two.has(t.Context(), "default", "b", x, y); err != nil {
			return err
		}
		return two.Pass(t.Context()) // pod c asked for the lease first: it is to name pod b
	})
	refused(one, "default", "d", fmt.Sprintf(who, "d", `pod "b" on node "literal-two"`))
	refused(two, "default", "e", fmt.Sprintf(who, "e", `pod "b" on node "literal-two"`))
	two.boot(t, nil) // nobody waits any more

	// Claims that an earlier version prepared are in the records: both keep the address.
	one.recorded = func() []addresspool.Grant {
		return []addresspool.Grant{addresspool.Literal("literal-oneold", "default/claim-old", "default/old", []netip.Addr{netip.MustParseAddr(x)})}
	}
	one.boot(t, nil)
	b.eventually(t, "a pass beside a pod with the same address", func() error { return one.Pass(t.Context()) })
	has(one, "old", x)
	if err := one.Lost("literal-oneold"); err != nil {
		t.Errorf("a running pod counts as one that has lost its address: %v", err)
	}
	if err := two.GiveBack("literal-twob"); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "the lease is that of the pod which still has the address", func() error {
		if err := errors.Join(two.Pass(t.Context()), one.Pass(t.Context())); err != nil {
			return err
		}
		var l v1alpha1.AddressLease
		if err := b.Get(t.Context(), client.ObjectKey{Name: "192.0.2.9.literal"}, &l); err != nil {
			return err
		}
		if l.Spec.For != "default/old" {
			return fmt.Errorf("it is for %s", l.Spec.For)
		}
		return nil
	})

	// An address that a pool allocates is refused until the pool excludes it. Who has one keeps
	// it, and the pool's condition says so.
	b.mustKubectl(t, addressPool("teal", "{subnets: [{prefix: 192.0.2.0/28}]}"), "create", "--validate=strict", "-f", "-")
	b.eventually(t, "an address of the pool is refused", func() error {
		err := two.has(t.Context(), "default", "f", y)
		if err == nil {
			return errors.Join(errors.New("its node does not know the pool yet"), two.GiveBack("literal-twof"), two.Pass(t.Context()))
		}
		want := `step "s" of NetworkTopology "t": 192.0.2.10 is allocated to other pods by AddressPool "teal": add it to exclude there`
		if fault.Of(err) != fault.Conflict || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("said: %w, want %s", err, want)
		}
		return nil
	})
	has(one, "old", x)
	b.eventually(t, "the overlap is shown", func() error {
		var p v1alpha1.AddressPool
		if err := b.Get(t.Context(), client.ObjectKey{Name: "teal"}, &p); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionOverlap); c == nil || !strings.Contains(c.Message, `192.0.2.9 is an address of pod "default/old"`) {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
	b.mustKubectl(t, "", "patch", "addresspool", "teal", "--type=merge", "-p", `{"spec":{"exclude":["192.0.2.9-192.0.2.10"]}}`)
	has(two, "f", y)
	if err := two.GiveBack("literal-twof"); err != nil {
		t.Fatal(err)
	}
	b.ended(t, "teal", one, two)

	// Nothing is left.
	one.recorded = func() []addresspool.Grant { return nil }
	if err := one.GiveBack("literal-oneold"); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "no lease is left", func() error {
		for _, n := range []*lessee{one, two} {
			if err := n.Pass(t.Context()); err != nil {
				return err
			}
		}
		var all v1alpha1.AddressLeaseList
		if err := b.List(t.Context(), &all); err != nil || len(all.Items) == 0 {
			return err
		}
		return fmt.Errorf("%d are, as %s", len(all.Items), all.Items[0].Name)
	})
	b.mustKubectl(t, "", "delete", "node", "literal-one", "literal-two")
}

// literalFaults has each write of a pod's literal address fail, from the claim to its end, with
// and without a restart of the agent: the pod gets its address, nobody else has it meanwhile,
// and nothing is left.
func (b *bench) literalFaults(t *testing.T) {
	one, two := b.lessee(t, "faulty"), b.lessee(t, "sound")
	const x, y = "192.0.2.9", "02:00:5e:00:00:0a"
	count := func() int {
		var all v1alpha1.AddressLeaseList
		if err := b.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		return len(all.Items)
	}
	for _, answer := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			for at := int64(1); ; at++ {
				one.fault.answer.Store(answer)
				one.fault.in.Store(at)
				b.eventually(t, fmt.Sprintf("the addresses, although write %d fails", at), func() error {
					err := one.has(t.Context(), "default", "a", x, y)
					if err != nil && restart {
						one.boot(t, nil)
					}
					return err
				})
				if err := two.has(t.Context(), "default", "b", y); err == nil {
					t.Errorf("write %d: two pods have %s", at, y)
				}
				if err := one.GiveBack("faultya"); err != nil {
					t.Fatal(err)
				}
				b.eventually(t, fmt.Sprintf("another pod has the address, although write %d failed", at), func() error {
					return errors.Join(one.Pass(t.Context()), two.has(t.Context(), "default", "b", y))
				})
				if err := two.GiveBack("soundb"); err != nil {
					t.Fatal(err)
				}
				b.eventually(t, fmt.Sprintf("no lease is left, although write %d failed", at), func() error {
					if err := errors.Join(one.Pass(t.Context()), two.Pass(t.Context())); err != nil {
						return err
					}
					if n := count(); n > 0 {
						return fmt.Errorf("%d are left", n)
					}
					return nil
				})
				if one.fault.in.Load() > 0 {
					if at < 4 { // two leases, and their ends
						t.Errorf("there are only %d writes", at-1)
					}
					break
				}
			}
		}
	}
	one.fault.in.Store(0)
	b.mustKubectl(t, "", "delete", "node", "faulty", "sound")
}

// keptAddresses holds that a pod which is created again has the address that it had, on the
// same node and on another, at each write of a node that dies; that nobody else gets
// it before its time has passed; and that a pool ends although addresses of it are kept.
func (b *bench) keptAddresses(t *testing.T) {
	b.refused(t, addressPool("p", "{subnets: [{prefix: 192.0.2.0/29}], reclaimAfter: soon}"))
	b.mustKubectl(t, addressPool("kept", "{subnets: [{prefix: 192.0.2.0/28}], quarantineSeconds: 0, reclaimAfter: 1h}"), "create", "--validate=strict", "-f", "-")
	nodes := []*lessee{b.lessee(t, "keeping-0"), b.lessee(t, "keeping-1")}
	n := 0
	pool := "kept"
	start := func(on *lessee, pod string) (claim types.UID, got netip.Prefix) {
		t.Helper()
		n++
		claim = types.UID(fmt.Sprint(pod, "-claim-", n))
		w := addresses.Want{Topology: "t", Step: "s", Pool: pool}
		b.eventually(t, pod+" has an address on "+on.name, func() error {
			given, err := on.Take(addresses.Claim{UID: claim, Namespace: "default", Name: string(claim), Pod: pod, InPod: "net"}, []addresses.Want{w})
			if err != nil {
				return errors.Join(err, on.Pass(t.Context()))
			}
			got = given[w].Addresses[0]
			return nil
		})
		return claim, got
	}
	claim, had := start(nodes[0], "web-0")
	seen := map[netip.Prefix]string{had: "web-0"}
	at := 0
	for i, next := range []int{1, 1, 0, 0} { // to another node, and to the same
		from, to := nodes[at], nodes[next]
		at = next
		for dies := range 3 { // at each write of the end
			writes := 0
			from.boot(t, func(*os.File) error {
				if writes++; writes > dies {
					return errDied
				}
				return nil
			})
			_ = from.GiveBack(claim)
			_ = from.Pass(t.Context())
		}
		from.boot(t, nil)
		if err := from.GiveBack(claim); err != nil {
			t.Fatal(err)
		}
		b.eventually(t, "the lease is kept", func() error {
			if err := from.Pass(t.Context()); err != nil {
				return err
			}
			var l v1alpha1.AddressLease
			if err := b.Get(t.Context(), client.ObjectKey{Name: addresspool.LeaseName("kept", netip.PrefixFrom(had.Addr(), 32))}, &l); err != nil {
				return err
			}
			if l.Spec.KeptUntil == nil || l.Spec.For != "default/web-0/net/t/s" {
				return fmt.Errorf("it is %+v", l.Spec)
			}
			return nil
		})
		other, got := start(to, fmt.Sprint("other-", i))
		if who, twice := seen[got]; twice {
			t.Errorf("%s gets %s, which is kept for %s", other, got, who)
		}
		seen[got] = string(other)
		var again netip.Prefix
		if claim, again = start(to, "web-0"); again != had {
			t.Errorf("created again on %s, the pod has %s, and had %s", to.name, again, had)
		}
	}
	for _, n := range nodes {
		if err := n.GiveBack(claim); err != nil {
			t.Fatal(err)
		}
		for _, other := range seen {
			if err := n.GiveBack(types.UID(other)); err != nil {
				t.Fatal(err)
			}
		}
		b.eventually(t, "a pass", func() error { return n.Pass(t.Context()) })
	}
	var left v1alpha1.AddressLeaseList
	if err := b.List(t.Context(), &left); err != nil {
		t.Fatal(err)
	}
	kept := 0
	for i := range left.Items {
		if left.Items[i].Spec.KeptUntil != nil {
			kept++
		}
	}
	if kept != len(seen) {
		t.Errorf("%d leases are kept, want %d", kept, len(seen))
	}
	b.ended(t, "kept", nodes...)

	// The controller ends what was kept for its time, and not earlier.
	pool = "brief"
	b.mustKubectl(t, addressPool(pool, "{subnets: [{prefix: 192.0.2.0/29}], quarantineSeconds: 0, reclaimAfter: 10s}"), "create", "--validate=strict", "-f", "-")
	claim, had = start(nodes[0], "web-0")
	if err := nodes[0].GiveBack(claim); err != nil {
		t.Fatal(err)
	}
	var l v1alpha1.AddressLease
	name := client.ObjectKey{Name: addresspool.LeaseName(pool, netip.PrefixFrom(had.Addr(), 32))}
	b.eventually(t, "the lease is kept", func() error {
		if err := errors.Join(nodes[0].Pass(t.Context()), b.Get(t.Context(), name, &l)); err != nil {
			return err
		}
		if l.Spec.KeptUntil == nil {
			return fmt.Errorf("it is %+v", l.Spec)
		}
		return nil
	})
	until := l.Spec.KeptUntil.Time
	b.eventually(t, "the lease ends", func() error {
		if err := b.Get(t.Context(), name, &l); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	if early := time.Until(until); early > 0 {
		t.Errorf("the lease has ended %s before its time", early)
	}
	b.ended(t, pool, nodes...)
	b.mustKubectl(t, "", "delete", "node", "keeping-0", "keeping-1")
}
