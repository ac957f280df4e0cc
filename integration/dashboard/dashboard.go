package dashboard

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/plumbline/plumbline/integration/prometheus"
)

// Dashboard has the fields of Grafana's model that we use.
type Dashboard struct {
	Title  string
	Panels []Panel
}

// Panel is a row's title, a number, or curves.
type Panel struct {
	ID          int
	Type        string // "row", "stat" or "timeseries"
	Title       string
	Description string
	GridPos     struct{ X, Y, W, H int } // in 24ths of the width, and in lines
	FieldConfig struct {
		Defaults struct {
			Unit       string // see units
			Thresholds struct{ Steps []Threshold }
			Custom     struct{ Stacking struct{ Mode string } }
		}
	}
	Targets []Target
}

// Threshold colours a number from a value on; the first has none.
type Threshold struct {
	Color string
	Value *float64
}

// Target is a query of a panel.
type Target struct {
	RefID        string
	Expr         string
	LegendFormat string
}

// Parse reads a dashboard, and refuses what Draw could not draw.
func Parse(data []byte) (*Dashboard, error) {
	d := &Dashboard{}
	if err := json.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	seen := map[int]bool{}
	for _, p := range d.Panels {
		unit := p.FieldConfig.Defaults.Unit
		switch {
		case p.Type == "row":
		case p.Type != "stat" && p.Type != "timeseries":
			return nil, fmt.Errorf("dashboard: panel %q: type %q is not drawn", p.Title, p.Type)
		case len(p.Targets) == 0:
			return nil, fmt.Errorf("dashboard: panel %q: asks nothing", p.Title)
		case units[unit] == nil:
			return nil, fmt.Errorf("dashboard: panel %q: unit %q is not known", p.Title, unit)
		case p.Description == "":
			return nil, fmt.Errorf("dashboard: panel %q: does not say what it shows", p.Title)
		}
		if seen[p.ID] {
			return nil, fmt.Errorf("dashboard: panel %q: its id %d is another one's, too", p.Title, p.ID)
		}
		seen[p.ID] = true
	}
	return d, nil
}

var variable = regexp.MustCompile(`\$\{?[A-Za-z_]+\}?`)

// Fill puts values in the place of a query's variables, as Grafana does.
func Fill(expr string, values map[string]string) (string, error) {
	var missing []string
	out := variable.ReplaceAllStringFunc(expr, func(name string) string {
		value, ok := values[strings.Trim(name, "${}")]
		if !ok {
			missing = append(missing, name)
		}
		return value
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("query %q: no value for %s", expr, strings.Join(missing, ", "))
	}
	return out, nil
}

var label = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// legend names a series.
func (t Target) legend(s prometheus.Series) string {
	return label.ReplaceAllStringFunc(t.LegendFormat, func(m string) string { return s.Labels[label.FindStringSubmatch(m)[1]] })
}
