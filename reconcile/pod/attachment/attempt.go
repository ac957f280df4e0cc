package attachment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/fault"
)

const (
	// maxAttempts bounds how many sandboxes are attached in the background at a time.
	maxAttempts = 64
	// firstReport is how long after its first report an attempt in the background is
	// reported again; the interval doubles, as a report is a write to the API server.
	firstReport = 10 * time.Second
	// rollbackWait bounds how long the end of Run waits for the attempts it has
	// cancelled.
	rollbackWait = 10 * time.Second
)

// The reasons for cancelling an attempt.
var (
	errStopped    = fault.New(fault.Gone, errors.New("the sandbox is being stopped"))
	errWithdrawn  = fault.New(fault.Gone, errors.New("the claim is being withdrawn"))
	errSuperseded = errors.New("another sandbox of the pod has the claim")
	errEnded      = errors.New("it is no longer attached") // to a sandbox that has been stopped
	errStopping   = fault.New(fault.NotReady, errors.New("the agent is being stopped"))
)

// attempt is one attachment of a sandbox. It belongs to the Keeper, not to the hook that
// requested it: when the hook ends it continues in the background, while the gate is
// closed.
type attempt struct {
	pod        Pod
	newest     bool // no earlier sandbox of the pod is to keep the claims
	begun      time.Time
	ctx        context.Context
	cancel     context.CancelCauseFunc
	background context.Context // ends when no hook waits any more
	detach     context.CancelFunc
	done       chan struct{}
	err        error    // once done is closed
	at         Progress // under Keeper.mu

	report  sync.Mutex    // held while the current claim is reported
	current *claims.Claim // that is being attached; nil after its outcome is reported
}

// Progress is the progress of an attachment.
type Progress struct {
	reconcile.Progress
	Claim, Topology string // "" before the first change
}

// String describes the progress.
func (p Progress) String() string {
	if p.Claim == "" {
		return "before its first change"
	}
	return fmt.Sprintf("claim %q: topology %q: at step %q, %d of %d changes made", p.Claim, p.Topology, p.Step, p.Done, p.Planned)
}

func (p Progress) unfinished(since time.Duration) error {
	return fault.New(fault.NotReady,
		fmt.Errorf("the network of the pod is still being attached after %s: %s; the kubelet will retry the container",
			since.Round(100*time.Millisecond), p))
}

// inBackground reports whether no hook waits for an attempt.
func (a *attempt) inBackground() bool { return a.background.Err() != nil }

// explain adds to an error why the attempt was cancelled.
func (a *attempt) explain(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fault.New(fault.Of(cause), fmt.Errorf("%w: %w", cause, err))
}

// fails reports whether an error is a failure of the attempt, not its cancellation or
// the end of the sandbox.
func (a *attempt) fails(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	return !slices.ContainsFunc([]error{errStopped, errWithdrawn, errSuperseded, errStopping, errEnded}, func(wanted error) bool {
		return errors.Is(cause, wanted) || errors.Is(err, wanted)
	})
}

// begin begins to attach a sandbox, or returns the attempt in progress. The newest
// sandbox of a pod ends the attempts of earlier ones.
func (k *Keeper) begin(pod Pod, newest bool) *attempt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.beginLocked(pod, newest)
}

func (k *Keeper) beginLocked(pod Pod, newest bool) *attempt {
	if a := k.attempts[pod.Sandbox]; a != nil {
		return a
	}
	for _, a := range k.attempts {
		if newest && a.pod.UID == pod.UID {
			a.cancel(errSuperseded)
		}
	}
	a := &attempt{pod: pod, newest: newest, begun: k.Now(), done: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	a.background, a.detach = context.WithCancel(context.Background())
	k.attempts[pod.Sandbox] = a
	go k.runAttempt(a)
	return a
}

// runAttempt runs an attempt.
func (k *Keeper) runAttempt(a *attempt) {
	late := fault.New(fault.NotReady, fmt.Errorf("not attached within %s (--attach-timeout)", k.AttachTimeout))
	ctx, cancel := context.WithTimeoutCause(a.ctx, k.AttachTimeout, late)
	err := k.attachAll(ctx, a)
	failed := err != nil && a.fails(ctx, err)
	again := failed && k.standing(a.pod)
	cancel()
	k.mu.Lock()
	delete(k.attempts, a.pod.Sandbox)
	a.err = err
	close(a.done)
	background := a.inBackground()
	again = again && background && !k.stopping
	if !again {
		k.forget(a.pod.Sandbox)
	}
	k.mu.Unlock()
	a.cancel(nil)
	a.detach()
	if background && (failed || err == nil) {
		k.Ended(fault.Of(err), k.Now().Sub(a.begun))
	}
	if err != nil {
		k.Log.Warn("attach failed", "sandbox", a.pod.Sandbox, "pod", a.pod.Namespace+"/"+a.pod.Name, "kind", fault.Of(err),
			"took", k.Now().Sub(a.begun).Round(time.Millisecond), "again", again, "error", err)
	}
	if again {
		k.retry(task{Pod: a.pod})
	}
}

// standing reports whether a sandbox may still be attached.
func (k *Keeper) standing(pod Pod) bool {
	_, err := k.Identify(pod.Netns)
	return fault.Of(err) != fault.Gone
}

// await waits for an attempt until ctx ends; then it continues in the background.
func (k *Keeper) await(ctx context.Context, a *attempt) (over bool, err error) {
	loop.Wait(ctx, loop.Forever, a.done)
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-a.done:
		return true, a.err
	default:
		k.moveToBackground(a)
		return false, nil
	}
}

