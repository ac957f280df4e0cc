package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/journal"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
)

const vf = "0000:01:10.2"

// host is a node with one virtual function, as package netstate models it: on the host,
// in a pod, or absent.
type host struct {
	mu   sync.Mutex
	at   *string
	busy error // the error of every change
	full error // of every observation of a sandbox
	lost bool  // the device is absent once a change is applied
}

func (h *host) move(at *string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = at
}

func (h *host) see(s *netstate.Snapshot, queried []netstate.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range queried {
		if d, ok := o.(netstate.Device); ok && d.ID == vf {
			s.Put(netstate.Device{ID: vf, Driver: "igbvf", At: h.at})
		} else if !s.Known(o) {
			s.PutAbsent(o.Key())
		}
	}
}

func (h *host) Observe(_ context.Context, queried []netstate.Object) (*netstate.Snapshot, error) {
	s := netstate.NewSnapshot()
	h.see(s, queried)
	return s, h.full
}

func (h *host) Extend(_ context.Context, s *netstate.Snapshot, queried []netstate.Object) error {
	h.see(s, queried)
	return nil
}

func (h *host) Apply(_ context.Context, c netstate.Change) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost {
		h.at = nil
	}
	if h.busy != nil {
		return h.busy
	}
	if d, ok := c.After.(netstate.Device); ok && d.At != nil {
		h.at = d.At
	}
	return nil
}

func (h *host) NetnsID() reconcile.NetnsID { return reconcile.NetnsID{} }
func (h *host) Close() error               { return nil }

// attached is an engine with a sandbox that has the virtual function, which has this
// name on the host when it has returned.
func attached(t *testing.T) (r *reconcile.Reconciler, h *host, id reconcile.SandboxID, hostName *string) {
	t.Helper()
	store, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := all.Registry()
	if err != nil {
		t.Fatal(err)
	}
	h, id, hostName = &host{}, "s1/c1/t", new(netstate.HostName("enp1s0v2"))
	r = reconcile.New(reconcile.Options{
		Registry: registry, Store: store, BootID: "boot", Now: time.Now,
		Open: func(string) (reconcile.Domain, error) { return h, nil },
	})
	if err := store.Put(reconcile.Record{
		Sandbox: reconcile.Sandbox{ID: id, Netns: "/netns/s1", Topology: &topology.Topology{Name: "t"}, Given: ops.Givens{}.WithDevices(map[string]string{"vf": vf})},
		BootID:  "boot", Phase: reconcile.Applied,
		History: []netstate.Change{
			{Step: "vf", Before: netstate.Device{ID: vf, At: hostName}, After: netstate.Device{ID: vf, At: new("net1")}},
			{Step: "vf", After: netstate.Addr{Link: "net1", Address: "192.0.2.10/24"}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	return r, h, id, hostName
}

// TestReleaseDoesNotWait: a device that does not return does not delay the release of
// its sandbox, nor keep the sandbox locked.
func TestReleaseDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h, id, hostName := attached(t)
		for range 3 {
			begun := time.Now()
			_, err := r.Release(t.Context(), id)
			if fault.Of(err) != fault.NotReady || !errors.Is(err, reconcile.ErrAbsent) {
				t.Fatalf("error %v", err)
			}
			if took := time.Since(begun); took != 0 {
				t.Errorf("a release of an absent device took %s", took)
			}
		}
		if rec, known, err := r.Record(id); err != nil || !known || rec.Phase != reconcile.Releasing {
			t.Errorf("record %+v, %t, %v", rec, known, err)
		}
		h.move(hostName)
		if _, err := r.Release(t.Context(), id); err != nil {
			t.Errorf("after its return: %v", err)
		}
		if _, known, _ := r.Record(id); known {
			t.Error("the record still exists")
		}
	})
}

// TestReleaseOfFullSandbox: a pod whose namespace has too much to be read keeps neither its devices nor, once these are on the
// host, anyone from allocating them. The record stays until the namespace has gone.
func TestReleaseOfFullSandbox(t *testing.T) {
	r, h, id, hostName := attached(t)
	h.full = fmt.Errorf("network namespace %q %w", "s1", reconcile.ErrPartial)
	if _, err := r.Release(t.Context(), id); !errors.Is(err, reconcile.ErrAbsent) || errors.Is(err, reconcile.ErrUnread) {
		t.Errorf("the device is absent: %v", err)
	}
	h.move(hostName)
	for range 2 {
		if _, err := r.Release(t.Context(), id); !errors.Is(err, reconcile.ErrUnread) || !errors.Is(err, reconcile.ErrPartial) {
			t.Errorf("the device is on the host: %v", err)
		}
		rec, known, err := r.Record(id)
		if err != nil || !known || rec.Phase != reconcile.Releasing || len(rec.Devices()) > 0 {
			t.Errorf("record %+v, %t, %v", rec, known, err)
		}
		if dirty := reconcile.Unreleased([]reconcile.Record{rec}, nil, time.Now().Add(time.Hour)); len(dirty) > 0 {
			t.Errorf("not to be allocated: %v", dirty)
		}
	}
	h.full = nil // the namespace has gone
	if _, err := r.Release(t.Context(), id); err != nil {
		t.Errorf("without the namespace: %v", err)
	}
	if _, known, _ := r.Record(id); known {
		t.Error("the record still exists")
	}
}

// TestReleaseOfMovedDevice: a pod moves the device away while it is released. It is absent then, which
// is waited for, whatever the kernel said of the change.
func TestReleaseOfMovedDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h, id, hostName := attached(t)
		h.move(new("net1"))
		h.busy, h.lost = fault.New(fault.Internal, errors.New("no such file or directory")), true
		if _, err := r.Release(t.Context(), id); fault.Of(err) != fault.NotReady || !errors.Is(err, reconcile.ErrAbsent) || !strings.Contains(err.Error(), "no such file or directory") {
			t.Errorf("%s: %v", fault.Of(err), err)
		}
		h.busy, h.lost = nil, false
		time.AfterFunc(time.Second, func() { h.move(hostName) })
		if _, err := r.AwaitRelease(t.Context(), id); err != nil {
			t.Errorf("after its return: %v", err)
		}
	})
}

