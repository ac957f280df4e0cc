package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/pluginschema"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// topology decides on a NetworkTopology: it is valid, and no other owner has a DeviceClass
// with a name it wants.
func (w *Webhook) topology(ctx context.Context, r admission.Request) (a answer, err error) {
	o, err := decode[v1alpha1.NetworkTopology](r)
	if err != nil {
		return a, err
	}
	if !o.DeletionTimestamp.IsZero() {
		return a, nil // being deleted: only finalizers can change
	}
	set, err := w.contracts.Set(ctx)
	if err != nil {
		return a, err
	}
	t, notes, err := validity.Object(ctx, o, set)
	if err != nil && ctx.Err() != nil {
		return a, err
	}
	if err != nil {
		a.refuse(err)
		return a, nil
	}
	for _, n := range notes {
		a.warn("NetworkTopology %q: %s", o.Name, n)
	}
	for _, s := range controller.Unknown(t, w.contracts.BuiltIn) {
		a.warn("no node can run step %q: type %q is only described by a CNIPluginSchema, and not built into plumbline", s.Name, s.Type)
	}
	if err := w.pools(ctx, t, edited(o, r), &a); err != nil {
		return a, err
	}
	if err := w.role(ctx, o, &a); err != nil {
		return a, err
	}
	if err := w.unshared(ctx, t, set, &a); err != nil {
		return a, err
	}
	for _, c := range controller.Classes(o, t, set) {
		clash, err := w.clash(ctx, o, c.Name)
		if err != nil {
			return a, err
		}
		if clash != "" {
			a.problems = append(a.problems, fmt.Sprintf("NetworkTopology %q, step %q: %s", o.Name, c.Labels[claim.LabelStep], clash))
		}
		if c.Spec.ExtendedResourceName == nil {
			continue
		}
		if clash, err = w.nameClash(ctx, o, c.Labels[claim.LabelStep], *c.Spec.ExtendedResourceName); err != nil {
			return a, err
		}
		if clash != "" {
			a.problems = append(a.problems, fmt.Sprintf("NetworkTopology %q, %s", o.Name, clash))
		}
	}
	return a, w.used(o, t, set, r, &a)
}

// edited reports whether a request sets the spec, and not only metadata.
func edited(o *v1alpha1.NetworkTopology, r admission.Request) bool {
	old := &v1alpha1.NetworkTopology{}
	return len(r.OldObject.Raw) == 0 || json.Unmarshal(r.OldObject.Raw, old) != nil || !equality.Semantic.DeepEqual(old.Spec, o.Spec)
}

// role warns of other topologies of the same role. Whether they select the same nodes depends
// on labels that change.
func (w *Webhook) role(ctx context.Context, o *v1alpha1.NetworkTopology, a *answer) error {
	if o.Spec.Role == "" {
		return nil
	}
	others, err := controller.OfRole(ctx, w.reader, o.Spec.Role)
	if err != nil {
		return err
	}
	for i := range others {
		if others[i].Name != o.Name {
			a.warn("NetworkTopology %q has the role %q, too: nodes that both select use the older one", others[i].Name, o.Spec.Role)
		}
	}
	return nil
}

// unshared warns of steps that request shares of devices which no policy shares yet.
func (w *Webhook) unshared(ctx context.Context, t *topology.Topology, set contract.Set, a *answer) error {
	shared := validity.Shared(t, set)
	if len(shared) == 0 {
		return nil
	}
	missing, err := controller.Unshared(ctx, w.reader, w.policies, shared)
	if err != nil {
		return err
	}
	for _, s := range missing {
		a.warn("NetworkTopology %q, %s", t.Name, s.Message())
	}
	return nil
}

// clash describes who else has, or wants, a DeviceClass with a name.
func (w *Webhook) clash(ctx context.Context, o *v1alpha1.NetworkTopology, class string) (string, error) {
	have := &resourceapi.DeviceClass{}
	found, err := w.get(ctx, class, have)
	if err != nil {
		return "", fmt.Errorf("get DeviceClass %q: %w", class, err)
	}
	if found && !controller.Owned(have, o) && !left(have, o) {
		return controller.Clash(have), nil
	}
	others, err := controller.Wanting(ctx, w.reader, class)
	if err != nil {
		return "", err
	}
	for i := range others {
		other := &others[i]
		if other.Name == o.Name {
			continue
		}
		roots, _ := topology.StepNames(other)
		for _, step := range roots {
			if claim.ClassName(other.Name, step) == class {
				return fmt.Sprintf(
					"its DeviceClass would be %q, as that of step %q of NetworkTopology %q is: rename the topology or the step", class,
					step, other.Name), nil
			}
		}
	}
	return "", nil
}

