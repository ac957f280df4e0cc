package ports

import (
	"slices"

	"github.com/plumbline/plumbline/topology"
)

// Severity is the effect of a failure on the pod.
type Severity int

// The severities.
const (
	Fine     Severity = iota
	Degraded          // it works, and the next failure may end that
	Lost              // a network of the pod is gone
)

// String names it as the API does.
func (s Severity) String() string { return [...]string{"Fine", "Degraded", "Lost"}[s] }

// joins are the kinds of links that continue to work when one of the links below them fails.
// The other ports of a bond replace the failed one; with a bridge or a VRF, a part of the
// pod's network is lost.
var joins = map[string]bool{"bond": true, "bridge": true, "vrf": true}

// Outcome is the effect of failed ports.
type Outcome struct {
	Topology Severity
	// Devices maps root steps whose own port is down to the consequence for the pod:
	// Degraded if what is built on it still works.
	Devices map[string]Severity
}

// Weigh returns what the verdicts on the ports of a topology mean, by the graph of its
// steps. A port that is Unknown counts as up.
func Weigh(t *topology.Topology, ports []Port, verdicts []Verdict) Outcome {
	g := graphOf(t, ports, verdicts)
	out := Outcome{Devices: map[string]Severity{}}
	for i := range t.Steps {
		name := t.Steps[i].Name
		if !g.has[name] {
			continue
		}
		switch s := g.severity(name); {
		case s == Fine:
		case len(g.above[name]) == 0:
			out.Topology = max(out.Topology, s)
		default:
			out.Topology = max(out.Topology, Degraded)
		}
	}
	for name := range g.down {
		if len(g.below[name]) == 0 {
			out.Devices[name] = g.consequence(name)
		}
	}
	return out
}

// graph is the graph of the steps that have a port.
type graph struct {
	has, down, joins map[string]bool
	below, above     map[string][]string
	known            map[string]Severity
}

func graphOf(t *topology.Topology, ports []Port, verdicts []Verdict) *graph {
	g := &graph{
		has: map[string]bool{}, down: map[string]bool{}, joins: map[string]bool{},
		below: map[string][]string{}, above: map[string][]string{}, known: map[string]Severity{},
	}
	for i, p := range ports {
		g.has[p.Step] = true
		g.joins[p.Step] = g.joins[p.Step] || joins[p.Kind]
		if verdicts[i].Status == Down {
			g.down[p.Step] = true
		}
	}
	depends := map[string][]string{}
	for i := range t.Steps {
		depends[t.Steps[i].Name] = t.Steps[i].DependOn
	}
	for i := range t.Steps {
		name := t.Steps[i].Name
		if !g.has[name] {
			continue
		}
		// Steps without a port, such as those of type tuning, pass on what is below them.
		seen := map[string]bool{}
		var walk func(string)
		walk = func(at string) {
			for _, d := range depends[at] {
				switch {
				case seen[d]:
				case g.has[d]:
					seen[d] = true
					g.below[name] = append(g.below[name], d)
					g.above[d] = append(g.above[d], name)
				default:
					seen[d] = true
					walk(d)
				}
			}
		}
		walk(name)
	}
	return g
}

// severity of a step: what is left of the link it has made or moved.
func (g *graph) severity(name string) Severity {
	if s, ok := g.known[name]; ok {
		return s
	}
	worst, best := Fine, Lost
	for _, d := range g.below[name] {
		s := g.severity(d)
		worst, best = max(worst, s), min(best, s)
	}
	out := worst
	switch {
	case g.down[name]:
		out = Lost
	case g.joins[name] && worst == Lost && best != Lost:
		out = Degraded
	}
	g.known[name] = out
	return out
}

// consequence is the effect of a failed step on the steps built on it.
func (g *graph) consequence(name string) Severity {
	if len(g.above[name]) == 0 {
		return g.severity(name)
	}
	out := Degraded
	for _, upper := range g.above[name] {
		if !g.joins[upper] || g.severity(upper) == Lost {
			out = max(out, g.consequence(upper))
		}
	}
	return out
}

// Leg reports which port a root step is judged by: the device that was moved, else the
// first link it has made.
func Leg(ports []Port, step string) int {
	if i := slices.IndexFunc(ports, func(p Port) bool { return p.Step == step && p.Device != "" }); i >= 0 {
		return i
	}
	return slices.IndexFunc(ports, func(p Port) bool { return p.Step == step })
}
