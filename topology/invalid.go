package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/fault"
)

// Invalid holds the errors of a topology, up to a limit: an author of topologies must not
// be able to cause an answer of gigabytes.
type Invalid struct {
	Topology string
	Problems []Problem // in order of declaration of their steps
	// More says that validation stopped here: there may be other problems.
	More bool
}

// Bounds of an answer. Together they keep Error below 128 KiB.
const (
	MaxProblems = 64
	maxMessage  = 1000 // bytes
	maxField    = 250  // bytes of a path
	maxListed   = 6    // names in a message
)

// newInvalid returns an error without problems.
func newInvalid(topology string) *Invalid { return &Invalid{Topology: excerpt.Of(topology, maxKey)} }

// Add adds a problem, cut to a bounded length. Beyond MaxProblems it
// it only notes that there are more.
func (e *Invalid) Add(p Problem) {
	if e.Full() {
		e.More = true
		return
	}
	p.Step, p.Field, p.Message = excerpt.Of(p.Step, maxKey), excerpt.Of(p.Field, maxField), excerpt.Of(p.Message, maxMessage)
	e.Problems = append(e.Problems, p)
}

// Full reports whether no more problems are listed, so that searching for them is useless.
func (e *Invalid) Full() bool { return len(e.Problems) >= MaxProblems }

// few lists the first names.
func few(names []string) string { return excerpt.First(names, maxListed) }

// Problem is one thing that is wrong, and how to fix it.
type Problem struct {
	Step    string // "" for the topology as a whole
	Field   string // path within the step, e.g. "config.links[1].name"; "" for the step as a whole
	Message string
	// Complete reports that Message names the field itself and is a whole sentence.
	Complete bool
	// Place is where the file of the topology has the field.
	Place fault.Place
}

// Error prints one line per problem; a message of several lines follows its
// own heading, indented.
func (e *Invalid) Error() string {
	var lines []string
	for _, p := range e.Each() {
		lines = append(lines, p.Error())
	}
	return strings.Join(lines, "\n")
}

// Each returns the problems one by one.
func (e *Invalid) Each() []*fault.Placed {
	var out []*fault.Placed
	var at fault.Place
	for _, p := range e.Problems {
		at.File = p.Place.File
		out = append(out, &fault.Placed{Place: p.Place, Err: errors.New(p.in(e.Topology))})
	}
	if e.More {
		more := fmt.Errorf("NetworkTopology %q: validation stopped after %d problems: there may be more", e.Topology, len(e.Problems))
		out = append(out, &fault.Placed{Place: at, Err: more})
	}
	return out
}

func (p Problem) in(topology string) string {
	head := fmt.Sprintf("NetworkTopology %q", topology)
	if p.Step != "" {
		head += fmt.Sprintf(", step %q", p.Step)
	}
	if text := p.String(); strings.Contains(text, "\n") {
		return head + ":\n  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
	return head + ": " + p.String()
}

// String returns the problem without the topology and step it is about.
func (p Problem) String() string {
	if p.Field == "" || p.Complete {
		return p.Message
	}
	return p.Field + ": " + p.Message
}

// Addf adds a problem of a field of a step, or of the topology as a whole.
func (e *Invalid) Addf(step, field, format string, args ...any) {
	e.Add(Problem{Step: step, Field: field, Message: fmt.Sprintf(format, args...)})
}

// orNil returns the error with its problems in order of declaration of their
// steps, or nil when nothing is wrong.
func (e *Invalid) orNil(t *Topology) error {
	if len(e.Problems) == 0 {
		return nil
	}
	e.Sort(t)
	return e
}

// Sort sorts the problems by declaration of their steps, which it names as they were written: a
// problem of all steps that one stands for is one.
func (e *Invalid) Sort(t *Topology) {
	at := map[string]int{"": -1}
	for i := range t.Steps {
		name := t.Steps[i].Name
		for _, name := range []string{name, t.Expanded[name].Step} {
			if _, twice := at[name]; !twice {
				at[name] = i
			}
		}
	}
	var all []Problem
	for _, p := range t.ofAll(e.Problems) {
		if p = t.written(p); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	e.Problems = all
	slices.SortStableFunc(e.Problems, func(a, b Problem) int { return at[a.Step] - at[b.Step] })
}

// ofAll names the step that was written in a problem of all steps that one with forEach stands for. A problem of
// some of them stays theirs, and says where they are from.
func (t *Topology) ofAll(problems []Problem) []Problem {
	steps, of := map[string]int{}, map[Problem]int{}
	for _, as := range t.Expanded {
		steps[as.Step]++
	}
	as := func(p Problem) (Expansion, bool) {
		as, expanded := t.Expanded[p.Step]
		return as, expanded && as.ForEach && p.Field != "name"
	}
	for _, p := range problems {
		if from, is := as(p); is {
			p.Step = from.Step
			of[p]++
		}
	}
	out := slices.Clone(problems)
	for i, p := range out {
		from, is := as(p)
		if !is {
			continue
		}
		p.Step = from.Step
		if of[p] < steps[from.Step] {
			p.Step = out[i].Step
			// said before
			if note := fmt.Sprintf(" (the step is forEach[%d] of step %q)", from.Index, from.Step); !strings.HasSuffix(p.Message, note) {
				p.Message += note
			}
		}
		out[i] = p
	}
	return out
}

// written names the step and the field of a problem as they were written. Whether a name is
// given twice can only be said of what it was expanded to.
func (t *Topology) written(p Problem) Problem {
	as, expanded := t.Expanded[p.Step]
	if !expanded || as.ForEach || p.Field == "name" {
		return p
	}
	p.Step = as.Step
	if p.Field == "config.masterNet" {
		p.Field = fmt.Sprintf("config.masterNets[%d]", as.Index)
	}
	return p
}
