package attachment_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// devices is how many changes a slow topology takes.
const devices = 16

// share is a hook's share of the runtime's two seconds.
const share = 1500 * time.Millisecond

// takeTime simulates the time that Ensure takes for a slow topology.
func (w *world) takeTime(ctx context.Context, sb reconcile.Sandbox) error {
	name := sb.Topology.Name
	w.mu.Lock()
	pace, report := w.slow[name], reconcile.ReportProgress(ctx)
	if w.stubborn[name] {
		ctx = context.WithoutCancel(ctx)
	}
	w.mu.Unlock()
	if pace == 0 {
		return nil
	}
	for i := range devices {
		report(reconcile.Progress{Step: fmt.Sprintf("vf%d", i), Done: i, Planned: devices})
		select {
		case <-time.After(pace):
		case <-ctx.Done():
			return fmt.Errorf("step \"vf%d\": %w", i, ctx.Err())
		}
		w.mu.Lock()
		w.made++
		slips := i == devices-1 && w.slips[name] > 0
		if slips {
			w.slips[name]--
		}
		w.mu.Unlock()
		if slips {
			return fault.New(fault.NotReady, fmt.Errorf("step \"vf%d\": no carrier", i))
		}
	}
	return nil
}

// hook is a hook's context.
func hook(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), share)
	t.Cleanup(cancel)
	return ctx
}

// serve runs the Keeper until stop is called.
func (w *world) serve(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func (w *world) reports() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.reported)
}

func (w *world) changes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made
}

// took holds how long something took, approximately.
func took(t *testing.T, what string, begun time.Time, want time.Duration) {
	t.Helper()
	if have := time.Since(begun); have < want || have > want+200*time.Millisecond {
		t.Errorf("%s took %s, want %s", what, have, want)
	}
}

// TestSlowAttach holds that sixteen devices that take ten seconds in all are attached once,
// in the background, while the hook is answered in time.
func TestSlowAttach(t *testing.T) {
	inBubble(t, "one pod", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"] = 10 * time.Second / devices
		pod := w.sandbox("s1", 1)
		begun := time.Now()
		w.ok(w.Attach(hook(t), pod))
		took(t, "the hook", begun, share)
		synctest.Wait()
		w.wantGate("a", "")
		if _, err := w.gate.List(); err != nil {
			t.Error(err)
		}

		// The kubelet's first try finds the gate held, and starts nothing new.
		begun = time.Now()
		w.refused(w.Admit(hook(t), pod, env("a", "")), fault.NotReady, `claim "claim-a": topology "t1": at step "vf2", 2 of 16 changes made`)
		w.refused(w.Admit(hook(t), pod, nil), fault.NotReady, "is still being attached after 1.5s")
		took(t, "two refusals", begun, 0)

		time.Sleep(10*time.Second - share + time.Millisecond)
		synctest.Wait()
		w.want("+s1/a/t1")
		w.wantGate("a", "s1")
		w.ok(w.Admit(hook(t), pod, env("a", "s1")))
		w.refused(w.Admit(hook(t), pod, env("a", "")), fault.NotReady, "attached after the container was created")
		if n := w.changes(); n != devices {
			t.Errorf("%d changes, want each of %d once", n, devices)
		}
		if want := []string{"attaching claim-a: 2 of 16", "attached claim-a"}; !slices.Equal(w.reports(), want) {
			t.Errorf("reported %q, want %q", w.reports(), want)
		}
	})
	inBubble(t, "a claim that is not attached yet", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.prepare("b", "t2")
		w.slow["t1"] = 10 * time.Second / devices
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(hook(t), pod))
		time.Sleep(time.Second)
		// Each has a device that the runtime can resolve, so that it calls the hook.
		w.wantGates("a", "b")
		w.wantGate("b", "")
		w.refused(w.Admit(hook(t), pod, env("b", "")), fault.NotReady, `still being attached after 2.5s: claim "claim-a"`)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.wantGate("a", "s1")
		w.wantGate("b", "s1")
	})
	inBubble(t, "ten pods at once", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		var pods []attachment.Pod
		for i := range 10 {
			uid, topology := types.UID(fmt.Sprintf("p%d", i)), fmt.Sprintf("t%d", i)
			w.prepareFor("c"+uid, uid, topology)
			w.slow[topology] = 10 * time.Second / devices
			pod := w.sandbox("s"+string(uid), uint64(i+1))
			pod.UID = uid
			pods = append(pods, pod)
		}
		begun := time.Now()
		for _, pod := range pods { // a runtime calls one hook at a time
			w.ok(w.Attach(hook(t), pod))
		}
		took(t, "ten hooks", begun, 10*share)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for _, pod := range pods {
			w.wantGate("c"+pod.UID, pod.Sandbox)
			w.ok(w.Admit(hook(t), pod, nil))
		}
		if n := w.changes(); n != 10*devices {
			t.Errorf("%d changes, want each of %d once", n, 10*devices)
		}
	})
	inBubble(t, "two claims", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.prepare("b", "t2")
		w.slow["t1"], w.slow["t2"] = 100*time.Millisecond, 100*time.Millisecond
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(hook(t), pod))
		w.refused(w.Admit(hook(t), pod, nil), fault.NotReady, `claim "claim-a"`)
		time.Sleep(time.Second)
		w.wantGate("a", "s1")
		w.refused(w.Admit(hook(t), pod, env("a", "s1")), fault.NotReady, `claim "claim-b"`)
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantGate("b", "s1")
		w.ok(w.Admit(hook(t), pod, append(env("a", "s1"), env("b", "s1")...)))
	})
}

