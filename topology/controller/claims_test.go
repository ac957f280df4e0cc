package controller

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/watchstore"
)

// allocated is a claim as API server, scheduler and node leave it, for a driver.
func allocated(driver, name, topology string, generation int64) *resourceapi.ResourceClaim {
	config := resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver:     driver,
		Parameters: apiruntime.RawExtension{Raw: fmt.Appendf(nil, `{"networkTopologyRef":{"generation":1,"name":%q,"uid":"uid-%s"},"step":"vf0"}`, topology, topology)},
	}}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "vf0", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: topology + "-vf0"}}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "vf0", Driver: driver, Pool: "node-1", Device: "d-" + name}},
		Config:  []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: config}},
	}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-" + name, UID: "pod"}}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: driver, Pool: "node-1", Device: "d-" + name,
		Data:       &apiruntime.RawExtension{Raw: fmt.Appendf(nil, `{"topology":%q,"generation":%d,"interfaces":[{"name":"net1","mac":"02:00:00:00:00:01"}]}`, topology, generation)},
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Succeeded", Message: "attached"}},
	}}
	return c
}

// put replaces the record of one claim, as an event about it does.
func (c *Claims) put(key string, r *record) {
	s := c.store()
	s.Around(false, func() {
		if r == nil {
			s.Remove(key)
		} else {
			s.Put(key, &item{record: r})
		}
	})
}

