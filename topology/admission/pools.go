package admission

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// pool decides on an AddressPool. Pools that share addresses cause a warning: networks that
// do not reach one another may use the same ones.
func (w *Webhook) pool(ctx context.Context, r admission.Request) (a answer, err error) {
	o := &v1alpha1.AddressPool{}
	if err := decode(r, o); err != nil {
		return a, err
	}
	if !o.DeletionTimestamp.IsZero() {
		return a, nil
	}
	l, err := addresspool.Of(o)
	if err != nil {
		a.wrong(err)
		return a, nil
	}
	if r.Operation == admissionv1.Update {
		return a, nil // what could overlap is immutable
	}
	var others v1alpha1.AddressPoolList
	if err := w.reader.List(ctx, &others, client.UnsafeDisableDeepCopy); err != nil {
		return a, fmt.Errorf("list pools: %w", err)
	}
	for i := range others.Items {
		other, err := addresspool.Of(&others.Items[i])
		if err != nil || other.Name == o.Name {
			continue // it was refused, or its condition says so
		}
		if mine, theirs, ok := l.Overlaps(other); ok {
			a.warn("%s %q shares addresses with %q (%s and %s): two pods may get the same one, which is right only where these networks do not reach one another", v1alpha1.AddressPoolKind, o.Name, other.Name, mine, theirs)
		}
	}
	return a, nil
}
