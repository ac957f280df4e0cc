package deviceclass

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/claim"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Judge decodes a topology and says everything that is wrong with it: its steps,
// the selectors as the scheduler's CEL, and how many devices it takes. set holds
// the contracts of all types, described by schemas or built in. The error is of
// package topology's making, one line per problem or more.
func Judge(ctx context.Context, o *v1alpha1.NetworkTopology, set contract.Set) (*topology.Topology, error) {
	t, err := topology.FromObject(o)
	if err != nil {
		return nil, err
	}
	invalid := &topology.Invalid{Topology: t.Name}
	if err := topology.Validate(ctx, t, set); err != nil && !errors.As(err, &invalid) {
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
		if err := compiled(s.Selector).err; err != nil {
			invalid.Add(topology.Problem{Step: s.Name, Message: err.Error()})
		}
	}
	// A claim has at most so many requests, and all roots are in one claim.
	if n := len(claim.Roots(t, set)); n > resourceapi.DeviceRequestsMaxSize {
		invalid.Add(topology.Problem{
			Field:   "spec.steps",
			Message: fmt.Sprintf("%d root steps take a device, and a ResourceClaim can request %d at most", n, resourceapi.DeviceRequestsMaxSize),
		})
	}
	if len(invalid.Problems) > 0 {
		return nil, invalid
	}
	return t, nil
}

// Unknown returns the steps whose type is described by a schema alone: they
// validate, and no node can run them.
func Unknown(t *topology.Topology, builtIn contract.Set) []*topology.Step {
	var out []*topology.Step
	for i := range t.Steps {
		if _, known := builtIn.Contract(t.Steps[i].Type); !known {
			out = append(out, &t.Steps[i])
		}
	}
	return out
}
