package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// network is a cluster with topologies of one network of OVN.
type network struct {
	*testing.T
	client.Client
	now    time.Time
	pools  *Pools
	leases int
	pool   string
}

func newNetwork(t *testing.T) *network {
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	n := &network{T: t, now: time.Unix(1e9, 0), pool: (&topology.OVN{Topology: topology.OVNLayer2, Name: "blue"}).Pool()}
	n.Client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.AddressPool{}).
		WithIndex(&v1alpha1.NetworkTopology{}, indexPool, indexer(poolsOfSubnets)).
		WithIndex(&v1alpha1.AddressLease{}, "spec.pool", func(o client.Object) []string { return []string{o.(*v1alpha1.AddressLease).Spec.Pool} }).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, all client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, topologies := list.(*v1alpha1.NetworkTopologyList); topologies && (&client.ListOptions{}).ApplyOptions(opts).FieldSelector == nil {
					t.Error("all topologies of the cluster are listed")
				}
				return all.List(ctx, list, opts...)
			},
		}).WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-n1"}}).Build()
	n.restart()
	return n
}

// restart has another controller, that remembers nothing.
func (n *network) restart() {
	n.pools = &Pools{Client: n.Client, Live: n.Client, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return n.now }}
}

func (n *network) pass() {
	n.Helper()
	if _, err := n.pools.Reconcile(n.Context(), reconcile.Request{}); err != nil {
		n.Fatal(err)
	}
}

func blue(name, subnets string) *v1alpha1.NetworkTopology {
	o := &v1alpha1.NetworkTopology{}
	if subnets != "" {
		subnets = `,"subnets":"` + subnets + `"`
	}
	step := `{"spec":{"steps":[{"name":"net1","type":"ovn-k8s-cni-overlay","config":{"topology":"layer2","name":"blue"` + subnets + `}}]}}`
	if err := json.Unmarshal([]byte(step), o); err != nil {
		panic(err)
	}
	o.Name, o.UID = name, types.UID("uid-"+name)
	return o
}

// edit writes topologies, each with the network and subnets; without these for "".
func (n *network) edit(subnets string, names ...string) {
	n.Helper()
	for _, name := range names {
		o := blue(name, subnets)
		err := n.Create(n.Context(), o.DeepCopy())
		if apierrors.IsAlreadyExists(err) {
			have := &v1alpha1.NetworkTopology{}
			if err = n.Get(n.Context(), client.ObjectKey{Name: name}, have); err == nil {
				have.Spec = o.Spec
				err = n.Update(n.Context(), have)
			}
		}
		if err != nil {
			n.Fatal(err)
		}
	}
}

func (n *network) remove(names ...string) {
	n.Helper()
	for _, name := range names {
		if err := n.Delete(n.Context(), blue(name, "")); err != nil {
			n.Fatal(err)
		}
	}
}

// says is what the controller says of a topology when it looks at it.
func (n *network) says(name string) string {
	n.Helper()
	o := &v1alpha1.NetworkTopology{}
	if err := n.Get(n.Context(), client.ObjectKey{Name: name}, o); err != nil {
		n.Fatal(err)
	}
	t, err := topology.FromObject(o)
	if err != nil {
		n.Fatal(err)
	}
	m, err := (&Controller{Client: n.Client}).subnets(n.Context(), t.NetworkPools())
	if err != nil {
		n.Fatal(err)
	}
	return strings.Join(m, "\n")
}

// lease has a node lease an address, and say whether it is used.
func (n *network) lease(used int32) (name string) {
	n.Helper()
	n.leases++
	l := &v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{Pool: n.pool, Block: fmt.Sprintf("10.0.0.%d/32", n.leases), Node: "n1", NodeUID: "uid-n1", Used: used}}
	l.Name, l.UID = fmt.Sprint("lease", n.leases), types.UID(fmt.Sprint("lease", n.leases))
	if err := n.Create(n.Context(), l); err != nil {
		n.Fatal(err)
	}
	return l.Name
}

// giveUp has the node end a lease.
func (n *network) giveUp(lease string) {
	n.Helper()
	if err := n.Delete(n.Context(), &v1alpha1.AddressLease{ObjectMeta: metav1.ObjectMeta{Name: lease}}); err != nil {
		n.Fatal(err)
	}
}

func (n *network) report(lease string, used int32) {
	n.Helper()
	l := &v1alpha1.AddressLease{}
	if err := n.Get(n.Context(), client.ObjectKey{Name: lease}, l); err != nil {
		n.Fatal(err)
	}
	l.Spec.Used = used
	if err := n.Update(n.Context(), l); err != nil {
		n.Fatal(err)
	}
}

