package topology

import (
	"slices"

	"github.com/plumbline/plumbline/topology/contract"
)

// flow describes a step's result before it is applied. Entries are distinguished
// by the step that made them, so that an entry that reaches a step on two paths counts
// once, as in Merge.
type flow struct {
	interfaces entries
	ips        entries
	routes     entries
}

// entries are counted by the step that appends them. A step's own always come together, so
// that a list holds one element per step, for any number in a schema.
type entries struct {
	from []appended
	open bool // there may be more: as many as configured, or not known
}

type appended struct {
	step  int
	n     int
	maybe bool // may be missing at run time
}

// unknownFlow is the result of a step of which nothing is known.
func unknownFlow() flow { return flow{entries{open: true}, entries{open: true}, entries{open: true}} }

// flowOf computes a step's output from its input.
func flowOf(step int, c contract.Contract, in flow) flow {
	return flow{
		interfaces: through(step, c.Output.Interfaces, in.interfaces),
		ips:        through(step, c.Output.IPs, in.ips),
		routes:     through(step, c.Output.Routes, in.routes),
	}
}

func through(step int, f contract.Flow, in entries) entries {
	var out entries
	if f.Passthrough {
		out = entries{slices.Clone(in.from), in.open}
	}
	n := f.Appends
	switch {
	case n < 0:
		out.open, n = true, 0
	case n == 0 && f.Conditional:
		n = 1 // "appends: 0, conditional: true" may still append
	}
	if n > 0 {
		out.from = append(out.from, appended{step, n, f.Conditional})
	}
	return out
}

// union merges the outputs of dependencies.
func union(flows ...flow) flow {
	var out flow
	for _, f := range flows {
		out.interfaces = out.interfaces.union(f.interfaces)
		out.ips = out.ips.union(f.ips)
		out.routes = out.routes.union(f.routes)
	}
	return out
}

func (e entries) union(o entries) entries {
	seen := make(map[int]bool, len(e.from))
	for _, a := range e.from {
		seen[a.step] = true
	}
	for _, a := range o.from {
		if !seen[a.step] {
			e.from = append(e.from, a)
		}
	}
	e.open = e.open || o.open
	return e
}

// atMost is the number of entries there can be; false when there is no limit.
func (e entries) atMost() (int, bool) {
	n := 0
	for _, a := range e.from {
		n += a.n
	}
	return n, !e.open
}

// atLeast is the number of entries that are there for certain.
func (e entries) atLeast() int {
	n := 0
	for _, a := range e.from {
		if !a.maybe {
			n += a.n
		}
	}
	return n
}