// TestSlowFailure holds how a failure that no hook waits for is reported.
func TestSlowFailure(t *testing.T) {
	inBubble(t, "tried again", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"], w.slips["t1"] = 200*time.Millisecond, 2
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(hook(t), pod))
		time.Sleep(2 * time.Second) // it has failed once, and is under way again
		w.refused(w.Admit(hook(t), pod, env("a", "")), fault.NotReady, `the last attempt failed: claim "claim-a": step "vf15": no carrier`)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.wantGate("a", "s1")
		w.ok(w.Admit(hook(t), pod, env("a", "s1")))
		if n := count(w.reports(), "failed claim-a"); n != 2 {
			t.Errorf("reported %q, want two failures", w.reports())
		}
		if want := []fault.Kind{fault.NotReady, fault.NotReady, ""}; !slices.Equal(w.ended, want) {
			t.Errorf("counted %q, want %q", w.ended, want)
		}
	})
	inBubble(t, "not within its limit", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"] = time.Minute
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(hook(t), pod))
		time.Sleep(5 * time.Minute)
		w.refused(w.Admit(hook(t), pod, env("a", "")), fault.NotReady, `not attached within 5m0s (--attach-timeout): step "vf`)
		w.wantGate("a", "")
		if n := count(w.reports(), "attaching claim-a: 0 of 16"); n > 6 {
			t.Errorf("reported too often: %q", w.reports())
		}
		w.ok(w.Detach(hook(t), pod))
	})
	inBubble(t, "in the hook", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"], w.slips["t1"] = 10*time.Millisecond, 1
		w.refused(w.Attach(hook(t), w.sandbox("s1", 1)), fault.NotReady, "no carrier")
		time.Sleep(time.Minute)
		w.want() // nobody tries again for a sandbox that the runtime gives up
	})
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// TestSlowEnd holds that a pod that ends while it is being attached is released in the time
// of a hook, in all cases.
func TestSlowEnd(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, w *world, pod attachment.Pod) error{
		"stopped":   func(ctx context.Context, w *world, pod attachment.Pod) error { return w.Detach(ctx, pod) },
		"removed":   func(ctx context.Context, w *world, pod attachment.Pod) error { return w.Forget(ctx, pod) },
		"withdrawn": func(ctx context.Context, w *world, _ attachment.Pod) error { return w.Withdraw(ctx, "a") },
	} {
		inBubble(t, name, func(t *testing.T) {
			w := newWorld(t)
			defer w.serve(t)()
			w.prepare("a", "t1")
			w.slow["t1"] = 20 * time.Second
			pod := w.sandbox("s1", 1)
			w.ok(w.Attach(hook(t), pod))
			begun := time.Now()
			w.ok(end(hook(t), w, pod))
			took(t, "the end", begun, 0)
			w.wantGate("a", "")
			time.Sleep(time.Minute)
			w.want()
			if n := w.changes(); n != 0 {
				t.Errorf("%d changes after the end", n)
			}
			if slices.Contains(w.reports(), "failed claim-a") {
				t.Errorf("a requested end is reported as a failure: %q", w.reports())
			}
		})
	}
	inBubble(t, "by another agent's hook", func(t *testing.T) {
		// The lock of the claim is another process's, which attaches it.
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		pod := w.sandbox("s1", 1)
		unlock, err := w.store.Lock(t.Context(), "a")
		w.ok(err)
		begun := time.Now()
		if err := w.Detach(hook(t), pod); err == nil {
			t.Error("released although the claim is locked")
		}
		took(t, "the hook", begun, share)
		unlock()
		time.Sleep(time.Minute)
		w.wantPhase("a", "s1", claims.Released)
	})
	inBubble(t, "by the pod's next sandbox", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"] = time.Second
		w.ok(w.Attach(hook(t), w.sandbox("s1", 1)))
		next := w.sandbox("s2", 2)
		w.ok(w.Attach(hook(t), next))
		time.Sleep(devices * time.Second)
		synctest.Wait()
		w.wantGate("a", "s2")
		w.ok(w.Admit(hook(t), next, env("a", "s2")))
		time.Sleep(time.Minute)
		w.wantPhase("a", "s1", claims.Released)
	})
}

