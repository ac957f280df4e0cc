package controller

import (
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/contract"
)

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
