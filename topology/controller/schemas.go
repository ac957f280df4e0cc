package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/pluginschema"
	"github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
)

// Schemas maintains one CNIPluginSchema for every built-in step type, and emits Events for
// the others that cannot be read. An object with the name of a built-in type but without
// the label pluginschema.LabelBuiltIn is foreign and is kept; it has no effect, as built-in
// types are validated by their contracts.
type Schemas struct {
	Client   client.Client
	Recorder events.EventRecorder
	BuiltIn  contract.Set
	Log      *slog.Logger
}

// Setup registers the controller with a manager.
func (s *Schemas) Setup(mgr manager.Manager) error {
	// All objects are checked together, so there is but one request.
	one := requests("all")[0]
	return builder.ControllerManagedBy(mgr).Named("cnipluginschema").
		Watches(&v1alpha1.CNIPluginSchema{}, enqueue(one, 0, nil)).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			q.Add(one) // no object may exist yet that would trigger it
			return nil
		})).
		Complete(s)
}

// Reconcile checks all schemas.
func (s *Schemas) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var list v1alpha1.CNIPluginSchemaList
	if err := s.Client.List(ctx, &list); err != nil {
		return reconcile.Result{}, fmt.Errorf("list schemas: %w", err)
	}
	have := map[string]*v1alpha1.CNIPluginSchema{}
	for i := range list.Items {
		have[list.Items[i].Name] = &list.Items[i]
	}
	var errs []error
	for _, typ := range s.BuiltIn.Types() {
		c, _ := s.BuiltIn.Contract(typ)
		errs = append(errs, s.keep(ctx, c, have[typ]))
		delete(have, typ)
	}
	for _, other := range have {
		errs = append(errs, s.other(ctx, other))
	}
	err := errors.Join(errs...)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{Requeue: true}, nil //nolint:staticcheck // retried with backoff
	}
	return reconcile.Result{}, err
}

// keep creates or updates the object of one built-in type.
func (s *Schemas) keep(ctx context.Context, c contract.Contract, have *v1alpha1.CNIPluginSchema) error {
	want := pluginschema.FromContract(c)
	if have == nil {
		if err := s.Client.Create(ctx, want); err != nil {
			return fmt.Errorf("create CNIPluginSchema %q: %w", want.Name, err)
		}
		s.Log.Info("created the CNIPluginSchema of a step type", "schema", want.Name)
		return nil
	}
	if have.Labels[pluginschema.LabelBuiltIn] != "true" {
		s.event(have, "BuiltIn",
			fmt.Sprintf("step type %q is built in and validated by its own contract: this object has no effect", c.Type))
		return nil
	}
	if equality.Semantic.DeepEqual(have.Spec, want.Spec) {
		return nil
	}
	fixed := have.DeepCopy()
	fixed.Spec = want.Spec
	if err := s.Client.Update(ctx, fixed); err != nil {
		return fmt.Errorf("update CNIPluginSchema %q: %w", want.Name, err)
	}
	s.Log.Info("updated the CNIPluginSchema of a step type", "schema", want.Name)
	return nil
}

// other handles an object of no built-in type: if an earlier version built the type in, it
// is deleted.
func (s *Schemas) other(ctx context.Context, o *v1alpha1.CNIPluginSchema) error {
	if o.Labels[pluginschema.LabelBuiltIn] == "true" {
		if err := client.IgnoreNotFound(s.Client.Delete(ctx, o,
			client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})); err != nil {
			return fmt.Errorf("delete CNIPluginSchema %q: %w", o.Name, err)
		}
		return nil
	}
	if _, err := pluginschema.Contract(o); err != nil {
		s.event(o, "Invalid", err.Error())
	}
	return nil
}

func (s *Schemas) event(o *v1alpha1.CNIPluginSchema, reason, message string) {
	s.Recorder.Eventf(o, nil, corev1.EventTypeWarning, reason, "Read", "%s", excerpt.Lines(message, maxNote))
}
