package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestPoolStatus holds the status of a pool for the sums of leases.
func TestPoolStatus(t *testing.T) {
	pool := func(name string, subnets ...string) *v1alpha1.AddressPool {
		o := &v1alpha1.AddressPool{}
		o.Name, o.Generation = name, 2
		for _, s := range subnets {
			o.Spec.Subnets = append(o.Spec.Subnets, v1alpha1.AddressSubnet{Prefix: s})
		}
		return o
	}
	onSwitch := func(o *v1alpha1.AddressPool, name string) *v1alpha1.AddressPool {
		o.Annotations = map[string]string{v1alpha1.AnnotationSwitch: name}
		return o
	}
	divided := func(name string, bits int32, subnet string) *v1alpha1.AddressPool {
		o := pool(name, subnet)
		o.Spec.HostBlock = &bits
		return o
	}
	blocks := func(o *v1alpha1.AddressPool, size int32) *v1alpha1.AddressPool {
		o.Spec.BlockSize = &size
		return o
	}
	lease := func(node, block string, used int32) *v1alpha1.AddressLease {
		return &v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{Pool: "p", Node: node, Block: block, Used: used}}
	}
	for name, c := range map[string]struct {
		pool    *v1alpha1.AddressPool
		others  []*v1alpha1.AddressPool
		leases  []*v1alpha1.AddressLease
		want    string // what is true, and the numbers
		around  []Network
		message string // of one condition that is true, or of Valid
	}{
		"nobody has any": {pool: pool("p", "192.0.2.0/29"), want: "Valid 6/0/0/0"},
		"two nodes": {
			pool: pool("p", "192.0.2.0/29"), leases: []*v1alpha1.AddressLease{lease("a", "192.0.2.1/32", 1), lease("a", "192.0.2.2/32", 0), lease("b", "192.0.2.3/32", 1)},
			want: "Valid 6/3/2/2",
		},
		"nothing is left": {
			pool: pool("p", "192.0.2.0/30"), leases: []*v1alpha1.AddressLease{lease("a", "192.0.2.1/32", 1), lease("b", "192.0.2.2/32", 0)},
			want: "Valid Exhausted Low 2/2/1/2", message: "nodes have leased 2 of 2 addresses",
		},
		"the family with fewer counts": {pool: pool("p", "192.0.2.0/29", "2001:db8::/64"), leases: []*v1alpha1.AddressLease{lease("a", "2001:db8::10/124", 0)}, want: "Valid 6/0/0/1"},
		"more addresses than can be counted": {
			pool: pool("p", "2001:db8::/64"), leases: []*v1alpha1.AddressLease{lease("a", "2001:db8::10/124", 3)},
			want: "Valid 9223372036854775807/16/3/1",
		},
		"one of more blocks than can be counted in sum": {
			pool: divided("p", 4, "fd00::/48"), leases: []*v1alpha1.AddressLease{lease("a", "fd00::/52", 3)},
			want: "Valid 9223372036854775807/9223372036854775807/3/1", message: "nodes have leased 75557863725914323419135 of 1208925819614629174706160 addresses",
		},
		"nothing is left of more addresses than can be counted": {
			pool: divided("p", 1, "fd00::/62"), leases: []*v1alpha1.AddressLease{lease("a", "fd00::/63", 0), lease("b", "fd00:0:0:2::/63", 0)},
			want: "Valid Exhausted Low 9223372036854775807/9223372036854775807/0/2",
		},
		"nothing is left of the family with more": {
			pool: blocks(pool("p", "192.0.2.0/29", "198.51.100.0/29", "2001:db8::/124"), 8), leases: []*v1alpha1.AddressLease{lease("a", "2001:db8::/125", 0), lease("b", "2001:db8::8/125", 0), lease("a", "192.0.2.0/29", 0)},
			want: "Valid Exhausted Low 12/6/0/2", message: "nodes have leased 15 of 15 addresses",
		},
		"overlap": {
			pool: pool("p", "192.0.2.0/29"), others: []*v1alpha1.AddressPool{pool("q", "192.0.2.0/24"), pool("r", "198.51.100.0/24")},
			want: "Valid Overlap 6/0/0/0", message: `192.0.2.0/29 is shared with 192.0.2.0/24 of AddressPool "q"`,
		},
		"Services": {
			pool: pool("p", "192.0.2.0/29"), around: []Network{{netip.MustParsePrefix("198.51.100.0/24"), "nobody"}, {netip.MustParsePrefix("192.0.0.0/16"), "Services"}},
			want: "Valid Overlap 6/0/0/0", message: `192.0.2.0/29 and 192.0.0.0/16 of Services share addresses`,
		},
		"a node's own address": {
			pool: pool("p", "192.0.2.0/29"), around: []Network{{netip.MustParsePrefix("192.0.2.3/32"), `node "a"`}},
			want: "Valid Overlap 6/0/0/0", message: `192.0.2.3 is an address of node "a", and would be given to a pod of 192.0.2.0/29: add it to exclude`,
		},
		"a pod's literal address": {
			pool: pool("p", "192.0.2.0/29"), around: literals([]*v1alpha1.AddressLease{{Spec: v1alpha1.AddressLeaseSpec{Pool: topology.LiteralPool, Block: "192.0.2.4/32", For: "ns/a"}}}),
			want: "Valid Overlap 6/0/0/0", message: `192.0.2.4 is an address of pod "ns/a", and would be given to a pod of 192.0.2.0/29: add it to exclude`,
		},
		"what is not given away": {
			pool: pool("p", "192.0.2.0/29"), around: []Network{{netip.MustParsePrefix("192.0.2.0/32"), "a"}, {netip.MustParsePrefix("192.0.2.7/32"), "b"}},
			want: "Valid 6/0/0/0",
		},
		"invalid": {pool: pool("p", "192.0.2.9/29"), want: "0/0/0/0", message: `AddressPool "p": spec.subnets[0].prefix: "192.0.2.9/29" has bits set`},
		"another switch has the same addresses": {
			pool: onSwitch(pool("p", "192.0.2.0/29"), "blue"), others: []*v1alpha1.AddressPool{pool("q", "192.0.2.0/24"), onSwitch(pool("r", "192.0.2.0/24"), "red")},
			want: "Valid 6/0/0/0",
		},
		"two pools of one switch": {
			pool: onSwitch(pool("p", "192.0.2.0/29"), "blue"), others: []*v1alpha1.AddressPool{onSwitch(pool("q", "192.0.2.0/24"), "blue")},
			want: "Valid Overlap 6/0/0/0", message: `192.0.2.0/29 is shared with 192.0.2.0/24 of AddressPool "q"`,
		},
	} {
		layouts := map[string]*addresspool.Layout{}
		for _, o := range append(c.others, c.pool) {
			if l, err := addresspool.Of(o); err == nil {
				layouts[o.Name] = l
			}
		}
		s := PoolStatus(c.pool, layouts[c.pool.Name], addresspool.SharedAmong(layouts)[c.pool.Name], c.leases, []*around{newAround(c.around)})
		var have []string
		matched := c.message == ""
		for _, condition := range []string{v1alpha1.ConditionValid, v1alpha1.ConditionOverlap, v1alpha1.ConditionExhausted, v1alpha1.ConditionLow} {
			if meta.IsStatusConditionTrue(s.Conditions, condition) {
				have = append(have, condition)
			}
			if found := meta.FindStatusCondition(s.Conditions, condition); found != nil {
				matched = matched || strings.HasPrefix(found.Message, c.message)
			}
		}
		have = append(have, fmt.Sprintf("%d/%d/%d/%d", s.Size, s.Leased, s.Used, s.Nodes))
		if got := strings.Join(have, " "); got != c.want || !matched {
			t.Errorf("%s: %s; want %s, saying %q: %v", name, got, c.want, c.message, s.Conditions)
		}
	}
}

