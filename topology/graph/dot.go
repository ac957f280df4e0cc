package graph

import (
	"fmt"
	"strings"
)

// dot writes a Graphviz digraph.
func (p picture) dot() string {
	quote := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	}
	var b strings.Builder
	fmt.Fprintf(&b, "digraph %s {\n", quote(p.name))
	b.WriteString("  graph [rankdir=LR, bgcolor=transparent]\n")
	b.WriteString("  node [shape=box, style=\"rounded,filled\", fontname=\"Helvetica,Arial,sans-serif\", fontsize=12]\n")
	fmt.Fprintf(&b, "  edge [color=%q]\n", edgeColour)
	for i, n := range p.nodes {
		label := strings.TrimSuffix(quote(n.name), `"`) + `\n` + strings.TrimPrefix(quote(n.detail), `"`)
		fmt.Fprintf(&b, "  s%d [label=%s, fillcolor=%q, color=%q, fontcolor=%q]\n", i, label, n.class.fill, n.class.stroke, n.class.text)
	}
	for _, e := range p.edges {
		fmt.Fprintf(&b, "  s%d -> s%d\n", e[0], e[1])
	}
	b.WriteString("}\n")
	return b.String()
}