// feed gives events to Claims as a reflector does.
func feed(t *testing.T, c *Claims, events ...watch.Event) {
	t.Helper()
	source := watch.NewFakeWithChanSize(len(events), false)
	for _, e := range events {
		source.Action(e.Type, e.Object)
	}
	source.Stop()
	w, err := watchstore.Watched(source, nil, 0, c.itemOf, (*item).ours)
	if err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		switch e.Type {
		case watch.Deleted:
			err = c.store().Delete(e.Object)
		default:
			err = c.store().Update(e.Object)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestClaims(t *testing.T) {
	c := emptyClaims()
	var changed []string
	c.OnChange(func(topology string) { changed = append(changed, topology) })
	wantEnqueued := func(want ...string) {
		t.Helper()
		if !slices.Equal(changed, want) {
			t.Errorf("changed %q, want %q", changed, want)
		}
		changed = nil
	}
	uses := func(name string, claims, pods, degraded, runs int) {
		t.Helper()
		u := c.Use(name, types.UID("uid-"+name))
		if u.Claims != claims || u.Pods != pods || u.Degraded != degraded || len(u.Runs) != runs || c.Users(name, types.UID("uid-"+name)) != claims {
			t.Errorf("%s: %+v and %d users, want %d claims, %d pods, %d degraded, %d runs", name, u, c.Users(name, types.UID("uid-"+name)), claims, pods, degraded, runs)
		}
	}
	one := allocated(claim.Driver, "one", "red", 1)
	feed(t, c, watch.Event{Type: watch.Added, Object: one}, watch.Event{Type: watch.Added, Object: allocated("gpu.example.com", "theirs", "red", 1)})
	wantEnqueued("red")
	uses("red", 1, 1, 0, 1)
	if u := c.Use("red", "another"); u.Claims != 0 {
		t.Errorf("a topology of the same name has %+v", u)
	}

	// A change of nothing that is counted notifies nobody.
	labelled := one.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	feed(t, c, watch.Event{Type: watch.Modified, Object: labelled}, watch.Event{Type: watch.Modified, Object: allocated("gpu.example.com", "theirs", "red", 1)})
	wantEnqueued()

	ill := one.DeepCopy()
	ill.Status.Devices[0].Conditions[0].Status = metav1.ConditionFalse
	feed(t, c, watch.Event{Type: watch.Modified, Object: ill})
	wantEnqueued("red")
	uses("red", 1, 1, 1, 1)

	// It loses its allocation, and is allocated for another topology.
	idle := one.DeepCopy()
	idle.Status = resourceapi.ResourceClaimStatus{}
	feed(t, c, watch.Event{Type: watch.Modified, Object: idle})
	wantEnqueued("red")
	uses("red", 0, 0, 0, 0)
	feed(t, c, watch.Event{Type: watch.Modified, Object: allocated(claim.Driver, "one", "blue", 2)})
	wantEnqueued("blue")
	uses("blue", 1, 1, 0, 1)

	// All claims are read again: what is not among them no longer exists.
	if c.Synced() {
		t.Error("not all claims have been read")
	}
	if err := c.store().Replace([]any{c.itemOf(allocated(claim.Driver, "two", "red", 1))}, ""); err != nil {
		t.Fatal(err)
	}
	slices.Sort(changed)
	wantEnqueued("blue", "red")
	uses("blue", 0, 0, 0, 0)
	uses("red", 1, 1, 0, 1)
	if !c.Synced() {
		t.Error("all claims have been read")
	}
	feed(t, c, watch.Event{Type: watch.Deleted, Object: allocated(claim.Driver, "two", "red", 1)})
	wantEnqueued("red")
	if len(c.records)+len(c.of) != 0 {
		t.Errorf("%d claims and %d topologies are left", len(c.records), len(c.of))
	}
}

// TestClaimsMemory holds that a claim of another driver costs no memory, and one of ours
// less than a kilobyte.
func TestClaimsMemory(t *testing.T) {
	const n = 5000
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	c := emptyClaims()
	before := heap()
	for i := range n {
		feed(t, c, watch.Event{Type: watch.Added, Object: allocated("gpu.example.com", fmt.Sprint("theirs-", i), "red", 1)})
		feed(t, c, watch.Event{Type: watch.Modified, Object: allocated("gpu.example.com", fmt.Sprint("theirs-", i), "red", 2)})
	}
	if len(c.records) != 0 {
		t.Errorf("%d claims of another driver are kept", len(c.records))
	}
	for i := range n {
		feed(t, c, watch.Event{Type: watch.Added, Object: allocated(claim.Driver, fmt.Sprintf("claim-%05d", i), fmt.Sprint("topology-", i%50), 1)})
	}
	each := (heap() - before) / n
	t.Logf("%d bytes for each claim of ours", each)
	if each > 1000 {
		t.Errorf("%d bytes for each claim of ours", each)
	}
	runtime.KeepAlive(c)
}

// BenchmarkPass measures what a pass computes for a topology with 20,000 claims.
func BenchmarkPass(b *testing.B) {
	c := emptyClaims()
	for i := range 20_000 {
		key := fmt.Sprintf("ns/claim-%05d", i)
		c.put(key, recordOf(allocated(claim.Driver, key, "red", 1), false))
	}
	o := &v1alpha1.NetworkTopology{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid-red", Generation: 1}}
	b.ReportAllocs()
	for b.Loop() {
		StatusOf(o, Outcome{Use: c.Use("red", "uid-red")})
	}
}

// BenchmarkEvent measures the cost of an event of a claim.
func BenchmarkEvent(b *testing.B) {
	c := emptyClaims()
	store := c.store()
	ours := allocated(claim.Driver, "one", "red", 1)
	b.ReportAllocs()
	for b.Loop() {
		if err := store.Update(c.itemOf(ours)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestUseMeanwhile: the webhook, which queries who uses a topology, does not wait until all addresses of a
// large cluster were taken into account.
func TestUseMeanwhile(t *testing.T) {
	const claims = 1000
	c := emptyClaims()
	for i := range claims {
		c.put(fmt.Sprint("ns/c-", i), &record{held: &claim.Held{UID: "u"}})
	}
	asking, answered := make(chan struct{}), make(chan struct{})
	n, first := 0, 0 // the first call after the answer
	c.OnHeld(func(string, *claim.Held) {
		if n++; n == 1 {
			go func() {
				close(asking)
				c.Users("rail", "t")
				close(answered)
			}()
			<-asking
		}
		select {
		case <-answered:
			if first == 0 {
				first = n
			}
		case <-time.After(100 * time.Microsecond): // what the addresses of a pod take
		}
	})
	if n != claims || first == 0 {
		t.Errorf("%d of %d claims were given, and the answer came after call %d", n, claims, first)
	}
}

// TestHeld holds that a change of addresses alone is reported as such, and counts as no change of
// who uses a topology.
func TestHeld(t *testing.T) {
	c := emptyClaims()
	var counted []string
	c.OnChange(func(topology string) { counted = append(counted, topology) })
	one := allocatedWith("192.0.2.1/24")
	c.put("ns/one", recordOf(one, false))
	held := map[string]string{}
	c.OnHeld(func(key string, h *claim.Held) {
		if h == nil {
			delete(held, key)
			return
		}
		held[key] = fmt.Sprint(h.Pod, h.UID, h.Addresses)
	})
	want := func(what, text string, counts int) {
		t.Helper()
		if held["ns/one"] != text || len(counted) != counts {
			t.Errorf("%s: held %q and %d counts, want %q and %d", what, held["ns/one"], len(counted), text, counts)
		}
	}
	want("what was there before", "ns/pod-onepodmap[red:[192.0.2.1]]", 1)
	c.put("ns/one", recordOf(allocatedWith("192.0.2.2/24"), false))
	want("another address", "ns/pod-onepodmap[red:[192.0.2.2]]", 1)
	c.put("ns/one", recordOf(allocatedWith(), false))
	want("no address", "", 1)
	c.put("ns/one", recordOf(one, false))
	c.put("ns/one", nil)
	want("no claim", "", 2)
}

// allocatedWith is a claim for topology red whose pod has addresses.
func allocatedWith(addresses ...string) *resourceapi.ResourceClaim {
	c := allocated(claim.Driver, "one", "red", 1)
	c.Status.Devices[0].NetworkData = &resourceapi.NetworkDeviceData{InterfaceName: "net1", IPs: addresses}
	return c
}
