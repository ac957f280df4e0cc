package validity

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/fault"
)

// Member is a valid topology of a pod.
type Member struct {
	*topology.Topology
	// WithoutInterface has the root steps whose devices have no interface that could be in the pod,
	// such as one of a userspace driver.
	WithoutInterface map[string]bool
}

// Together returns an error of kind Invalid if topologies cannot be added to those that are in a pod,
// as two make an interface of one name, such as the default one. with is the index of the one that
// is there, -1 if both are added. Existing ones are not compared with each other. The error is of kind
// NotReady if the context has ended. set holds the contracts of all step types.
func Together(ctx context.Context, set contract.Set, there, added []Member) (with int, err error) {
	maker, ok := set.(topology.Maker)
	if !ok || len(there)+len(added) < 2 || len(added) == 0 {
		return -1, nil
	}
	type source struct {
		topology, step string
		with           int
	}
	from := map[string]source{}
	for i, m := range slices.Concat(there, added) {
		made, err := maker.Interfaces(ctx, m.Topology)
		if err != nil {
			return -1, fault.New(fault.NotReady, err)
		}
		for _, name := range slices.Sorted(maps.Keys(made)) {
			of := source{m.Name, cmp.Or(m.Expanded[made[name]].Step, made[name]), i}
			if i >= len(there) {
				of.with = -1
			}
			if m.WithoutInterface[of.step] {
				continue
			}
			other, twice := from[name]
			switch {
			case !twice:
				from[name] = of
			case i < len(there):
			case other.topology == of.topology:
				return other.with,
					fault.New(fault.Invalid, fmt.Errorf("NetworkTopology %q is in the same pod twice, and step %q makes an interface %q: "+
						"request another topology, whose steps have other names of interfaces",
						of.topology, of.step, name))
			default:
				return other.with, fault.New(fault.Invalid, fmt.Errorf(
					"NetworkTopology %q, step %q: makes an interface %q, as step %q of NetworkTopology %q does in the same pod: "+
						"set another ifName in the config of one of them, then delete the pod and create it again",
					of.topology, of.step, name, other.step, other.topology))
			}
		}
	}
	return -1, nil
}
