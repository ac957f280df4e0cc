package topology

import (
	"slices"

	"github.com/plumbline/plumbline/topology/contract"
)

// flow is what is known of a step's result before anything runs. Entries are
// told apart by who made them, so that what reaches a step on two ways counts
// once, as in Merge.
type flow struct {
	interfaces tokens
	ips        tokens
}

// tokens is a set of entries in order.
type tokens struct {
	set  []token
	open bool // there may be more: as many as configured, or not known
}

type token struct {
	step  int
	index int
	maybe bool // may be missing at run time
}

// unknownFlow is the result of a step of which nothing is known.
func unknownFlow() flow { return flow{tokens{open: true}, tokens{open: true}} }

// flowOf computes a step's output from its input.
func flowOf(step int, c contract.Contract, in flow) flow {
	return flow{
		interfaces: through(step, c.Output.Interfaces, in.interfaces),
		ips:        through(step, c.Output.IPs, in.ips),
	}
}

func through(step int, f contract.Flow, in tokens) tokens {
	var out tokens
	if f.Passthrough {
		out = tokens{slices.Clone(in.set), in.open}
	}
	n := f.Appends
	switch {
	case n < 0:
		out.open, n = true, 0
	case n == 0 && f.Conditional:
		n = 1 // "appends: 0, conditional: true" may still append, seed 000 section 9.2
	}
	for i := range n {
		out.set = append(out.set, token{step, i, f.Conditional})
	}
	return out
}

// union merges the outputs of dependencies.
func union(flows ...flow) flow {
	var out flow
	for _, f := range flows {
		out.interfaces = out.interfaces.union(f.interfaces)
		out.ips = out.ips.union(f.ips)
	}
	return out
}

func (t tokens) union(o tokens) tokens {
	seen := make(map[token]bool, len(t.set))
	for _, k := range t.set {
		seen[k] = true
	}
	for _, k := range o.set {
		if !seen[k] {
			t.set = append(t.set, k)
		}
	}
	t.open = t.open || o.open
	return t
}

// atMost is the number of entries there can be; false when there is no limit.
func (t tokens) atMost() (int, bool) { return len(t.set), !t.open }

// atLeast is the number of entries that are there for certain.
func (t tokens) atLeast() int {
	n := 0
	for _, k := range t.set {
		if !k.maybe {
			n++
		}
	}
	return n
}
