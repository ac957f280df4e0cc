package attachment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/defaults"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/netns"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/pod/gate"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Engine applies topologies; a reconcile.Reconciler is one.
type Engine interface {
	Ensure(ctx context.Context, sb reconcile.Sandbox) (reconcile.Report, error)
	// Release does not wait for a device that is absent: it is called again.
	Release(ctx context.Context, id reconcile.SandboxID) (reconcile.Report, error)
	List() ([]reconcile.Record, []error)
	IDs() ([]reconcile.SandboxID, []error)
	Record(id reconcile.SandboxID) (reconcile.Record, bool, error)
}

// Reporter receives the state of claims. It must not block.
type Reporter interface {
	// Attaching is called when the runtime's hook has ended and a claim is still being
	// attached, and periodically afterwards, with the progress.
	Attaching(pod Pod, c claims.Claim, at Progress)
	// Attached is called with the results per topology, in the claim's order.
	Attached(pod Pod, c claims.Claim, reports []reconcile.Report)
	Failed(pod Pod, c claims.Claim, err error)
	// Updated is called when a topology has a later generation than from in the pod.
	Updated(c claims.Claim, topology string, from int64, report reconcile.Report)
	Detached(c claims.Claim)
	// Replaced is called with the variables of a container that have the values that the claim exports, and not those that its
	// image or its spec has set.
	Replaced(c claims.Claim, container string, variables []string)
}

// Pod is a runtime's sandbox of a pod.
type Pod struct {
	Sandbox   string // ID
	UID       types.UID
	Namespace string
	Name      string
	Netns     string // path; "" when the pod uses the host's
	// Handler is the runtime handler of the pod's RuntimeClass; "" is the runtime's default.
	Handler string
}

// Options are the settings of a Keeper.
type Options struct {
	Store  *claims.Store
	Engine Engine
	Gate   gate.Dir
	// Contracts define which steps have device nodes.
	Contracts contract.Set
	Reporter  Reporter
	// Nodes are the claims whose device nodes have changed. Default: none.
	Nodes *Nodes
	// Refine is called with the results per topology before the gate opens. Its failure
	// is logged and does not stop the pod.
	Refine func(ctx context.Context, c *claims.Claim, results [][]topology.StepResult) error
	// Follow returns an error unless a topology of a claim can be given a later
	// generation with the devices the claim has.
	Follow func(ctx context.Context, t *claims.Topology, o *v1alpha1.NetworkTopology) error
	// Ready waits until the host has what the pod of a claim needs of it for a topology, and
	// returns an error of kind NotReady if that takes too long. Nil needs nothing.
	Ready func(ctx context.Context, t *claims.Topology) error
	// Filters returns the rules that mark and limit what the pod of a claim sends over a topology,
	// without waiting. While that is not known the error is of kind NotReady, and the pod is
	// not attached. May be nil.
	Filters func(c *claims.Claim, t *claims.Topology) (ops.Rules, error)
	// GiveBack returns the addresses of a claim that has ended to their pools; it is no
	// error if there are none. May be nil.
	GiveBack func(uid types.UID) error
	// Lost returns those of the device nodes that are no longer those of a device, "" for none, or of an RDMA device in
	// software, by its name. A driver that is loaded again may have given them to another one. Nil finds none.
	Lost func(device, rdma string, nodes []string) []string
	// TopologyFile returns the topology file of NCCL for devices of the node by PCI address, for those of RDMA devices by name, and for
	// those beside that the node has, by PCI address.
	TopologyFile func(own, rdma, beside []string) (string, error)
	Log          *slog.Logger
	// Identify identifies the namespace at a path; an error of kind Gone if there is
	// none. Default: by device and inode.
	Identify func(path string) (reconcile.NetnsID, error)
	// SealedHandlers are patterns (path.Match) of runtime handlers whose containers do not live in the
	// network namespace of their sandbox. They get device nodes only.
	SealedHandlers []string
	// AttachTimeout bounds one attachment of a sandbox; default 5 min.
	AttachTimeout time.Duration
	// ReleaseTimeout bounds the release of one sandbox; default 30 s.
	ReleaseTimeout time.Duration
	// Yield is called before the engine applies a topology for which a pod waits: until
	// done is called, repairs yield. Default: nothing does.
	Yield func() (done func())
	// Ended is called with the result of an attachment in the background, and the time
	// since its beginning; "" is success. May be nil.
	Ended func(outcome fault.Kind, took time.Duration)
	// Alive is called by Run each time it has made progress; the next call follows within
	// the given time. May be nil.
	Alive func(within time.Duration)
	// Sweep is the interval of searches for sandboxes whose end was not reported;
	// default 30 s.
	Sweep time.Duration
	Now   func() time.Time
}