// TestGraceLeft holds that a node whose object was deleted and created again has the whole grace from then on: its agent
// reads the object minutes later, and would have lost its leases while pods use them.
func TestGraceLeft(t *testing.T) {
	now := time.Unix(1e9, 0)
	created := func(before time.Duration) *metav1.PartialObjectMetadata {
		n := &metav1.PartialObjectMetadata{}
		n.CreationTimestamp = metav1.NewTime(now.Add(-before))
		return n
	}
	for name, c := range map[string]struct {
		node  *metav1.PartialObjectMetadata
		since time.Duration // for how long the controller has known that the node of the lease is gone
		want  time.Duration
	}{
		"gone for long":                       {nil, 11 * time.Minute, -time.Minute},
		"gone for a while":                    {nil, 9 * time.Minute, time.Minute},
		"created a minute ago":                {created(time.Minute), 11 * time.Minute, 9 * time.Minute},
		"created, and no agent came":          {created(11 * time.Minute), 12 * time.Minute, -time.Minute},
		"created before the controller began": {created(time.Hour), 4 * time.Minute, 6 * time.Minute},
	} {
		if left := graceLeft(c.node, now.Add(-c.since), now, 10*time.Minute); left != c.want {
			t.Errorf("%s: the lease stays for %s, want %s", name, left, c.want)
		}
	}
}

