package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// maxTemplates bounds those of one topology: an author of topologies must not fill the store.
const maxTemplates = 1024

// retryClash is the interval of retries after a name clash with a foreign object, or a refusal by the API server:
// neither foreign objects nor the server's features are watched.
const retryClash = time.Minute

// Templates is the result of a pass over the ResourceClaimTemplates of a topology.
type Templates struct {
	Wanted  bool // the topology has spec.claimTemplate
	Name    string
	Chosen  int      // namespaces
	Kept    int      // namespaces that have the template
	Clashes int      // namespaces where another object has the name
	Listed  []string // those of them that spec.claimTemplate.namespaces names
	Refused string   // why the API server finds the template invalid
	Err     error
}

// templates creates, updates and deletes the ResourceClaimTemplates of a valid topology.
func (c *Controller) templates(ctx context.Context, o *v1alpha1.NetworkTopology, t *topology.Topology, set contract.Set) Templates {
	out := Templates{Wanted: t.ClaimTemplate != nil, Name: claim.TemplateName(t)}
	have, err := c.ownTemplates(ctx, o)
	if err != nil {
		out.Err = err
		return out
	}
	chosen, err := c.chosenNamespaces(ctx, t.ClaimTemplate)
	out.Chosen = len(chosen)
	if err != nil || len(chosen) > maxTemplates || len(claim.Roots(t, set)) == 0 {
		out.Err = err
		return out
	}
	left := map[string]*resourceapi.ResourceClaimTemplate{}
	for i := range have {
		left[have[i].Namespace+"/"+have[i].Name] = &have[i]
	}
	var errs []error
	for _, namespace := range chosen {
		want := wantTemplate(o, t, set, namespace)
		key := namespace + "/" + want.Name
		clash, err := c.keepTemplate(ctx, o, left[key], want)
		delete(left, key)
		switch {
		case apierrors.IsInvalid(err): // in each namespace, until its features change
			out.Refused, out.Err = refusal(want, err), errors.Join(errs...)
			return out
		case err != nil:
			errs = append(errs, err)
		case clash:
			out.Clashes++
			if slices.Contains(t.ClaimTemplate.Namespaces, namespace) {
				out.Listed = append(out.Listed, namespace)
			}
		default:
			out.Kept++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(left)) {
		errs = append(errs, c.deleteTemplate(ctx, left[key]))
	}
	out.Err = errors.Join(errs...)
	return out
}

// refusal is the message about a template that the API server finds invalid. Without a
// feature it drops a field, and then the constraint has no attribute.
func refusal(want *resourceapi.ResourceClaimTemplate, err error) string {
	said := err.Error()
	if api, ok := errors.AsType[*apierrors.StatusError](err); ok {
		said = api.ErrStatus.Message
	}
	if slices.ContainsFunc(want.Spec.Spec.Devices.Constraints,
		func(d resourceapi.DeviceConstraint) bool { return d.DistinctAttribute != nil }) {
		said += ": its distinctAttribute needs the feature DRAConsumableCapacity; " +
			"without it, set spec.claimTemplate.bondPorts to Any, and remove constraints with a distinctAttribute"
	}
	return said
}

// wantTemplate is a topology's template as the API server returns it.
func wantTemplate(o *v1alpha1.NetworkTopology, t *topology.Topology, set contract.Set,
	namespace string,
) *resourceapi.ResourceClaimTemplate {
	want := claim.Template(t, set, namespace)
	want.Labels = map[string]string{claim.LabelTopology: o.Name}
	want.OwnerReferences = []metav1.OwnerReference{ownerOf(o)}
	for i := range want.Spec.Spec.Devices.Requests {
		e := want.Spec.Spec.Devices.Requests[i].Exactly
		e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeExactCount, 1
	}
	return want
}

// ownTemplates returns the templates of this topology, from the cache.
func (c *Controller) ownTemplates(ctx context.Context, o *v1alpha1.NetworkTopology) ([]resourceapi.ResourceClaimTemplate, error) {
	var all resourceapi.ResourceClaimTemplateList
	if err := c.Client.List(ctx, &all, client.MatchingFields{indexUID: string(o.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list ResourceClaimTemplates: %w", err)
	}
	return all.Items, nil
}

// chosenNamespaces returns the namespaces that are to have a template, without those that
// are being deleted.
func (c *Controller) chosenNamespaces(ctx context.Context, spec *v1alpha1.ClaimTemplate) ([]string, error) {
	if spec == nil {
		return nil, nil
	}
	chosen := map[string]bool{}
	add := func(n *corev1.Namespace) {
		if n.DeletionTimestamp.IsZero() {
			chosen[n.Name] = true
		}
	}
	for _, name := range spec.Namespaces {
		n := &corev1.Namespace{}
		err := c.Client.Get(ctx, client.ObjectKey{Name: name}, n, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get namespace %q: %w", name, err)
		}
		if err == nil {
			add(n)
		}
	}
	if spec.NamespaceSelector != nil {
		var all corev1.NamespaceList
		if err := c.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list namespaces: %w", err)
		}
		for i := range all.Items {
			if Chooses(spec, all.Items[i].Name, all.Items[i].Labels) {
				add(&all.Items[i])
			}
		}
	}
	return slices.Sorted(maps.Keys(chosen)), nil
}

// Chooses reports whether a namespace with these labels is to have the template.
func Chooses(spec *v1alpha1.ClaimTemplate, namespace string, of map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(spec.NamespaceSelector)
	return slices.Contains(spec.Namespaces, namespace) || err == nil && selector.Matches(labels.Set(of))
}

// keepTemplate creates or updates one template; clash reports that another object has its name, or that a finalizer of others keeps
// the earlier one.
func (c *Controller) keepTemplate(ctx context.Context, o *v1alpha1.NetworkTopology, have,
	want *resourceapi.ResourceClaimTemplate,
) (clash bool, err error) {
	if have == nil {
		if created, err := c.createTemplate(ctx, o, want); created || err != nil {
			return false, err
		}
		// Perhaps ours, without the label by which the cache knows ours.
		have = &resourceapi.ResourceClaimTemplate{}
		if err := c.Live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
			return false, fmt.Errorf("get ResourceClaimTemplate %q in namespace %q: %w", want.Name, want.Namespace, err)
		}
		if ref := metav1.GetControllerOf(have); ref == nil || ref.UID != o.UID {
			return true, nil
		}
	}
	if !have.DeletionTimestamp.IsZero() {
		return true, nil
	}
	if !equality.Semantic.DeepEqual(have.Spec, want.Spec) { // the spec is immutable
		if err := c.deleteTemplate(ctx, have); err != nil {
			return false, err
		}
		created, err := c.createTemplate(ctx, o, want) // once: who has the namespace could go on for ever
		return !created, err
	}
	if have.Labels[claim.LabelTopology] == o.Name {
		return false, nil
	}
	fixed := have.DeepCopy()
	metav1.SetMetaDataLabel(&fixed.ObjectMeta, claim.LabelTopology, o.Name)
	if err := c.Client.Update(ctx, fixed); err != nil {
		return false, fmt.Errorf("update ResourceClaimTemplate %q in namespace %q: %w", want.Name, want.Namespace, err)
	}
	return false, nil
}

// createTemplate creates a template, and reports false if its name is taken.
func (c *Controller) createTemplate(ctx context.Context, o *v1alpha1.NetworkTopology,
	want *resourceapi.ResourceClaimTemplate,
) (created bool, err error) {
	switch err := c.Client.Create(ctx, want.DeepCopy()); {
	case err == nil:
		c.Log.Info("created a ResourceClaimTemplate", "topology", o.Name, "namespace", want.Namespace, "name", want.Name)
		return true, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		return true, nil // the namespace is being deleted, and its deletion triggers a pass
	case !apierrors.IsAlreadyExists(err):
		return false, fmt.Errorf("create ResourceClaimTemplate %q in namespace %q: %w", want.Name, want.Namespace, err)
	}
	return false, nil
}

// deleteTemplate removes a template if it is unchanged since it was found to belong to this
// topology. Claims that were created from it are kept.
func (c *Controller) deleteTemplate(ctx context.Context, t *resourceapi.ResourceClaimTemplate) error {
	err := c.Client.Delete(ctx, t, client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete ResourceClaimTemplate %q in namespace %q: %w", t.Name, t.Namespace, err)
	}
	return nil
}

// templatesCondition is the condition ClaimTemplates. It names only namespaces that the
// topology itself names: everybody who uses the topology can read it.
func templatesCondition(found Templates) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionClaimTemplates, Status: metav1.ConditionFalse}
	kept := fmt.Sprintf("ResourceClaimTemplate %q is in %s", found.Name, excerpt.Count(found.Kept, "namespace"))
	switch {
	case found.Refused != "":
		c.Reason, c.Message = string(fault.Unsupported), kept+"; the API server refuses it: "+found.Refused
	case found.Err != nil:
		c.Reason, c.Message = string(fault.Internal), kept+"; others failed and are being retried: see the controller's log"
	case found.Chosen > maxTemplates:
		c.Reason, c.Message = "TooMany", fmt.Sprintf(
			"spec.claimTemplate chooses %d namespaces, and at most %d are served: choose fewer; none is changed", found.Chosen,
			maxTemplates)
	case found.Clashes > 0:
		where := ""
		if len(found.Listed) > 0 {
			where = ", among them " + names(found.Listed)
		}
		c.Reason = "Conflict"
		c.Message = fmt.Sprintf(
			"%s; in %s%s, another ResourceClaimTemplate has the name, or a finalizer keeps the earlier one: delete it, "+
				"or set spec.claimTemplate.name. `kubectl get resourceclaimtemplates -A --field-selector metadata.name=%s` lists them",
			kept, excerpt.Count(found.Clashes, "namespace"), where, found.Name)
	case found.Chosen == 0:
		c.Reason, c.Message = "NoNamespace", "none of the namespaces that spec.claimTemplate chooses exists"
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonSucceeded, kept
	}
	return c
}

