package graph

import (
	"fmt"
	"strings"
)

// dot writes a Graphviz digraph.
func (p picture) dot() string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	quote := func(s string) string { return `"` + escape(s) + `"` }
	var b strings.Builder
	fmt.Fprintf(&b, "digraph %s {\n", quote(p.name))
	b.WriteString("  graph [rankdir=LR, bgcolor=transparent]\n")
	b.WriteString("  node [shape=box, style=\"rounded,filled\", fontname=\"Helvetica,Arial,sans-serif\", fontsize=12]\n")
	fmt.Fprintf(&b, "  edge [color=%q]\n", edgeColour)
	for i, n := range p.nodes {
		lines := make([]string, 0, 2+len(n.notes))
		for _, line := range append([]string{n.name, n.detail}, n.notes...) {
			lines = append(lines, escape(line))
		}
		label := `"` + strings.Join(lines, `\n`) + `"`
		fmt.Fprintf(&b, "  s%d [label=%s, fillcolor=%q, color=%q, fontcolor=%q]\n", i, label, n.class.fill, n.class.stroke, n.class.text)
	}
	for _, e := range p.edges {
		fmt.Fprintf(&b, "  s%d -> s%d\n", e[0], e[1])
	}
	b.WriteString("}\n")
	return b.String()
}
