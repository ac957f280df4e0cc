package claimstatus

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/defaults"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
)

// FieldManager is the name under which entries are applied.
const FieldManager = claim.Driver

// Options are the settings of a Reporter.
type Options struct {
	// Client needs: get on resourceclaims; patch and update on
	// resourceclaims/status; associated-node:patch and associated-node:update
	// on resourceclaims/driver, for the name of the driver; create and patch
	// on events.
	Client kubernetes.Interface
	// NodeName is the host in the source of Events.
	NodeName string
	Log      *slog.Logger

	// Limit is how many claims may wait for the API server. Default 4096: more
	// than a node has. Reports on further claims are dropped and counted.
	Limit int
	// Settle is how long a report waits for the next one, so that drift that is
	// repaired at once is not written at all. Default 200 ms.
	Settle time.Duration
	// RetryMin and RetryMax bound the time between attempts. Defaults 500 ms
	// and 2 minutes.
	RetryMin, RetryMax time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

const (
	workers        = 2
	attemptTimeout = 15 * time.Second
)

// Reporter writes reports to the API server. Its methods do not wait and may be called
// from several goroutines; their arguments must not be changed afterwards. Reports on
// one claim must be made in the order in which things happened. Of a claim only the names count, and those of its pod; what
// has no UID gets no report.
type Reporter struct {
	opts   Options
	queue  workqueue.TypedRateLimitingInterface[types.UID]
	events *events

	mu      sync.Mutex
	pending map[types.UID]*report
	dropped uint64
	// contentionAt is the time of the last Event about contention, per claim.
	contentionAt map[types.UID]time.Time
}

// contentionEvery is the shortest time between two Events about contention in one
// claim: a writer that stops and starts again does not cause an Event each time.
const contentionEvery = 10 * time.Minute

// report are the reports on a claim that are not written yet.
type report struct {
	claim    claims.Claim       // its names
	verdicts map[string]verdict // by topology
}

// New returns a Reporter, which writes nothing until Run.
func New(o Options) *Reporter {
	o.Limit = cmp.Or(o.Limit, 4096)
	o.Settle = cmp.Or(o.Settle, 200*time.Millisecond)
	o.RetryMin = cmp.Or(o.RetryMin, 500*time.Millisecond)
	o.RetryMax = cmp.Or(o.RetryMax, 2*time.Minute)
	o.Now = defaults.Func(o.Now, time.Now) //nolint:forbidigo // the default of the value that callers give
	return &Reporter{
		opts: o,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](o.RetryMin, o.RetryMax)),
		events:       newEvents(o.Client, o.NodeName),
		pending:      map[types.UID]*report{},
		contentionAt: map[types.UID]time.Time{},
	}
}

// Attaching reports that a topology is still being attached when the runtime's hook is
// over, and at which step. It is reported again as it proceeds; the Events about it are
// counted as one.
func (r *Reporter) Attaching(c claims.Claim, topologyName, at string) {
	r.update(c, topologyName, attaching(at))
	r.events.normal(c, "NetworkAttaching", "the containers wait: "+at)
}

// Attached reports that a topology has been verified in the pod, with the
// results of all its steps.
func (r *Reporter) Attached(c claims.Claim, topologyName string, steps []topology.StepResult) {
	r.update(c, topologyName, attached(topologyName, steps))
	r.events.normal(c, "NetworkReady", readyMessage(topologyName, steps))
}

// notRedundant reports each remark on devices that fail together, although the topology is to survive the failure of one.
func (r *Reporter) notRedundant(c claims.Claim, topologyName string, remarks []string) {
	for _, text := range remarks {
		r.events.warning(c, "NetworkNotRedundant", fmt.Sprintf("topology %q: %s", topologyName, text))
	}
}

// Failed reports that a topology could not be applied in the pod, and was rolled back.
// The name is empty when it is not known which.
func (r *Reporter) Failed(c claims.Claim, topologyName string, err error) {
	v := failed(topologyName, err)
	r.update(c, topologyName, v)
	r.events.warning(c, "NetworkFailed", v.failure.Message)
}

