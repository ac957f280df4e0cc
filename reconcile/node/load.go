package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/validity"
)

// Load reads a topology and reports all its errors, see package validity. An error is
// of kind Invalid, or that of a context that has ended.
func Load(ctx context.Context, data []byte, set contract.Set) (*topology.Topology, []string, error) {
	t, notes, err := validity.File(ctx, data, set)
	if err != nil && ctx.Err() == nil {
		err = fault.New(fault.Invalid, err)
	}
	return t, notes, err
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
