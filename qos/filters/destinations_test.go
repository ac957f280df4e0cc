package filters

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/qos"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// pair is an object whose first rule has pods as a destination, and what the controller has written of it, nil for nothing.
type pair struct {
	*object
	written *destinations
}

// ofPods is such a pair, with the generation for which the controller has written; 0 is nothing.
func ofPods(t *testing.T, name, role string, generation, written int64, tooMany int32, addresses ...string) pair {
	t.Helper()
	o := &qosv1alpha1.NetworkQoS{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("of-" + name), Generation: generation}}
	o.Spec = qosv1alpha1.Spec{
		PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}},
		NetworkSelectors: []qosv1alpha1.NetworkSelector{{
			Type: qosv1alpha1.NetworkTopologies, NetworkTopologySelector: &qosv1alpha1.Selector{NetworkSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"rail": "storage"}}},
		}},
		Egress: []qosv1alpha1.Rule{{DSCP: new(int32(8)), Classifier: &qosv1alpha1.Classifier{To: []qosv1alpha1.Destination{{PodSelector: &metav1.LabelSelector{}}}}}},
	}
	unread := func(o any) *unstructured.Unstructured {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		return &unstructured.Unstructured{Object: content}
	}
	out := pair{object: objectOf(unread(o))}
	if written > 0 {
		d := &v1alpha1.NetworkQoSDestinations{Destinations: v1alpha1.Destinations{ObservedGeneration: written, TooMany: tooMany}}
		d.Name, d.Annotations = string(o.UID), map[string]string{v1alpha1.AnnotationQoSName: name}
		if len(addresses) > 0 {
			d.Destinations.Sets = []v1alpha1.DestinationSet{{Topology: "rail", Addresses: addresses}}
		}
		out.written = destinationsOf("ns", unread(d))
	}
	return out
}

// give has a namespace know a pair.
func (n *namespace) give(p pair) {
	n.put(p.object)
	n.write(p.UID, p.written)
}

// crowded is a Follower of a node with pods of ten roles in a namespace that is followed, each with
// a topology that objects cover and, every second, another one instead.
func crowded(t testing.TB, pods int) (f *Follower, n *namespace) {
	t.Helper()
	nowhere := &rest.Config{Host: "http://127.0.0.1:1"} // no API server answers
	objects, err := dynamic.NewForConfig(nowhere)
	if err != nil {
		t.Fatal(err)
	}
	metadatas, err := metadata.NewForConfig(nowhere)
	if err != nil {
		t.Fatal(err)
	}
	f = New(Options{Client: objects, Pods: metadatas, NodeName: "n1", Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now})
	n = newNamespace(f, "ns")
	n.err = nil
	f.namespaces["ns"] = n
	for i := range pods {
		name := fmt.Sprint("p-", i)
		c := &claims.Claim{UID: types.UID("of-" + name), Namespace: "ns", Name: name, Pod: claims.Pod{Name: name, UID: "u"}}
		topology := v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "rail", UID: "t", Labels: map[string]string{"rail": "storage"}}}
		if i%2 == 1 {
			topology = v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "tail", UID: "t"}}
		}
		c.Topologies = []claims.Topology{{Object: topology}}
		f.claims[c.UID] = c
		f.pods[types.NamespacedName{Namespace: "ns", Name: name}] = podLabels{"u", map[string]string{"role": fmt.Sprint("r", i/2%10)}}
		f.place(c)
	}
	clear(f.behind)
	return f, n
}

// queued returns how many claims are compiled again, and forgets that.
func (f *Follower) queued() int {
	n := len(f.behind)
	clear(f.behind)
	return n
}