// Drifted reports drift. If a repair follows at once, the claim is not written; the
// Event is created in any case.
func (r *Reporter) Drifted(c claims.Claim, topologyName string, drift []reconcile.Drift) {
	message := driftMessage(topologyName, drift)
	r.update(c, topologyName, verdict{inSync: &condition{metav1.ConditionFalse, reasonDrifted, message}})
	r.events.warning(c, "NetworkDrift", message)
}

// Contended reports that another writer changes back what is repaired. The condition
// stays until Repaired or Drifted is called.
func (r *Reporter) Contended(c claims.Claim, topologyName string, contended []reconcile.Contention) {
	message := contentionMessage(topologyName, contended)
	r.update(c, topologyName, verdict{inSync: &condition{metav1.ConditionFalse, reasonFighting, message}})
	if r.newContention(c.UID) {
		r.events.warning(c, "NetworkFighting", message)
	}
}

// newContention reports whether contention in a claim is worth an Event.
func (r *Reporter) newContention(claim types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	maps.DeleteFunc(r.contentionAt, func(_ types.UID, at time.Time) bool { return now.Sub(at) >= contentionEvery })
	if _, reported := r.contentionAt[claim]; reported {
		return false
	}
	r.contentionAt[claim] = now
	return true
}

// Repaired reports that drift was repaired, with the current results, and how long the repair took; 0 if that is not known.
func (r *Reporter) Repaired(c claims.Claim, topologyName string, steps []topology.StepResult, took time.Duration) {
	r.update(c, topologyName, attached(topologyName, steps))
	r.events.normal(c, "NetworkRepaired", repairedMessage(topologyName, took))
}

func repairedMessage(topologyName string, took time.Duration) string {
	if took == 0 {
		return fmt.Sprintf("topology %q: repaired", topologyName)
	}
	return fmt.Sprintf("topology %q: repaired in %d ms", topologyName, max(1, took.Milliseconds()))
}

// Readdressed reports that the network has given a pod other addresses, with the current
// results.
func (r *Reporter) Readdressed(c claims.Claim, topologyName string, steps []topology.StepResult) {
	r.update(c, topologyName, attached(topologyName, steps))
	r.events.normal(c, "NetworkAddressed", readyMessage(topologyName, steps))
}

// Degraded reports that drift could not be repaired. The pod keeps what works.
func (r *Reporter) Degraded(c claims.Claim, topologyName string, err error) {
	f := failed(topologyName, err).failure
	r.update(c, topologyName, verdict{ready: &condition{metav1.ConditionFalse, f.Kind, f.Message}})
	r.events.warning(c, "NetworkDegraded", f.Message)
}

// Runs reports which generation of a topology the pod has. Without an update, that is
// the one it was meant to get.
func (r *Reporter) Runs(c claims.Claim, topologyName string, generation int64, update *claim.Update) {
	if update != nil {
		cutShort := *update
		cutShort.Message = excerpt.Of(update.Message, messageMax)
		update = &cutShort
	}
	r.update(c, topologyName, verdict{runs: &claim.Report{Generation: generation, Update: update}})
}

// Updated reports that a later generation of a topology was applied in place, with the
// results of all its steps.
func (r *Reporter) Updated(c claims.Claim, topologyName string, from, to int64, steps []topology.StepResult) {
	v := attached(topologyName, steps)
	v.runs = &claim.Report{Generation: to}
	r.update(c, topologyName, v)
	r.events.normal(c, "NetworkUpdated", fmt.Sprintf("topology %q: updated in place from generation %d to %d", topologyName, from, to))
}

// UpdateFailed reports that a later generation could not be applied in the pod, which
// keeps the one it had.
func (r *Reporter) UpdateFailed(c claims.Claim, topologyName string, from, to int64, err error) {
	f := failed(topologyName, err).failure
	r.Runs(c, topologyName, from, &claim.Update{Generation: to, State: claim.UpdateFailed, Step: f.Step, Kind: f.Kind, Message: f.Message})
	r.events.warning(c, "NetworkUpdateFailed", fmt.Sprintf("the pod keeps generation %d, as generation %d failed: %s", from, to, f.Message))
}