// TestKeptAhead holds that a lease which a node with a wrong clock has kept for years ends when one that is kept now does, and that
// such leases do not push out others; so do leases of a pool that keeps addresses for less time now.
func TestKeptAhead(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := &Pools{Now: func() time.Time { return now }}
	pools := []v1alpha1.AddressPool{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.AddressPoolSpec{ReclaimAfter: "1h"}}}
	lease := func(name string, left time.Duration) v1alpha1.AddressLease {
		return v1alpha1.AddressLease{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec:       v1alpha1.AddressLeaseSpec{Pool: "p", For: "a/" + name + "/net/t/s", KeptUntil: new(metav1.NewTime(now.Add(left)))},
		}
	}
	leases := []v1alpha1.AddressLease{lease("right", 30*time.Minute), lease("ahead", 5*365*24*time.Hour)}
	began := now
	is := func(right, ahead time.Duration) {
		t.Helper()
		if got := c.ends(leases, pools); !got["right"].Equal(began.Add(right)) || !got["ahead"].Equal(began.Add(ahead)) {
			t.Errorf("after %s: %v, want %s and %s after the begin", now.Sub(began), got, right, ahead)
		}
	}
	is(30*time.Minute, time.Hour)
	now = now.Add(20 * time.Minute)
	is(30*time.Minute, time.Hour)
	pools[0].Spec.ReclaimAfter = "5m"
	is(25*time.Minute, 5*time.Minute)
	pools[0].Spec.ReclaimAfter = "1h"

	began, leases = now, nil
	for i := range addresspool.MaxKept {
		leases = append(leases, lease(fmt.Sprint("ahead", i), 365*24*time.Hour))
	}
	c.ends(leases, pools)
	now = now.Add(time.Minute)
	leases = append(leases, lease("right", time.Hour))
	if got := beyond(leases, c.ends(leases, pools)); len(got) != 1 || got["right"] {
		t.Errorf("%v are ended, want one that is kept for longer than the pool says", got)
	}
}

// TestKeptBeyond holds that a namespace has a bounded number of kept leases in a pool: those go first that would be kept for
// the shortest time, and those of another namespace or pool are not counted.
func TestKeptBeyond(t *testing.T) {
	now := time.Unix(1e9, 0)
	var leases []v1alpha1.AddressLease
	add := func(pool, namespace string, n int) {
		for i := range n {
			l := v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{Pool: pool, For: fmt.Sprintf("%s/web-%d/net/t/s", namespace, i), KeptUntil: new(metav1.NewTime(now.Add(-time.Duration(i) * time.Minute)))}}
			l.Name = fmt.Sprint(pool, namespace, i)
			leases = append(leases, l)
		}
	}
	add("p", "a", addresspool.MaxKept+2)
	add("p", "b", addresspool.MaxKept)
	add("q", "a", 1)
	leases = append(leases, v1alpha1.AddressLease{Spec: v1alpha1.AddressLeaseSpec{Pool: "p", For: "a/used/net/t/s"}})
	got := beyond(leases, (&Pools{Now: func() time.Time { return now }}).ends(leases, nil))
	if len(got) != 2 || !got[fmt.Sprint("pa", addresspool.MaxKept)] || !got[fmt.Sprint("pa", addresspool.MaxKept+1)] {
		t.Errorf("%v are ended", got)
	}
}

