package controller

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// hostile is a controller that knows pods of all kinds, and the largest objects of one namespace.
func hostile(pods, objects int, primary bool) *Destinations {
	d := NewDestinations()
	d.PodNetwork = primary
	d.SetPrimary("pods", nil, !primary)
	d.setTopology("rail", map[string]string{"rail": "storage"})
	for n := range pods {
		key := crowdPod(n%10, n)
		d.SetNamespace(key.Namespace, map[string]string{"team": "a"})
		if address := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}); primary {
			d.SetPod(key, "u", map[string]string{"role": "r"}, []netip.Addr{address})
		} else {
			d.SetPod(key, "u", map[string]string{"role": "r"}, nil)
		}
		d.SetClaim(key.String(), &claim.Held{Pod: key, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})}}})
	}
	for n := range objects {
		o := qostest.Largest("evil", n)
		if primary {
			o.Spec.NetworkSelectors = nil
		}
		d.SetPolicy(qos.New(o))
	}
	return d
}

func heapOf(build func() any) uint64 {
	var before, after goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&before)
	kept := build()
	goruntime.GC()
	goruntime.ReadMemStats(&after)
	goruntime.KeepAlive(kept)
	return after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc)
}

// TestKindsOfTenants holds that NetworkQoS is the only kind of which a namespace has objects: TestBoundedShare is about no
// other. One that is added needs its part there.
func TestKindsOfTenants(t *testing.T) {
	var namespaced []string
	files := 0
	err := filepath.WalkDir("../../chart/plumbline", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), "\nkind: CustomResourceDefinition\n") {
			if files++; strings.Contains(string(text), "\n  scope: Namespaced\n") {
				namespaced = append(namespaced, filepath.Base(path))
			}
		}
		return err
	})
	if err != nil || files < 2 || !slices.Equal(namespaced, []string{"k8s.ovn.org_networkqoses.yaml"}) {
		t.Errorf("of %d kinds those in a namespace are %q, %v", files, namespaced, err)
	}
}

// TestBoundedShare holds what the objects of one namespace cost the controller, whatever they are: the largest of the
// only kind that tenants write, NetworkQoS, and as many as they like.
func TestBoundedShare(t *testing.T) {
	t.Run("bytes", func(t *testing.T) {
		const pods, objects = 2500, 16
		for _, primary := range []bool{false, true} {
			without := heapOf(func() any { return hostile(pods, 0, primary) })
			with := heapOf(func() any { return hostile(pods, objects, primary) })
			took := int64(with) - int64(without)
			t.Logf("%d objects that select %d pods, on their primary network %t, take %d KiB", objects, pods, primary, took>>10)
			if took > 8<<20 {
				t.Error("they may take 8 MiB")
			}
		}
	})
	t.Run("lock", func(*testing.T) {
		d := hostile(1, 1, false)
		d.mu.Lock() // whatever is computed
		defer d.mu.Unlock()
		// The caller holds a lock that the webhook waits for. If this waited, the test would not end.
		d.SetClaim("ns/another", &claim.Held{Pod: types.NamespacedName{Namespace: "ns", Name: "another"}})
	})
	t.Run("turns", func(t *testing.T) {
		// Of namespaces whose passes take long, each has a fifth of the worker, and one whose passes are short waits for
		// one pass of each at most.
		turns, now := turns{}, time.Unix(1_700_000_000, 0)
		busy := map[string]time.Duration{}
		for range 1000 {
			next := ""
			for _, namespace := range []string{"evil", "worse"} {
				if turns.wait(namespace, now) == 0 {
					next = namespace
				}
			}
			if next == "" {
				now = now.Add(time.Second)
				continue
			}
			if turns.wait("good", now) > 0 {
				t.Fatal("a namespace waits for others")
			}
			now = now.Add(10 * time.Second)
			busy[next] += 10 * time.Second
			turns.took(next, 10*time.Second, now)
		}
		for namespace, took := range busy {
			if share := took.Seconds() / now.Sub(time.Unix(1_700_000_000, 0)).Seconds(); share > 0.21 {
				t.Errorf("namespace %s has %.2f of the worker", namespace, share)
			}
		}
		if len(turns) > 2 {
			t.Errorf("%d namespaces are kept", len(turns))
		}
	})
}

// TestListOfReports holds what the leader holds of a report on many objects while it lists those of all nodes: what it keeps.
func TestListOfReports(t *testing.T) {
	const nodes, objects = 50, 500
	report := func(node int) *unstructured.Unstructured {
		o := &v1alpha1.NetworkQoSReport{}
		o.Name = fmt.Sprint("node-", node)
		for n := range objects {
			o.Objects = append(o.Objects, v1alpha1.QoSReport{
				Namespace: fmt.Sprint("ns-", n%50), Name: fmt.Sprint("object-with-a-name-", n), UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)), Generation: 1, Pods: 2, InPlace: 2,
			})
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		return &unstructured.Unstructured{Object: content}
	}
	r := NewReports(func(map[string]bool) {})
	took := heapOf(func() any {
		var list []*nodeReport
		for n := range nodes {
			list = append(list, nodeReportOf(report(n)))
		}
		s := r.store()
		for _, o := range list {
			if err := s.Add(o); err != nil {
				t.Fatal(err)
			}
		}
		return list
	})
	bytes := took / (nodes * objects)
	t.Logf("%d bytes for each node and object, listed and kept", bytes)
	if bytes > 80 {
		t.Errorf("%d bytes, want at most 80", bytes)
	}
	if sum := r.Sum("ns-7", []*qos.Policy{{Key: types.NamespacedName{Namespace: "ns-7", Name: "object-with-a-name-7"}, UID: "00000000-0000-4000-8000-000000000007", Generation: 1}}); sum["object-with-a-name-7"].InPlace != 2*nodes {
		t.Errorf("sum %+v", sum["object-with-a-name-7"])
	}
}