// TestReleaseAfterFailure: a release that cannot wait for the attachment it has cancelled is done as soon as that
// has ended, also if an earlier one had failed.
func TestReleaseAfterFailure(t *testing.T) {
	inBubble(t, "one pod", func(t *testing.T) {
		w := newWorld(t)
		w.Sweep = time.Hour
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"], w.slips["t1"], w.stubborn["t1"] = 200*time.Millisecond, 1, true
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(hook(t), pod))
		time.Sleep(devices*200*time.Millisecond - share + time.Second) // the next attempt has begun
		synctest.Wait()
		w.wantPhase("a", "s1", claims.Attaching)
		w.refused(w.Detach(hook(t), pod), fault.NotReady, "is being rolled back")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.wantPhase("a", "s1", claims.Released)
		if n := w.Pending(); n != 0 {
			t.Errorf("%d sandboxes wait still", n)
		}
		if w.Retried("s1") != 0 {
			t.Error("the failures of a sandbox that has ended are remembered")
		}
	})
	inBubble(t, "a namespace that no longer exists", func(t *testing.T) {
		w := newWorld(t)
		w.Sweep = time.Hour
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"], w.slips["t1"] = 200*time.Millisecond, 2
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(hook(t), pod))
		time.Sleep(devices*200*time.Millisecond - share + time.Second)
		w.mu.Lock()
		delete(w.netns, pod.Netns)
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if w.Retried("s1") != 0 {
			t.Error("the failures of a sandbox that is not tried again are remembered")
		}
	})
}

// TestSlowRestart holds that an agent that ends, or is killed, while it attaches
// leaves the gate closed, and that the next one finishes.
func TestSlowRestart(t *testing.T) {
	for name, killed := range map[string]bool{"stopped": false, "killed": true} {
		inBubble(t, name, func(t *testing.T) {
			w := newWorld(t)
			stop := w.serve(t)
			w.prepare("a", "t1")
			w.slow["t1"] = time.Second
			pod := w.sandbox("s1", 1)
			w.ok(w.Attach(hook(t), pod))
			if killed { // the next agent finds the record of an abandoned attachment
				e, _, err := w.store.Get("a")
				w.ok(err)
				e.Sandbox("s1").Phase = claims.Attaching
				stop()
				w.ok(w.store.PutSandboxes(e))
			} else {
				stop()
				w.wantPhase("a", "s1", claims.Failed)
			}
			w.wantGate("a", "")
			if slices.Contains(w.reports(), "failed claim-a") {
				t.Errorf("the agent's end is reported as a failure: %q", w.reports())
			}
			w.restart(filepath.Dir(string(w.gate)), "boot")
			defer w.serve(t)()
			w.ok(w.Synchronize([]attachment.Pod{pod}))
			synctest.Wait()
			w.wantGate("a", "")
			err := w.Admit(hook(t), pod, env("a", ""))
			w.refused(err, fault.NotReady, "is still being attached")
			if strings.Contains(fmt.Sprint(err), "no longer exists") {
				t.Error(err)
			}
			time.Sleep(devices*time.Second + time.Second)
			synctest.Wait()
			w.wantGate("a", "s1")
			w.ok(w.Admit(hook(t), pod, env("a", "s1")))
		})
	}
}

