package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/suggest"
)

// Order returns the steps in order of execution: a step comes after everything
// it depends on, and among steps that are ready the one declared first comes
// first. An unknown dependency, a duplicate name or a cycle is an *Invalid.
func Order(t *Topology) ([]*Step, error) {
	g := newGraph(t)
	inv := newInvalid(t.Name)
	g.check(inv)
	if err := inv.orNil(t); err != nil {
		return nil, err
	}
	order := g.order()
	out := make([]*Step, len(order))
	for i, j := range order {
		out[i] = &t.Steps[j]
	}
	return out, nil
}

// Ancestors returns every step a step depends on, directly or not, in order of
// declaration. A step in a cycle is its own ancestor.
func (t *Topology) Ancestors(name string) []*Step {
	g := newGraph(t)
	i, ok := g.index[name]
	if !ok {
		return nil
	}
	var out []*Step
	for j, is := range g.ancestors(i) {
		if is {
			out = append(out, &t.Steps[j])
		}
	}
	return out
}

// graph is the steps by position.
type graph struct {
	t     *Topology
	index map[string]int // of the first step of a name
	deps  [][]int        // known dependencies, each once
}

func newGraph(t *Topology) *graph {
	g := &graph{t: t, index: make(map[string]int, len(t.Steps)), deps: make([][]int, len(t.Steps))}
	for i := range t.Steps {
		if _, twice := g.index[t.Steps[i].Name]; !twice {
			g.index[t.Steps[i].Name] = i
		}
	}
	for i := range t.Steps {
		seen := make(map[int]bool, len(t.Steps[i].DependOn))
		for _, d := range t.Steps[i].DependOn {
			if j, ok := g.index[d]; ok && !seen[j] {
				seen[j] = true
				g.deps[i] = append(g.deps[i], j)
			}
		}
	}
	return g
}

// order sorts what can be sorted; steps in a cycle, and those that depend on one, are left
// out. It terminates because each round but the last places one step.
func (g *graph) order() []int {
	out := make([]int, 0, len(g.deps))
	done := make([]bool, len(g.deps))
	for {
		next := -1
		for i := range g.deps {
			if !done[i] && !slices.ContainsFunc(g.deps[i], func(d int) bool { return !done[d] }) {
				next = i
				break
			}
		}
		if next < 0 {
			return out
		}
		done[next] = true
		out = append(out, next)
	}
}

// ancestors reports for each step whether step i depends on it.
func (g *graph) ancestors(i int) []bool {
	seen := make([]bool, len(g.deps))
	stack := []int{i}
	for len(stack) > 0 {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, d := range g.deps[top] {
			if !seen[d] {
				seen[d] = true
				stack = append(stack, d)
			}
		}
	}
	return seen
}

// cycles returns one shortest cycle for each group of steps that depend on each
// other, in the direction of dependOn, from the step declared first.
func (g *graph) cycles() [][]int {
	var out [][]int
	reach := make([][]bool, len(g.deps))
	for i := range g.deps {
		reach[i] = g.ancestors(i)
	}
	reported := make([]bool, len(g.deps))
	for i := range g.deps {
		if reported[i] || !reach[i][i] {
			continue
		}
		for j := range g.deps {
			reported[j] = reported[j] || reach[i][j] && reach[j][i]
		}
		if cycle := g.shortestCycle(i); len(cycle) > 1 {
			out = append(out, cycle)
		}
	}
	return out
}

// shortestCycle returns the steps from i along dependOn back to i, ignoring i's dependency
// on itself.
func (g *graph) shortestCycle(i int) []int {
	from := map[int]int{} // a step and who depends on it
	queue := []int{i}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, d := range g.deps[at] {
			if d == i && at != i {
				var path []int
				for ; at != i; at = from[at] {
					path = append(path, at)
				}
				path = append(path, i)
				slices.Reverse(path)
				return path
			}
			if _, seen := from[d]; !seen && d != i {
				from[d] = at
				queue = append(queue, d)
			}
		}
	}
	return nil
}

// check reports why the steps cannot be ordered.
func (g *graph) check(inv *Invalid) {
	for _, cycle := range g.cycles() { // first: they explain most
		names := make([]string, 0, len(cycle)+1)
		for _, i := range append(cycle, cycle[0]) {
			names = append(names, g.t.Steps[i].Name)
		}
		if n := len(names); n > maxListed+2 {
			names = append(names[:maxListed:maxListed], fmt.Sprintf("%d more", n-maxListed-1), names[n-1])
		}
		inv.Addf(names[0], "dependOn", "forms a cycle: %s", strings.Join(names, " → "))
	}
	for i := range g.t.Steps {
		s := &g.t.Steps[i]
		if s.Name != "" && g.index[s.Name] != i {
			message := "more than one step has this name"
			if as, expanded := g.t.Expanded[s.Name]; expanded {
				key := "masterNets"
				if as.ForEach {
					key = "forEach"
				}
				message += fmt.Sprintf(": %s of step %q stands for one, too", key, as.Step)
			}
			inv.Addf(s.Name, "name", "%s", message)
		}
		g.checkDependOn(s, inv)
	}
}

func (g *graph) checkDependOn(s *Step, inv *Invalid) {
	listed := map[string]bool{}
	for i, dep := range s.DependOn {
		if inv.Full() {
			inv.More = true
			return
		}
		field := fmt.Sprintf("dependOn[%d]", i)
		switch _, exists := g.index[dep]; {
		case dep == s.Name:
			inv.Addf(s.Name, field, "a step cannot depend on itself")
		case listed[dep]:
			inv.Addf(s.Name, field, "%q is listed twice", dep)
		case !exists:
			inv.Addf(s.Name, field, "%s", g.unknownStep(s, dep))
		}
		listed[dep] = true
	}
}

// madeOf returns the steps that forEach makes of one that was written.
func (t *Topology) madeOf(written string) (made []string) {
	for i := range t.Steps {
		if as := t.Expanded[t.Steps[i].Name]; as.ForEach && as.Step == written {
			made = append(made, t.Steps[i].Name)
		}
	}
	return made
}

// unknownStep is the message that no step has a name, with the existing names.
func (g *graph) unknownStep(s *Step, name string) string {
	var others []string
	made := g.t.madeOf(name)
	for i := range g.t.Steps {
		if n := g.t.Steps[i].Name; n != "" && n != s.Name {
			others = append(others, n)
		}
	}
	switch {
	case name == "each":
		return "no step is named \"each\": {{ each.value }} and {{ each.index }} stand for something only in a step with forEach"
	case strings.Contains(name, "{{"):
		return fmt.Sprintf("%q is not the name of a step: write that of a step with the same forEach, without a value", name)
	case len(made) > 0:
		return fmt.Sprintf("step %q stands for %s: name one of them, or give this step the same forEach", name, few(made))
	}
	msg := fmt.Sprintf("no step is named %q", name)
	switch hint := suggest.Hint(name, others); {
	case hint != "":
		return msg + hint
	case len(others) == 0:
		return msg + ": there is no other step"
	default:
		return msg + ": the other steps are " + few(others)
	}
}
