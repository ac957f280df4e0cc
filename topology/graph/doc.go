// Package graph draws a topology: as a Mermaid or Graphviz description, or as
// an SVG picture laid out here.
//
// The pictures are deterministic, so they can be committed and compared, and legible on
// light and dark pages. A status per step colours it: nothing else about a running pod is
// known here. Render is the main function.
package graph
