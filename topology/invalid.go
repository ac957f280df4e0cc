package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Invalid is everything that is wrong with a topology.
type Invalid struct {
	Topology string
	Problems []Problem // in order of declaration of their steps
}

// Problem is one thing that is wrong, and how to mend it.
type Problem struct {
	Step    string // "" for the topology as a whole
	Field   string // path within the step, e.g. "config.links[1].name"; "" for the step as a whole
	Message string
	// Complete says that Message names the field itself and stands alone, as
	// the sentences of seed 000 section 9.3 do.
	Complete bool
}

// Error prints one line per problem; a message of several lines follows its
// own heading, indented.
func (e *Invalid) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.in(e.Topology)
	}
	return strings.Join(lines, "\n")
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

func (e *Invalid) add(step, field, format string, args ...any) {
	e.Problems = append(e.Problems, Problem{Step: step, Field: field, Message: fmt.Sprintf(format, args...)})
}

// orNil returns the error with its problems in order of declaration of their
// steps, or nil when nothing is wrong.
func (e *Invalid) orNil(t *Topology) error {
	if len(e.Problems) == 0 {
		return nil
	}
	at := map[string]int{"": -1}
	for i := range t.Steps {
		if _, twice := at[t.Steps[i].Name]; !twice {
			at[t.Steps[i].Name] = i
		}
	}
	slices.SortStableFunc(e.Problems, func(a, b Problem) int { return at[a.Step] - at[b.Step] })
	return e
}