// Keeper attaches claims to sandboxes. It is safe for concurrent use, also by several
// processes on one store.
type Keeper struct {
	Options

	mu       sync.Mutex
	attempts map[string]*attempt                          // attachments in progress, by sandbox
	stopping bool                                         // Run has ended: no attachment continues in the background
	todo     map[string]task                              // what Run is to do, by sandbox
	queue    workqueue.TypedRateLimitingInterface[string] // of the sandboxes in todo, while Run runs
	seen     map[string]bool                              // sandboxes whose namespace this process has seen
}

// New returns a Keeper.
func New(o Options) *Keeper {
	o.Nodes = cmp.Or(o.Nodes, NewNodes())
	o.AttachTimeout = cmp.Or(o.AttachTimeout, 5*time.Minute)
	o.ReleaseTimeout = cmp.Or(o.ReleaseTimeout, 30*time.Second)
	o.Sweep = cmp.Or(o.Sweep, 30*time.Second)
	o.Ended = defaults.Func(o.Ended, func(fault.Kind, time.Duration) {})
	o.Alive = defaults.Func(o.Alive, func(time.Duration) {})
	o.Yield = defaults.Func(o.Yield, func() func() { return func() {} })
	o.Identify = defaults.Func(o.Identify, netns.At)
	o.Filters = defaults.Func(o.Filters, func(*claims.Claim, *claims.Topology) (ops.Rules, error) { return ops.Rules{}, nil })
	return &Keeper{Options: o, attempts: map[string]*attempt{}, todo: map[string]task{}, seen: map[string]bool{}}
}

// Attach applies all claims of the pod in its sandbox, or none. A pod without claims costs
// a read of the records. The error of a failing step is returned as the engine reports it,
// after the rollback. An attachment that has not ended when ctx does continues in the background, which
// is no error; the closed gate keeps the containers of the pod from starting. The sandbox
// is a new one: what a claim has in an earlier sandbox of the pod is released.
func (k *Keeper) Attach(ctx context.Context, pod Pod) error {
	if len(k.ofPod(pod.UID)) == 0 {
		return nil
	}
	_, err := k.await(ctx, k.begin(pod, true))
	return err
}

// attachAll attaches all claims of the pod. If one fails, those that this call attached
// before it are released; what was attached earlier stays.
func (k *Keeper) attachAll(ctx context.Context, a *attempt) error {
	var fresh []types.UID
	all := k.ofPod(a.pod.UID)
	defer context.AfterFunc(a.background, func() { k.holdWaiting(a, all) })()
	for _, e := range all {
		attached, err := k.attach(ctx, e.UID, a)
		if err != nil {
			err = a.explain(ctx, err)
			if a.fails(ctx, err) {
				k.Reporter.Failed(a.pod, e.Claim, err)
			}
			for _, uid := range fresh {
				err = errors.Join(err, k.undo(ctx, uid, a.pod.Sandbox, claims.Failed, "another claim of the pod failed"))
			}
			return fmt.Errorf("claim %q: %w", e.Name, err)
		}
		if attached {
			fresh = append(fresh, e.UID)
		}
	}
	return nil
}

// list returns all records. A damaged one is logged and affects no other: its pod is
// unknown, and its gate is closed by the next Synchronize.
func (k *Keeper) list() []claims.Entry {
	entries, errs := k.Store.List()
	for _, err := range errs {
		k.Log.Error("cannot read claim records", "error", err)
	}
	return entries
}

func (k *Keeper) ofPod(uid types.UID) []claims.Entry {
	return slices.DeleteFunc(k.list(), func(e claims.Entry) bool { return e.Pod.UID != uid })
}

