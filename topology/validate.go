package topology

import "github.com/plumbline/plumbline/topology/contract"

// Validate says everything that is wrong with a topology, given the contracts
// of the known step types. The error is an *Invalid.
func Validate(t *Topology, set contract.Set) error {
	inv := &Invalid{Topology: t.Name}
	checkGraph(t, inv)
	return inv.orNil()
}
