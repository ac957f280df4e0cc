package dashboard_test

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plumbline/plumbline/integration/dashboard"
	"github.com/plumbline/plumbline/integration/prometheus"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const chart = "../../chart/plumbline/dashboards/plumbline.json"

// Each query of the chart's dashboard has values for all its variables, and asks by
// node.
func TestChartsDashboard(t *testing.T) {
	data, err := os.ReadFile(chart)
	if err != nil {
		t.Fatal(err)
	}
	d, err := dashboard.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{"node": "n1|n2", "topology": ".*", "__rate_interval": "1m"}
	queries := 0
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panels %q and %q overlap", other, p.Title)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			queries++
			expr, err := dashboard.Fill(target.Expr, values)
			if err != nil {
				t.Error(err)
			}
			if !strings.Contains(expr, `node=~"n1|n2"`) {
				t.Errorf("panel %q does not heed the choice of nodes: %s", p.Title, expr)
			}
		}
	}
	if unknown := unknownMetrics(t, d); len(unknown) > 0 {
		t.Errorf("no package exposes %q", unknown)
	}
	if queries < len(d.Panels)/2 {
		t.Errorf("%d queries in %d panels", queries, len(d.Panels))
	}
}

// unknownMetrics are the metrics of queries which no golden file of an exposition has: each of our metrics is in one.
func unknownMetrics(t *testing.T, d *dashboard.Dashboard) (unknown []string) {
	t.Helper()
	exposed := ""
	for _, pattern := range []string{"../../reconcile/*/testdata/exposition.txt", "../../reconcile/pod/*/testdata/exposition.txt", "../../qos/*/testdata/exposition.txt"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal("no metrics", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			exposed += string(data)
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			for _, name := range ourMetric.FindAllString(target.Expr, -1) {
				name = histogram.ReplaceAllString(name, "_seconds")
				if !strings.Contains(exposed, "# TYPE "+name+" ") {
					unknown = append(unknown, name)
				}
			}
		}
	}
	return unknown
}

var (
	ourMetric = regexp.MustCompile(`plumbline_\w+`)
	histogram = regexp.MustCompile(`_seconds_(bucket|sum|count)$`)
)

// TestUnknownMetrics: a query of a metric that does not exist is found.
func TestUnknownMetrics(t *testing.T) {
	d := &dashboard.Dashboard{Panels: []dashboard.Panel{{Targets: []dashboard.Target{{Expr: "sum(plumbline_sandboxes) / plumbline_sandboxen"}}}}}
	if have := unknownMetrics(t, d); len(have) != 1 || have[0] != "plumbline_sandboxen" {
		t.Errorf("%q", have)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ json, want string }{
		"another type": {`{"panels":[{"type":"gauge","title":"x"}]}`, `panel "x": type "gauge" is not drawn`},
		"no query":     {`{"panels":[{"type":"stat","title":"x"}]}`, `panel "x": asks nothing`},
		"unit":         {`{"panels":[{"type":"stat","title":"x","targets":[{}],"fieldConfig":{"defaults":{"unit":"furlong"}}}]}`, `unit "furlong" is not known`},
		"description":  {`{"panels":[{"type":"stat","title":"x","targets":[{}],"fieldConfig":{"defaults":{"unit":"s"}}}]}`, "does not say what it shows"},
		"one id twice": {`{"panels":[{"id":1,"type":"row","title":"x"},{"id":1,"type":"row","title":"y"}]}`, "its id 1 is another one's"},
		"no json":      {`{`, "unexpected end"},
	} {
		if _, err := dashboard.Parse([]byte(tt.json)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, tt.want)
		}
	}
	if _, err := dashboard.Fill(`x{node=~"$nodes"}[$__rate_interval]`, map[string]string{"node": "x"}); err == nil || !strings.Contains(err.Error(), "no value for $nodes, $__rate_interval") {
		t.Errorf("variables without a value: %v", err)
	}
}

// TestDraw draws numbers, stacked and plain curves with gaps, and panels without
// data; two series of one panel are never of one colour.
func TestDraw(t *testing.T) {
	data, err := os.ReadFile("testdata/board.json")
	if err != nil {
		t.Fatal(err)
	}
	d, err := dashboard.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	from := time.Unix(1700000000, 0)
	series := func(name string, values ...float64) prometheus.Series {
		s := prometheus.Series{Labels: map[string]string{"name": name}}
		for i, v := range values {
			s.Points = append(s.Points, prometheus.Point{Time: from.Add(time.Duration(i) * 10 * time.Second), Value: v})
		}
		return s
	}
	nan := math.NaN()
	got := dashboard.Draw(d, dashboard.Answers{
		From: from, To: from.Add(time.Minute), Step: 10 * time.Second, Note: "of <nothing>",
		Of: map[int][][]prometheus.Series{
			2: {{series("", 0, 1, nan)}},
			3: {{series("", 0)}},
			5: {{series("b", 1, 2, 3, 2, 1, 0, 0), series("a & b", 0, 0, 1, 1, 1, nan, 2)}},
			6: {{series("only", nan, 0.002, nan, 0.25, 0.5)}},
		},
	})
	const file = "testdata/board.svg"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got; -update rewrites %s:\n%s", file, diff)
	}
}
