package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// Policies writes the status of DeviceExposurePolicies: their problems, and the sums of the
// nodes' reports. Its permissions:
//
//	networking.dra.io deviceexposurepolicies        get list watch
//	networking.dra.io deviceexposurepolicies/status update
//	networking.dra.io deviceexposurereports         get list watch
//	networking.dra.io addresspools                  get list watch
//
// All policies are counted in one pass over the reports, at most once in an Interval:
// after an edit of a policy each node of the cluster writes its report.
type Policies struct {
	Client   client.Client
	Interval time.Duration
	Compiled *exposure.Compiled
}

// Setup registers the controller with a manager.
func (c *Policies) Setup(mgr manager.Manager) error {
	one := requests("all")[0]
	return builder.ControllerManagedBy(mgr).Named("deviceexposurepolicy").
		Watches(&v1alpha1.DeviceExposurePolicy{}, enqueue(one, 0, edited)).
		Watches(&v1alpha1.DeviceExposureReport{}, enqueue(one, c.Interval, nil)).
		Watches(&v1alpha1.AddressPool{}, enqueue(one, 0, edited)).
		Complete(c)
}

// Reconcile writes the status of all policies.
func (c *Policies) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var objects v1alpha1.DeviceExposurePolicyList
	if err := c.Client.List(ctx, &objects, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list policies: %w", err)
	}
	var reports v1alpha1.DeviceExposureReportList
	if err := c.Client.List(ctx, &reports, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list reports: %w", err)
	}
	var pools v1alpha1.AddressPoolList
	if err := c.Client.List(ctx, &pools, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list pools: %w", err)
	}
	exists := PoolNamed(pools.Items)
	sums := Sum(objects.Items, reports.Items)
	read := map[string]*exposure.Policy{}
	for _, p := range c.Compiled.Read(objects.Items) {
		read[p.Name] = p
	}
	var errs []error
	for i := range objects.Items {
		o := &objects.Items[i]
		status := PolicyStatus(o, read[o.Name], sums[o.Name], validity.MissingPools(read[o.Name], "there is", exists))
		if equality.Semantic.DeepEqual(status, o.Status) {
			continue
		}
		changed := o.DeepCopy() // objects of the cache must not be changed
		changed.Status = status
		err := c.Client.Status().Update(ctx, changed)
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: 50 * time.Millisecond}, nil // the cache lags behind
		}
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("write status of DeviceExposurePolicy %q: %w", o.Name, err))
		}
	}
	return reconcile.Result{}, errors.Join(errs...)
}

// PolicySum is the sum of all nodes' reports on one policy.
type PolicySum struct {
	Devices, Offered, Nodes   int // nodes with devices for which it decides
	Undecided, UndecidedNodes int // devices that stay as they were, and their nodes
	Reported, All             int // nodes that report on this generation, and on any
	Conflicts                 []string
	Problem                   string // of the first node by name
}

// Sum adds up the reports by policy.
func Sum(policies []v1alpha1.DeviceExposurePolicy, reports []v1alpha1.DeviceExposureReport) map[string]PolicySum {
	generation := map[string]int64{}
	for i := range policies {
		generation[policies[i].Name] = policies[i].Generation
	}
	byName := func(a, b v1alpha1.DeviceExposureReport) int { return strings.Compare(a.Name, b.Name) }
	out := map[string]PolicySum{}
	for _, r := range slices.SortedFunc(slices.Values(reports), byName) {
		for _, p := range r.Policies {
			s := out[p.Name]
			s.All++
			if p.Generation == generation[p.Name] {
				s.add(r.Name, p)
			}
			out[p.Name] = s
		}
	}
	return out
}

func (s *PolicySum) add(node string, p v1alpha1.PolicyReport) {
	s.Reported++
	s.Devices += int(p.Devices)
	s.Offered += int(p.Offered)
	s.Undecided += int(p.Undecided)
	if p.Devices > 0 {
		s.Nodes++
	}
	if p.Undecided > 0 {
		s.UndecidedNodes++
	}
	if s.Problem == "" && p.Problem != "" {
		s.Problem = fmt.Sprintf("node %q: %s", node, p.Problem)
	}
	for _, name := range p.Conflicts {
		if !slices.Contains(s.Conflicts, name) {
			s.Conflicts = append(s.Conflicts, name)
			slices.Sort(s.Conflicts)
		}
	}
}

// PoolNamed returns a function that reports whether one of the pools has a name.
func PoolNamed(pools []v1alpha1.AddressPool) func(name string) bool {
	names := map[string]bool{}
	for i := range pools {
		names[pools[i].Name] = true
	}
	return func(name string) bool { return names[name] }
}

// PolicyStatus returns the status of a policy. missing says which pools of its networks do not exist.
func PolicyStatus(
	o *v1alpha1.DeviceExposurePolicy, p *exposure.Policy, sum PolicySum, missing []string,
) v1alpha1.DeviceExposurePolicyStatus {
	s := *o.Status.DeepCopy()
	s.ObservedGeneration = o.Generation
	s.Devices, s.Offered, s.Nodes = int32(sum.Devices), int32(sum.Offered), int32(sum.Nodes)
	s.Reported = fmt.Sprintf("%d/%d", sum.Reported, sum.All)
	valid := metav1.Condition{
		Type: v1alpha1.ConditionValid, Status: metav1.ConditionTrue, Reason: reasonSucceeded,
		Message: "the policy is valid",
	}
	if p.Err != nil {
		valid.Status, valid.Reason, valid.Message = metav1.ConditionFalse, string(fault.Invalid), p.Err.Error()
	}
	for _, c := range []metav1.Condition{valid, applied(o, p, sum, missing)} {
		c.ObservedGeneration = o.Generation
		c.Message = excerpt.Lines(c.Message, maxMessage)
		meta.SetStatusCondition(&s.Conditions, c)
	}
	return s
}

// applied is the condition Ready of a policy.
func applied(o *v1alpha1.DeviceExposurePolicy, p *exposure.Policy, sum PolicySum, missing []string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	stay := fmt.Sprintf("%s on %s stay as they were", excerpt.Count(sum.Undecided, "device"), excerpt.Count(sum.UndecidedNodes, "node"))
	switch {
	case p.Err != nil:
		c.Reason, c.Message = string(fault.Invalid), "not applied, and devices stay as they were: "+p.Err.Error()
	case len(sum.Conflicts) > 0:
		names := make([]string, 0, 1+maxNames)
		for _, name := range append([]string{o.Name}, sum.Conflicts...)[:min(1+len(sum.Conflicts), 1+maxNames)] {
			names = append(names, fmt.Sprintf("%q", name))
		}
		c.Reason, c.Message = string(fault.Conflict), fmt.Sprintf(
			"%s have the same priority %d and decide differently: %s. Change a priority, or a selector so that they do not overlap",
			strings.Join(names, " and "), o.Spec.Priority, stay)
	case sum.Undecided > 0:
		c.Reason, c.Message = string(fault.Invalid), fmt.Sprintf("%s: %s", stay, sum.Problem)
	case len(missing) > 0:
		c.Reason, c.Message = string(fault.NotReady), strings.Join(missing, "\n")
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonSucceeded, fmt.Sprintf("decides for %s on %s; %d offered",
			excerpt.Count(sum.Devices, "device"), excerpt.Count(sum.Nodes, "node"), sum.Offered)
	}
	if sum.Reported < sum.All {
		c.Message += fmt.Sprintf("; %d of %d nodes have reported on this generation", sum.Reported, sum.All)
	}
	return c
}
