package admission

import (
	"context"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// policy decides on a DeviceExposurePolicy: it is valid, and its attributes fit beside
// those of the others.
func (w *Webhook) policy(ctx context.Context, r admission.Request) (a answer, err error) {
	o := &v1alpha1.DeviceExposurePolicy{}
	if err := decode(r, o); err != nil {
		return a, err
	}
	if !o.DeletionTimestamp.IsZero() {
		return a, nil
	}
	p := exposure.New(o)
	if p.Err != nil {
		a.wrong(p.Err)
		return a, nil
	}
	if p.NotYet != nil && had(r) {
		a.warn("%v", p.NotYet) // refusing it would keep the owner from any other edit
	} else {
		a.wrong(p.NotYet)
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
			a.warn("%s %q also has priority %d: a device for which they decide differently stays as it was", v1alpha1.PolicyKind, other.Name, o.Spec.Priority)
		}
		all = append(all, exposure.Uncompiled(other))
	}
	ordered, _ := exposure.Limit(all)
	for _, q := range ordered {
		switch {
		case q.Name == o.Name:
			a.wrong(q.Err)
		case q.Err != nil && q.Full:
			a.warn("%v", q.Err)
		}
	}
	return a, nil
}

// had reports whether the object before an update has fields that are not supported yet.
func had(r admission.Request) bool {
	old := &v1alpha1.DeviceExposurePolicy{}
	return len(r.OldObject.Raw) > 0 && json.Unmarshal(r.OldObject.Raw, old) == nil && exposure.Uncompiled(old).NotYet != nil
}
