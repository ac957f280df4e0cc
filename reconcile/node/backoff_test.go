package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plumbline/plumbline/integration/effort"
	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/netstate"
	"github.com/plumbline/plumbline/ops/netstate/netstatetest"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/watch"
	"github.com/plumbline/plumbline/topology/fault"
)

// failing is a topology of which the last step is refused, so that each pass makes what the first
// one wants, and rolls it back.
const failing = `netns: %s
%stopology:
  apiVersion: networking.dra.io/v1alpha1
  kind: NetworkTopology
  metadata: {name: ai}
  spec:
    steps:
    - %s
    - {name: refused, type: dummy, config: {name: refused}}
`

// TestBackoffIsABound: how often a failing sandbox is tried does not depend on notifications: neither
// on those of a pass's own changes and of its rollback, nor on those of a writer that never stops.
func TestBackoffIsABound(t *testing.T) {
	const vf = "0000:01:10.0"
	const links, function = "{name: a, type: dummy, config: {name: net1}}", "{name: a, type: sriov, config: {name: net1}}"
	another := netstate.Change{After: netstate.Link{Name: "another", LinkKind: "dummy"}}
	onHost := netstate.Change{After: netstate.Link{Name: netstate.HostName("another"), LinkKind: "dummy"}}
	// In ten minutes: 9 passes until the longest backoff, and one every 30 s then.
	const own = 9 + 20
	for _, c := range []struct {
		name, step string
		writer     *netstate.Change // made and undone ten times a second
		most       int
		kind       fault.Kind // of the error
	}{
		{"links", links, nil, own, fault.Internal},
		{"a function", function, nil, own, fault.Internal},
		{"links, invalid", links, nil, 1, fault.Invalid},
		{"links, invalid, and a writer", links, &another, own + 10*60/int(wakeEvery/time.Second) + wakeBurst, fault.Invalid},
		{"links, and a writer", links, &another, own + 10*60/int(wakeEvery/time.Second) + wakeBurst, fault.Internal},
		{"links, and the host", links, &onHost, own + 10*60/int(wakeEvery/time.Second) + wakeBurst, fault.Internal},
		{"a function, and a writer", function, &another, own + 10*60/int(wakeEvery/time.Second) + wakeBurst, fault.Internal},
	} {
		passes := 0
		running(t, func(n *node) {
			n.make("blue")
			devices := ""
			if c.step == function {
				devices = "devices: {a: \"" + vf + "\"}\n"
				host := netstate.HostName("enp3s0f0v0")
				n.world.netns[n.world.identity(t, n.path("blue"))] = netstate.NewSnapshot(
					netstate.Device{ID: vf, At: &host, Up: new(false)},
					netstate.Link{Name: host, LinkKind: "device", DeviceID: vf, Up: new(false), Master: new("")},
					netstate.VF{ID: vf, PF: "host:enp3s0f0"})
				n.Discover = func() ([]inventory.Device, error) {
					return []inventory.Device{{ID: vf, Name: "pci-0", Kind: inventory.KindVF, IfName: "enp3s0f0v0", MAC: "02:00:00:00:00:01", PF: &inventory.PF{IfName: "enp3s0f0"}}}, nil
				}
			}
			n.world.refuse = func(change netstate.Change) error {
				if l, ok := change.After.(netstate.Link); ok && l.Name == "refused" {
					passes++
					return fault.New(c.kind, errors.New("operation not permitted"))
				}
				return nil
			}
			write(t, n.Dir, map[string]string{"blue.yaml": fmt.Sprintf(failing, n.path("blue"), devices, c.step)})
		}, func(n *node) {
			tried := func() int {
				n.world.mu.Lock()
				defer n.world.mu.Unlock()
				return passes
			}
			for i := 0; i < 10*60*10/2 && tried() <= 10*c.most; i++ {
				for _, step := range []bool{false, true} {
					time.Sleep(100 * time.Millisecond)
					if c.writer == nil {
						continue
					}
					change := *c.writer
					if step {
						change = netstatetest.Inverse(change)
					}
					n.world.change(t, n.path("blue"), change)
				}
			}
			if tried() == 0 {
				t.Errorf("%s: it was not tried; log:\n%s", c.name, n.log.take())
			}
			if got := tried(); got > c.most {
				t.Errorf("%s: %d passes in ten minutes, want %d at most", c.name, got, c.most)
			}
		})
	}
}

