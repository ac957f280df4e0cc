package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/inventory"
	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

// Load reads a topology and says everything that is wrong with it: its syntax,
// its steps, and the selectors of its root steps. An error is of kind Invalid, or
// that of a context that has ended.
func Load(ctx context.Context, data []byte, set contract.Set) (*topology.Topology, error) {
	t, err := topology.Decode(data)
	if err != nil {
		return nil, fault.New(fault.Invalid, err)
	}
	if err := validate(ctx, t, set); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, fault.New(fault.Invalid, err)
	}
	return t, nil
}

func validate(ctx context.Context, t *topology.Topology, set contract.Set) error {
	err := topology.Validate(ctx, t, set)
	invalid := &topology.Invalid{Topology: t.Name}
	if err != nil && !errors.As(err, &invalid) {
		return err
	}
	for i := range t.Steps {
		if ctx.Err() != nil {
			return fmt.Errorf("NetworkTopology %q: validation was stopped: %w", t.Name, context.Cause(ctx))
		}
		s := &t.Steps[i]
		if s.Selector == "" || !s.Root() || invalid.Full() {
			continue
		}
		if _, err := inventory.Compile(s.Selector); err != nil {
			invalid.Add(topology.Problem{
				Step: s.Name, Field: "selector.cel", Message: strings.TrimPrefix(err.Error(), "selector.cel: "),
			})
		}
	}
	if len(invalid.Problems) == 0 {
		return nil
	}
	at := map[string]int{}
	for i, name := range slices.Backward(t.Names()) {
		at[name] = i + 1
	}
	slices.SortStableFunc(invalid.Problems, func(a, b topology.Problem) int { return at[a.Step] - at[b.Step] })
	return invalid
}

// ParseDevices reads assignments "STEP=DEVICE", as the command line takes them.
func ParseDevices(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		step, device, ok := strings.Cut(arg, "=")
		if !ok || step == "" || device == "" {
			return nil, fault.New(fault.Invalid, fmt.Errorf("%q is not of the form STEP=DEVICE, as in vf0=0000:03:10.0 or vf0=enp3s0f0v0", arg))
		}
		if other, twice := out[step]; twice {
			return nil, fault.New(fault.Invalid, fmt.Errorf("step %q is given two devices, %q and %q", step, other, device))
		}
		out[step] = device
	}
	return out, nil
}
