package graph

import (
	"fmt"
	"html"
	"math"
	"strings"
	"unicode/utf8"
)

// Sizes in pixels. Text is set in a monospaced face, whose width is known
// without measuring.
const (
	margin      = 12
	columnGap   = 56
	padding     = 14
	nameSize    = 14
	detailSize  = 11
	glyphWidth  = 0.61 // of the font size
	minBoxWidth = 84
)

// svg draws the picture without scripts, fonts or external references.
func (p picture) svg() string {
	l := newLayout(p)
	left, widths := p.columns(l)
	right, bottom := 0, 0.0
	for i := range left {
		right = max(right, left[i]+widths[i])
	}
	for _, it := range l.items {
		bottom = max(bottom, it.y+it.height/2)
	}
	width, height := right+margin, px(bottom)+2*margin

	var b strings.Builder
	fmt.Fprintf(&b,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
		width, height, width, height, html.EscapeString("NetworkTopology "+p.name))
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString("NetworkTopology "+p.name))
	b.WriteString("<style>\n")
	fmt.Fprintf(&b,
		"text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, \"DejaVu Sans Mono\", monospace; text-anchor: middle }\n")
	fmt.Fprintf(&b, ".name { font-size: %dpx; font-weight: 600 } .detail { font-size: %dpx }\n", nameSize, detailSize)
	fmt.Fprintf(&b, ".edge { fill: none; stroke: %s; stroke-width: 1.5 } .tip { fill: %s }\n", edgeColour, edgeColour)
	for _, c := range p.classes() {
		fmt.Fprintf(&b,
			".%s rect { fill: %s; stroke: %s; stroke-width: 1.5 } .%s text { fill: %s }\n", c.name, c.fill, c.stroke, c.name, c.text)
	}
	b.WriteString("</style>\n")
	fmt.Fprintf(&b, "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" "+
		"markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"tip\" d=\"M0 0L8 4L0 8z\"/></marker></defs>\n")
	for _, route := range l.routes {
		fmt.Fprintf(&b, "<path class=\"edge\" d=\"%s\" marker-end=\"url(#tip)\"/>\n", path(l, route, left, widths))
	}
	for _, it := range l.items {
		if it.node < 0 {
			continue
		}
		n, x, w := p.nodes[it.node], left[it.layer], widths[it.layer]
		above := px(it.y-it.height/2) + margin
		y := above + boxHeight/2
		fmt.Fprintf(&b, "<g class=\"%s\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>", n.class.name, x, above, w,
			px(it.height))
		fmt.Fprintf(&b, "<text class=\"name\" x=\"%d\" y=\"%d\">%s</text>", x+w/2, y-3, html.EscapeString(n.name))
		fmt.Fprintf(&b, "<text class=\"detail\" x=\"%d\" y=\"%d\">%s</text>", x+w/2, y+13, html.EscapeString(n.detail))
		for i, note := range n.notes {
			fmt.Fprintf(&b, "<text class=\"detail\" x=\"%d\" y=\"%d\">%s</text>", x+w/2, y+13+noteHeight*(i+1), html.EscapeString(note))
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// columns returns where each layer begins and how wide its boxes are.
func (p picture) columns(l *layout) (left, widths []int) {
	x := margin
	for _, layer := range l.layers {
		w := 0
		for _, i := range layer {
			if n := l.items[i].node; n >= 0 {
				w = max(w, p.nodes[n].width())
			}
		}
		left, widths = append(left, x), append(widths, w)
		x += w + columnGap
	}
	return left, widths
}

func (n node) width() int {
	name := float64(utf8.RuneCountInString(n.name)) * nameSize * glyphWidth
	detail := float64(utf8.RuneCountInString(n.detail)) * detailSize * glyphWidth
	for _, note := range n.notes {
		detail = max(detail, float64(utf8.RuneCountInString(note))*detailSize*glyphWidth)
	}
	w := int(math.Ceil(max(name, detail))) + 2*padding
	return max(w+w%2, minBoxWidth) // even, so that halves are whole
}

// path draws an edge: straight through the columns it passes, curved between.
func path(l *layout, route []int, left, widths []int) string {
	first := l.items[route[0]]
	x, y := left[first.layer]+widths[first.layer], px(first.y)+margin
	var b strings.Builder
	fmt.Fprintf(&b, "M%d %d", x, y)
	for n, i := range route[1:] {
		it := l.items[i]
		toX, toY := left[it.layer], px(it.y)+margin
		mid := (toX - x) / 2
		if toY == y {
			fmt.Fprintf(&b, "L%d %d", toX, toY)
		} else {
			fmt.Fprintf(&b, "C%d %d %d %d %d %d", x+mid, y, toX-mid, toY, toX, toY)
		}
		x, y = toX, toY
		if n+2 < len(route) { // across the column of a waypoint
			x += widths[it.layer]
			fmt.Fprintf(&b, "L%d %d", x, y)
		}
	}
	return b.String()
}

func px(f float64) int { return int(math.Round(f)) }
