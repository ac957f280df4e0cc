package admission

import (
	"context"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/deviceclass"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// claim decides on a ResourceClaim or ResourceClaimTemplate: for every topology
// it asks a device of, it asks one for each root step. Requests for classes of
// others are not looked at.
func (w *Webhook) claim(ctx context.Context, r admission.Request) (a answer, err error) {
	name, spec, err := claimOf(r)
	if err != nil {
		return a, err
	}
	known, err := w.classes(ctx)
	if err != nil {
		return a, err
	}
	demands, err := claim.Requests(spec, func(name string) (*resourceapi.DeviceClass, error) { return known.class(ctx, name) })
	if err != nil && !invalid(err) {
		return a, err
	}
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			a.problems = append(a.problems, fmt.Sprintf("%s %q: %s", r.Kind.Kind, name, line))
		}
	}
	for _, d := range demands {
		o, exists := known.topologies[d.Topology.Name]
		where := fmt.Sprintf("%s %q request %q", r.Kind.Kind, name, d.Steps[0].Request)
		switch {
		case !exists:
			a.problems = append(a.problems, fmt.Sprintf("%s: its DeviceClass is for NetworkTopology %q, which does not exist", where, d.Topology.Name))
			continue
		case !o.DeletionTimestamp.IsZero():
			a.problems = append(a.problems, fmt.Sprintf("%s: NetworkTopology %q is being deleted", where, d.Topology.Name))
			continue
		}
		t, err := topology.FromObject(o)
		if err != nil {
			a.warn("NetworkTopology %q is not valid, so no pod can use it now", o.Name)
			continue
		}
		a.wrong(claim.Mismatch(t, known.set, d, r.Kind.Kind, name))
	}
	return a, nil
}

// claimOf returns what a claim or a template requests, and its name as its author
// knows it.
func claimOf(r admission.Request) (string, *resourceapi.DeviceClaim, error) {
	named := func(m *metav1.ObjectMeta) string {
		if m.Name == "" {
			return m.GenerateName + "*"
		}
		return m.Name
	}
	if r.Kind.Kind == "ResourceClaimTemplate" {
		o := &resourceapi.ResourceClaimTemplate{}
		if err := decode(r, o); err != nil {
			return "", nil, err
		}
		return named(&o.ObjectMeta), &o.Spec.Spec.Devices, nil
	}
	o := &resourceapi.ResourceClaim{}
	if err := decode(r, o); err != nil {
		return "", nil, err
	}
	return named(&o.ObjectMeta), &o.Spec.Devices, nil
}

// classes is what a claim is held against, all from caches.
type classes struct {
	reader     *Webhook
	topologies map[string]*v1alpha1.NetworkTopology
	set        contract.Set
	coming     map[string]*resourceapi.DeviceClass
}

func (w *Webhook) classes(ctx context.Context) (*classes, error) {
	set, err := w.contracts(ctx)
	if err != nil {
		return nil, err
	}
	var all v1alpha1.NetworkTopologyList
	if err := w.Reader.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list topologies: %w", err)
	}
	c := &classes{reader: w, set: set, topologies: map[string]*v1alpha1.NetworkTopology{}}
	for i := range all.Items {
		c.topologies[all.Items[i].Name] = &all.Items[i]
	}
	return c, nil
}

// class returns a DeviceClass: the one there is, or the one the controller is
// about to make of a topology that was written a moment ago.
func (c *classes) class(ctx context.Context, name string) (*resourceapi.DeviceClass, error) {
	have := &resourceapi.DeviceClass{}
	found, err := c.reader.get(ctx, name, have)
	if err != nil {
		return nil, err
	}
	if found {
		return have, nil
	}
	if c.coming == nil {
		c.coming = map[string]*resourceapi.DeviceClass{}
		for _, o := range c.topologies {
			c.expect(ctx, o)
		}
	}
	return c.coming[name], nil
}

func (c *classes) expect(ctx context.Context, o *v1alpha1.NetworkTopology) {
	if o.Status.ObservedGeneration == o.Generation || !o.DeletionTimestamp.IsZero() {
		return // seen by the controller: what is not there does not come
	}
	t, err := deviceclass.Judge(ctx, o, c.set)
	if err != nil {
		return
	}
	classes, err := deviceclass.Classes(o, t, c.set)
	if err != nil {
		return
	}
	for _, class := range classes {
		c.coming[class.Name] = class
	}
}

// class decides on a DeviceClass that bears config of ours: it can be read.
func (w *Webhook) class(ctx context.Context, r admission.Request) (a answer, err error) {
	o := &resourceapi.DeviceClass{}
	if err := decode(r, o); err != nil {
		return a, err
	}
	var ours []claim.Config
	for i, e := range o.Spec.Config {
		if e.Opaque == nil || e.Opaque.Driver != claim.Driver {
			continue
		}
		cfg, err := claim.ParseConfig(e.Opaque.Parameters.Raw)
		if err != nil {
			a.problems = append(a.problems, fmt.Sprintf("DeviceClass %q: spec.config[%d].opaque: %v", o.Name, i, err))
			continue
		}
		ours = append(ours, cfg)
	}
	if len(ours) > 1 && ours[0] != ours[1] {
		a.problems = append(a.problems, fmt.Sprintf("DeviceClass %q: has config for steps %q and %q: one class serves one step", o.Name, ours[0].Step, ours[1].Step))
	}
	if len(ours) == 0 || len(a.problems) > 0 {
		return a, nil
	}
	of := &v1alpha1.NetworkTopology{}
	name := ours[0].NetworkTopologyRef.Name
	found, err := w.get(ctx, name, of)
	switch {
	case err != nil:
		return a, fmt.Errorf("get NetworkTopology %q: %w", name, err)
	case !found:
		a.warn("DeviceClass %q is for NetworkTopology %q, which does not exist", o.Name, name)
	case !deviceclass.Owned(o, of):
		a.warn("DeviceClass %q is made by hand: plumbline makes one for every root step, and does not look after this one", o.Name)
	}
	return a, nil
}
