package admission

import (
	"context"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/deviceclass"
	"github.com/plumbline/plumbline/topology/pluginschema"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// topology decides on a NetworkTopology: it is valid, and nobody else has a
// DeviceClass of a name it wants.
func (w *Webhook) topology(ctx context.Context, r admission.Request) (a answer, err error) {
	o := &v1alpha1.NetworkTopology{}
	if err := decode(r, o); err != nil {
		return a, err
	}
	if !o.DeletionTimestamp.IsZero() {
		return a, nil // on its way out: only finalizers are left to change
	}
	set, err := w.contracts(ctx)
	if err != nil {
		return a, err
	}
	t, err := deviceclass.Judge(o, set)
	if err != nil {
		a.wrong(err)
		return a, nil
	}
	for _, s := range deviceclass.Unknown(t, w.BuiltIn) {
		a.warn("no node can run step %q: type %q is described by a CNIPluginSchema, and is not one of plumbline's", s.Name, s.Type)
	}
	classes, err := deviceclass.Classes(o, t, set)
	if err != nil {
		return a, err
	}
	var others v1alpha1.NetworkTopologyList
	if err := w.Reader.List(ctx, &others); err != nil {
		return a, fmt.Errorf("list topologies: %w", err)
	}
	for _, c := range classes {
		clash, err := w.clash(ctx, o, c.Name, others.Items)
		if err != nil {
			return a, err
		}
		if clash != "" {
			a.problems = append(a.problems, fmt.Sprintf("NetworkTopology %q, step %q: %s", o.Name, c.Labels[claim.LabelStep], clash))
		}
	}
	return a, w.used(ctx, o, r, &a)
}

// clash says who else has, or wants, a DeviceClass of a name.
func (w *Webhook) clash(ctx context.Context, o *v1alpha1.NetworkTopology, class string, others []v1alpha1.NetworkTopology) (string, error) {
	have := &resourceapi.DeviceClass{}
	found, err := w.get(ctx, class, have)
	if err != nil {
		return "", fmt.Errorf("get DeviceClass %q: %w", class, err)
	}
	if found && !deviceclass.Owned(have, o) && !left(have, o) {
		return deviceclass.Clash(have), nil
	}
	for i := range others {
		other := &others[i]
		if other.Name == o.Name {
			continue
		}
		for _, s := range other.Spec.Steps {
			if len(s.DependOn) == 0 && claim.ClassName(other.Name, s.Name) == class {
				return fmt.Sprintf("its DeviceClass would be %q, as that of step %q of NetworkTopology %q is: rename the topology or the step", class, s.Name, other.Name), nil
			}
		}
	}
	return "", nil
}

// left reports whether a class was left behind by a topology of the same name
// that is gone, and goes, too, in a moment.
func left(class *resourceapi.DeviceClass, o *v1alpha1.NetworkTopology) bool {
	for _, ref := range class.OwnerReferences {
		if ref.Kind == v1alpha1.Kind && ref.Name == o.Name && ref.UID != o.UID {
			return true
		}
	}
	return false
}

// used warns whoever edits a topology that running pods use.
func (w *Webhook) used(ctx context.Context, o *v1alpha1.NetworkTopology, r admission.Request, a *answer) error {
	if o.Spec.UpdatePolicy == v1alpha1.InPlace {
		a.warn("NetworkTopology %q: updatePolicy InPlace is not carried out yet: as with Immutable, a change is for new pods", o.Name)
	}
	if len(r.OldObject.Raw) == 0 {
		return nil
	}
	var claims resourceapi.ResourceClaimList
	if err := w.Reader.List(ctx, &claims, client.MatchingFields{deviceclass.IndexTopology: o.Name}); err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	if use := deviceclass.UseOf(o, claims.Items); len(use.Claims) > 0 {
		a.warn("NetworkTopology %q is in use by %d claims: their pods keep the network they have, the change is for new pods", o.Name, len(use.Claims))
	}
	return nil
}

// schema decides on a CNIPluginSchema: it can be read.
func (w *Webhook) schema(_ context.Context, r admission.Request) (a answer, err error) {
	o := &schemav1alpha1.CNIPluginSchema{}
	if err := decode(r, o); err != nil {
		return a, err
	}
	if _, err := pluginschema.Contract(o); err != nil {
		a.wrong(fmt.Errorf("CNIPluginSchema %q: %s", o.Name, strings.ReplaceAll(err.Error(), "\n", fmt.Sprintf("\nCNIPluginSchema %q: ", o.Name))))
		return a, nil
	}
	if _, builtIn := w.BuiltIn.Contract(o.Spec.CNIType); builtIn && o.Labels[pluginschema.LabelBuiltIn] != "true" {
		a.warn("step type %q is built in and validated by its own contract: CNIPluginSchema %q changes nothing", o.Spec.CNIType, o.Name)
	}
	return a, nil
}