// nameClash describes who else has, or wants, the extended resource name of a step.
func (w *Webhook) nameClash(ctx context.Context, o *v1alpha1.NetworkTopology, step, name string) (string, error) {
	classes, topologies, err := controller.Named(ctx, w.reader, name)
	if err != nil {
		return "", err
	}
	for i := range classes {
		if class := &classes[i]; !controller.Owned(class, o) && !left(class, o) {
			return controller.NameClash(step, class), nil
		}
	}
	for i := range topologies {
		other := &topologies[i]
		if other.Name == o.Name {
			continue
		}
		for _, s := range topology.StepResources(other) {
			if s.Resource == name {
				return fmt.Sprintf("step %q: extendedResourceName %q is taken by step %q of NetworkTopology %q, "+
					"and the scheduler uses one class for a name: choose another, or remove it", step, name, s.Step, other.Name), nil
			}
		}
	}
	return "", nil
}

// left reports whether a class belongs to a deleted topology of the same name, so that it
// will soon be garbage collected.
func left(class *resourceapi.DeviceClass, o *v1alpha1.NetworkTopology) bool {
	for _, ref := range class.OwnerReferences {
		if ref.Kind == v1alpha1.Kind && ref.Name == o.Name && ref.UID != o.UID {
			return true
		}
	}
	return false
}

// used warns about edits of a topology that running pods use.
func (w *Webhook) used(o *v1alpha1.NetworkTopology, t *topology.Topology, set contract.Set, r admission.Request, a *answer) error {
	inPlace := o.Spec.UpdatePolicy == v1alpha1.InPlace
	if o.Spec.Rollout != nil && !inPlace {
		a.warn("NetworkTopology %q: spec.rollout has an effect only with updatePolicy InPlace", o.Name)
	}
	if len(r.OldObject.Raw) == 0 {
		return nil
	}
	users := w.users(o.Name, o.UID)
	if users == 0 {
		return nil
	}
	if !inPlace {
		a.warn("NetworkTopology %q is in use by %d claims: their pods keep the network they have, the change is for new pods",
			o.Name, users)
		return nil
	}
	a.warn("NetworkTopology %q is in use by %d claims: "+
		"the change is applied to their running pods, node by node; connections over a recreated link are interrupted", o.Name, users)
	old := &v1alpha1.NetworkTopology{}
	if err := json.Unmarshal(r.OldObject.Raw, old); err != nil {
		return &malformed{err}
	}
	was, err := topology.FromObject(old)
	if err != nil {
		return nil // no pod could have used it
	}
	for _, why := range holdsBack(was, t, set) {
		a.warn("NetworkTopology %q: %s", o.Name, why)
	}
	return nil
}

// holdsBack describes the steps for which an edit takes, or may take, another device: a
// running pod keeps the devices of its claim.
func holdsBack(was, is *topology.Topology, set contract.Set) []string {
	roots := map[string]*topology.Step{}
	for _, s := range claim.Roots(was, set) {
		roots[s.Name] = s
	}
	var out []string
	for _, s := range claim.Required(is, set) {
		switch before, known := roots[s.Name]; {
		case !known:
			out = append(out, fmt.Sprintf(
				"step %q takes a device that running pods do not have: they keep their network until they are recreated", s.Name))
		case before.Type != s.Type:
			out = append(out, fmt.Sprintf(
				"step %q is of another type: running pods whose device does not fit it keep their network until they are recreated",
				s.Name))
		case before.Selector != s.Selector:
			out = append(out, fmt.Sprintf(
				"step %q has another selector: running pods whose device it does not choose keep their network until they are recreated",
				s.Name))
		}
	}
	return out
}

// schema decides on a CNIPluginSchema: it can be read.
func (w *Webhook) schema(_ context.Context, r admission.Request) (a answer, err error) {
	o, err := decode[schemav1alpha1.CNIPluginSchema](r)
	if err != nil {
		return a, err
	}
	if _, err := pluginschema.Contract(o); err != nil {
		a.refuse(fmt.Errorf("CNIPluginSchema %q: %s", o.Name,
			strings.ReplaceAll(err.Error(), "\n", fmt.Sprintf("\nCNIPluginSchema %q: ", o.Name))))
		return a, nil
	}
	if _, builtIn := w.contracts.BuiltIn.Contract(o.Spec.CNIType); builtIn && o.Labels[pluginschema.LabelBuiltIn] != "true" {
		a.warn("step type %q is built in and validated by its own contract: CNIPluginSchema %q has no effect", o.Spec.CNIType, o.Name)
	}
	return a, nil
}
