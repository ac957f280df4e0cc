package dashboard

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/plumbline/plumbline/integration/prometheus"
)

// Answers are the results of a dashboard's queries.
type Answers struct {
	From, To time.Time
	Step     time.Duration
	// Of holds, per panel's ID, the series of each of its targets.
	Of map[int][][]prometheus.Series
	// Note is a line below the title: of what the data are.
	Note string
}

// Sizes in pixels.
const (
	width      = 1680
	lineHeight = 27
	gutter     = 8
	top        = 64
	axis       = 58 // left of the curves
	glyph      = 0.56
)

// colours distinguish series, also for people with color blindness.
var colours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a5195", "#8c8c00", "#444444", "#a05d56"}

var thresholdColours = map[string][2]string{"green": {"#dafbe1", "#116329"}, "red": {"#ffd7d5", "#a40e26"}}

// Draw draws a dashboard as a picture in SVG, with no script and no reference
// outside.
func Draw(d *Dashboard, a Answers) string {
	bottom := 0
	for _, p := range d.Panels {
		bottom = max(bottom, p.GridPos.Y+p.GridPos.H)
	}
	height := top + bottom*lineHeight + gutter
	c := &canvas{}
	c.printf("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
		width, height, width, height, html.EscapeString("Dashboard "+d.Title))
	c.printf("<style>text{font-family:system-ui,\"DejaVu Sans\",Helvetica,Arial,sans-serif;font-size:11px;fill:#57606a}" +
		".h{font-size:22px;font-weight:700;fill:#1f2328}.r{font-size:15px;font-weight:700;fill:#1f2328}" +
		".t{font-size:12.5px;font-weight:600;fill:#1f2328}.e{text-anchor:end}.m{text-anchor:middle}" +
		".n{font-size:34px;font-weight:700;text-anchor:middle}.g{stroke:#d8dee4;stroke-width:1}</style>\n")
	c.printf("<rect width=\"%d\" height=\"%d\" fill=\"#f6f8fa\"/>\n", width, height)
	c.text(gutter+4, 30, "h", d.Title)
	c.text(gutter+4, 51, "", a.Note)
	for _, p := range d.Panels {
		b := box{
			x: gutter + float64(p.GridPos.X)*(width-gutter)/24, y: top + float64(p.GridPos.Y*lineHeight),
			w: float64(p.GridPos.W)*(width-gutter)/24 - gutter, h: float64(p.GridPos.H*lineHeight) - gutter,
		}
		switch p.Type {
		case "row":
			c.text(b.x+4, b.y+16, "r", p.Title)
		case "stat":
			c.number(p, b, a)
		default:
			c.curves(p, b, a)
		}
	}
	c.printf("</svg>\n")
	return c.String()
}

type box struct{ x, y, w, h float64 }

type canvas struct{ strings.Builder }

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(c, format, args...) }

func (c *canvas) text(x, y float64, class, text string) {
	if class != "" {
		class = " class=\"" + class + "\""
	}
	c.printf("<text x=\"%s\" y=\"%s\"%s>%s</text>\n", px(x), px(y), class, html.EscapeString(text))
}

// px is a coordinate, no finer than one sees.
func px(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

func (c *canvas) frame(b box, fill string) {
	c.printf("<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" rx=\"4\" fill=\"%s\" stroke=\"#d0d7de\"/>\n", px(b.x), px(b.y), px(b.w),
		px(b.h), fill)
}

// number draws the last value of a panel's query.
func (c *canvas) number(p Panel, b box, a Answers) {
	said, shade := "no data", [2]string{"#ffffff", "#57606a"}
	if v, ok := last(a.Of[p.ID]); ok {
		said = units[p.FieldConfig.Defaults.Unit](v)
		for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
			if step.Value == nil || v >= *step.Value {
				shade = thresholdColours[step.Color]
			}
		}
	}
	c.frame(b, shade[0])
	c.text(b.x+10, b.y+20, "t", p.Title)
	c.printf("<text x=\"%s\" y=\"%s\" class=\"n\" style=\"fill:%s\">%s</text>\n", px(b.x+b.w/2), px(b.y+70), shade[1],
		html.EscapeString(said))
}

func last(of [][]prometheus.Series) (float64, bool) {
	for _, target := range of {
		for _, s := range target {
			for _, p := range slices.Backward(s.Points) {
				if !math.IsNaN(p.Value) {
					return p.Value, true
				}
			}
		}
	}
	return 0, false
}

// curve is a series as it is drawn.
type curve struct {
	name   string
	colour string
	at     []float64 // per step; NaN where there is nothing
	base   []float64 // of a stacked one: what is below it
}

