package controller

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestSubnetsOfAll holds that topologies of one network come to new subnets when all of them are edited, one after the other and in any
// order, and that the pool is that of the old ones until its addresses are given back. A pass reads the pools of its topology alone.
func TestSubnetsOfAll(t *testing.T) {
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	built := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.AddressPool{}).
		WithIndex(&v1alpha1.AddressPool{}, indexUID, uidsOfPool).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, all client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, pools := list.(*v1alpha1.AddressPoolList); pools && (&client.ListOptions{}).ApplyOptions(opts).FieldSelector == nil {
				t.Error("all pools of the cluster are listed")
			}
			return all.List(ctx, list, opts...)
		},
	}).Build()
	c := &Controller{Client: built}
	pass := func(name, subnets string) (messages string) {
		o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
		var wants []topology.NetworkPool
		if subnets != "" {
			wants = []topology.NetworkPool{{Step: "net1", IPAM: topology.IPAM{Pool: "ovn-blue", Subnets: []string{subnets}}}}
		}
		m, err := c.subnets(t.Context(), o, wants)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(m, "\n")
	}
	pool := func() (subnet string, owners []string) {
		p := &v1alpha1.AddressPool{}
		if err := built.Get(t.Context(), client.ObjectKey{Name: "ovn-blue"}, p); err != nil {
			return "", nil
		}
		for _, r := range p.OwnerReferences {
			owners = append(owners, r.Name)
		}
		return p.Spec.Subnets[0].Prefix, owners
	}
	use := func(n int64) {
		p := &v1alpha1.AddressPool{}
		if err := built.Get(t.Context(), client.ObjectKey{Name: "ovn-blue"}, p); err != nil {
			t.Fatal(err)
		}
		p.Status.Used = n
		if err := built.Status().Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	const before, after = "10.0.0.0/24", "10.1.0.0/24"
	for _, name := range []string{"a", "b", "c"} {
		if said := pass(name, before); said != "" {
			t.Fatal(said)
		}
	}
	use(2)
	for _, name := range []string{"b", "a"} { // edited
		if said := pass(name, after); !strings.Contains(said, "the network is also in NetworkTopology") {
			t.Errorf("%s is edited, c is not: %q", name, said)
		}
	}
	if said := pass("c", after); !strings.Contains(said, "2 of its addresses are in use") {
		t.Errorf("all are edited, and pods have addresses: %q", said)
	}
	if subnet, owners := pool(); subnet != before || !slices.Equal(owners, []string{"c"}) {
		t.Errorf("the pool has %s and owners %s", subnet, owners)
	}
	use(0)
	for range 2 { // whom the pool's events wake
		for _, name := range []string{"a", "b", "c"} {
			pass(name, after)
		}
	}
	if subnet, owners := pool(); subnet != after || len(owners) != 3 {
		t.Errorf("the recreated pool has %s and owners %s", subnet, owners)
	}
	for _, name := range []string{"a", "b", "c"} {
		pass(name, "")
	}
	if subnet, owners := pool(); subnet != "" {
		t.Errorf("no topology has the network, and its pool %s has owners %s", subnet, owners)
	}
}
