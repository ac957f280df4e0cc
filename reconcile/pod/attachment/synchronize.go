package attachment

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/plumbline/plumbline/reconcile/frame"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

// Synchronize compares the sandboxes of a runtime with the records. It closes gates that
// must not be open before it returns; Run does the rest. The list may contain sandboxes
// that have stopped, and lack one that is being created: containerd 1.7 lists it when its
// hooks are done, and these may still call the previous agent.
func (k *Keeper) Synchronize(pods []Pod) error {
	var errs []error
	listed := map[string]Pod{}
	for _, p := range pods {
		listed[p.Sandbox] = p
	}
	known := map[types.UID]bool{}
	for _, e := range k.list() {
		known[e.UID] = true
		errs = append(errs, k.checkGate(e))
		for _, s := range e.In {
			_, there := listed[s.ID]
			k.queueRelease(e, s, !there)
		}
		k.queueMissed(e, pods)
	}
	open, err := k.Gate.List()
	errs = append(errs, err)
	for _, uid := range open {
		if _, now, err := k.Store.Get(uid); !known[uid] && !now && frame.AsOtherVersion(err) == nil {
			errs = append(errs, k.Gate.Remove(uid))
		}
	}
	return errors.Join(errs...)
}

// Waiting returns the prepared claims that no sandbox has or attaches.
func (k *Keeper) Waiting() []types.UID {
	var out []types.UID
	for _, e := range k.list() {
		if !e.Held() {
			out = append(out, e.UID)
		}
	}
	return out
}

// checkGate closes a gate that must not be open, and opens one again that was lost. If
// the claim is being attached or released, that sets its gate.
func (k *Keeper) checkGate(e claims.Entry) error {
	if s := k.opens(&e); k.Gate.OpenFor(e.UID) == s.ID && (s.ID == "" || !k.hasNodes(&e)) {
		return nil // device nodes may have changed meanwhile
	}
	ctx, cancel := context.WithTimeout(context.Background(), gateWait)
	defer cancel()
	unlock, err := k.Store.Lock(ctx, e.UID)
	if err != nil {
		return nil
	}
	defer unlock()
	e, known, err := k.Store.Get(e.UID)
	if err != nil || !known {
		return errors.Join(err, k.Gate.Close(e.UID))
	}
	if s := k.opens(&e); s.ID != "" {
		return k.openOrHold(&e, s)
	}
	return k.Gate.Close(e.UID)
}

// gateWait is how long checkGate waits for a claim's lock.
const gateWait = 100 * time.Millisecond

// opens returns the sandbox for which the gate of a claim must be open, zero for none.
func (k *Keeper) opens(e *claims.Entry) claims.Sandbox {
	for _, s := range e.In {
		if s.Phase == claims.Attached && k.netnsExists(s) {
			return s
		}
	}
	return claims.Sandbox{}
}

// netnsExists reports whether the namespace of a sandbox still exists.
func (k *Keeper) netnsExists(s claims.Sandbox) bool {
	id, err := k.Identify(s.Netns)
	if err != nil || id != s.NetnsID {
		return false
	}
	k.markSeen(s.ID)
	return true
}

func (k *Keeper) markSeen(sandbox string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[sandbox] = true
}

// netnsSeen reports whether this process has seen the namespace of a sandbox. A namespace that it has never
// seen and that is missing proves nothing: the runtime's directory may not be mounted here.
func (k *Keeper) netnsSeen(s claims.Sandbox) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen[s.ID]
}

// queueRelease queues for Run what is to be released of a claim, if anything. ended says that the
// runtime does not list the sandbox.
func (k *Keeper) queueRelease(e claims.Entry, s claims.Sandbox, ended bool) {
	if !s.Held() {
		return
	}
	exists := k.netnsExists(s)
	switch {
	case !exists && (ended || s.Phase == claims.Stopping || k.netnsSeen(s)):
		k.later(task{Pod: podIn(&e, &s), stops: true})
	case s.Phase == claims.Stopping:
		k.later(task{Pod: podIn(&e, &s)})
	}
}

