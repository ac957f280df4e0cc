package admission

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
	"github.com/plumbline/plumbline/topology/validity"
)

// claim decides on a ResourceClaim or ResourceClaimTemplate: for every topology of which it
// requests a device, it must request one for each root step. Requests for classes of others
// are not checked.
func (w *Webhook) claim(ctx context.Context, r admission.Request) (a answer, err error) {
	of, spec, err := claimOf(r)
	if err != nil {
		return a, err
	}
	demands, err := claim.Requests(spec, func(name string) (*resourceapi.DeviceClass, error) { return w.deviceClass(ctx, name) })
	if err != nil && !invalid(err) {
		return a, err
	}
	for _, e := range fault.Each(err) {
		a.problems = append(a.problems, fmt.Sprintf("%s: %v", of, e))
	}
	for _, d := range demands {
		o := &v1alpha1.NetworkTopology{}
		exists, err := w.get(ctx, d.Topology.Name, o)
		where := fmt.Sprintf("%s request %q", of, d.Steps[0].Request)
		switch {
		case err != nil:
			return a, err
		case !exists:
			a.problems = append(a.problems,
				fmt.Sprintf("%s: its DeviceClass is for NetworkTopology %q, which does not exist", where, d.Topology.Name))
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
		set, err := w.contracts.Set(ctx)
		if err != nil {
			return a, err
		}
		a.refuse(claim.Mismatch(t, set, d, of))
		if len(d.Parameters) > 0 {
			if _, _, err := validity.Parameters(ctx, t, d.Parameters, set); err != nil {
				if ctx.Err() != nil {
					return a, context.Cause(ctx)
				}
				a.problems = append(a.problems, fmt.Sprintf("%s: %v", where, err))
			}
		}
	}
	return a, nil
}

// claimOf returns what a claim or a template requests, and how messages name the object.
func claimOf(r admission.Request) (claim.Source, *resourceapi.DeviceClaim, error) {
	if r.Kind.Kind == "ResourceClaimTemplate" {
		o, err := decode[resourceapi.ResourceClaimTemplate](r)
		if err != nil {
			return claim.Source{}, nil, err
		}
		return claim.SourceOf(r.Kind.Kind, o), &o.Spec.Spec.Devices, limits(&o.Spec.Spec.Devices)
	}
	o, err := decode[resourceapi.ResourceClaim](r)
	if err != nil {
		return claim.Source{}, nil, err
	}
	return claim.SourceOf(r.Kind.Kind, o), &o.Spec.Devices, limits(&o.Spec.Devices)
}

// limits applies the API server's limits to a claim, which may come from another client.
func limits(spec *resourceapi.DeviceClaim) error {
	many := len(spec.Requests) > resourceapi.DeviceRequestsMaxSize || len(spec.Config) > resourceapi.DeviceConfigMaxSize
	for i := range spec.Requests {
		many = many || len(spec.Requests[i].FirstAvailable) > resourceapi.FirstAvailableDeviceRequestMaxSize
	}
	if many {
		return &malformed{errors.New("it has more requests, alternatives or configs than the API takes")}
	}
	return nil
}

// deviceClass returns a DeviceClass: an existing one, or the one that the controller is
// about to create for a new topology. That topology is not validated for a claim: if it is
// invalid, its pods wait.
func (w *Webhook) deviceClass(ctx context.Context, name string) (*resourceapi.DeviceClass, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	have := &resourceapi.DeviceClass{}
	found, err := w.get(ctx, name, have)
	if err != nil {
		return nil, err
	}
	if found {
		return have, nil
	}
	wanting, err := controller.Wanting(ctx, w.reader, name)
	if err != nil {
		return nil, err
	}
	for i := range wanting {
		o := &wanting[i]
		if o.Status.ObservedGeneration == o.Generation || !o.DeletionTimestamp.IsZero() {
			continue // the controller has seen it: no class will follow
		}
		t, err := topology.FromObject(o)
		if err != nil {
			continue
		}
		set, err := w.contracts.Set(ctx)
		if err != nil {
			return nil, err
		}
		if c := controller.Unselective(o, t, set, name); c != nil {
			return c, nil
		}
	}
	return nil, nil
}

// class decides on a DeviceClass with config of ours: it can be read.
func (w *Webhook) class(ctx context.Context, r admission.Request) (a answer, err error) {
	o, err := decode[resourceapi.DeviceClass](r)
	if err != nil {
		return a, err
	}
	if len(o.Spec.Config) > resourceapi.DeviceConfigMaxSize {
		return a, &malformed{errors.New("it has more configs than the API takes")}
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
	if len(ours) > 1 && !ours[0].Equal(ours[1]) {
		a.problems = append(a.problems,
			fmt.Sprintf("DeviceClass %q: has config for steps %q and %q: one class serves one step", o.Name, ours[0].Step, ours[1].Step))
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
	case !controller.Owned(o, of):
		a.warn("DeviceClass %q was not created by plumbline and will not be updated with the topology: "+
			"use the class that the controller creates for the step", o.Name)
	}
	return a, nil
}