// has wants a pool with a subnet; "" for none, or one that ends.
func (n *network) has(when, subnet string) *v1alpha1.AddressPool {
	n.Helper()
	o := &v1alpha1.AddressPool{}
	err := n.Get(n.Context(), client.ObjectKey{Name: n.pool}, o)
	have := ""
	if err == nil && o.DeletionTimestamp.IsZero() {
		have = o.Spec.Subnets[0].Prefix
	}
	if have != subnet || client.IgnoreNotFound(err) != nil {
		n.Fatalf("%s: the pool has %q, want %q: %v", when, have, subnet, err)
	}
	return o
}

// TestManyOfOneNetwork holds that the pool of a network does not grow with its topologies.
func TestManyOfOneNetwork(t *testing.T) {
	n := newNetwork(t)
	for i := range 200 {
		name := fmt.Sprintf("topology-%05d", i)
		n.edit("10.0.0.0/24", name)
		if said := n.says(name); said != "" {
			t.Fatal(said)
		}
	}
	text, err := json.Marshal(n.has("joined", "10.0.0.0/24"))
	if err != nil || len(text) > 2000 {
		t.Errorf("the pool has %d bytes: %v", len(text), err)
	}
}

// TestPoolOfSubnets is the life of the pool of a network: all its topologies come to new subnets, one after the other, and it ends
// with the last, when no pod has an address. Another controller goes on at any time.
func TestPoolOfSubnets(t *testing.T) {
	const before, after = "10.0.0.0/24", "10.1.0.0/24"
	for _, restarts := range []bool{false, true} {
		n := newNetwork(t)
		pass := func() {
			n.Helper()
			if restarts {
				n.restart()
			}
			n.pass()
		}
		n.edit(before, "a", "b", "c")
		for _, name := range []string{"a", "b", "c"} {
			if said := n.says(name); said != "" {
				t.Fatal(said)
			}
		}
		pass()
		used := n.lease(1)
		n.edit(after, "b", "a")
		if said := n.says("b"); !strings.Contains(said, `the network is also in NetworkTopology "c": write`) {
			t.Errorf("b is edited, c is not: %q", said)
		}
		pass()
		n.now = n.now.Add(time.Hour)
		pass()
		n.has("c has its subnets", before)
		n.edit(after, "c")
		if said := n.says("c"); !strings.Contains(said, "recreated once no pod has an address from it") {
			t.Errorf("all are edited, and pods have addresses: %q", said)
		}
		pass()
		n.now = n.now.Add(time.Hour)
		pass()
		n.has("pods have addresses", before)
		n.edit(before, "a") // it was wrong
		if said := n.says("a"); said != "" {
			t.Errorf("an edit that is taken back: %q", said)
		}
		pass()
		n.edit(after, "a")
		pass()
		n.now = n.now.Add(44 * time.Second)
		n.report(used, 0)
		pass()
		n.has("nodes may have given addresses", before)
		n.now = n.now.Add(2 * time.Second)
		n.pass() // another controller would wait for the reports again
		if restarts {
			n.now = n.now.Add(46 * time.Second)
			n.pass()
		}
		n.has("no pod has an address", "")
		n.giveUp(used)
		pass()
		for _, name := range []string{"a", "b", "c"} { // whom its end wakes
			if said := n.says(name); said != "" {
				t.Error(said)
			}
		}
		pass()
		n.has("recreated", after)

		n.remove("a", "b")
		n.edit("", "c")
		used = n.lease(1)
		pass()
		n.now = n.now.Add(time.Hour)
		pass()
		n.has("no topology has the network, and a pod has an address", after)
		n.giveUp(used)
		pass()
		n.has("the last address is given back", "")
		pass()
		n.edit(before, "c")
		if said := n.says("c"); said != "" {
			t.Error(said)
		}
		n.has("the network is used again", before)
	}
}

// TestPoolOfUser holds that a pool of the name of a network's is not deleted that a user has made, be it a copy of one of ours.
func TestPoolOfUser(t *testing.T) {
	n := newNetwork(t)
	for name, labels := range map[string]map[string]string{n.pool: nil, "copy": {v1alpha1.LabelSubnets: n.pool}} {
		o := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		o.Spec.Subnets = []v1alpha1.AddressSubnet{{Prefix: "10.9.0.0/24"}}
		if err := n.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		n.pass()
		n.now = n.now.Add(time.Hour)
	}
	n.has("of a user", "10.9.0.0/24")
	n.pool = "copy"
	n.has("a copy", "10.9.0.0/24")
}