// TestReleaseOfBusyDevice: a release waits a second for a driver that always refuses.
func TestReleaseOfBusyDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h, id, _ := attached(t)
		h.move(new("net1"))
		h.busy = fault.New(fault.NotReady, errors.New("device or resource busy"))
		begun := time.Now()
		if _, err := r.Release(t.Context(), id); fault.Of(err) != fault.NotReady {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestAwaitRelease(t *testing.T) {
	for _, c := range []struct {
		name         string
		back, cancel time.Duration // 0: never
		ok           bool
		least, most  time.Duration
	}{
		{name: "comes back", back: 3 * time.Second, ok: true, least: 3 * time.Second, most: 3200 * time.Millisecond},
		{name: "never", least: 15 * time.Second, most: 15200 * time.Millisecond},
		{name: "given up", cancel: time.Second, least: time.Second, most: time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, h, id, hostName := attached(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.back > 0 {
					time.AfterFunc(c.back, func() { h.move(hostName) })
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				// Another caller locks the sandbox meanwhile.
				queried := make(chan time.Duration, 1)
				go func() {
					time.Sleep(500 * time.Millisecond)
					begun := time.Now()
					_, _ = r.Release(t.Context(), id)
					queried <- time.Since(begun)
				}()
				begun := time.Now()
				_, err := r.AwaitRelease(ctx, id)
				if took := time.Since(begun); (err == nil) != c.ok || took < c.least || took > c.most {
					t.Errorf("after %s: %v", took, err)
				}
				if took := <-queried; took > 10*time.Millisecond {
					t.Errorf("the sandbox was locked for %s", took)
				}
			})
		})
	}
}

// TestHolderIsNotNamed holds that the error about a device of another sandbox does not
// name that sandbox: tenants can read it.
func TestHolderIsNotNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h, id, _ := attached(t)
		h.move(new("net1"))
		steps := []topology.Step{{Name: "vf", Type: "sriov"}}
		_, err := r.Ensure(t.Context(), reconcile.Sandbox{
			ID: "s2/c2/t", Netns: "/netns/s2", Topology: &topology.Topology{Name: "t", Steps: steps}, Given: ops.Givens{}.WithDevices(map[string]string{"vf": vf}),
		})
		if fault.Of(err) != fault.Conflict || strings.Contains(err.Error(), string(id)) || !strings.Contains(err.Error(), vf) {
			t.Errorf("error %v", err)
		}
		if detail := fault.Detail(err); !strings.Contains(detail, string(id)) {
			t.Errorf("detail %q", detail)
		}
	})
}