// UpdateDelayed reports that something in the pod, or on its node, prevents a later
// generation for now: the pod keeps the one it had, and the update is retried.
func (r *Reporter) UpdateDelayed(c claims.Claim, topologyName string, from, to int64, attempts int, err error) {
	f := failed(topologyName, err).failure
	r.Runs(c, topologyName, from, &claim.Update{
		Generation: to, State: claim.UpdateRetrying, Step: f.Step, Kind: f.Kind, Message: f.Message, Attempts: attempts,
	})
	r.events.warning(c, "NetworkUpdateDelayed",
		fmt.Sprintf("the pod keeps generation %d until generation %d can be tried again: %s", from, to, f.Message))
}

// HeldBack reports that a pod cannot be given a later generation, and why.
func (r *Reporter) HeldBack(c claims.Claim, topologyName string, from, to int64, why error) {
	r.Runs(c, topologyName, from, &claim.Update{Generation: to, State: claim.UpdateHeldBack, Message: why.Error()})
	r.events.warning(c, "NetworkHeldBack",
		fmt.Sprintf("topology %q: the pod keeps generation %d, as generation %d needs a new pod: %s", topologyName, from, to, why))
}

// Replaced reports that variables of a container have the values that a claim exports instead of its own.
func (r *Reporter) Replaced(c claims.Claim, container string, variables []string) {
	r.events.warning(c, "NetworkVariablesReplaced",
		fmt.Sprintf("container %q sets %s, which the topology of claim %q exports, too; the exported values are used: "+
			"remove the variables from the container, or from spec.export of the topology", container, strings.Join(variables, ", "),
			c.Name))
}

// Filtered reports that the current NetworkQoS rules were applied to a running pod.
func (r *Reporter) Filtered(c claims.Claim) {
	r.events.normal(c, "NetworkQoSApplied", "NetworkQoS rules applied to the pod's egress traffic")
}

// FilterFailed reports that they could not be applied, and that the earlier rules stay.
func (r *Reporter) FilterFailed(c claims.Claim, err error) {
	r.events.warning(c, "NetworkQoSFailed", fmt.Sprintf("NetworkQoS rules could not be applied; the earlier rules stay in place: %v", err))
}

// Detached reports that the topology was detached and the devices are back on the host.
// It creates no Event: every pod ends like this.
func (r *Reporter) Detached(c claims.Claim) {
	r.update(c, every, verdict{
		ready:  &condition{metav1.ConditionFalse, reasonDetached, "the topology was detached from the pod"},
		inSync: &condition{metav1.ConditionUnknown, reasonDetached, ""},
		bare:   true,
		runs:   &claim.Report{},
	})
}

// Waiting returns how many claims have reports that are not written yet, and how
// many reports were dropped because there were too many.
func (r *Reporter) Waiting() (claims int, dropped uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending), r.dropped
}

func (r *Reporter) update(c claims.Claim, topologyName string, v verdict) {
	if c.UID == "" {
		return
	}
	r.mu.Lock()
	p, ok := r.pending[c.UID]
	if !ok && len(r.pending) >= r.opts.Limit {
		r.dropped++
		first := r.dropped == 1
		r.mu.Unlock()
		if first {
			r.opts.Log.Error("claim reports dropped: the API server is too slow", "waiting", r.opts.Limit)
		}
		return
	}
	if !ok {
		p = &report{claims.Claim{Namespace: c.Namespace, Name: c.Name, UID: c.UID}, map[string]verdict{}}
		r.pending[c.UID] = p
	}
	p.add(topologyName, v)
	r.mu.Unlock()
	r.queue.AddAfter(c.UID, r.opts.Settle)
}

func (p *report) add(topologyName string, v verdict) {
	if topologyName == every { // it replaces all earlier reports
		for name, old := range p.verdicts {
			if name != every {
				p.verdicts[name] = v.after(old)
			}
		}
	}
	p.verdicts[topologyName] = v.after(p.verdicts[topologyName])
}

