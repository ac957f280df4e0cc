package admission

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// policy decides on a DeviceExposurePolicy: it is valid, and its attributes fit beside
// those of the others.
func (w *Webhook) policy(ctx context.Context, r admission.Request) (a answer, err error) {
	o, err := decode[v1alpha1.DeviceExposurePolicy](r)
	if err != nil {
		return a, err
	}
	if !o.DeletionTimestamp.IsZero() {
		return a, nil
	}
	p := exposure.New(o)
	if p.Err != nil {
		a.refuse(p.Err)
		return a, nil
	}
	if len(p.Pools()) > 0 {
		var pools v1alpha1.AddressPoolList
		if err := w.reader.List(ctx, &pools, client.UnsafeDisableDeepCopy); err != nil {
			return a, fmt.Errorf("list pools: %w", err)
		}
		for _, note := range validity.MissingPools(p, "there is", controller.PoolNamed(pools.Items)) {
			a.warn("%s %q: %s", v1alpha1.PolicyKind, o.Name, note)
		}
	}
	var others v1alpha1.DeviceExposurePolicyList
	if err := w.reader.List(ctx, &others, client.UnsafeDisableDeepCopy); err != nil {
		return a, fmt.Errorf("list policies: %w", err)
	}
	all := []*exposure.Policy{p}
	for i := range others.Items {
		other := &others.Items[i]
		if other.Name == o.Name {
			continue
		}
		if other.Spec.Priority == o.Spec.Priority {
			a.warn("%s %q also has priority %d: a device for which they decide differently stays as it was", v1alpha1.PolicyKind,
				other.Name, o.Spec.Priority)
		}
		all = append(all, exposure.Uncompiled(other))
	}
	ordered, _ := exposure.Limit(all)
	for _, q := range ordered {
		switch {
		case q.Name == o.Name:
			a.refuse(q.Err)
		case q.Err != nil && q.Full:
			a.warn("%v", q.Err)
		}
	}
	return a, nil
}
