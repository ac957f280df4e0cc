//go:build cluster

package prometheus_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/plumbline/plumbline/integration/eventually"
	"github.com/plumbline/plumbline/integration/prometheus"
)

// TestServer queries a Prometheus that evaluates a rule and scrapes no target.
func TestServer(t *testing.T) {
	programs, err := prometheus.Programs(t.Context(), "../../.cache", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := prometheus.Start(t.Context(), programs, t.TempDir(), "nonsense: 1"); err == nil || !strings.Contains(err.Error(), "field nonsense not found") {
		t.Errorf("a wrong configuration: error %v, want what it says of it", err)
	}
	began := time.Now()
	s, err := prometheus.Start(t.Context(), programs, t.TempDir(), `
global: {scrape_interval: 200ms, scrape_timeout: 200ms}
scrape_configs: [{job_name: nobody, static_configs: [{targets: ["127.0.0.1:1"]}]}]
`)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	one, err := s.Query(t.Context(), `label_replace(vector(42), "a", "b", "", "")`)
	if err != nil || len(one) != 1 || one[0].Labels["a"] != "b" || len(one[0].Points) != 1 || one[0].Points[0].Value != 42 {
		t.Errorf("one value: %+v, %v", one, err)
	}
	many, err := s.Range(t.Context(), "time()", began, began.Add(10*time.Second), time.Second)
	if err != nil || len(many) != 1 || len(many[0].Points) != 11 {
		t.Fatalf("values over time: %+v, %v", many, err)
	}
	if first := many[0].Points[0]; first.Time.Sub(began).Abs() > time.Millisecond || first.Value != float64(first.Time.UnixMilli())/1000 {
		t.Errorf("the first of them: %+v, want %s", first, began)
	}
	if _, err := s.Query(t.Context(), "sum("); err == nil || !strings.Contains(err.Error(), "parse error") {
		t.Errorf("no query: error %v, want what is wrong with it", err)
	}
	eventually.Holds(t, time.Minute, "the target that is not there is reported", func() string {
		targets, err := s.Targets(t.Context())
		if err == nil && len(targets) == 1 && targets[0].Health == "down" && strings.Contains(targets[0].Error, "refused") {
			return ""
		}
		return fmt.Sprint(targets, err)
	})
}
