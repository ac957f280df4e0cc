package attachment

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/reconcile/claims"
)

// Synchronize compares the sandboxes a runtime has with the records. Gates that
// must not be open are closed before it returns; the rest is left to Run. The
// list may hold sandboxes that have stopped, and lack one that is being made:
// containerd 1.7 lists it when its hooks are done, which the agent before this
// one may be called for.
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
		k.queueEnded(e, listed)
		k.queueMissed(e, pods)
	}
	open, err := k.Gate.List()
	errs = append(errs, err)
	for _, uid := range open {
		if !known[uid] {
			errs = append(errs, k.Gate.Close(uid))
		}
	}
	k.nudge()
	return errors.Join(errs...)
}

// checkGate closes a gate that is open for no good reason, and opens one again
// that was lost.
func (k *Keeper) checkGate(e claims.Entry) error {
	for _, s := range e.In {
		if s.Phase == claims.Attached && k.stands(s) {
			return k.Gate.Open(e.UID, s.ID, s.Netns)
		}
	}
	return k.Gate.Close(e.UID)
}

// stands reports whether the namespace of a sandbox is still there.
func (k *Keeper) stands(s claims.Sandbox) bool {
	id, err := k.Identify(s.Netns)
	if err != nil || id != s.NetnsID {
		return false
	}
	k.saw(s.ID)
	return true
}

func (k *Keeper) saw(sandbox string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[sandbox] = true
}

// fell reports whether the namespace of a sandbox was there and is no more. One
// that this process has never seen is not believed to be gone: perhaps the
// process does not see the directory as the runtime does, and the pod runs.
func (k *Keeper) fell(s claims.Sandbox) bool {
	if k.stands(s) {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen[s.ID]
}

// queueEnded leaves to Run the sandboxes that are no more.
func (k *Keeper) queueEnded(e claims.Entry, listed map[string]Pod) {
	for _, s := range e.In {
		if _, there := listed[s.ID]; s.Held() && (!there && !k.stands(s) || s.Phase == claims.Stopping || k.fell(s)) {
			k.later(Pod{Sandbox: s.ID, UID: s.PodUID, Namespace: e.Namespace, Name: e.Pod.Name}) // without a namespace: to be detached
		}
	}
}

// queueMissed leaves to Run the sandboxes that came while nobody looked.
func (k *Keeper) queueMissed(e claims.Entry, pods []Pod) {
	if slices.ContainsFunc(e.In, func(s claims.Sandbox) bool { return s.Phase == claims.Attached && k.stands(s) }) {
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
			k.later(p)
		}
	}
}

func (k *Keeper) later(p Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queue[p.Sandbox] = p
}

func (k *Keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Pending returns how many sandboxes wait for Run.
func (k *Keeper) Pending() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.queue)
}

// Run does what was left for it, one sandbox at a time so that hooks have the
// machine, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	k.bury(ctx)
	k.settleAll(ctx)
	sweep := time.NewTicker(k.Sweep)
	defer sweep.Stop()
	for {
		k.work(ctx)
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-sweep.C:
			k.sweep()
			k.settleAll(ctx)
		}
	}
}

// ofRuntime is a runtime's sandbox, as the first part of the engine's ID.
var ofRuntime = regexp.MustCompile(`^[0-9a-f]{64}/`)

// bury lets the engine forget the sandboxes of an earlier boot. Nothing of them
// is left, and their IDs never come again.
func (k *Keeper) bury(ctx context.Context) {
	records, _ := k.Engine.List()
	for _, r := range records {
		if r.BootID == k.Store.BootID || !ofRuntime.MatchString(string(r.Sandbox.ID)) {
			continue
		}
		if err := k.releaseRecord(ctx, r.Sandbox.ID); err != nil {
			k.Log.Warn("sandbox of an earlier boot", "sandbox", r.Sandbox.ID, "error", err)
		}
	}
}

func (k *Keeper) work(ctx context.Context) {
	for ctx.Err() == nil {
		k.mu.Lock()
		ids := slices.Sorted(maps.Keys(k.queue))
		if len(ids) == 0 {
			k.mu.Unlock()
			return
		}
		p := k.queue[ids[0]]
		k.mu.Unlock()

		what, err := "attach", error(nil)
		if p.Netns != "" {
			err = k.attachAll(ctx, p, false)
		} else {
			what, err = "detach", k.Detach(ctx, p)
		}
		if err != nil && fault.Of(err) != fault.Gone {
			// An attachment is tried again when the runtime tries to make a
			// container, a detachment by the next sweep.
			k.Log.Warn("sandbox", "do", what, "sandbox", p.Sandbox, "pod", p.Namespace+"/"+p.Name, "kind", fault.Of(err), "error", err)
		}
		k.mu.Lock()
		delete(k.queue, p.Sandbox)
		k.mu.Unlock()
	}
}

// sweep finds sandboxes that have ended although no hook was called: after a
// restart containerd calls none for the sandboxes it had before (its issue 8426).
// Which sandboxes there are is not known here; a namespace that has gone tells.
func (k *Keeper) sweep() {
	held := map[string]bool{}
	for _, e := range k.list() {
		for _, s := range e.In {
			if !s.Held() {
				continue
			}
			held[s.ID] = true
			if s.Phase == claims.Stopping || k.fell(s) {
				k.later(Pod{Sandbox: s.ID, UID: s.PodUID, Namespace: e.Namespace, Name: e.Pod.Name})
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.seen, func(id string, _ bool) bool { return !held[id] })
}
