package topology

import (
	"fmt"
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
	if strings.Contains(p.Message, "\n") {
		return head + ":\n  " + strings.ReplaceAll(p.Message, "\n", "\n  ")
	}
	return head + ": " + p.String()
}

// String returns the problem without the topology and step it is about.
func (p Problem) String() string {
	if p.Field == "" || strings.Contains(p.Message, "\n") {
		return p.Message
	}
	return p.Field + ": " + p.Message
}

func (e *Invalid) add(step, field, format string, args ...any) {
	e.Problems = append(e.Problems, Problem{step, field, fmt.Sprintf(format, args...)})
}

// orNil returns the error, or nil when nothing is wrong.
func (e *Invalid) orNil() error {
	if len(e.Problems) == 0 {
		return nil
	}
	return e
}
