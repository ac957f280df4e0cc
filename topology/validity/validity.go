package validity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/addresspool"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Object decodes an API object and checks it, see Check. It returns the topology
// only when nothing is wrong.
func Object(ctx context.Context, o *v1alpha1.NetworkTopology, set contract.Set) (*topology.Topology, []string, error) {
	t, err := topology.FromObject(o)
	if err != nil {
		return nil, nil, err
	}
	notes, err := Check(ctx, t, set)
	if err != nil {
		return nil, nil, err
	}
	return t, notes, nil
}

// Topology decodes the one topology of a file and checks it. Problems of
// both are reported together, so that an unknown field hides no other problem.
func Topology(ctx context.Context, f *topology.Manifest, set contract.Set) (*topology.Topology, []string, error) {
	t, err := f.Topology()
	misread := &topology.Invalid{}
	if t == nil || err != nil && !errors.As(err, &misread) {
		return nil, nil, err
	}
	notes, err := Check(ctx, t, set)
	invalid := &topology.Invalid{Topology: t.Name}
	if err != nil && !errors.As(err, &invalid) {
		return nil, nil, err
	}
	if len(misread.Problems) == 0 {
		f.Locate(invalid, t)
		return t, notes, err
	}
	all := &topology.Invalid{Topology: misread.Topology, More: misread.More || invalid.More}
	for _, p := range slices.Concat(misread.Problems, invalid.Problems) {
		p.Place = fault.Place{} // or a problem of both would be there twice
		all.Add(p)
	}
	all.Sort(t)
	f.Locate(all, t)
	return nil, nil, all
}

// Parameters returns a valid topology with what a claim sets, and that as it is recorded. The error names step and key: the
// topology does not permit it, or is not valid with it.
func Parameters(ctx context.Context, t *topology.Topology, set []topology.Parameters,
	contracts contract.Set,
) (*topology.Topology, []topology.Parameters, error) {
	permitted, err := t.Permitted(set)
	if err != nil {
		return nil, nil, err
	}
	with, err := inspectWith(ctx, t, permitted, contracts)
	if err != nil {
		return nil, nil, fmt.Errorf("with the parameters of the claim: %w", err)
	}
	return with, permitted, nil
}

// inspectWith returns a topology with what a claim sets, if it is valid: then, nothing is left to be set.
func inspectWith(ctx context.Context, t *topology.Topology, set []topology.Parameters, contracts contract.Set) (*topology.Topology, error) {
	with := t.With(set)
	last := *with
	last.ClaimParameters = nil
	_, err := topology.Inspect(ctx, &last, contracts)
	return with, err
}

// Check returns all errors of a topology: in its steps, its selectors, and the number of
// its devices. set holds the contracts of all step types. The error is a *topology.Invalid,
// or that of a context that has ended. Notes are remarks on a topology that is valid, each
// naming its step.
func Check(ctx context.Context, t *topology.Topology, set contract.Set) (notes []string, err error) {
	invalid := &topology.Invalid{Topology: t.Name}
	checked := t
	if t.Role != "" { // a role that is misspelt is reported already
		checked = t.ForPod(set, ExamplePodCIDRs, topology.PodInterface)
	}
	notes, err = topology.Inspect(ctx, checked, set)
	if err != nil && !errors.As(err, &invalid) {
		return nil, err
	}
	for i := range t.Steps {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("NetworkTopology %q: validation was stopped: %w", t.Name, context.Cause(ctx))
		}
		s := &t.Steps[i]
		if s.Selector == "" || invalid.Full() {
			continue
		}
		c := Compiled(s.Selector)
		if wrong, ok := errors.AsType[*inventory.SelectorError](c.Err); ok {
			invalid.Addf(s.Name, "selector.cel", "%s", wrong.Message)
		}
		for _, text := range c.Unknown {
			notes = append(notes, fmt.Sprintf("step %q: selector.cel: %s", s.Name, text))
		}
	}
	if t.Role == v1alpha1.Primary {
		ofRole(t, set, invalid)
	}
	// A claim has at most so many requests, and all roots are in one claim.
	roots := claim.Roots(t, set)
	if n := len(claim.Required(t, set)); n > claim.MaxRequests {
		invalid.Addf("", "spec.steps", "%d root steps take a device, and a ResourceClaim can request %d at most", n, claim.MaxRequests)
	}
	for i := range t.Steps {
		if s := &t.Steps[i]; topology.OfNetwork(s) && !slices.Contains(roots, s) {
			invalid.Addf(s.Name, "config.ipam.pool", "is missing: name an AddressPool. "+
				"Only a root step that takes a device of a claim has the pool of its physical network")
		}
	}
	ofSubnets(t, invalid)
	notes = append(notes, namedDevices(t, set)...)
	notes = append(notes, resourceNames(t, set, roots, invalid)...)
	notes = append(notes, claimTemplate(t, set, roots, invalid)...)
	if err := withExamples(ctx, t, set, invalid); err != nil {
		return nil, err
	}
	if len(invalid.Problems) > 0 {
		invalid.Sort(t)
		return nil, invalid
	}
	switch {
	case t.Role == v1alpha1.Primary:
		notes = append(notes, noDefaultRoute(t, set)...)
	case len(roots) == 0:
		notes = append(notes, NoDevice)
	}
	return notes, nil
}

// ofSubnets refuses subnets of networks of OVN of which no pool can be made, and steps with different ones of one network: they have
// addresses of one pool. The contract of the step does not, as pods run that have had such subnets while these gave no addresses.
func ofSubnets(t *topology.Topology, invalid *topology.Invalid) {
	known := networks{}
	for _, of := range t.NetworkPools() {
		_, err := addresspool.Of(addresspool.OfSubnets(of.IPAM))
		for _, f := range addresspool.FieldErrors(err) {
			field := "config.subnets"
			if strings.HasPrefix(f.Field, "exclude") {
				field = "config.excludeSubnets"
			}
			invalid.Addf(of.Step, field, "%s", f.Message)
		}
		if m := known.differs(fmt.Sprintf("step %q", of.Step), of.IPAM); m != "" {
			invalid.Addf(of.Step, "config.subnets", "%s", m)
		}
	}
}

// withExamples checks that a topology without problems is valid with what claims may set, too: with the first value of each.
func withExamples(ctx context.Context, t *topology.Topology, set contract.Set, invalid *topology.Invalid) error {
	examples := t.Examples()
	if len(invalid.Problems) > 0 || len(examples) == 0 {
		return nil
	}
	_, err := inspectWith(ctx, t, examples, set)
	problems := &topology.Invalid{}
	switch {
	case errors.As(err, &problems):
	case err != nil:
		return err
	}
	for _, p := range problems.Problems {
		p.Message = "when a claim sets its claimParameters: " + p.Message
		invalid.Add(p)
	}
	return nil
}

// NoDevice is the note on a topology that no pod of a cluster can use.
const NoDevice = "no root step takes a device, so there is no DeviceClass that a claim could request: " +
	"in a cluster no pod can use it; add a step of type host-device or sriov, or a selector to a root step"