// moveToBackground lets an attempt continue without a waiting hook. The caller holds mu.
func (k *Keeper) moveToBackground(a *attempt) {
	if k.stopping {
		a.cancel(errStopping)
	}
	if a.inBackground() {
		return
	}
	a.detach()
	go k.reportProgress(a)
}

// reportProgress reports the progress of an attempt from when no hook waits for it to
// its end.
func (k *Keeper) reportProgress(a *attempt) {
	for wait := firstReport; ; wait *= 2 {
		select {
		case <-a.done:
			return
		default:
		}
		at := k.progressOf(a)
		k.Log.Info("attaching in the background", "sandbox", a.pod.Sandbox, "pod", a.pod.Namespace+"/"+a.pod.Name,
			"for", k.Now().Sub(a.begun).Round(time.Millisecond), "at", at)
		a.report.Lock()
		if a.current != nil {
			k.Reporter.Attaching(a.pod, *a.current, at)
		}
		a.report.Unlock()
		loop.Wait(context.Background(), wait, a.done) // not the attempt's, which ends before its rollback
	}
}

// attends sets the claim whose progress is reported, to nil before its outcome is reported.
func (a *attempt) attends(c *claims.Claim) {
	a.report.Lock()
	defer a.report.Unlock()
	a.current = c
}

func (k *Keeper) note(a *attempt, p Progress) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.at = p
}

func (k *Keeper) progressOf(a *attempt) Progress {
	k.mu.Lock()
	defer k.mu.Unlock()
	return a.at
}

// holdGate makes the creation of the claim's containers fail with a reason while the
// attempt is in the background, until done is called. The caller holds the claim's lock.
func (k *Keeper) holdGate(a *attempt, uid types.UID) (done func()) {
	var mu sync.Mutex
	over := false
	forget := context.AfterFunc(a.background, func() {
		mu.Lock()
		defer mu.Unlock()
		if over || a.ctx.Err() != nil {
			return
		}
		if err := k.Gate.Hold(uid); err != nil {
			k.Log.Warn("cannot write the CDI file that holds back the containers of a claim", "claim", uid, "error", err)
		}
	})
	return func() {
		forget()
		mu.Lock()
		defer mu.Unlock()
		over = true
	}
}

// holdWaiting does the same for containers of the pod's other claims, which are attached
// one after the other. A locked claim is skipped.
func (k *Keeper) holdWaiting(a *attempt, all []claims.Entry) {
	for _, e := range all {
		if err := k.holdOne(a, e.UID); err != nil {
			k.Log.Warn("cannot write the CDI file that holds back the containers of a claim", "claim", e.UID, "error", err)
		}
	}
}

func (k *Keeper) holdOne(a *attempt, uid types.UID) error {
	ctx, cancel := context.WithTimeout(a.ctx, gateWait)
	defer cancel()
	e, known, unlock, err := k.hold(ctx, uid)
	if err != nil {
		return nil //nolint:nilerr // it is being attached, or the attempt is over
	}
	defer unlock()
	s := e.Sandbox(a.pod.Sandbox)
	switch {
	case !known || e.Pod.UID != a.pod.UID || a.ctx.Err() != nil:
		return nil // it has been withdrawn
	case s != nil && s.Phase != claims.Attaching && s.Phase != claims.Failed, k.Gate.OpenFor(uid) != "":
		return nil // attached, or never to be
	}
	return k.Gate.Hold(uid)
}

// interrupt cancels attempts, and waits until they are rolled back or ctx ends.
func (k *Keeper) interrupt(ctx context.Context, cause error, which func(*attempt) bool) error {
	for _, a := range k.cancelAttempts(cause, which) {
		if !loop.Wait(ctx, loop.Forever, a.done) {
			return fault.New(fault.NotReady, fmt.Errorf("the attachment of sandbox %q is being rolled back", a.pod.Sandbox))
		}
	}
	return nil
}

func (k *Keeper) cancelAttempts(cause error, which func(*attempt) bool) []*attempt {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*attempt
	for _, a := range k.attempts {
		if which(a) {
			a.cancel(cause)
			out = append(out, a)
		}
	}
	return out
}

// attaching reports whether a pod's claim is being attached.
func (k *Keeper) attaching(uid types.UID) bool {
	e, known, err := k.Store.Get(uid)
	if err != nil || !known {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.attempts {
		if a.pod.UID == e.Pod.UID {
			return true
		}
	}
	return false
}

// endAttempts cancels the attempts in the background, and waits for all for a bounded time.
// An attempt whose hook ends meanwhile is cancelled then.
func (k *Keeper) endAttempts(ctx context.Context) {
	k.mu.Lock()
	k.stopping = true
	k.mu.Unlock()
	k.cancelAttempts(errStopping, (*attempt).inBackground)
	k.mu.Lock()
	all := slices.Collect(maps.Values(k.attempts))
	k.mu.Unlock()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWait)
	defer cancel()
	for _, a := range all {
		if !loop.Wait(within, loop.Forever, a.done) {
			k.Log.Warn("attachment could not be rolled back in time; the next agent rolls it back", "sandbox", a.pod.Sandbox, "error",
				context.Cause(ctx))
			return
		}
	}
}
