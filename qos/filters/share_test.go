package filters

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/qos/tc"
	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// TestBoundedShare holds what an agent keeps of one namespace, whatever its objects are.
func TestBoundedShare(t *testing.T) {
	const most = 3 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, n := crowded(t, 2)
	for i := range qos.MaxObjects / 4 {
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(qostest.Largest("ns", i))
		if err != nil {
			t.Fatal(err)
		}
		n.put(objectOf(&unstructured.Unstructured{Object: content}))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("the objects of a namespace take %d KiB of an agent, which enforces %d", took>>10, len(n.known))
	if took > most || len(n.known) == 0 {
		t.Errorf("they may take %d KiB", most>>10)
	}
	runtime.KeepAlive(n)
}

// TestShareOfFilters holds what a tenant whose pod has as many filters as an interface may have takes of an agent, and that a pod of
// another tenant does not wait while they are compiled, again and again.
func TestShareOfFilters(t *testing.T) {
	const most = 8 << 20
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	f, evil := crowded(t, 1)
	f.Contracts, f.podsRead = registry, true
	good := newNamespace(f, "good")
	good.err = nil
	f.namespaces["good"] = good
	claim := func(namespace string) *claims.Claim {
		c := &claims.Claim{UID: types.UID("of-" + namespace), Namespace: namespace, Name: "p-0", Pod: claims.Pod{Name: "p-0", UID: "u"}}
		c.Topologies = []claims.Topology{{Object: v1alpha1.NetworkTopology{
			ObjectMeta: metav1.ObjectMeta{Name: "rail", UID: "t", Labels: map[string]string{"rail": "storage"}},
			Spec:       v1alpha1.NetworkTopologySpec{Steps: []v1alpha1.Step{{Name: "d", Type: "dummy"}}},
		}}}
		f.pods[types.NamespacedName{Namespace: namespace, Name: "p-0"}] = podLabels{uid: "u"}
		return c
	}
	put := func(n *namespace, rules, destinations, ports int) {
		o := &qosv1alpha1.NetworkQoS{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "q", UID: "q", Generation: 1}}
		o.Spec.NetworkSelectors = []qosv1alpha1.NetworkSelector{{Type: qosv1alpha1.NetworkTopologies, NetworkTopologySelector: &qosv1alpha1.Selector{}}}
		for i := range rules {
			r := qosv1alpha1.Rule{DSCP: new(int32(1 + i)), Classifier: &qosv1alpha1.Classifier{}, Bandwidth: &qosv1alpha1.Bandwidth{Rate: new(int64(1000))}}
			for j := range destinations {
				r.Classifier.To = append(r.Classifier.To, qosv1alpha1.Destination{IPBlock: &qosv1alpha1.IPBlock{CIDR: fmt.Sprintf("10.%d.0.%d/32", i, 2*j)}})
			}
			for j := range ports {
				r.Classifier.Ports = append(r.Classifier.Ports, qosv1alpha1.Port{Protocol: "TCP", Port: new(int32(1 + 2*j))})
			}
			o.Spec.Egress = append(o.Spec.Egress, r)
		}
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		n.put(objectOf(&unstructured.Unstructured{Object: content}))
	}
	put(evil, qos.MaxRules, 64, tc.MaxFilters/qos.MaxRules/64)
	put(good, 1, 1, 1)
	of := func(c *claims.Claim) (ops.Rules, time.Duration) {
		began := time.Now()
		out, err := f.Of(c, &c.Topologies[0])
		if err != nil {
			t.Error(err)
		}
		return out, time.Since(began)
	}
	theirs, ours := claim("ns"), claim("good")
	rules, _ := of(theirs)
	deciding := 0
	for _, o := range rules.Filters {
		if o.DSCP != nil {
			deciding++
		}
	}
	if deciding != tc.MaxFilters {
		t.Fatalf("%d filters decide, want %d", deciding, tc.MaxFilters)
	}
	rules = ops.Rules{}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	rules, compiled := of(theirs)
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	stop := make(chan struct{})
	var busy, first sync.WaitGroup
	// Of two that hold a lock in turns, one always waits, and a third waits for both. One alone would leave the lock to it often enough.
	for range 2 {
		first.Add(1)
		busy.Go(func() {
			of(theirs)
			first.Done()
			for {
				select {
				case <-stop:
					return
				default:
					of(theirs)
				}
			}
		})
	}
	first.Wait()
	waits := make([]time.Duration, 50)
	for i := range waits {
		_, waits[i] = of(ours)
	}
	close(stop)
	busy.Wait()
	slices.Sort(waits)
	median := waits[len(waits)/2]
	t.Logf("%d filters of a pod take %d KiB of an agent, and %s to compile; meanwhile a pod of another tenant has its rules in %s, at most %s",
		len(rules.Filters), took>>10, compiled.Round(time.Millisecond), median.Round(time.Microsecond), waits[len(waits)-1].Round(time.Microsecond))
	if took > most {
		t.Errorf("they may take %d KiB", most>>10)
	}
	if median > compiled/2 { // it would be more than compiled, were the lock held meanwhile
		t.Errorf("another tenant waits %s, and they are compiled in %s", median, compiled)
	}
	runtime.KeepAlive(rules)
}
