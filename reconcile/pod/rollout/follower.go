package rollout

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile/loop"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/reconcile/table"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Reporter receives the results of updates. It must not block.
type Reporter interface {
	// Runs reports which generation of a topology a claim has.
	Runs(c claims.Claim, topology string, generation int64)
	// HeldBack reports that a later generation needs a new pod.
	HeldBack(c claims.Claim, topology string, from, to int64, why error)
	// UpdateFailed reports that a later generation failed, and was rolled back.
	UpdateFailed(c claims.Claim, topology string, from, to int64, err error)
	// UpdateDelayed reports that something in the pod or on the node prevents a later
	// generation, with the number of attempts.
	UpdateDelayed(c claims.Claim, topology string, from, to int64, attempts int, err error)
}

// Options are the settings of a Follower.
type Options struct {
	// Client needs: list and watch on networktopologies.
	Client   dynamic.Interface
	NodeName string
	// Claims lists the claims of this node.
	Claims func() []claims.Entry
	// Update applies a generation to a claim; see attachment.Keeper.
	Update   func(ctx context.Context, claim types.UID, o *v1alpha1.NetworkTopology) error
	Reporter Reporter
	// Recorded changes when claims were added or removed. May be nil.
	Recorded table.Source
	// Topologies is where the Follower writes the topologies that claims of this node use, as they are
	// in the cluster: nil for one that does not exist. New makes it if it is nil.
	Topologies *table.Table[string, *v1alpha1.NetworkTopology]
	Log        *slog.Logger
	// Timeout bounds the update of one claim; default one minute.
	Timeout time.Duration
	// Again is the time after which an update that failed for now is retried; default
	// 10 s. The interval of periodic checks is six times as long.
	Again time.Duration
	Now   func() time.Time
}

// retryMax is the longest time between retries of a pod's update: each attempt is
// written to the API server.
const retryMax = 5 * time.Minute

// Follower applies edits of topologies to the claims of one node.
type Follower struct {
	Options
	wake table.Wake

	reported map[key]verdict // of Run alone
}

// key is one topology in one claim.
type key struct {
	claim    types.UID
	topology string
}

// verdict is the last report about a generation.
type verdict struct {
	generation int64
	failed     bool
	heldBack   string
	// attempts counts the attempts that something prevented, and next is the time of
	// the next one.
	attempts int
	next     time.Time
}

// provesNothing reports whether an error is about this pod or node only: an object of the
// pod, a lock, a deadline, a full disk. It proves nothing about the same generation in
// another pod.
func provesNothing(err error) bool {
	switch fault.Of(err) {
	case fault.Invalid, fault.Unsupported, fault.NotConverged:
		return false
	case fault.Internal:
		// An error of the kernel at a step is about the step, unless the node lacks
		// something that no step is responsible for.
		_, ofStep := errors.AsType[*ops.StepError](err)
		return !ofStep || slices.ContainsFunc(ofNode, func(e error) bool { return errors.Is(err, e) })
	default:
		return true
	}
}

// ofNode are errors of the node's state.
var ofNode = []error{
	context.DeadlineExceeded, context.Canceled,
	syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EIO, syscall.ENOBUFS,
}

// New returns a Follower.
func New(o Options) *Follower {
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.Again = cmp.Or(o.Again, 10*time.Second)
	o.Topologies = cmp.Or(o.Topologies, &table.Table[string, *v1alpha1.NetworkTopology]{})
	return &Follower{Options: o, wake: table.Woken(o.Topologies, o.Recorded), reported: map[key]verdict{}}
}

// Run runs until ctx ends. An update in progress is rolled back then.
func (f *Follower) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	watched := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range watched {
			stop()
		}
	}()
	pass := func(ctx context.Context) (time.Duration, error) {
		entries := f.Claims()
		names := namesOf(entries)
		for name := range names {
			if watched[name] == nil {
				watching, stop := context.WithCancel(ctx)
				watched[name] = stop
				wg.Go(func() { f.watch(watching, name) })
			}
		}
		for name, stop := range watched {
			if !names[name] {
				stop()
				delete(watched, name)
				f.Topologies.Delete(name)
			}
		}
		if f.pass(ctx, entries) {
			return f.Again, nil
		}
		return 6 * f.Again, nil
	}
	loop.Loop{Pass: pass, Wake: f.wake}.Run(ctx)
}

func namesOf(entries []claims.Entry) map[string]bool {
	out := map[string]bool{}
	for _, e := range entries {
		for _, t := range e.Topologies {
			out[t.Object.Name] = true
		}
	}
	return out
}

// watch watches one topology: a node has claims of few of them, and each status that is
// written goes to all watchers.
func (f *Follower) watch(ctx context.Context, name string) {
	one := dynamicinformer.NewFilteredDynamicInformer(f.Client, v1alpha1.Resource(), metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}).Informer()
	take := func(v any) {
		u, ok := v.(*unstructured.Unstructured)
		if !ok {
			return
		}
		o := &v1alpha1.NetworkTopology{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
			f.Log.Error("cannot watch a topology", "topology", name, "error", err)
			return
		}
		f.Topologies.Put(name, o)
	}
	if _, err := one.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: take, UpdateFunc: func(_, v any) { take(v) }, DeleteFunc: func(any) { f.Topologies.Put(name, nil) },
	}); err != nil {
		f.Log.Error("cannot watch a topology", "topology", name, "error", err)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), one.HasSynced) && len(one.GetStore().ListKeys()) == 0 {
			f.Topologies.Put(name, nil)
		}
	})
	one.RunWithContext(ctx)
}