// podIn is the pod of a sandbox, without a namespace: nothing is to be attached.
func podIn(e *claims.Entry, s *claims.Sandbox) Pod {
	return Pod{Sandbox: s.ID, UID: s.PodUID, Namespace: e.Namespace, Name: e.Pod.Name}
}

// queueMissed queues the sandboxes that were created while no agent ran.
func (k *Keeper) queueMissed(e claims.Entry, pods []Pod) {
	if slices.ContainsFunc(e.In, func(s claims.Sandbox) bool { return s.Phase == claims.Attached && k.netnsExists(s) }) {
		return
	}
	for _, p := range pods {
		if p.UID != e.Pod.UID || p.Netns == "" {
			continue
		}
		if s := e.Sandbox(p.Sandbox); s != nil && (s.Phase == claims.Stopping || s.Phase == claims.Released) {
			continue
		}
		if _, err := k.Identify(p.Netns); err == nil {
			k.later(task{Pod: p})
		}
	}
}

// task is Run's work for a sandbox: to attach it, if it has a namespace; else to release all
// claims that it has, if it stops; else to finish the releases of claims that have begun, while the
// other claims of the pod stay.
type task struct {
	Pod
	stops bool
	times int // it was planned: next tells one that was planned while it worked on it
}

func (t task) attaches() bool { return t.Netns != "" }
func (t task) finishes() bool { return !t.attaches() && !t.stops }

// plan makes a task that of its sandbox, instead of an earlier one. One that only finishes
// replaces no other; the next sweep finds what is left. The caller holds mu.
func (k *Keeper) plan(t task) {
	earlier, there := k.todo[t.Sandbox]
	if there && t.finishes() && !earlier.finishes() {
		t = earlier
	}
	t.times = earlier.times + 1
	k.todo[t.Sandbox] = t
}

// later queues a task for Run.
func (k *Keeper) later(t task) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plan(t)
	if k.queue != nil {
		k.queue.Add(t.Sandbox)
	}
}

// detachLater queues a sandbox that could not be released, with backoff: its device may
// return at any moment, or never.
func (k *Keeper) detachLater(pod Pod) {
	pod.Netns = ""
	k.retry(task{Pod: pod, stops: true})
}

// retry queues a task for Run, with backoff. A release that is in todo already is queued, or next works on
// it and queues it again; that of a sandbox that was to be attached starts with the shortest backoff.
func (k *Keeper) retry(t task) {
	k.mu.Lock()
	defer k.mu.Unlock()
	earlier, there := k.todo[t.Sandbox]
	k.plan(t)
	releases := !t.attaches()
	if k.queue == nil || releases && there && !earlier.attaches() {
		return
	}
	if releases {
		k.queue.Forget(t.Sandbox)
	}
	k.queue.AddRateLimited(t.Sandbox)
}

// forget drops how often a sandbox has failed, unless there is something to do for it. The caller holds mu.
func (k *Keeper) forget(sandbox string) {
	if _, there := k.todo[sandbox]; !there && k.queue != nil {
		k.queue.Forget(sandbox)
	}
}

// Limits of Run: how many sandboxes it works on at a time, so that hooks get the CPU and a
// slow sandbox delays no other, and how long after a failure a sandbox is retried.
const (
	workers    = 4
	retryFirst = 100 * time.Millisecond
	retryMost  = 30 * time.Second
)

// Run works on its queue until ctx ends. Then attachments in the background are rolled
// back; the next agent starts them again.
func (k *Keeper) Run(ctx context.Context) {
	k.mu.Lock()
	k.stopping = false
	k.mu.Unlock()
	defer k.endAttempts(ctx)
	k.forgetEarlierBoots(ctx)
	k.noteAttached(ctx) // an update that cannot be finished is rolled back to what was attached
	k.finishUpdates(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := k.start()
	defer stop()
	for range workers {
		wg.Go(func() {
			for k.next(ctx) {
			}
		})
	}
	sweep := time.NewTicker(k.Sweep)
	defer sweep.Stop()
	for {
		k.Alive(2 * k.Sweep)
		select {
		case <-ctx.Done():
			return
		case <-k.Nodes.wake:
			k.renew(ctx)
		case <-sweep.C:
			k.sweep()
			k.renew(ctx)
			k.noteAttached(ctx)
			k.finishUpdates(ctx)
		}
	}
}

// start creates the queue, with the sandboxes queued before.
func (k *Keeper) start() (stop func()) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryMost))
	k.mu.Lock()
	defer k.mu.Unlock()
	for sandbox := range k.todo {
		queue.Add(sandbox)
	}
	k.queue = queue
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.queue = nil
		queue.ShutDown()
	}
}