// hold locks a claim and reads its record. If it succeeds the caller has to unlock the claim.
func (k *Keeper) hold(ctx context.Context, uid types.UID) (e claims.Entry, known bool, unlock func(), err error) {
	if unlock, err = k.Store.Lock(ctx, uid); err != nil {
		return e, false, nil, err
	}
	if e, known, err = k.Store.Get(uid); err != nil {
		unlock()
		return e, false, nil, err
	}
	return e, known, unlock, nil
}

// held calls do with a claim that is locked, unless it has no record.
func (k *Keeper) held(ctx context.Context, uid types.UID, do func(e *claims.Entry) error) error {
	e, known, unlock, err := k.hold(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	if !known {
		return nil
	}
	return do(&e)
}

// attach applies one claim in a sandbox and opens its gate; false when it was
// attached already. The newest sandbox of a pod takes the claim from an earlier
// one.
func (k *Keeper) attach(ctx context.Context, uid types.UID, a *attempt) (attached bool, err error) {
	pod := a.pod
	e, known, unlock, err := k.hold(ctx, uid)
	if err != nil {
		return false, err
	}
	defer unlock()
	switch {
	case !known:
		return false, fault.New(fault.NotReady, errors.New("it is no longer prepared"))
	case e.Pod.UID != pod.UID:
		return false, fault.New(fault.Conflict, fmt.Errorf("it is prepared for pod %q, and a device is in one pod at a time", e.Pod.Name))
	case pod.Netns == "":
		return false, fault.New(fault.Invalid,
			errors.New("the pod uses the host's network (hostNetwork), where no topology is applied: remove hostNetwork, or the claim"))
	}
	netns, err := k.Identify(pod.Netns)
	if err != nil {
		return false, err
	}
	if done, err := k.mayAttach(&e, pod, netns); done || err != nil {
		return false, err
	}
	if err := k.reaches(&e, pod); err != nil {
		return false, err
	}
	k.markSeen(pod.Sandbox)
	done := k.holdGate(a, uid)
	defer done()
	if err := k.releaseOthers(ctx, &e, pod, a.newest); err != nil {
		return false, err
	}
	return true, k.apply(ctx, &e, a, netns, done)
}

// reaches returns an error if what a claim has in its sandbox does not reach the containers of the pod. A runtime
// that boots a virtual machine, or has a network stack of its own, reads the interfaces of the namespace
// when it starts the sandbox, and calls the hook of NRI later.
func (k *Keeper) reaches(e *claims.Entry, pod Pod) error {
	if !slices.ContainsFunc(k.SealedHandlers, func(pattern string) bool {
		sealed, err := path.Match(pattern, pod.Handler)
		return err == nil && sealed
	}) {
		return nil
	}
	for i := range e.Topologies {
		t, err := e.Topologies[i].Decoded()
		if err != nil {
			return fault.New(fault.Invalid, err)
		}
		for j := range t.Steps {
			if s := &t.Steps[j]; !claims.GivesNodes(k.Contracts, s) {
				return fault.New(fault.Unsupported, fmt.Errorf(
					"topology %q: step %q: what it adds to the network namespace does not reach containers of the runtime handler %q, "+
						"which has read the namespace before (--vm-runtime-handlers): "+
						"use another RuntimeClass, or a topology of steps that give device nodes, such as vfio-pci", t.Name, s.Name,
					pod.Handler))
			}
		}
	}
	return nil
}

// apply is the part of attach that changes the sandbox. ready is called before the
// gate is opened.
func (k *Keeper) apply(ctx context.Context, e *claims.Entry, a *attempt, netns reconcile.NetnsID, ready func()) error {
	pod := a.pod
	sandboxes, err := e.Sandboxes(pod.Sandbox, pod.Netns)
	if err != nil {
		return fault.New(fault.Invalid, err)
	}
	next := claims.Sandbox{ID: pod.Sandbox, PodUID: pod.UID, Netns: pod.Netns, NetnsID: netns, Phase: claims.Attaching}
	if s := e.Sandbox(pod.Sandbox); s != nil {
		next.Failure = s.Failure // reported until this attempt has ended
	}
	e.Set(next)
	if err := k.Store.PutSandboxes(*e); err != nil {
		return err
	}
	a.attends(&e.Claim)
	var reports []reconcile.Report
	if err = k.abandon(ctx, e); err == nil {
		err = k.addFilters(e, sandboxes)
	}
	for i := range e.Topologies {
		if err == nil && k.Ready != nil {
			err = k.Ready(ctx, &e.Topologies[i])
		}
	}
	if err == nil {
		reports, err = k.ensure(ctx, e, a, sandboxes)
	}
	a.attends(nil)
	if err == nil {
		var results [][]topology.StepResult
		for _, r := range reports {
			results = append(results, r.Results)
		}
		k.refine(ctx, &e.Claim, results)
		s := e.Sandbox(pod.Sandbox)
		s.Phase, s.Failure = claims.Attached, ""
		if err = k.Store.PutSandboxes(*e); err == nil {
			ready()
			err = k.openGate(e, pod.Sandbox, pod.Netns)
		}
	}
	if err != nil {
		err = errors.Join(err, k.release(ctx, e, pod.Sandbox, claims.Failed, a.explain(ctx, err).Error()))
		if a.inBackground() && a.fails(ctx, err) { // release has removed it
			err = errors.Join(err, k.Gate.Hold(e.UID))
		}
		return err
	}
	k.Reporter.Attached(pod, e.Claim, reports)
	return nil
}

func (k *Keeper) refine(ctx context.Context, c *claims.Claim, results [][]topology.StepResult) {
	if err := k.Refine(ctx, c, results); err != nil {
		k.Log.Warn("cannot write the metadata of a claim", "claim", c.Namespace+"/"+c.Name, "error", err)
	}
}

// mayAttach reports whether the claim is already attached to the sandbox; an error means
// that it must not be.
func (k *Keeper) mayAttach(e *claims.Entry, pod Pod, netns reconcile.NetnsID) (done bool, err error) {
	s := e.Sandbox(pod.Sandbox)
	if s == nil {
		return false, nil
	}
	switch s.Phase {
	case claims.Stopping, claims.Released:
		return false, fault.New(fault.Gone, fmt.Errorf("%w: sandbox %q has been stopped", errEnded, pod.Sandbox))
	case claims.Attached:
		return s.NetnsID == netns && k.Gate.OpenFor(e.UID) == pod.Sandbox, nil
	default: // after a crash or a failure: attach again
		return false, nil
	}
}

// releaseOthers releases what the claim has in other sandboxes. A runtime creates a new
// sandbox for a pod after the old one has stopped; the order of other sandboxes is unknown.
func (k *Keeper) releaseOthers(ctx context.Context, e *claims.Entry, pod Pod, newest bool) error {
	for _, s := range slices.Clone(e.In) {
		if s.ID == pod.Sandbox || !s.Held() {
			continue
		}
		if !newest && s.Phase == claims.Attached && k.netnsExists(s) {
			return fault.New(fault.Conflict, fmt.Errorf("%w: it is attached to sandbox %q of the pod", errSuperseded, s.ID))
		}
		if err := k.awaitRelease(ctx, e, s.ID); err != nil {
			return fmt.Errorf("release its earlier sandbox %q: %w", s.ID, err)
		}
	}
	return nil
}

// awaitRelease is release for the next sandbox of the pod, which needs the devices:
// they return while the namespace of the old one is destroyed.
func (k *Keeper) awaitRelease(ctx context.Context, e *claims.Entry, sandbox string) error {
	var err error
	pace := wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Steps: 1 << 10, Cap: 200 * time.Millisecond}
	within, cancel := context.WithTimeout(ctx, k.ReleaseTimeout)
	defer cancel()
	for {
		err = k.release(ctx, e, sandbox, claims.Released, "")
		if fault.Of(err) != fault.NotReady {
			return err
		}
		if !loop.Wait(within, pace.Step(), nil) {
			return err
		}
	}
}

