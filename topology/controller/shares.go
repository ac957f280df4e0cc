package controller

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// Shares has the number of root steps of a topology that use a shared device of the host, and those for which no
// DeviceExposurePolicy shares one.
type Shares struct {
	Steps   int
	Missing []validity.Sharing
}

// reasonNoPolicy: no DeviceExposurePolicy shares the device of a step.
const reasonNoPolicy = "NoDeviceExposurePolicy"

// shares compares a topology with the policies of the cluster.
func (c *Controller) shares(ctx context.Context, t *topology.Topology, set contract.Set) (*Shares, error) {
	shared := validity.Shared(t, set)
	if len(shared) == 0 {
		return &Shares{}, nil
	}
	missing, err := Unshared(ctx, c.Client, c.Policies, shared)
	if err != nil {
		return nil, err
	}
	return &Shares{Steps: len(shared), Missing: missing}, nil
}

// Unshared returns those of the steps whose device no policy of a cache shares.
func Unshared(ctx context.Context, cache client.Reader, compiled *exposure.Compiled,
	shared []validity.Sharing,
) ([]validity.Sharing, error) {
	var objects v1alpha1.DeviceExposurePolicyList
	if err := cache.List(ctx, &objects, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	missing := validity.Unshared(ctx, shared, compiled.Read(objects.Items))
	if ctx.Err() != nil {
		return nil, fmt.Errorf("evaluate policies: %w", context.Cause(ctx))
	}
	return missing, nil
}

// condition reports whether policies share the devices. Which nodes have and offer such a device is in the status of
// the policy.
func (s *Shares) condition() metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionShared, Status: metav1.ConditionTrue, Reason: reasonSucceeded,
		Message: fmt.Sprintf("a DeviceExposurePolicy shares devices with %s; the status of the policy says on how many nodes",
			excerpt.Count(s.Steps, "root step")),
	}
	if len(s.Missing) > 0 {
		lines := make([]string, len(s.Missing))
		for i, m := range s.Missing {
			lines[i] = m.Message()
		}
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonNoPolicy, strings.Join(lines, "\n")
	}
	return c
}

// emitUnshared emits an Event when the condition Shared becomes False.
func (c *Controller) emitUnshared(o *v1alpha1.NetworkTopology, s *v1alpha1.NetworkTopologyStatus) {
	if after := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionShared); after != nil && after.Status == metav1.ConditionFalse &&
		!meta.IsStatusConditionFalse(o.Status.Conditions, v1alpha1.ConditionShared) {
		c.event(o, corev1.EventTypeWarning, after.Reason, "Share", after.Message)
	}
}

// forPolicy returns the topologies with steps of the types that have shares of devices.
func (c *Controller) forPolicy(ctx context.Context, _ client.Object) (out []reconcile.Request) {
	for _, typ := range c.Contracts.BuiltIn.Types() {
		if one, _ := c.Contracts.BuiltIn.Contract(typ); one.Input.Shares {
			out = append(out, c.requestsFor(ctx, c.Log.With("type", typ), "cannot find the topologies of a changed DeviceExposurePolicy",
				nil, client.MatchingFields{indexType: typ})...)
		}
	}
	return out
}