// TestForeignChangesWakeAFailingSandbox: what a user changes may be what a sandbox needs, and does not
// wait until the end of its backoff.
func TestForeignChangesWakeAFailingSandbox(t *testing.T) {
	running(t, func(n *node) {
		n.make("blue")
		n.world.refuse = refuseAll
		n.wants("blue.yaml", "blue", "mtu: 1400")
	}, func(n *node) {
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for range 2 {
			time.Sleep(backoffMax - time.Second) // at some time between two passes, that is not just after one
			for n.sched.sinceFailure("run/blue/ai") < ownChanges {
				time.Sleep(time.Second)
			}
			n.world.mu.Lock()
			n.world.refuse = nil
			n.world.mu.Unlock()
			n.notify(watch.Event{ID: "run/blue/ai", Reason: watch.Changed})
			n.expect("after a notification", "blue", "net1/1400")
			n.world.mu.Lock()
			n.world.refuse = refuseAll
			n.world.mu.Unlock()
			n.world.change(t, n.path("blue"), disturbed)
			time.Sleep(5 * time.Minute)
		}
	})
}

// sinceFailure is how long ago the last failed pass has ended.
func (s *scheduler) sinceFailure(id reconcile.SandboxID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.items[id].failed)
}

// inAnyMinute is the largest number of passes within a minute.
func inAnyMinute(at []time.Duration) (most int) {
	for i := range at {
		end, _ := slices.BinarySearch(at, at[i]+time.Minute)
		most = max(most, end-i)
	}
	return most
}

// TestPassesAreBounded: whatever is notified, and however often, a sandbox has a bounded number of
// passes in a minute, and few of them fail.
func TestPassesAreBounded(t *testing.T) {
	const (
		// Until the longest backoff, two of the longest, those that notifications cause.
		mostFailed = 9 + 2 + wakeBurst + int(time.Minute/wakeEvery) + 1
		mostPasses = changesBurst + changesPerSecond*60 + mostFailed
	)
	rng := rand.New(rand.NewPCG(effort.Seed(t), 6))
	rounds := 3
	if effort.Long() {
		rounds = 300
	}
	worst := map[string]int{}
	for range rounds {
		for name, fails := range map[string]func(nth int) bool{
			"failures":               func(int) bool { return true },
			"failures and successes": func(nth int) bool { return nth%2 == 0 },
			"random":                 func(int) bool { return rng.IntN(3) > 0 },
		} {
			failed, all := passesUnderNoise(t, rng, fails)
			worst[name] = max(worst[name], inAnyMinute(failed))
			if got := inAnyMinute(all); got > mostPasses {
				t.Errorf("%s: %d passes in a minute, want %d at most", name, got, mostPasses)
			}
		}
	}
	for name, got := range worst {
		if got > mostFailed {
			t.Errorf("%s: %d failed passes in a minute, want %d at most", name, got, mostFailed)
		}
	}
}

// passesUnderNoise runs a scheduler for some minutes, in which one sandbox is notified of in some
// ways, and returns when its passes were.
func passesUnderNoise(t *testing.T, rng *rand.Rand, fails func(nth int) bool) (failed, all []time.Duration) {
	t.Helper()
	var mu sync.Mutex // of rng and the results
	took := time.Millisecond << rng.IntN(12)
	late := time.Duration(rng.Int64N(int64(ownChanges)))
	pace := func() time.Duration { return 10 * time.Millisecond << rng.IntN(12) }
	changes, host := pace(), pace()
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(time.Now, &Urgent{})
		begun, end := time.Now(), make(chan struct{})
		var wg sync.WaitGroup
		every := func(d time.Duration, f func()) {
			wg.Go(func() {
				for {
					select {
					case <-end:
						return
					case <-time.After(d):
						f()
					}
				}
			})
		}
		every(changes, func() { s.enqueueChange("a") })
		every(host, func() { s.enqueueHostChange("a") })
		every(time.Minute, func() { s.enqueueCheck("a") })
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			s.run(ctx, 2, func(context.Context, reconcile.SandboxID) verdict {
				mu.Lock()
				at := time.Since(begun)
				all = append(all, at)
				bad := fails(len(all))
				if bad {
					failed = append(failed, at)
				}
				mu.Unlock()
				s.enqueueChange("a")
				time.Sleep(took)
				s.enqueueChange("a")
				time.AfterFunc(late, func() { s.enqueueChange("a") })
				if bad {
					return retryLater
				}
				return done
			})
		})
		s.enqueue("a")
		time.Sleep(5 * time.Minute)
		cancel()
		close(end)
		wg.Wait()
		time.Sleep(time.Minute)
	})
	return failed, all
}