// Run writes reports until ctx ends. Reports that were not written by then are lost;
// the next agent reports the sandboxes it finds.
func (r *Reporter) Run(ctx context.Context) error {
	stopEvents := r.events.start()
	defer stopEvents()
	var wg sync.WaitGroup
	defer wg.Wait()
	for range workers {
		wg.Go(func() {
			for r.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	r.queue.ShutDown()
	return nil
}

func (r *Reporter) next(ctx context.Context) bool {
	uid, stopped := r.queue.Get()
	if stopped {
		return false
	}
	defer r.queue.Done(uid)
	r.mu.Lock()
	p := r.pending[uid]
	delete(r.pending, uid)
	r.mu.Unlock()
	if p == nil {
		r.queue.Forget(uid)
		return true
	}
	err := r.write(ctx, p)
	if err == nil || ctx.Err() != nil {
		r.queue.Forget(uid)
		return true
	}
	log := r.opts.Log.With("claim", p.claim.Namespace+"/"+p.claim.Name, "error", err)
	if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		log.Error("the API server refuses the status of a claim")
		r.queue.Forget(uid)
		return true
	}
	if r.queue.NumRequeues(uid) == 0 {
		log.Warn("the status of a claim could not be written: retrying")
	}
	r.requeue(uid, p)
	r.queue.AddRateLimited(uid)
	return true
}

// requeue puts a report back, below those that came meanwhile.
func (r *Reporter) requeue(uid types.UID, p *report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if newer := r.pending[uid]; newer != nil {
		if v, ok := newer.verdicts[every]; ok {
			p.add(every, v)
		}
		for name, v := range newer.verdicts {
			if name != every {
				p.add(name, v)
			}
		}
	}
	r.pending[uid] = p
}

// write brings the status of a claim up to date. A claim that is gone, replaced
// or no longer allocated needs none.
func (r *Reporter) write(ctx context.Context, p *report) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	api := r.opts.Client.ResourceV1().ResourceClaims(p.claim.Namespace)
	c, err := api.Get(ctx, p.claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get: %w", err)
	case c.UID != p.claim.UID:
		return nil
	}
	want := entries(c, p.verdicts, r.opts.Now())
	if len(want) == 0 || same(c.Status.Devices, want) {
		return nil
	}
	_, err = api.ApplyStatus(ctx, apply(c, want), metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if apierrors.IsInvalid(err) {
		// Apply rewrites the opaque parameters in the allocation with sorted keys, and
		// an allocation must not change (1.37). Those of other drivers' classes are as
		// their authors wrote them.
		_, err = api.UpdateStatus(ctx, replaced(c, want), metav1.UpdateOptions{FieldManager: FieldManager})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	return nil
}

// apply applies our part of the status. With the UID it cannot reach a later claim of
// the same name.
func apply(c *resourceapi.ResourceClaim, want []resourceapi.AllocatedDeviceStatus) *resourceapply.ResourceClaimApplyConfiguration {
	status := resourceapply.ResourceClaimStatus()
	for _, e := range want {
		d := resourceapply.AllocatedDeviceStatus().WithDriver(e.Driver).WithPool(e.Pool).WithDevice(e.Device)
		if e.ShareID != nil {
			d.WithShareID(*e.ShareID)
		}
		for _, c := range e.Conditions {
			d.WithConditions(metaapply.Condition().WithType(c.Type).WithStatus(c.Status).WithReason(c.Reason).
				WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime))
		}
		if e.Data != nil {
			d.WithData(*e.Data)
		}
		if n := e.NetworkData; n != nil {
			network := resourceapply.NetworkDeviceData().WithInterfaceName(n.InterfaceName).WithIPs(n.IPs...)
			if n.HardwareAddress != "" {
				network.WithHardwareAddress(n.HardwareAddress)
			}
			d.WithNetworkData(network)
		}
		status.WithDevices(d)
	}
	return resourceapply.ResourceClaim(c.Name, c.Namespace).WithUID(c.UID).WithStatus(status)
}

func kindOf(err error) string { return string(cmp.Or(fault.Of(err), fault.Internal)) }