// ensureUrgent calls the engine for a pod that waits for its network. Meanwhile repairs yield.
func (k *Keeper) ensureUrgent(ctx context.Context, sb reconcile.Sandbox) (reconcile.Report, error) {
	defer k.Yield()()
	return k.Engine.Ensure(ctx, sb)
}

// ensure applies all topologies of a claim.
func (k *Keeper) ensure(ctx context.Context, e *claims.Entry, a *attempt, sandboxes []reconcile.Sandbox) ([]reconcile.Report, error) {
	var reports []reconcile.Report
	for _, sb := range sandboxes {
		begun := k.Now()
		rep, err := k.ensureUrgent(reconcile.WithProgress(ctx, func(p reconcile.Progress) {
			k.note(a, Progress{Progress: p, Claim: e.Name, Topology: sb.Topology.Name})
		}), sb)
		if err != nil {
			return nil, err
		}
		k.Log.Info("attached", "sandbox", sb.ID, "claim", e.Namespace+"/"+e.Name, "pod", e.Pod.Name,
			"changes", len(rep.Changes), "took", k.Now().Sub(begun).Round(time.Microsecond))
		for _, note := range rep.Notes { // not for the pod's users: it may name addresses of the host
			k.Log.Info("note on the pod's network", "sandbox", sb.ID, "pod", e.Pod.Name, "note", note)
		}
		reports = append(reports, rep)
	}
	return reports, nil
}

