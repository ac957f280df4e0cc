package node

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/validity"
)

// Load reads a topology and reports all its errors and those of what its steps are given,
// see package validity. An error is of kind Invalid, or that of a context that has ended.
func Load(ctx context.Context, f *topology.Manifest, given ops.Givens, set contract.Set) (*topology.Topology, []string, error) {
	t, notes, err := validity.Topology(ctx, f, ops.Giving(set, given))
	if err != nil && ctx.Err() == nil {
		err = fault.New(fault.Invalid, err)
	}
	return t, notes, err
}

// WithoutAgent returns a topology as a pod has it, also if it is the pod network. An error is of kind Invalid: the
// addresses of such a network may be of the node's pod CIDRs, which only the agent of a cluster knows.
func WithoutAgent(t *topology.Topology, set contract.Set) (*topology.Topology, error) {
	switch {
	case t.Role == "":
		return t, nil
	case t.UsesPodCIDRs(set):
		return nil, fault.New(fault.Invalid, fmt.Errorf(
			"NetworkTopology %q: it has the role %q, and the agent of a node gives its pods addresses of the node's pod CIDRs: "+
				"see it with `plumbline plan`, or write a copy without role and with addresses", t.Name, t.Role))
	}
	return t.ForPod(set, nil, topology.PodInterface), nil
}

// ParseDevices reads assignments "STEP=DEVICE", as the command line takes them.
func ParseDevices(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		step, device, ok := strings.Cut(arg, "=")
		if !ok || step == "" || device == "" {
			return nil,
				fault.New(fault.Invalid, fmt.Errorf("%q is not of the form STEP=DEVICE, as in vf0=0000:03:10.0 or vf0=enp3s0f0v0", arg))
		}
		if other, twice := out[step]; twice {
			return nil, fault.New(fault.Invalid, fmt.Errorf("step %q is given two devices, %q and %q", step, other, device))
		}
		out[step] = device
	}
	return out, nil
}

// NoAddresses is the word that takes away the addresses which a step was given before.
const NoAddresses = "none"

// ParseAddresses reads assignments "STEP=ADDRESS", as the command line takes them. A step
// that is given NoAddresses is in the result without any.
func ParseAddresses(args []string) (ops.Givens, error) {
	byStep := map[string][]string{}
	for _, arg := range args {
		step, address, ok := strings.Cut(arg, "=")
		if !ok || step == "" || address == "" {
			return nil, fault.New(fault.Invalid,
				fmt.Errorf("%q is not of the form STEP=ADDRESS, as in data0=192.0.2.5/24 or data0=%s", arg, NoAddresses))
		}
		byStep[step] = append(byStep[step], address)
	}
	for step, addresses := range byStep {
		switch {
		case !slices.Contains(addresses, NoAddresses):
		case len(addresses) > 1:
			addresses = slices.DeleteFunc(addresses, func(a string) bool { return a == NoAddresses })
			return nil, fault.New(fault.Invalid, fmt.Errorf("step %q is given %s and %q: keep one", step, NoAddresses, addresses))
		default:
			byStep[step] = nil
		}
	}
	return givenAddresses(byStep, func(step string, _ int) string { return fmt.Sprintf("step %q", step) })
}

// givenAddresses reads the addresses of steps. place says where one was given.
func givenAddresses(byStep map[string][]string, place func(step string, i int) string) (ops.Givens, error) {
	if len(byStep) == 0 {
		return nil, nil
	}
	out := ops.Givens{}
	for _, step := range slices.Sorted(maps.Keys(byStep)) {
		var given ops.Given
		for i, text := range byStep[step] {
			canonical, err := contract.CIDR.Canonical(text)
			if err != nil {
				return nil, fault.New(fault.Invalid, fmt.Errorf("%s: %w", place(step, i), err))
			}
			given.Addresses = append(given.Addresses, netip.MustParsePrefix(canonical))
		}
		out[step] = given
	}
	return out, nil
}
