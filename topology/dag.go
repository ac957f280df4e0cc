package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/nearest"
)

// Order returns the steps in order of execution: a step comes after everything
// it depends on, and among steps that are ready the one declared first comes
// first. An unknown dependency, a duplicate name or a cycle is an *Invalid.
func Order(t *Topology) ([]*Step, error) {
	inv := &Invalid{Topology: t.Name}
	checkGraph(t, inv)
	if len(inv.Problems) > 0 {
		return nil, inv
	}
	return t.order(), nil
}

// order is Order for whatever can be ordered; steps in a cycle or behind one
// are left out.
func (t *Topology) order() []*Step {
	out := make([]*Step, 0, len(t.Steps))
	done := make(map[string]bool, len(t.Steps))
	taken := make([]bool, len(t.Steps))
	for {
		next := slices.IndexFunc(t.Steps, func(s Step) bool { return !done[s.Name] && t.ready(&s, done) })
		if next < 0 || taken[next] {
			return out
		}
		taken[next] = true
		done[t.Steps[next].Name] = true
		out = append(out, &t.Steps[next])
	}
}

func (t *Topology) ready(s *Step, done map[string]bool) bool {
	return !slices.ContainsFunc(s.DependOn, func(d string) bool { return !done[d] })
}

// Dependencies returns the steps a step names in dependOn, in that order.
// Names of no step are left out.
func (t *Topology) Dependencies(name string) []*Step {
	s, ok := t.Step(name)
	if !ok {
		return nil
	}
	var out []*Step
	for _, d := range s.DependOn {
		if dep, ok := t.Step(d); ok {
			out = append(out, dep)
		}
	}
	return out
}

// Dependents returns the steps that name a step in dependOn, in order of
// declaration.
func (t *Topology) Dependents(name string) []*Step {
	var out []*Step
	for i := range t.Steps {
		if slices.Contains(t.Steps[i].DependOn, name) {
			out = append(out, &t.Steps[i])
		}
	}
	return out
}

// Ancestors returns every step a step depends on, directly or not, in order of
// declaration. A step in a cycle is its own ancestor.
func (t *Topology) Ancestors(name string) []*Step {
	seen := map[string]bool{}
	queue := []string{name}
	for len(queue) > 0 {
		for _, dep := range t.Dependencies(queue[0]) {
			if !seen[dep.Name] {
				seen[dep.Name] = true
				queue = append(queue, dep.Name)
			}
		}
		queue = queue[1:]
	}
	var out []*Step
	for i := range t.Steps {
		if seen[t.Steps[i].Name] {
			out = append(out, &t.Steps[i])
		}
	}
	return out
}

// checkGraph reports what keeps the steps from being ordered.
func checkGraph(t *Topology, inv *Invalid) {
	seen := map[string]bool{}
	for i := range t.Steps {
		s := &t.Steps[i]
		if seen[s.Name] {
			inv.add(s.Name, "name", "is used by more than one step")
		}
		seen[s.Name] = true
	}
	for i := range t.Steps {
		checkDependOn(t, &t.Steps[i], inv)
	}
	for _, cycle := range t.cycles() {
		inv.add(cycle[0], "dependOn", "forms a cycle: %s", strings.Join(append(cycle, cycle[0]), " → "))
	}
}

func checkDependOn(t *Topology, s *Step, inv *Invalid) {
	for i, dep := range s.DependOn {
		field := fmt.Sprintf("dependOn[%d]", i)
		switch {
		case dep == s.Name:
			inv.add(s.Name, field, "a step cannot depend on itself")
		case slices.Contains(s.DependOn[:i], dep):
			inv.add(s.Name, field, "%q is listed twice", dep)
		default:
			if _, ok := t.Step(dep); !ok {
				inv.add(s.Name, field, "%s", unknownStep(t, s, dep))
			}
		}
	}
}

// unknownStep says that a step named dep does not exist, and which do.
func unknownStep(t *Topology, s *Step, dep string) string {
	others := slices.DeleteFunc(t.Names(), func(n string) bool { return n == s.Name })
	msg := fmt.Sprintf("no step is named %q", dep)
	if hint := nearest.Hint(dep, others); hint != "" {
		return msg + hint
	}
	if len(others) == 0 {
		return msg + ": there is no other step"
	}
	return msg + ": the other steps are " + strings.Join(others, ", ")
}

// cycles returns one cycle per knot of steps that depend on each other, each in
// the direction of dependOn and beginning with the step declared first.
func (t *Topology) cycles() [][]string {
	const (
		unseen = iota
		open
		closed
	)
	state := map[string]int{}
	var path []string
	var out [][]string
	var visit func(name string)
	visit = func(name string) {
		state[name] = open
		path = append(path, name)
		for _, dep := range t.Dependencies(name) {
			switch {
			case dep.Name == name:
				// said by checkDependOn
			case state[dep.Name] == unseen:
				visit(dep.Name)
			case state[dep.Name] == open:
				from := slices.Index(path, dep.Name)
				out = append(out, t.rotate(slices.Clone(path[from:])))
			}
		}
		path = path[:len(path)-1]
		state[name] = closed
	}
	for i := range t.Steps {
		if state[t.Steps[i].Name] == unseen {
			visit(t.Steps[i].Name)
		}
	}
	return out
}

// rotate turns a cycle so that the step declared first leads.
func (t *Topology) rotate(cycle []string) []string {
	for i := range t.Steps {
		if at := slices.Index(cycle, t.Steps[i].Name); at >= 0 {
			return append(slices.Clone(cycle[at:]), cycle[:at]...)
		}
	}
	return cycle
}