// undo is release for callers that do not hold the claim's lock.
func (k *Keeper) undo(ctx context.Context, uid types.UID, sandbox string, then claims.Phase, why string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.ReleaseTimeout)
	defer cancel()
	return k.held(ctx, uid, func(e *claims.Entry) error {
		if e.Sandbox(sandbox) == nil {
			return nil
		}
		return k.release(ctx, e, sandbox, then, why)
	})
}

// release closes the gate and undoes all topologies of a claim in a sandbox. The caller
// holds the claim's lock. If something cannot be released, the sandbox stays Stopping,
// unless it may be attached again (then it is Failed), and Run retries. If all is released, and only
// that cannot be recorded, the error is an errUnrecorded.
func (k *Keeper) release(ctx context.Context, e *claims.Entry, sandbox string, then claims.Phase, why string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.ReleaseTimeout)
	defer cancel()
	s := e.Sandbox(sandbox)
	var errs []error
	if open := k.Gate.OpenFor(e.UID); open == sandbox || open == "" {
		errs = append(errs, k.Gate.Close(e.UID))
	}
	if then == claims.Released {
		// Recorded first: from now on it is not attached again.
		s.Phase = claims.Stopping
		if err := k.Store.PutSandboxes(*e); err != nil {
			// A full disk must not keep devices: pods are deleted to free space on it.
			k.Log.Warn("cannot record that a sandbox stops", "sandbox", sandbox, "claim", e.Namespace+"/"+e.Name, "error", err)
		}
	}
	for i := range slices.Backward(e.Topologies) {
		id := e.SandboxID(sandbox, &e.Topologies[i])
		rep, err := k.Engine.Release(ctx, id)
		if err == nil && !rep.Unchanged {
			k.Log.Info("released", "sandbox", id, "claim", e.Namespace+"/"+e.Name, "changes", len(rep.Changes))
		}
		if rep.Unclean != "" {
			k.Log.Warn("released, but a device is not clean", "sandbox", id, "claim", e.Namespace+"/"+e.Name, "reason", rep.Unclean)
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if err == nil || then == claims.Failed {
		s.Phase, s.Failure = then, why
		if put := k.Store.PutSandboxes(*e); put != nil {
			err = errors.Join(err, errUnrecorded{put})
		}
	}
	if s.Phase == claims.Stopping {
		k.retry(task{Pod: podIn(e, s)})
	}
	return err
}

// errUnrecorded: a sandbox was released, but its record could not be updated.
type errUnrecorded struct{ error }

func (e errUnrecorded) Unwrap() error { return e.error }

// Admit returns an error unless all claims of the pod, and all that the container's
// environment lists, are attached to the container's sandbox. It first tries to attach what
// is missing, unless that is in progress; the error then contains the progress.
func (k *Keeper) Admit(ctx context.Context, pod Pod, env []string) error {
	consumed := gate.Consumed(env)
	missing, late := false, false
	var attached []claims.Entry // those that the container consumes
	for _, e := range k.ofPod(pod.UID) {
		s := e.Sandbox(pod.Sandbox)
		in := s != nil && s.Phase == claims.Attached
		opened, consumes := consumed[e.UID]
		late = late || consumes && opened == ""
		delete(consumed, e.UID)
		switch {
		case in && consumes && opened == "":
			return fault.New(fault.NotReady,
				fmt.Errorf("claim %q: it was attached after the container was created; the kubelet will recreate the container", e.Name))
		case in && consumes && opened != pod.Sandbox:
			return fault.New(fault.Conflict, fmt.Errorf(
				"claim %q: the container was created for sandbox %q, which no longer exists; the kubelet will recreate it", e.Name, opened))
		case in && e.Updating(): // between two generations, perhaps because the update was interrupted
			if err := k.FinishUpdate(ctx, e.UID); err != nil {
				return fmt.Errorf("claim %q: %w", e.Name, err)
			}
			if consumes && slices.ContainsFunc(e.Topologies,
				func(t claims.Topology) bool { return t.Exports() || t.Next != nil && t.Next.Spec.Export != nil }) {
				return fault.New(fault.NotReady, fmt.Errorf("claim %q: the update of its network ended after the container was created, "+
					"so the container may have outdated values; the kubelet will recreate it", e.Name))
			}
		case !in:
			missing = true
		}
		if in && consumes {
			attached = append(attached, e)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(consumed)) {
		return fault.New(fault.Conflict,
			fmt.Errorf("the container consumes claim %q, which is not prepared for this pod: a device is in one pod at a time", uid))
	}
	for i := range attached { // a repair may not have noticed yet
		if err := k.refuseLostIn(&attached[i], pod.Sandbox); err != nil {
			return err
		}
	}
	if err := k.clash(attached, pod.Sandbox); err != nil {
		return err
	}
	if !missing {
		return nil
	}
	return k.admitLate(ctx, pod, late)
}

// retryPatience is how long the hook of a container waits for an attachment that has failed
// before: meanwhile the runtime serves no other pod, and the kubelet keeps retrying.
const retryPatience = 100 * time.Millisecond

// admitLate is Admit for a pod that is not attached. A container that was created while
// a gate was closed is refused in any case, without a wait.
func (k *Keeper) admitLate(ctx context.Context, pod Pod, refused bool) error {
	failure := k.failure(pod)
	a := k.begin(pod, false)
	patience := k.ReleaseTimeout // the hook's own is shorter
	switch {
	case refused || a.inBackground():
		patience = 0
	case failure != nil:
		patience = retryPatience
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	over, err := k.await(within, a)
	switch {
	case over && err == nil && refused:
		return fault.New(fault.NotReady,
			errors.New("the claims of the pod were attached after the container was created; the kubelet will recreate the container"))
	case over:
		return err
	}
	err = k.progressOf(a).unfinished(k.Now().Sub(a.begun))
	if failure != nil {
		err = fmt.Errorf("%w; %w", err, failure) // on one line, as it becomes an event
	}
	return err
}

// failure returns why the claims of the pod could not be attached to its sandbox the
// last time, nil if that was not tried.
func (k *Keeper) failure(pod Pod) error {
	for _, e := range k.ofPod(pod.UID) {
		if s := e.Sandbox(pod.Sandbox); s != nil && s.Failure != "" {
			return fmt.Errorf("the last attempt failed: claim %q: %s", e.Name, s.Failure)
		}
	}
	return nil
}

// Detach releases what claims have in a sandbox that stops. An attachment in progress is
// cancelled first. An error does not stop the rest; Run retries what failed, or had not
// ended when ctx did.
func (k *Keeper) Detach(ctx context.Context, pod Pod) error {
	if err := k.interrupt(ctx, errStopped, func(a *attempt) bool { return a.pod.Sandbox == pod.Sandbox }); err != nil {
		k.detachLater(pod)
		return err
	}
	var errs []error
	for _, e := range k.list() {
		if e.Pod.UID != pod.UID && e.Sandbox(pod.Sandbox) == nil {
			continue
		}
		if err := k.detach(ctx, e.UID, pod); err != nil {
			k.detachLater(pod)
			errs = append(errs, fmt.Errorf("claim %q: %w", e.Name, err))
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.todo[pod.Sandbox].attaches() { // an attempt that was to be retried
		delete(k.todo, pod.Sandbox)
	}
	k.forget(pod.Sandbox)
	return errors.Join(errs...)
}

// finish finishes the releases of claims in a sandbox that have begun. The other claims of the pod
// stay: one claim may be withdrawn while the pod runs.
func (k *Keeper) finish(ctx context.Context, pod Pod) error {
	var errs []error
	for _, e := range k.list() {
		if s := e.Sandbox(pod.Sandbox); s == nil || s.Phase != claims.Stopping {
			continue
		}
		if err := k.detach(ctx, e.UID, pod); err != nil {
			errs = append(errs, fmt.Errorf("claim %q: %w", e.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (k *Keeper) detach(ctx context.Context, uid types.UID, pod Pod) error {
	return k.held(ctx, uid, func(e *claims.Entry) error {
		s := e.Sandbox(pod.Sandbox)
		switch {
		case s == nil: // an attachment in progress must not come after this
			e.Set(claims.Sandbox{ID: pod.Sandbox, PodUID: pod.UID, Netns: pod.Netns, Phase: claims.Released})
			return k.Store.PutSandboxes(*e)
		case !s.Held():
			return nil
		}
		if err := k.release(ctx, e, pod.Sandbox, claims.Released, ""); err != nil {
			return err
		}
		k.Reporter.Detached(e.Claim)
		return nil
	})
}

// Forget is Detach for a sandbox that no longer exists: it also releases sandboxes that
// only the engine's records contain.
func (k *Keeper) Forget(ctx context.Context, pod Pod) error {
	errs := []error{k.Detach(ctx, pod)}
	ids, _ := k.Engine.IDs() // damage is reported by the loop that reads the journal
	for _, id := range ids {
		if strings.HasPrefix(string(id), pod.Sandbox+"/") {
			errs = append(errs, k.releaseRecord(ctx, id))
		}
	}
	return errors.Join(errs...)
}

func (k *Keeper) releaseRecord(ctx context.Context, id reconcile.SandboxID) error {
	ctx, cancel := context.WithTimeout(ctx, k.ReleaseTimeout)
	defer cancel()
	_, err := k.Engine.Release(ctx, id)
	return err
}

// Prepare applies what a claim needs before its pod has a sandbox, or rolls it back.
// Topologies applied before are verified. The caller holds the claim's lock.
func (k *Keeper) Prepare(ctx context.Context, c *claims.Claim) error {
	for i := range c.Topologies {
		if t := &c.Topologies[i]; t.Prepared {
			if err := k.prepare(ctx, c, t, &t.Object); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *Keeper) prepare(ctx context.Context, c *claims.Claim, t *claims.Topology, o *v1alpha1.NetworkTopology) error {
	sb, err := c.Preparation(t, o, k.Contracts)
	if err != nil {
		return fault.New(fault.Invalid, err)
	}
	begun := k.Now()
	rep, err := k.Engine.Ensure(ctx, sb)
	if err == nil && !rep.Unchanged {
		k.Log.Info("devices prepared", "sandbox", sb.ID, "claim", c.Namespace+"/"+c.Name, "pod", c.Pod.Name,
			"changes", len(rep.Changes), "took", k.Now().Sub(begun).Round(time.Microsecond))
	}
	return err
}

// Withdraw releases everything of a claim and removes its record last. An unknown claim is
// no error. It does not wait for a device that is absent: Run continues, and Withdraw is
// called again.
func (k *Keeper) Withdraw(ctx context.Context, uid types.UID) error {
	if e, known, err := k.Store.Get(uid); err == nil && known {
		if err := k.interrupt(ctx, errWithdrawn, func(a *attempt) bool { return a.pod.UID == e.Pod.UID }); err != nil {
			return err
		}
	}
	e, known, unlock, err := k.hold(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	if known {
		for _, s := range slices.Clone(e.In) {
			if !s.Held() {
				continue
			}
			err := k.release(ctx, &e, s.ID, claims.Released, "")
			if _, removed := errors.AsType[errUnrecorded](err); err != nil && !removed { // the record, below
				return err
			}
		}
	}
	if err := k.Gate.Remove(uid); err != nil {
		return err
	}
	// The sandboxes of another boot, or of a record that was damaged.
	ids, _ := k.Engine.IDs()
	for _, id := range ids {
		if types.UID(id.Origin().ClaimUID) != uid {
			continue
		}
		if err := k.releaseRecord(ctx, id); err != nil {
			return err
		}
	}
	if known {
		if err := k.Store.Remove(uid); err != nil {
			return err
		}
	}
	// Last: while there is a record, the claim owns its addresses. Whoever allocates them finds that a claim
	// without one has ended, so that a pod which has filled the disk ends, which empties it.
	if k.GiveBack != nil {
		if err := k.GiveBack(uid); err != nil {
			k.Log.Warn("failed to return addresses; retrying", "claim", uid, "error", err)
		}
	}
	return nil
}
