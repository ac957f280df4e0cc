package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// GenerationAnnotation of a registration is the generation that was written a second time. An
// API server that handles an admission while a registration is changed can use the old one for up
// to ten minutes: it lists the registrations, the change empties its cache, and the result of the
// list is stored in the cache afterwards (validating_webhook_manager.go of k8s.io/apiserver 0.37).
// If the old one has no authority, the API server refuses our certificate.
const GenerationAnnotation = "networking.dra.io/webhook-generation"

// settled is how long after a change a registration is written again: what an API server does at
// the time of the change takes milliseconds. It is also the shortest time between two of our
// writes, should somebody else remove the annotation.
const settled = 5 * time.Second

// again writes registrations a second time after each change, once they have an authority. Only
// the leader does, which writes the authority too.
type again struct {
	client.Client
	registrations []string
	now           func() time.Time
	changed       map[string]change // by registration; one reconciler uses it
}

// change is a generation of a registration, and when it was first seen.
type change struct {
	generation string
	seen       time.Time
}

func (a *again) setup(mgr manager.Manager) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return slices.Contains(a.registrations, o.GetName()) })
	return builder.ControllerManagedBy(mgr).Named("webhook-registration").
		For(&admissionregistrationv1.ValidatingWebhookConfiguration{}, builder.WithPredicates(ours)).
		Complete(reconcile.Func(a.reconcile))
}

func (a *again) reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	registration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := a.Get(ctx, request.NamespacedName, registration); err != nil {
		if apierrors.IsNotFound(err) {
			delete(a.changed, request.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	generation, wait := a.due(registration)
	if generation == "" || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{GenerationAnnotation: generation},
	}})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("registration %q: %w", request.Name, err)
	}
	if err := client.IgnoreNotFound(a.Patch(ctx, registration, client.RawPatch(types.MergePatchType, patch))); err != nil {
		return reconcile.Result{}, fmt.Errorf("registration %q: %w", request.Name, err)
	}
	delete(a.changed, request.Name)
	log.FromContext(ctx).Info("the registration of the webhook was written again", "generation", generation)
	return reconcile.Result{}, nil
}

// due returns the value that the annotation of a registration lacks, and how long to wait
// before it is written; nothing if there is nothing to write.
func (a *again) due(registration *admissionregistrationv1.ValidatingWebhookConfiguration) (string, time.Duration) {
	generation := strconv.FormatInt(registration.Generation, 10)
	incomplete := slices.ContainsFunc(registration.Webhooks,
		func(w admissionregistrationv1.ValidatingWebhook) bool { return len(w.ClientConfig.CABundle) == 0 })
	if incomplete || registration.Annotations[GenerationAnnotation] == generation {
		delete(a.changed, registration.Name)
		return "", 0
	}
	last := a.changed[registration.Name]
	if last.generation != generation {
		last = change{generation, a.now()}
		a.changed[registration.Name] = last
	}
	return generation, max(0, settled-a.now().Sub(last.seen))
}
