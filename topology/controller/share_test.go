package controller

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
)

// knownShares are parts of TestBoundedShare that do not hold yet.
var knownShares = map[string]bool{}

// share runs a part of a law, and fails if it breaks, or holds and is known to break.
func share(t *testing.T, name string, holds func(t *testing.T) (bool, string)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		ok, said := holds(t)
		t.Log(said)
		if ok == knownShares[name] {
			t.Errorf("holds: %t, known not to: %t: %s", ok, knownShares[name], said)
		}
	})
}

// hostile is a controller that knows pods of all kinds, and the largest objects of one namespace.
func hostile(pods, objects int) *QoSDestinations {
	d := NewQoSDestinations()
	d.SetTopology("rail", map[string]string{"rail": "storage"})
	for n := range pods {
		key := crowdPod(n%10, n)
		d.SetNamespace(key.Namespace, map[string]string{"team": "a"})
		d.SetPod(key, "u", map[string]string{"role": "r"})
		d.SetClaim(key.String(), &Held{Pod: key, UID: "u", Addresses: map[string][]netip.Addr{"rail": {netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})}}})
	}
	for n := range objects {
		d.SetPolicy(qos.New(qostest.Largest("evil", n)))
	}
	return d
}

func heapOf(make func() any) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	kept := make()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	return after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc)
}

// TestBoundedShare holds what the objects of one namespace cost the controller, whatever they are: the largest of the
// only kind that tenants write, NetworkQoS, and as many as they like.
func TestBoundedShare(t *testing.T) {
	share(t, "bytes", func(*testing.T) (bool, string) {
		const pods, objects = 2500, 16
		without := heapOf(func() any { return hostile(pods, 0) })
		with := heapOf(func() any { return hostile(pods, objects) })
		took := int64(with) - int64(without)
		return took < 8<<20, fmt.Sprintf("%d objects that select %d pods take %d KiB", objects, pods, took>>10)
	})
	share(t, "lock", func(t *testing.T) (bool, string) {
		d := hostile(1, 1)
		d.mu.Lock() // whatever is computed
		done := make(chan struct{})
		go func() {
			defer close(done)
			d.SetClaim("ns/another", &Held{Pod: types.NamespacedName{Namespace: "ns", Name: "another"}})
		}()
		defer func() { d.mu.Unlock(); <-done }()
		select {
		case <-done:
			return true, "a claim is taken while sets are computed"
		case <-time.After(5 * time.Second):
			return false, "a claim waits until sets are computed, and with it the webhook, which waits for the lock of claims"
		}
	})
}
