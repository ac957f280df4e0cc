package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// readyOf is the condition Ready of a node; nil if nobody has written it.
func readyOf(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}

// isReady reports whether a node is ready, or too new to say.
func isReady(n *corev1.Node) bool {
	c := readyOf(n)
	return c == nil || c.Status == corev1.ConditionTrue
}

// notReady returns for how long a node has not been ready; 0 if it is, or if that cannot be found out.
func (c *Controller) notReady(ctx context.Context, o *v1alpha1.NetworkTopology, node string) time.Duration {
	var n corev1.Node
	switch err := c.Client.Get(ctx, client.ObjectKey{Name: node}, &n); {
	case apierrors.IsNotFound(err):
		// Its pods are deleted within a minute or two, unless something keeps them. When it ended is not known.
		if now := c.Now(); rollingSince(o, now) >= deadNode {
			return rollingSince(o, now)
		}
		return 0
	case err != nil:
		c.Log.Warn("cannot read whether a node is ready", "node", node, "error", err)
		return 0
	case isReady(&n):
		return 0
	}
	return max(c.Now().Sub(readyOf(&n).LastTransitionTime.Time), 1)
}

// rollingSince returns for how long a topology has not been rolled out, over all edits.
func rollingSince(o *v1alpha1.NetworkTopology, now time.Time) time.Duration {
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionUpdated)
	if c == nil || c.Status == metav1.ConditionTrue {
		return 0
	}
	return now.Sub(c.LastTransitionTime.Time)
}

// readiness accepts nodes that have become ready, or no longer are.
var readiness = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(u event.UpdateEvent) bool {
		before, ok := u.ObjectOld.(*corev1.Node)
		now, also := u.ObjectNew.(*corev1.Node)
		return ok && also && isReady(before) != isReady(now)
	},
}

// forNode returns the topologies that are being rolled out.
func (c *Controller) forNode(ctx context.Context, _ client.Object) []reconcile.Request {
	return c.requestsFor(ctx, c.Log, "cannot find the topologies that are rolled out",
		func(o *v1alpha1.NetworkTopology) bool { return o.Status.Rollout != nil && !complete(o) })
}
