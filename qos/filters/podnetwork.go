package filters

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/reconcile/pod/claims"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// PodNetwork returns the record of a pod's own network in the form of Options.Claims: a claim with one topology, of role primary,
// whose UID is the owner of the addresses. It returns false for other sandboxes, and for records of an earlier version without the pod.
func PodNetwork(rec *reconcile.Record) (e claims.Entry, ok bool) {
	sb := &rec.Sandbox
	origin := sb.ID.Origin()
	if origin.Container == "" || sb.Pod == nil {
		return e, false
	}
	object := v1alpha1.NetworkTopology{
		ObjectMeta: metav1.ObjectMeta{Name: sb.Topology.Name},
		Spec:       v1alpha1.NetworkTopologySpec{Role: v1alpha1.Primary},
	}
	for _, s := range sb.Topology.Steps {
		object.Spec.Steps = append(object.Spec.Steps, v1alpha1.Step{Name: s.Name, Type: s.Type, DependOn: s.DependOn})
	}
	e.Claim = claims.Claim{
		UID: types.UID(reconcile.OwnerOfPrimary(origin.Container, origin.Interface)), Namespace: sb.Pod.Namespace, Name: origin.Interface,
		Pod: claims.Pod{Name: sb.Pod.Name, UID: types.UID(sb.Pod.UID)}, Topologies: []claims.Topology{{Object: object, Given: sb.Given}},
	}
	if rec.Phase == reconcile.Applied {
		e.In = []claims.Sandbox{{ID: origin.Container, Netns: sb.Netns, Phase: claims.Attached}}
	}
	return e, true
}

// OfPodNetwork returns the rules of the own network of a pod: see KnownOnPrimary.
func (f *Follower) OfPodNetwork(sb *reconcile.Sandbox) (ops.Rules, error) {
	e, ok := PodNetwork(&reconcile.Record{Sandbox: *sb})
	if !ok {
		return ops.Rules{}, nil
	}
	return f.Of(&e.Claim, &e.Topologies[0])
}

// PodNetworksChanged has the networks of pods listed again.
func (f *Follower) PodNetworksChanged() { f.wake.Now() }

// isPodNetwork reports whether a claim is a PodNetwork.
func isPodNetwork(c *claims.Claim) bool {
	_, _, is := reconcile.ParseOwner(string(c.UID))
	return is
}

// sandboxOf is the engine's ID of a topology in a sandbox of the runtime.
func sandboxOf(c *claims.Claim, podSandbox string, t *claims.Topology) reconcile.SandboxID {
	if container, ifName, is := reconcile.ParseOwner(string(c.UID)); is {
		return reconcile.IDOfPrimary(container, ifName, t.Object.Name)
	}
	return c.SandboxID(podSandbox, t)
}