// TestClaimsOfChange holds which claims of a node are compiled again when an object changes, or the
// addresses of the pods that are its destinations: those that it covers, and no others.
func TestClaimsOfChange(t *testing.T) {
	f, n := crowded(t, 200)
	put := func(p pair) int {
		n.give(p)
		return f.queued()
	}
	for i := range 10 {
		// Of 200 pods 20 have a role, and 10 of these the topology.
		if got := put(ofPods(t, fmt.Sprint("q-", i), fmt.Sprint("r", i), 1, 0, 0)); got != 10 {
			t.Errorf("a new object: %d claims", got)
		}
	}
	for _, c := range []struct {
		what string
		o    pair
		want int
	}{
		{"addresses are written", ofPods(t, "q-3", "r3", 1, 1, 0, "192.0.2.1"), 10},
		{"nothing has changed", ofPods(t, "q-3", "r3", 1, 1, 0, "192.0.2.1"), 0},
		{"an address more", ofPods(t, "q-3", "r3", 1, 1, 0, "192.0.2.1", "192.0.2.2"), 10},
		{"an edit", ofPods(t, "q-3", "r3", 2, 1, 0, "192.0.2.1", "192.0.2.2"), 10},
		{"it covers no pod any more", ofPods(t, "q-3", "none", 3, 1, 0), 10},
		{"addresses of one that covers no pod", ofPods(t, "q-3", "none", 3, 3, 0, "192.0.2.1"), 0},
	} {
		if got := put(c.o); got != c.want {
			t.Errorf("%s: %d claims, want %d", c.what, got, c.want)
		}
	}
	f.pods[types.NamespacedName{Namespace: "ns", Name: "p-0"}] = podLabels{"u", map[string]string{"role": "r1"}}
	f.place(f.claims["of-p-0"])
	if got := f.queued(); got != 1 {
		t.Errorf("the labels of a pod: %d claims", got)
	}
}

// TestDestinationsOfPods holds the filters of a pod whose rule has pods as a destination: those of
// the addresses that are written for the object as it is, and an error while there are none.
func TestDestinationsOfPods(t *testing.T) {
	f, n := crowded(t, 1)
	c := f.claims["of-p-0"]
	for _, step := range []struct {
		what string
		o    pair
		want []string // destinations
		kind fault.Kind
		says string
	}{
		{"nothing is written", ofPods(t, "q", "r0", 1, 0, 0), nil, fault.NotReady, `the addresses of destination pods of NetworkQoS "ns/q" are not known yet`},
		{"no pod has an address", ofPods(t, "q", "r0", 1, 1, 0), nil, "", ""},
		{"two have", ofPods(t, "q", "r0", 1, 1, 0, "192.0.2.1", "2001:db8::1"), []string{"192.0.2.1/32", "2001:db8::1/128"}, "", ""},
		{"what is written is of an earlier generation", ofPods(t, "q", "r0", 2, 1, 0, "192.0.2.1"), nil, fault.NotReady, "are not known yet"},
		{"and of this one", ofPods(t, "q", "r0", 2, 2, 0, "192.0.2.7"), []string{"192.0.2.7/32"}, "", ""},
		{"too many", ofPods(t, "q", "r0", 2, 2, 2000), nil, "", ""},
		{"what is no address is left out", ofPods(t, "q", "r0", 2, 2, 0, "nowhere", "192.0.2.9"), []string{"192.0.2.9/32"}, "", ""},
		{"an object of other pods", ofPods(t, "q", "r1", 3, 0, 0), nil, "", ""},
	} {
		n.give(step.o)
		out, err := f.Of(c, &c.Topologies[0])
		var have []string
		for _, o := range out.Filters {
			if o.To != nil {
				have = append(have, *o.To)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, step.want) || fault.Of(err) != step.kind || err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("%s: filters to %q, error %v; want %q, %q", step.what, have, err, step.want, step.says)
		}
		// A pod that starts waits for the same.
		if known := f.Known("ns", c.Pod); (known == nil) != (err == nil) || fault.Of(known) != fault.Of(err) {
			t.Errorf("%s: known: %v, and compiled: %v", step.what, known, err)
		}
		if settled := f.settled(c); settled != (fault.Of(err) != fault.NotReady) {
			t.Errorf("%s: settled: %t", step.what, settled)
		}
	}
	if addresses := qos.ReadSets(types.NamespacedName{}, &v1alpha1.Destinations{Sets: []v1alpha1.DestinationSet{{Addresses: slices.Repeat([]string{"192.0.2.1"}, 5000)}}}); len(addresses) != 1 || len(addresses[qos.SetID{Network: qos.NetworkID{Kind: qos.NetworkTopology}}]) != v1alpha1.MaxDestinationAddresses {
		t.Errorf("of more addresses than a CRD of ours accepts, %d sets are read", len(addresses))
	}
}