// eligible returns a topology if the rollout has reached this node.
func (f *Follower) eligible(name string) *v1alpha1.NetworkTopology {
	if o, _ := f.Topologies.Get(name); o != nil && Named(o, f.NodeName) {
		return o
	}
	return nil
}

// pass updates what may be updated, and reports whether something is left to do.
func (f *Follower) pass(ctx context.Context, entries []claims.Entry) (left bool) {
	there := map[key]bool{}
	for _, e := range entries {
		for _, t := range e.Topologies {
			there[key{e.UID, t.Object.Name}] = true
		}
	}
	maps.DeleteFunc(f.reported, func(k key, _ verdict) bool { return !there[k] })
	for _, e := range entries {
		for i := range e.Topologies {
			t := &e.Topologies[i]
			f.reportGeneration(&e, t)
			// Checked each time: an update takes a while, and the rollout may have been
			// stopped, or be about another generation by now.
			o := f.eligible(t.Object.Name)
			if ctx.Err() != nil || o == nil || o.UID != t.Object.UID {
				continue
			}
			f.update(ctx, &e, t, o)
			v := f.reported[key{e.UID, o.Name}]
			left = left || v.generation < o.Generation || v.attempts > 0
		}
	}
	return left
}

// update applies a generation to one claim, unless it failed there or it is too early
// for a retry. A failure delays no other claim: the pod may be the cause. If a
// generation fails everywhere, the controller notices and stops the rollout.
func (f *Follower) update(ctx context.Context, e *claims.Entry, t *claims.Topology, o *v1alpha1.NetworkTopology) {
	k := key{e.UID, o.Name}
	was, from := f.reported[k], t.Object.Generation
	if from >= o.Generation && t.Next == nil {
		return
	}
	if was.generation == o.Generation && (was.failed || f.Now().Before(was.next)) {
		return
	}
	within, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	err := f.Update(within, e.UID, o)
	held, isHeld := errors.AsType[*HeldBack](err)
	switch {
	case err == nil:
		if !ended(e) {
			f.reported[k] = verdict{generation: o.Generation}
			f.Reporter.Runs(e.Claim, o.Name, o.Generation)
		}
	case isHeld:
		now := verdict{generation: o.Generation, heldBack: held.Error()}
		if was != now {
			f.reported[k] = now
			f.Log.Info("held back", "claim", e.Namespace+"/"+e.Name, "topology", o.Name, "from", from, "to", o.Generation, "reason",
				held.Error())
			f.Reporter.HeldBack(e.Claim, o.Name, from, o.Generation, held)
		}
	case ctx.Err() != nil, fault.Of(err) == fault.Gone:
		// The agent stops, or the pod ends: nothing is reported.
		f.Log.Debug("not updated", "claim", e.Namespace+"/"+e.Name, "topology", o.Name, "error", err)
	default:
		f.Log.Warn("not updated", "claim", e.Namespace+"/"+e.Name, "topology", o.Name, "from", from, "to", o.Generation, "kind",
			fault.Of(err), "error", err)
		f.failed(e, t, o, err)
	}
}

// failed reports that an update has failed, and whether it is retried.
func (f *Follower) failed(e *claims.Entry, t *claims.Topology, o *v1alpha1.NetworkTopology, err error) {
	k := key{e.UID, o.Name}
	if !provesNothing(err) {
		f.reported[k] = verdict{generation: o.Generation, failed: true}
		f.Reporter.UpdateFailed(e.Claim, o.Name, t.Object.Generation, o.Generation, err)
		return
	}
	attempts := 1
	if was := f.reported[k]; was.generation == o.Generation {
		attempts += was.attempts
	}
	pause := min(f.Again<<min(attempts-1, 16), retryMax)
	f.reported[k] = verdict{generation: o.Generation, attempts: attempts, next: f.Now().Add(pause)}
	f.Reporter.UpdateDelayed(e.Claim, o.Name, t.Object.Generation, o.Generation, attempts, err)
}

// reportGeneration reports which generation a pod has if that was not reported yet: an
// earlier agent may have attached or updated it, and its report may not have been
// written.
func (f *Follower) reportGeneration(e *claims.Entry, t *claims.Topology) {
	k := key{e.UID, t.Object.Name}
	if f.reported[k].generation >= t.Object.Generation || t.Next != nil || e.Attached() == nil {
		return
	}
	f.reported[k] = verdict{generation: t.Object.Generation}
	f.Reporter.Runs(e.Claim, k.topology, t.Object.Generation)
}

// ended reports whether the claim was in a pod that no longer exists.
func ended(e *claims.Entry) bool {
	return len(e.In) > 0 && !e.Held()
}