// mute is an API server that does not list nodes.
type mute struct{ client.Reader }

func (m mute) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, nodes := list.(*corev1.NodeList); nodes {
		return apierrors.NewTooManyRequests("later", 1)
	}
	return m.Reader.List(ctx, list, opts...)
}

// TestOverlapWithoutAnswer: a controller that has just begun says nothing of overlaps before it knows the networks of the cluster.
func TestOverlapWithoutAnswer(t *testing.T) {
	n := newNetwork(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", UID: "uid-n2"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.9"}}}}
	pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}}}}
	if err := errors.Join(n.Create(t.Context(), node), n.Create(t.Context(), pool)); err != nil {
		t.Fatal(err)
	}
	overlaps := func() metav1.ConditionStatus {
		t.Helper()
		if err := n.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
			t.Fatal(err)
		}
		if c := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionOverlap); c != nil {
			return c.Status
		}
		return ""
	}
	pass := func(want metav1.ConditionStatus) {
		t.Helper()
		_, _ = n.pools.Reconcile(t.Context(), reconcile.Request{}) // whether it has failed
		if is := overlaps(); is != want {
			t.Errorf("Overlap %q, want %q", is, want)
		}
	}
	n.pools.Live = mute{n.Client}
	pass("")
	n.pools.Live = n.Client
	pass(metav1.ConditionTrue)
	n.restart()
	n.pools.Live = mute{n.Client}
	pass(metav1.ConditionTrue)
}

// TestManyEnd: a pool that is new is protected, and so usable, soon, however many leases end at the same time: those of nodes that are
// gone, and those of a pool that ends. All of them end in the end.
func TestManyEnd(t *testing.T) {
	const many = 120
	n := newNetwork(t)
	lease := func(i int, spec v1alpha1.AddressLeaseSpec) {
		spec.Pool, spec.Block = "old", fmt.Sprintf("10.0.%d.%d/32", i/250, i%250)
		l := &v1alpha1.AddressLease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("lease", i), UID: types.UID(fmt.Sprint(i))}, Spec: spec}
		if err := n.Create(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		lease(2*i, v1alpha1.AddressLeaseSpec{Node: fmt.Sprint("gone", i), NodeUID: "u"})
		lease(2*i+1, v1alpha1.AddressLeaseSpec{Node: v1alpha1.KeptNode, For: fmt.Sprintf("a%d/p/c/t/s", i), KeptUntil: new(metav1.NewTime(n.now.Add(time.Minute)))})
	}
	fresh := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "fresh"}, Spec: v1alpha1.AddressPoolSpec{Subnets: []v1alpha1.AddressSubnet{{Prefix: "192.0.2.0/24"}}}}
	if err := n.Create(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	requests, protected := 0, 0
	counted := interceptor.NewClient(n.Client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, live := o.(*corev1.Node); live {
				requests++
			}
			return c.Get(ctx, key, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			requests++
			return c.Delete(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			protected = requests
			return c.Patch(ctx, o, p, opts...)
		},
	})
	n.pools.Client, n.pools.Live = counted, counted
	for range many {
		result, err := n.pools.Reconcile(t.Context(), reconcile.Request{})
		if err != nil {
			t.Fatal(err)
		}
		left := &v1alpha1.AddressLeaseList{}
		if err := n.List(t.Context(), left); err != nil {
			t.Fatal(err)
		}
		if len(left.Items) == 0 {
			break
		}
		if result.RequeueAfter == 0 || result.RequeueAfter > time.Second {
			t.Fatalf("%d leases are left, and go on after %s", len(left.Items), result.RequeueAfter)
		}
		n.now = n.now.Add(result.RequeueAfter)
	}
	if protected > 250 {
		t.Errorf("the new pool was protected after %d requests", protected)
	}
	if left := (&v1alpha1.AddressLeaseList{}); n.List(t.Context(), left) != nil || len(left.Items) > 0 {
		t.Errorf("%d leases are left", len(left.Items))
	}
}