func (c *canvas) curves(p Panel, b box, a Answers) {
	c.frame(b, "#ffffff")
	c.text(b.x+10, b.y+20, "t", p.Title)
	all := lay(p, a)
	names := legendLines(all, b.w-20)
	plot := box{b.x + axis, b.y + 34, b.w - axis - 14, b.h - 34 - 22 - float64(len(names))*15 - 4}
	most := 0.0
	for _, cv := range all {
		for i, v := range cv.at {
			if !math.IsNaN(v) {
				most = max(most, v+cv.base[i])
			}
		}
	}
	marks := ticks(most, p.FieldConfig.Defaults.Unit)
	most = marks[len(marks)-1]
	y := func(v float64) float64 { return plot.y + plot.h - v/most*plot.h }
	steps := float64(a.steps())
	x := func(i int) float64 { return plot.x + float64(i)/max(steps-1, 1)*plot.w }
	for _, m := range marks {
		c.printf("<path class=\"g\" d=\"M%s %sH%s\"/>\n", px(plot.x), px(y(m)), px(plot.x+plot.w))
		c.text(plot.x-6, y(m)+4, "e", units[p.FieldConfig.Defaults.Unit](m))
	}
	for n := range 4 {
		at := a.From.Add(a.To.Sub(a.From) / 4 * time.Duration(n)).Add(a.To.Sub(a.From) / 8)
		c.text(plot.x+plot.w*(float64(n)+0.5)/4, plot.y+plot.h+15, "m", at.UTC().Format("15:04:05"))
	}
	if len(all) == 0 {
		c.text(plot.x+plot.w/2, plot.y+plot.h/2, "m", "no data")
	}
	stacked := p.stacked()
	for _, cv := range slices.Backward(all) {
		for _, run := range runs(cv.at) {
			line := make([]string, 0, len(run))
			for _, i := range run {
				line = append(line, px(x(i))+" "+px(y(cv.at[i]+cv.base[i])))
			}
			if stacked && len(run) > 1 {
				area := slices.Clone(line)
				for _, i := range slices.Backward(run) {
					area = append(area, px(x(i))+" "+px(y(cv.base[i])))
				}
				c.printf("<path d=\"M%sZ\" fill=\"%s\" fill-opacity=\".25\"/>\n", strings.Join(area, "L"), cv.colour)
			}
			c.printf(
				"<path d=\"M%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n",
				strings.Join(append(line, line[len(line)-1]), "L"), cv.colour)
		}
	}
	for n, names := range names {
		at := b.x + 12
		for _, cv := range names {
			yy := b.y + b.h - 10 - float64(len(legendLines(all, b.w-20))-1-n)*15
			c.printf("<path d=\"M%s %sh12\" stroke=\"%s\" stroke-width=\"3\"/>\n", px(at), px(yy-4), cv.colour)
			c.text(at+17, yy, "", cv.name)
			at += nameWidth(cv.name)
		}
	}
}

func (p Panel) stacked() bool { return p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal" }

func (a Answers) steps() int { return int(a.To.Sub(a.From)/a.Step) + 1 }

// lay turns the answers of a panel into curves, in order of their names.
func lay(p Panel, a Answers) []curve {
	var out []curve
	for i, target := range a.Of[p.ID] {
		for _, s := range target {
			cv := curve{name: p.Targets[i].legend(s), at: make([]float64, a.steps()), base: make([]float64, a.steps())}
			for n := range cv.at {
				cv.at[n] = math.NaN()
			}
			for _, pt := range s.Points {
				if n := int(math.Round(pt.Time.Sub(a.From).Seconds() / a.Step.Seconds())); n >= 0 && n < len(cv.at) {
					cv.at[n] = pt.Value
				}
			}
			if slices.ContainsFunc(cv.at, func(v float64) bool { return !math.IsNaN(v) }) {
				out = append(out, cv)
			}
		}
	}
	slices.SortStableFunc(out, func(x, y curve) int { return cmp.Compare(x.name, y.name) })
	sum := make([]float64, a.steps())
	for i := range out {
		out[i].colour = colours[i%len(colours)]
		if p.stacked() {
			copy(out[i].base, sum)
			for n, v := range out[i].at {
				if !math.IsNaN(v) {
					sum[n] += v
				}
			}
		}
	}
	return out
}

// runs are the indexes of values that follow each other.
func runs(at []float64) [][]int {
	var out [][]int
	var run []int
	for i, v := range at {
		if !math.IsNaN(v) {
			run = append(run, i)
			continue
		}
		if run != nil {
			out = append(out, run)
		}
		run = nil
	}
	if run != nil {
		out = append(out, run)
	}
	return out
}

func nameWidth(name string) float64 { return 17 + float64(utf8.RuneCountInString(name))*11*glyph + 12 }

// legendLines breaks the names of curves into lines. Curves beyond four
// of them are drawn without a name.
func legendLines(all []curve, width float64) [][]curve {
	var out [][]curve
	at := width
	for _, cv := range all {
		w := nameWidth(cv.name)
		if at+w > width {
			if len(out) == 4 {
				break
			}
			out, at = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], cv)
		at += w
	}
	return out
}