// forgetEarlierBoots releases the sandboxes of an earlier boot from the engine's
// records. Nothing of them is left, and their IDs are never reused.
func (k *Keeper) forgetEarlierBoots(ctx context.Context) {
	records, _ := k.Engine.List()
	for _, r := range records {
		if r.BootID == k.Store.BootID || !r.Sandbox.ID.Origin().OfRuntime() {
			continue
		}
		if err := k.releaseRecord(ctx, r.Sandbox.ID); err != nil {
			k.Log.Warn("cannot release a sandbox from an earlier boot", "sandbox", r.Sandbox.ID, "error", err)
		}
	}
}

// next handles one sandbox; false when Run is to end.
func (k *Keeper) next(ctx context.Context) bool {
	k.mu.Lock()
	queue := k.queue
	k.mu.Unlock()
	if queue == nil {
		return false
	}
	sandbox, stopped := queue.Get()
	if stopped {
		return false
	}
	defer queue.Done(sandbox)
	k.mu.Lock()
	t, there := k.todo[sandbox]
	if !there && k.attempts[sandbox] == nil {
		k.forget(sandbox)
	}
	k.mu.Unlock()
	if !there || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	if t.attaches() {
		k.attachQueued(queue, t)
		return true
	}
	if t.stops {
		if under := k.cancelAttempts(errStopped, func(a *attempt) bool { return a.pod.Sandbox == sandbox }); len(under) > 0 {
			queue.AddRateLimited(sandbox) // a rollback takes its time, and other sandboxes need the worker
			return true
		}
	}
	within, cancel := context.WithTimeout(ctx, k.ReleaseTimeout)
	defer cancel()
	var err error
	if t.stops {
		err = k.Detach(within, t.Pod)
	} else {
		err = k.finish(within, t.Pod)
	}
	if err != nil && fault.Of(err) != fault.Gone {
		k.Log.Warn("release failed", "sandbox", sandbox, "pod", t.Namespace+"/"+t.Name, "kind", fault.Of(err), "error", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil && fault.Of(err) != fault.Gone {
		queue.AddRateLimited(sandbox)
		return true
	}
	if k.todo[sandbox] != t { // other work was planned for it meanwhile, or the same once more
		queue.AddRateLimited(sandbox)
		return true
	}
	delete(k.todo, sandbox)
	queue.Forget(sandbox)
	return true
}

// attachQueued begins to attach a sandbox; if that fails, the attempt queues it again.
func (k *Keeper) attachQueued(queue workqueue.TypedRateLimitingInterface[string], t task) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.attempts) >= maxAttempts {
		queue.AddRateLimited(t.Sandbox)
		return
	}
	if k.todo[t.Sandbox] == t {
		delete(k.todo, t.Sandbox)
	}
	k.moveToBackground(k.beginLocked(t.Pod, false))
}

// sweep finds sandboxes that have ended without a call of a hook: after a restart
// containerd calls none for its earlier sandboxes (its issue 8426). The list of sandboxes
// is not known here; a sandbox has ended if its namespace no longer exists. It also opens gates again that were lost: without its file
// no container of a pod can be created again.
func (k *Keeper) sweep() {
	held := map[string]bool{}
	for _, e := range k.list() {
		if k.Gate.OpenFor(e.UID) == "" && k.opens(&e).ID != "" {
			if err := k.checkGate(e); err != nil {
				k.Log.Warn("cannot restore the lost gate of a claim", "claim", e.Namespace+"/"+e.Name, "error", err)
			}
		}
		for _, s := range e.In {
			if !s.Held() {
				continue
			}
			held[s.ID] = true
			k.queueRelease(e, s, false)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.seen, func(id string, _ bool) bool { return !held[id] })
}