// TestFailingPodsDelayNoOther holds that the hook of a container takes little of the
// runtime's time if the pod's network fails repeatedly.
func TestFailingPodsDelayNoOther(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"], w.slips["t1"] = 100*time.Millisecond, 1000
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(hook(t), pod))
		var spent time.Duration
		for range 20 {
			time.Sleep(12 * time.Second)
			begun := time.Now()
			w.refused(w.Admit(hook(t), pod, nil), fault.NotReady, "no carrier")
			spent += time.Since(begun)
		}
		if spent > 20*100*time.Millisecond {
			t.Errorf("20 hooks took %s", spent)
		}
	})
}

// TestStuckRollbacksDelayNoOther holds that sandboxes whose attachment takes long to cancel
// block no worker.
func TestStuckRollbacksDelayNoOther(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		for i := range 8 {
			uid, topology := types.UID(fmt.Sprintf("p%d", i)), fmt.Sprintf("t%d", i)
			w.prepareFor("c"+uid, uid, topology)
			w.slow[topology], w.stubborn[topology] = 20*time.Second, true
			pod := w.sandbox("s"+string(uid), uint64(i+1))
			pod.UID = uid
			w.ok(w.Attach(hook(t), pod))
			if err := w.Detach(hook(t), pod); err == nil {
				t.Error("released while its attachment is at work")
			}
		}
		w.prepare("a", "fast")
		pod := w.sandbox("s1", 100)
		w.ok(w.Attach(hook(t), pod))
		w.setStuck("fast")
		if err := w.Detach(hook(t), pod); err == nil {
			t.Error("released although it cannot be")
		}
		w.setStuck("")
		time.Sleep(2 * time.Second)
		w.wantPhase("a", "s1", claims.Released)
		time.Sleep(10 * time.Minute)
		for i := range 8 {
			w.wantPhase(types.UID(fmt.Sprintf("cp%d", i)), fmt.Sprintf("sp%d", i), claims.Released)
		}
		if slices.ContainsFunc(w.reports(), func(s string) bool { return strings.HasPrefix(s, "failed") }) {
			t.Errorf("reported %q", w.reports())
		}
	})
}

// TestEndOfARetry holds that nothing is attached, or reported, after the end of a
// sandbox whose attachment was to be retried.
func TestEndOfARetry(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		w := newWorld(t)
		defer w.serve(t)()
		w.prepare("a", "t1")
		w.slow["t1"], w.slips["t1"] = 100*time.Millisecond, 1000
		pod := w.sandbox("s1", 1)
		w.ok(w.Attach(hook(t), pod))
		time.Sleep(time.Minute)
		w.ok(w.Detach(hook(t), pod))
		failures, changes := count(w.reports(), "failed claim-a"), w.changes()
		time.Sleep(10 * time.Minute)
		if n := count(w.reports(), "failed claim-a"); n != failures || w.changes() != changes || failures < 3 {
			t.Errorf("%d failures and %d changes, then %d and %d", failures, changes, n, w.changes())
		}
		w.wantPhase("a", "s1", claims.Released)
		if listed, _ := w.gate.List(); len(listed) != 0 {
			t.Errorf("gates left: %v", listed)
		}
	})
}

func (w *world) setStuck(topology string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stuck = topology
}
