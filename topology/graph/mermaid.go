package graph

import (
	"fmt"
	"strings"
)

// mermaid writes a flowchart. Nodes have identifiers of our own: a step may be
// named "end", which is a keyword of Mermaid.
func (p picture) mermaid() string {
	quote := strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;", ">", "&gt;").Replace
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	for i, n := range p.nodes {
		fmt.Fprintf(&b, "  s%d[\"<b>%s</b><br/>%s", i, quote(n.name), quote(n.detail))
		for _, note := range n.notes {
			fmt.Fprintf(&b, "<br/>%s", quote(note))
		}
		fmt.Fprintf(&b, "\"]:::%s\n", n.class.name)
	}
	for _, e := range p.edges {
		fmt.Fprintf(&b, "  s%d --> s%d\n", e[0], e[1])
	}
	for _, c := range p.classes() {
		fmt.Fprintf(&b, "  classDef %s fill:%s,stroke:%s,color:%s\n", c.name, c.fill, c.stroke, c.text)
	}
	fmt.Fprintf(&b, "  linkStyle default stroke:%s\n", edgeColour)
	return b.String()
}