// forNamespace returns the topologies that choose a namespace.
func (c *Controller) forNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	chooses := func(t *v1alpha1.NetworkTopology) bool {
		return Chooses(t.Spec.ClaimTemplate, o.GetName(), o.GetLabels())
	}
	return c.requestsFor(ctx, c.Log.With("namespace", o.GetName()), "cannot find the topologies of a changed namespace", chooses,
		client.MatchingFields{indexTemplate: "true"})
}

// forTemplate returns the topology that a template belongs to.
func (c *Controller) forTemplate(_ context.Context, o client.Object) []reconcile.Request {
	if ref := metav1.GetControllerOf(o); ref != nil && ref.Kind == v1alpha1.Kind &&
		strings.HasPrefix(ref.APIVersion, v1alpha1.GroupVersion.Group+"/") {
		return requests(ref.Name)
	}
	return nil
}

// relabelled accepts changes of a namespace that may affect whether it is chosen.
var relabelled = predicate.Funcs{UpdateFunc: func(u event.UpdateEvent) bool {
	return !maps.Equal(u.ObjectOld.GetLabels(), u.ObjectNew.GetLabels()) ||
		u.ObjectOld.GetDeletionTimestamp().IsZero() != u.ObjectNew.GetDeletionTimestamp().IsZero()
}}
